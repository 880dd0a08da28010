"""Translates resources into the specs of `controller.core`: resolves defaults, and turns text into base units.

Names that thousands of pipelines share are interned to save memory.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from sys import intern
from typing import TypeVar, cast

from controller.aws.price_table import bundled_quote
from controller.core.state.cloud import (
    QUOTA_CODES,
    AwsPrice,
    PriceOrigin,
    PriceQuote,
    Purchase,
    QuotaFamily,
    QuotaSource,
)
from controller.core.state.schedule import CronFloor, CronWindows, DemandFloor, EventFloor, WeeklyFloor
from controller.core.state.spec import (
    BELOW_LIVE,
    NO_SLA_S,
    UNDECLARED_CV,
    UNDECLARED_SERVICE,
    UNDECLARED_STARTUP_S,
    AppliedBatching,
    BacklogSpec,
    BudgetPeriod,
    BudgetSpec,
    CascadeSpec,
    ColdStart,
    ConfigKey,
    Declared,
    DemandUnit,
    HistorySpec,
    LabelSelector,
    Mode,
    PipelineQueries,
    PipelineSpec,
    PlacementSpec,
    PoolSpec,
    Requirement,
    Rule,
    RuleMetric,
    Scaling,
    StageSpec,
    StepPolicy,
    left_of_prefill,
)
from controller.resources import cron
from controller.resources.annotations import overrides
from controller.resources.backlog import Backlog
from controller.resources.budget import ComputeBudget
from controller.resources.fields import clock_s, duration_s, moment_s, quantity_bytes
from controller.resources.history import History
from controller.resources.pipeline import ScaleDown, ScaleUp, SpeechPipeline
from controller.resources.pipeline_rules import takes_from
from controller.resources.placement import Memory, ServiceTime, Workload
from controller.resources.pool import ComputePool, Price, vcpus_per_instance
from controller.resources.schedule import CronEntry, ExpectedDemand, LeastDemand
from controller.resources.stage import Cascade, MetricLabels, Stage, ThresholdRule
from controller.resources.time_zones import time_zone
from optimizer import model
from optimizer.model import InvalidProblem, Link, PipelineKey, PoolName, Routing, ServiceLaw, StageName
from profiler.samples import Answer, SeriesLabels
from profiler.season import finest_step_s

_Part = TypeVar("_Part")
_CPU_DEADLINE = "5m"
_ACCELERATOR_DEADLINE = "15m"
"""As long as Karpenter and the cluster autoscaler give a node: those with accelerators are scarcer, and their drivers
and images take minutes to load."""
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def pipeline_spec(resource: SpeechPipeline) -> PipelineSpec:
    """Return the spec of `resource`, which must be valid: `controller.resources.parsing` found no breach.

    A stage with `sharedFrom` has no placements yet: `controller.core.state.shared` takes them from the other pipeline.
    """
    metadata, spec = resource.metadata, resource.spec
    namespace = intern(metadata.namespace or "default")
    backlog, sla = spec.demand.backlog, spec.sla
    query = spec.demand.query if backlog is None else backlog.query
    assert query is not None, "validation requires demand.query or demand.backlog"
    return PipelineSpec(
        key=PipelineKey(f"{namespace}/{metadata.name}"),
        namespace=namespace,
        name=metadata.name,
        uid=metadata.uid,
        generation=metadata.generation,
        mode=Mode(spec.mode),
        priority=spec.priority - (0 if backlog is None else BELOW_LIVE),
        unit=DemandUnit(spec.demand.unit),
        chunk_s=None if spec.demand.chunk is None else duration_s(spec.demand.chunk),
        queries=PipelineQueries(demand=query, latency=None if sla is None else sla.query),
        sla=model.Sla(latency_s=NO_SLA_S)
        if sla is None
        else model.Sla(latency_s=duration_s(sla.latency), percentile=float(sla.percentile)),
        max_wer=None if sla is None else _number(sla.max_wer),
        max_wer_by_slice={} if sla is None else _rates(sla.max_wer_by_slice),
        budget_per_hour=float(spec.budget.per_hour),
        scaling=_shared(
            Scaling(
                tolerance=float(spec.scaling.tolerance),
                up=_step_policy(spec.scaling.scale_up),
                down=_step_policy(spec.scaling.scale_down),
                drain_s=duration_s(spec.scaling.scale_down.drain),
                idle_after_s=_idle_after_s(resource),
                cold_start=None if spec.scaling.cold_start is None else ColdStart(spec.scaling.cold_start),
                session_cut_cost=float(spec.scaling.session_cut_cost),
                mixing=model.Mixing(spec.scaling.mixing),
                cut_cost_s=None
                if spec.scaling.rebalance.mode == "Never"
                else duration_s(spec.scaling.rebalance.cut_cost),
            )
        ),
        stages=tuple(_paced(_stage(spec.stages, index, namespace), backlog) for index in range(len(spec.stages))),
        at_least=(*map(_floor, spec.demand.at_least), *map(_cron_floor, spec.demand.expected)),
        sheds=spec.demand.admission == "Shed",
        declared_basis=None if spec.budget.basis is None else model.Basis(spec.budget.basis),
        overrides=overrides(resource),
        history=None if spec.demand.history is None else _history(spec.demand.history),
        backlog=None if backlog is None else _backlog(backlog),
    )


def _shared(part: _Part) -> _Part:
    """Return the first part that is equal to `part`: thousands of pipelines have few different ones."""
    return cast("_Part", _first(part))


@lru_cache(1024)
def _first(part: Hashable) -> Hashable:
    return part


def _backlog(backlog: Backlog) -> BacklogSpec:
    return BacklogSpec(
        deadline_s=None if backlog.deadline is None else moment_s(backlog.deadline),
        within_s=None if backlog.within is None else duration_s(backlog.within),
        shares_fragile=backlog.shares_fragile == "Allowed",
    )


def _idle_after_s(resource: SpeechPipeline) -> float | None:
    """Return after how long without demand stages go to zero: a backlog that is empty needs no replica."""
    idle_after = resource.spec.scaling.idle_after
    if idle_after is not None:
        return duration_s(idle_after)
    return None if resource.spec.demand.backlog is None else 0.0


def _paced(stage: StageSpec, backlog: Backlog | None) -> StageSpec:
    """Return `stage` with the service times that `itemsPerReplica` states, for placements that state none."""
    rates = {} if backlog is None else backlog.items_per_replica

    def paced(placement: PlacementSpec) -> PlacementSpec:
        stated = rates.get(placement.pool)
        if stated is None or placement.declared.service:
            return placement
        law = ServiceLaw(per_item_s=3600 * placement.prior.concurrency / float(stated), cv=UNDECLARED_CV)
        prior, declared = replace(placement.prior, service=law), replace(placement.declared, service=True)
        return replace(placement, prior=prior, declared=declared)

    return replace(stage, placements=tuple(map(paced, stage.placements))) if rates else stage


def _history(history: History) -> HistorySpec:
    season_s, given = duration_s(history.season), history.resolution
    return HistorySpec(
        season_s=season_s,
        seasons=history.seasons,
        # Range queries have steps of whole seconds.
        step_s=finest_step_s(season_s, history.seasons) if given is None else float(ceil(duration_s(given))),
        query=history.query,
    )


def pool_spec(resource: ComputePool, quote: PriceQuote | None = None) -> PoolSpec:
    """Return the spec of `resource`, which must be valid as for `pipeline_spec`.

    `quote` is the price that AWS gave for `price.aws`. Without one, `price.perHour` counts, then the bundled table.

    Raises:
        InvalidProblem: no price is known.
    """
    spec, deadline = resource.spec, resource.spec.unavailable.pending_deadline
    looked_up = aws_price(resource)
    if looked_up is None:
        assert spec.price.per_hour is not None, "validation requires perHour or aws"
        quote, price_per_hour = None, float(spec.price.per_hour)
    else:
        quote = quote or _price_without_aws(spec.price, looked_up)
        price_per_hour = quote.per_hour
    return PoolSpec(
        name=PoolName(resource.metadata.name),
        uid=resource.metadata.uid,
        generation=resource.metadata.generation,
        device=spec.device,
        node_selector=spec.node_selector,
        price_per_hour=price_per_hour,
        instances=spec.capacity.instances,
        node_pool=spec.capacity.node_pool,
        ready_nodes=spec.capacity.ready_nodes,
        pending_deadline_s=duration_s(deadline or (_CPU_DEADLINE if spec.device == "CPU" else _ACCELERATOR_DEADLINE)),
        backoff_initial_s=duration_s(spec.unavailable.backoff.initial),
        backoff_max_s=duration_s(spec.unavailable.backoff.max),
        node_prices_per_hour={name: float(price) for name, price in (spec.price.by_instance_type or {}).items()},
        looked_up=looked_up,
        price=quote,
        quota=quota_source(resource),
        auto_scaling_group=spec.capacity.auto_scaling_group,
    )


def aws_price(resource: ComputePool) -> AwsPrice | None:
    """Return the look-up of the pool's price at AWS, None where the price is declared."""
    aws = resource.spec.price.aws
    if aws is None:
        return None
    return AwsPrice(
        instance_types=aws.names(),
        region=aws.region,
        purchase=Purchase(aws.purchase),
        savings=float(aws.savings or 0),
        zones=tuple(aws.zones),
        refresh_s=duration_s(aws.refresh),
    )


def _price_without_aws(price: Price, looked_up: AwsPrice) -> PriceQuote:
    """Return the price to use while AWS gives none: the declared one, else that of the bundled table."""
    if price.per_hour is not None:
        return PriceQuote(per_hour=float(price.per_hour), origin=PriceOrigin.DECLARED, as_of_s=None)
    bundled = bundled_quote(looked_up)
    if bundled is None:
        raise InvalidProblem(
            f"spec.price.aws: no price is known for {', '.join(looked_up.instance_types)} in {looked_up.region}, and "
            "AWS has not given one; set spec.price.perHour, which counts until it does"
        )
    return bundled


def quota_source(resource: ComputePool) -> QuotaSource | None:
    """Return the quota that bounds the pool, None where its capacity names none."""
    quota = resource.spec.capacity.quota
    if quota is None:
        return None
    purchase = Purchase(quota.purchase)
    vcpus = vcpus_per_instance(resource.spec)
    assert vcpus is not None, "validation requires vcpusPerInstance where no instance type says it"
    if quota.family is not None:
        code = QUOTA_CODES[QuotaFamily(quota.family), purchase]
    else:
        assert quota.code is not None, "validation requires family or code"
        code = quota.code
    family: str = quota.family or next((one.value for (one, _), known in QUOTA_CODES.items() if known == code), code)
    return QuotaSource(
        code=code, region=quota.region, vcpus=vcpus, purchase=purchase, name=f"{family} {quota.purchase}"
    )


def budget_spec(resource: ComputeBudget) -> BudgetSpec:
    """Return the spec of `resource`, which must be valid as for `pipeline_spec`."""
    spec, selector = resource.spec, resource.spec.namespace_selector
    return BudgetSpec(
        name=resource.metadata.name,
        uid=resource.metadata.uid,
        generation=resource.metadata.generation,
        selector=LabelSelector(
            labels=selector.match_labels,
            requirements=tuple(
                Requirement(key=one.key, operator=one.operator, values=frozenset(one.values))
                for one in selector.match_expressions
            ),
        ),
        per_hour=float(spec.per_hour),
        periods=tuple(
            BudgetPeriod(per_hour=float(period.per_hour), windows=windows_of(period)) for period in spec.periods
        ),
    )


def _floor(entry: LeastDemand) -> DemandFloor:
    name, demand = entry.name, float(entry.demand)
    if entry.start is not None:
        assert entry.end is not None, "validation requires start and end together"
        return EventFloor(name=name, demand=demand, start_s=moment_s(entry.start), end_s=moment_s(entry.end))
    assert entry.from_ is not None, "validation requires from or start"
    assert entry.until is not None, "validation requires from and until together"
    return WeeklyFloor(
        name=name,
        demand=demand,
        from_s=clock_s(entry.from_),
        until_s=clock_s(entry.until),
        days=tuple(_DAYS.index(day) for day in entry.days or _DAYS),
        zone=time_zone(entry.time_zone or "UTC"),
    )


def _cron_floor(entry: ExpectedDemand) -> CronFloor:
    return CronFloor(name=entry.schedule, demand=float(entry.at_least), windows=windows_of(entry))


def windows_of(entry: CronEntry) -> CronWindows:
    """Return the times of `entry`, which must be valid."""
    times = cron.parse(entry.schedule)
    return CronWindows(
        minutes=times.minutes,
        hours=times.hours,
        days=times.days,
        months=times.months,
        weekdays=times.weekdays,
        for_s=duration_s(entry.for_),
        zone=time_zone(entry.time_zone or "UTC"),
    )


def _stage(stages: list[Stage], index: int, namespace: str) -> StageSpec:
    stage, shared = stages[index], stages[index].shared_from
    spec = StageSpec(
        name=StageName(intern(stage.name)),
        after=tuple(StageName(intern(name)) for name in takes_from(stages, index)),
        pass_ratio=float(stage.pass_ratio),
        routing=_routing(stage),
        queue_limit=stage.queue_limit,
        preset=stage.metrics.preset,
        metrics_window_s=duration_s(stage.metrics.window),
        metric_overrides={override.quantity: override.query for override in stage.metrics.overrides},
        metrics_model=None if stage.metrics.model is None else intern(stage.metrics.model),
        metrics_labels=_series_labels(stage.metrics.labels),
        metrics_answer=Answer.WHOLE if stage.metrics.answer is None else stage.metrics.answer,
        rules=tuple(_rule(rule) for rule in stage.rules),
        placements=tuple(
            _placement(own, continuous=stage.continuous(own.placement), link=way_back or _link(stage))
            for (_, own), way_back in zip(stage.workloads(), stage.ways_back, strict=True)
        ),
        shared_from=None
        if shared is None
        else (PipelineKey(f"{namespace}/{shared.pipeline}"), StageName(intern(shared.stage))),
    )
    return spec if stage.cascade is None else _in_cascade(spec, stage.cascade)


def _in_cascade(spec: StageSpec, cascade: Cascade) -> StageSpec:
    share = float(cascade.share)
    alone = {placement.name: (placement.prior.wer, placement.wer_by_slice) for placement in spec.placements}
    declared = CascadeSpec(
        to=model.named_placement(intern(cascade.to)),
        share=share,
        declared_share=share,
        wer=_number(cascade.wer),
        confidence=_number(cascade.confidence),
        alone=alone,
    )
    return replace(spec, cascade=declared).with_share(share)


def _series_labels(labels: MetricLabels | None) -> SeriesLabels | None:
    if labels is None:
        return None
    return SeriesLabels(
        namespace=labels.namespace,
        pod=labels.pod,
        match=tuple(sorted((each.label, each.value) for each in labels.match)),
    )


def _routing(stage: Stage) -> Routing:
    if stage.routing is not None:
        return Routing(stage.routing)
    has_memory = any(own.placement.memory is not None for _, own in stage.workloads())
    return Routing.STICKY if has_memory else Routing.LEAST_LOADED


def _rule(rule: ThresholdRule) -> Rule:
    return Rule(
        name=rule.name,
        metric=None if rule.metric is None else RuleMetric(rule.metric),
        query=rule.query,
        above=_number(rule.above),
        below=_number(rule.below),
        add_replicas=rule.add_replicas,
        per_zone=rule.per == "Zone",
        cooldown_s=duration_s(rule.cooldown),
    )


def _link(stage: Stage) -> Link | None:
    transfer = stage.transfer
    if transfer is None:
        return None
    item_s = quantity_bytes(transfer.bytes_per_item) / quantity_bytes(transfer.bandwidth)
    return Link(item_s=item_s, fixed_s=duration_s(transfer.fixed))


def _placement(workload: Workload, *, continuous: bool, link: Link | None) -> PlacementSpec:
    placement = workload.placement
    time, batching = placement.service_time, placement.batching
    sizes = (1,) if batching is None else batching.limits()
    # A wait that stands beside a preset whose servers batch continuously is not one of theirs.
    waits_s = (0.0,) if batching is None or continuous else batching.waits_s()
    prior = model.Placement(
        pool=PoolName(intern(placement.pool)),
        service=UNDECLARED_SERVICE if time is None else _service_law(time),
        min_replicas=placement.replicas.min,
        max_replicas=placement.replicas.max,
        per_instance=placement.per_instance if workload.instances == 1 else Fraction(1, workload.instances),
        concurrency=placement.concurrency,
        batching=model.Batching.CONTINUOUS if continuous else model.Batching.DYNAMIC,
        batch_sizes=sizes,
        batch_wait_s=waits_s[0],
        batch_waits_s=waits_s if len(waits_s) > 1 else (),
        session_slots=None if placement.memory is None else _session_slots(placement.memory),
        wer=_number(placement.wer),
        variant=None if workload.variant is None else intern(workload.variant),
        link=link,
    )
    return PlacementSpec(
        target=workload.target.reference(),
        prior=_shared(prior),
        startup_s=UNDECLARED_STARTUP_S if placement.startup is None else duration_s(placement.startup),
        declared=_shared(
            Declared(
                service=time is not None,
                cv=time is not None and time.cv is not None,
                startup=placement.startup is not None,
                memory=placement.memory is not None,
            )
        ),
        source=None if time is None else time.source,
        confidence=None if time is None else time.confidence,
        wer_by_slice=_rates(placement.wer_by_slice),
        cache=None if placement.memory is None else placement.memory.shape,
        applied=None
        if batching is None or batching.apply is None
        else AppliedBatching(
            at=ConfigKey(config_map=batching.apply.config_map, key=batching.apply.key),
            sizes=sizes,
            waits_s=tuple(dict.fromkeys(round(wait_s, 6) for wait_s in waits_s)),  # as they are written
        ),
        prefix_hit_rate=0.0 if time is None else _number(time.prefix_hit_rate) or 0.0,
    )


def _service_law(time: ServiceTime) -> ServiceLaw:
    return ServiceLaw(
        fixed_s=duration_s(time.fixed),
        per_item_s=duration_s(time.per_item),
        floor_s=duration_s(time.floor),
        points=tuple(sorted((int(size), duration_s(text)) for size, text in (time.points or {}).items())),
        prefill_s=duration_s(time.prefill) * left_of_prefill(_number(time.prefix_hit_rate) or 0.0),
        cv=UNDECLARED_CV if time.cv is None else float(time.cv),
    )


def _session_slots(memory: Memory) -> int:
    if memory.shape is not None:
        return memory.shape.session_slots
    assert memory.sessions is not None, "validation requires sessions or kvCache"
    return memory.sessions


def _step_policy(scale: ScaleUp | ScaleDown) -> StepPolicy:
    return StepPolicy(
        stabilization_s=duration_s(scale.stabilization),
        max_share=scale.max_step.percent / 100,
        max_replicas=scale.max_step.replicas,
    )


def _rates(by_slice: Mapping[str, str] | None) -> dict[str, float]:
    return {intern(name): float(rate) for name, rate in (by_slice or {}).items()}


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
