"""The status documents of resources, made from a Decision. Texts come from `controller.core.messages`.

Observed numbers are rounded to two significant digits. Numbers that a user relies on are rounded to the safe side: a
servable load down, a required budget up.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

from controller.core.act.admission import LAPSE_S
from controller.core.messages.conditions import ConditionValue, budget_condition, conditions, pool_conditions
from controller.core.messages.diagnosis import cause_words
from controller.core.messages.explain import explain_pipeline, reason_sentence
from controller.core.messages.phrases import timestamp
from controller.core.messages.reasons import ConditionType
from controller.core.messages.sentences import season_words, short_words
from controller.core.messages.summary import summary
from controller.core.state.carry_over import BatchMemory, PriceMemory
from controller.core.state.cloud import PriceOrigin, lookup_text
from controller.core.state.decision import BacklogOutlook, BudgetDecision, Decision, PipelineDecision, PoolDecision
from controller.core.state.diagnosis import Finding
from controller.core.state.schedule import field_of
from controller.core.state.shards import MILLS
from controller.core.state.snapshot import BudgetState, Orphan, PipelineState, PoolState, Snapshot, TargetMissing
from controller.core.state.spec import Declared, PoolSpec
from controller.kube.durable import memory_document, without_nulls
from controller.kube.gateway import Json
from controller.kube.shard_entries import entries_from
from controller.kube.workloads import seconds
from controller.resources.budget import MAX_NAMESPACES, MAX_SHORT
from controller.resources.pipeline_status import MAX_CAUSES, MAX_CROWDED
from controller.resources.pool import MAX_NODE_PRICES, MAX_ORPHANS
from optimizer.model import PlacementKey, PoolName, ServiceLaw, Size, placement_fields, whole_instances
from optimizer.plan import PipelinePlan, PlacementPlan
from profiler.samples import Absence, DeviceQuantity, Quantity, Reading
from profiler.stages import PlacementProfile, StageProfile

_OBSERVED_DIGITS = 2
_RELIED_ON_DIGITS = 3
_SMALLEST, _LARGEST = Decimal("1e-12"), Decimal("1e30")
_MESSAGE = 2048  # characters that the schema allows
_TOLD_S, _FORGOTTEN_S = 600.0, 1800.0
"""How often another operator repeats its condition, and the age at which it is dropped: that operator is gone then."""


def pipeline_status(
    snapshot: Snapshot,
    state: PipelineState,
    own: PipelineDecision,
    decision: Decision,
    old: Json,
    planned: str | None = None,
) -> Json:
    """Return the status of the pipeline `state` as JSON; `own` is its decision, a part of `decision`.

    `old` is the stored status. A condition whose status has not changed keeps its transition time. `planned` is the
    text of `own.planned`.
    """
    spec, now_s = state.spec, decision.now_s
    plan, profile, known = own.plan, own.profile, own.demand.known
    # Several pipelines have the lower bound and the optimality gap together.
    alone = decision.plan if decision.plan is not None and len(decision.plan.pipelines) == 1 else None
    status: Json = without_nulls(
        {
            "observedGeneration": spec.generation,
            "conditions": [*_conditions(conditions(own), old, spec.generation, now_s), *_told_by_another(old, now_s)],
            "diagnosis": causes(own) or None,
            "summary": summary(own),
            "demand": number(own.demand.planned),
            **({} if known is None else {field_of(known): known.name}),
            "observedDemand": number(own.demand.observed),
            "demandHistory": season_words(own) or None,
            "backlog": None if own.backlog is None else _backlog(own.backlog),
            "metrics": {
                "source": own.metrics.tier.value,
                "lostSince": None if own.metrics.lost_since_s is None else timestamp(own.metrics.lost_since_s),
                "margin": None if own.metrics.lost_since_s is None else number(own.metrics.margin),
            },
            "entryRate": number(None if own.demand.planned is None else own.demand.planned * spec.items_per_unit_s),
            "latency": {
                "seconds": number(profile.latency_s),
                "source": None if isinstance(profile.latency_s, Absence) else profile.latency_source.value,
                "predictedSeconds": None if plan is None else number(plan.latency_s),
                "predictedError": None if plan is None else number(plan.latency_error),
                "replayedSeconds": None if plan is None else number(plan.replay.latency_s),
                "overheadSeconds": number(profile.overhead_s),
                "bestSeconds": None if plan is None else number(plan.advice.best_latency_s, rounding=ROUND_CEILING),
            },
            "bottleneck": profile.bottleneck,
            "nextBottleneck": None if plan is None else plan.bottleneck,
            "limitedBy": None if plan is None or plan.limited_by is None else str(plan.limited_by),
            "costPerHour": None if plan is None else number(plan.cost_per_hour),
            "billedPerHour": None if plan is None else number(_billed_per_hour(state, plan, snapshot.pools)),
            "movedReplicas": None if plan is None else plan.moved_replicas,
            "switchingCostPerHour": None if plan is None else number(plan.switching_cost_per_hour),
            "spendPerHour": number(own.spend_per_hour),
            "budgetBasis": spec.basis.value,
            "budgetPerHour": _plain(Decimal(repr(spec.budget_per_hour))),
            "requiredBudgetPerHour": None
            if plan is None
            else number(plan.advice.required_budget_per_hour, rounding=ROUND_CEILING),
            "lowerBoundPerHour": None if alone is None else number(alone.lower_bound_per_hour),
            "gap": None if alone is None else number(alone.gap),
            "servedFraction": None if plan is None else number(plan.served_fraction, rounding=ROUND_FLOOR),
            "admissible": number(own.admissible, rounding=ROUND_FLOOR),
            "admissibleUntil": None if own.admissible is None else timestamp(now_s + LAPSE_S),
            "stages": [_stage(stage, state, own) for stage in profile.stages],
            "lastDecision": _last_decision(own, old, now_s),
            "memory": {
                **memory_document(own.memory, planned),
                "explanation": {"time": timestamp(now_s), "lines": explain_pipeline(own, now_s)},
            },
        }
    )
    return status


def _backlog(found: BacklogOutlook) -> Json:
    return {
        "left": number(found.left),
        "requiredRate": number(found.required_rps),
        "rate": number(found.rate_rps),
        "deadline": None if found.due_s is None else timestamp(found.due_s),
        "expectedFinish": None if found.finish_s is None else timestamp(found.finish_s),
        "met": found.met,
        "waitsUntil": None if found.waits_until_s is None else timestamp(found.waits_until_s),
        "expectedCost": number(found.cost),
        "later": [
            {"extension": f"{own.extension:.0%}", "saving": number(own.saving, rounding=ROUND_FLOOR)}
            for own in found.later
        ]
        or None,
    }


def causes(decision: PipelineDecision) -> list[Json]:
    """Return what the diagnosis of a decision found, as `status.diagnosis` has it, the most certain first."""
    return [without_nulls(_cause(finding, decision)) for finding in decision.diagnosis[:MAX_CAUSES]]


def _cause(finding: Finding, decision: PipelineDecision) -> Json:
    words = cause_words(finding, decision)
    return {
        "cause": finding.cause.value,
        "because": None if finding.because is None else finding.because.value,
        "stage": finding.stage,
        "confidence": number(finding.confidence),
        "evidence": list(words.evidence),
        "remedy": words.remedy,
        "costPerHour": number(finding.cost_per_hour),
    }


def invalid_status(old: Json, generation: int, condition: ConditionValue, now_s: float) -> Json:
    """Return the status of a resource that cannot be used: `old` with `condition`, which says why.

    The rest of `old` stays, because the operator resumes from it. Only `admissible` is set to what the last plan admits
    (absent: no limit). It may have been lower while replicas were starting, and nothing would raise it until the
    resource is usable again. It is not renewed, and lapses.
    """
    outdated = {condition.type, ConditionType.ONE_OPERATOR.value}
    others = [other for other in old.get("conditions", []) if other["type"] not in outdated]
    others += _told_by_another(old, now_s)
    by_plan = (old.get("memory") or {}).get("admissible")
    admissible = number(by_plan, rounding=ROUND_FLOOR) if isinstance(by_plan, int | float) else None
    return {
        **{field: value for field, value in old.items() if field not in {"admissible", "admissibleUntil"}},
        **({} if admissible is None else {"admissible": admissible}),
        **({"admissibleUntil": old["admissibleUntil"]} if admissible is not None and "admissibleUntil" in old else {}),
        "observedGeneration": generation,
        "conditions": [*_conditions((condition,), old, generation, now_s), *others],
    }


def foreign_status(old: Json, generation: int, condition: ConditionValue, now_s: float) -> Json:
    """Return the status of a pipeline that another operator scales: `old` with `condition`, repeated now and then.

    The operator that scales it keeps that condition for half an hour.
    """
    told = _told_by_another(old, now_s, within_s=_TOLD_S)
    if told and told[0]["message"] == condition.message:
        return old
    others = [other for other in old.get("conditions", []) if other["type"] != condition.type]
    return {**old, "conditions": [*others, *_conditions((condition,), {}, generation, now_s)]}


def pool_status(state: PoolState, decision: PoolDecision, old: Json, now_s: float) -> Json:
    """Return the status of a pool as JSON; `old` is the stored status, from which transition times are kept."""
    memory = decision.memory
    node_pool = state.node_pool
    found = pool_conditions(state, memory, now_s, decision.claimed)
    status: Json = without_nulls(
        {
            "observedGeneration": state.spec.generation,
            "conditions": _conditions(found, old, state.spec.generation, now_s),
            "inUse": number(decision.in_use),
            "free": number(max(0.0, decision.limit - decision.in_use)),
            "planned": decision.planned,
            "limit": decision.limit,
            "bounds": {
                "instances": state.spec.instances,
                "nodePool": None if node_pool is None or state.spec.node_pool is None else node_pool.instances,
                "autoScalingGroup": None
                if node_pool is None or state.spec.auto_scaling_group is None
                else node_pool.instances,
                "quota": state.quota_instances,
                "readyNodes": state.ready_instances if state.spec.ready_nodes else None,
            },
            "arriving": None if node_pool is None else len(node_pool.claims),
            "zones": decision.zones,
            "pricePerHour": _plain(Decimal(repr(state.spec.price_per_hour))),
            "price": price_document(state.spec, decision.price),
            "quota": _quota(state, decision),
            "shadowPricePerHour": number(decision.shadow_price_per_hour),
            "unavailableUntil": None if memory.unavailable_until_s is None else timestamp(memory.unavailable_until_s),
            "backoffSeconds": None if memory.backoff_s is None else _plain(Decimal(repr(memory.backoff_s))),
            "nodeLaunchSeconds": number(memory.launch_s),
            "nodePoolInstances": memory.instances,
            "reason": memory.reason or None,
            "orphans": orphan_documents(state.orphans) or None,
        }
    )
    return status


def orphan_documents(orphans: Sequence[Orphan]) -> list[Json]:
    """Return workloads that no pipeline has any more as they are in the status of their pool."""
    return [
        without_nulls(
            {
                "namespace": own.namespace,
                "apiVersion": own.target.api_version,
                "kind": own.target.kind,
                "name": own.target.name,
                "address": (own.target.serve.address or None) if own.target.serve else None,
                "rayService": (own.target.serve.service or None) if own.target.serve else None,
                "pipeline": own.pipeline,
                "replicas": own.replicas,
                "perInstance": max(1, int(own.per_instance)),
                "instancesPerReplica": int(1 / own.per_instance) if own.per_instance < 1 else None,
            }
        )
        for own in orphans[:MAX_ORPHANS]
    ]


def divided_pool_status(status: Json, state: PoolState, old: Json, shard: int) -> Json:
    """Return the status of a pool that shards divide: `status` is what the divider, `shard`, says of its own part.

    The entries of the shards and their orphans are written apart, and stay as they are in `old`.
    """
    others = sum(entry.used for entry in entries_from(old) if entry.shard != shard)
    in_use = float(status["inUse"]) + others
    wants = [entry.want for entry in entries_from(old) if entry.want is not None]
    prices = [want.price_per_hour for want in wants if want.price_per_hour is not None]
    price = float(status["shadowPricePerHour"]) if "shadowPricePerHour" in status else None
    if prices:
        price = max([*prices, *(() if price is None else (price,))])
    return {
        **without_nulls({**status, "shadowPricePerHour": number(price)}),
        "inUse": number(in_use),
        "free": number(max(0.0, state.capacity - in_use)),
        "planned": status["planned"] + others,
        "limit": state.capacity,
        **{name: old[name] for name in ("shards", "orphans") if name in old},
    }


def divided_budget_status(status: Json, state: BudgetState, old: Json, limit_per_hour: float, shard: int) -> Json:
    """Return the status of a ComputeBudget that shards divide: `status` is what `shard` says of its own part.

    `limit_per_hour` is what all shards may spend together.
    """
    entries = entries_from(old, MILLS)
    others = sum(entry.used for entry in entries if entry.shard != shard) / MILLS
    users = sum(entry.users for entry in entries if entry.shard != shard)
    return {
        **status,
        "limitPerHour": _plain(Decimal(repr(limit_per_hour))),
        "spendPerHour": number(float(status["spendPerHour"]) + others, rounding=ROUND_CEILING),
        "pipelines": status["pipelines"] + users,
        "namespaces": sorted(state.namespaces)[:MAX_NAMESPACES],
        **({"shards": old["shards"]} if "shards" in old else {}),
    }


def price_document(spec: PoolSpec, remembered: PriceMemory | None) -> Json | None:
    """Return where the price of a pool comes from, and its last change; `controller.kube.kept_answers` reads it.

    None for a declared price that has not changed.
    """
    quote = spec.price
    changed = None if remembered is None else remembered.changed_at_s
    if quote is None and changed is None:
        return None
    return {
        "source": PriceOrigin.DECLARED.value if quote is None else quote.origin.value,
        "asOf": None if quote is None or quote.as_of_s is None else timestamp(quote.as_of_s),
        "lookup": None if spec.looked_up is None else lookup_text(spec.looked_up),
        "at": None if quote is None or not quote.at else quote.at,
        "dayLowPerHour": None if quote is None or quote.day is None else _exact(quote.day.low_per_hour),
        "dayHighPerHour": None if quote is None or quote.day is None else _exact(quote.day.high_per_hour),
        "nodes": None
        if quote is None or not quote.by_node
        else [
            {
                "instanceType": name.partition("/")[0],
                "zone": name.partition("/")[2] or None,
                "perHour": _exact(per_hour),
            }
            for name, per_hour in sorted(quote.by_node.items())[:MAX_NODE_PRICES]
        ],
        "changedAt": None if changed is None else timestamp(changed),
        "beforePerHour": None
        if remembered is None or remembered.before_per_hour is None
        else _exact(remembered.before_per_hour),
        "countedPerHour": None
        if remembered is None or remembered.counted_per_hour is None
        else _exact(remembered.counted_per_hour),
        "risenAt": None if remembered is None or remembered.risen_at_s is None else timestamp(remembered.risen_at_s),
        "problem": None if quote is None or not quote.problem else quote.problem,
    }


def _quota(state: PoolState, decision: PoolDecision) -> Json | None:
    source, reading = state.spec.quota, state.quota
    if source is None:
        return None
    binding = reading is not None and reading.limit_vcpus is not None and state.bound_by_quota
    increase = reading.needed_for(state.capacity + 1, source.vcpus) if reading is not None and binding else None
    return {
        "code": source.code,
        "name": source.name,
        "region": source.region,
        "limitVcpus": None if reading is None or reading.limit_vcpus is None else _exact(reading.limit_vcpus),
        "usedByOthersVcpus": None if reading is None or reading.others_vcpus is None else _exact(reading.others_vcpus),
        "vcpusPerInstance": source.vcpus,
        "asOf": None if reading is None or reading.as_of_s is None else timestamp(reading.as_of_s),
        "increaseToVcpus": increase,
        "worthPerHour": number(decision.shadow_price_per_hour) if binding else None,
        "problem": None if reading is None or not reading.problem else reading.problem,
    }


def _exact(value: float) -> str:
    return _plain(Decimal(repr(float(value))))


def budget_status(state: BudgetState, decision: BudgetDecision, spec: Json, old: Json, now_s: float) -> Json:
    """Return the status of a ComputeBudget, which declares `spec`, as JSON.

    `old` is the stored status, from which transition times are kept, and the last valid spec where `spec` is invalid.
    """
    condition = budget_condition(decision, state.unread, state.problem)
    namespaces = sorted({key.partition("/")[0] for key in decision.pipelines})
    valid_spec = old.get("validSpec") if state.problem else json.dumps(spec, sort_keys=True, separators=(",", ":"))
    status: Json = without_nulls(
        {
            "observedGeneration": state.spec.generation,
            "conditions": _conditions((condition,), old, state.spec.generation, now_s),
            "limitPerHour": _plain(Decimal(repr(decision.limit_per_hour))),
            "spendPerHour": number(decision.spend_per_hour, rounding=ROUND_CEILING),
            "plannedPerHour": number(decision.planned_per_hour, rounding=ROUND_CEILING),
            "pipelines": len(decision.pipelines),
            "short": [
                {"pipeline": short.key, "servedFraction": number(short.served_fraction, rounding=ROUND_FLOOR)}
                for short in decision.short[:MAX_SHORT]
            ],
            "shortCount": len(decision.short),
            "namespaces": old.get("namespaces") if state.unread else namespaces[:MAX_NAMESPACES],
            "validSpec": valid_spec,
            "reason": short_words(decision) or None,
        }
    )
    return status


def number(value: Reading | None, *, rounding: str | None = None) -> str | None:
    """Return `value` as a decimal string that the schema allows; None if it is absent, not finite, or 1e30 or larger.

    The result has two significant digits, or three with `rounding`, a constant of the module `decimal`.
    """
    if value is None or isinstance(value, Absence) or not math.isfinite(value):
        return None
    exact = Decimal(repr(float(value)))
    if abs(exact) < _SMALLEST:
        return "0"
    if abs(exact) >= _LARGEST:
        return None
    digits = _OBSERVED_DIGITS if rounding is None else _RELIED_ON_DIGITS
    step = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return _plain((exact / step).to_integral_value(rounding or ROUND_HALF_EVEN) * step)


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _conditions(values: Sequence[ConditionValue], old: Json, generation: int, now_s: float) -> list[Json]:
    before = {condition["type"]: condition for condition in old.get("conditions", [])}
    return [
        {
            "type": value.type,
            "status": value.status,
            "observedGeneration": generation,
            "lastTransitionTime": before[value.type]["lastTransitionTime"]
            if before.get(value.type, {}).get("status") == value.status
            else timestamp(now_s),
            "reason": value.reason,
            "message": value.message[:_MESSAGE],
        }
        for value in values
    ]


def _told_by_another(old: Json, now_s: float, within_s: float = _FORGOTTEN_S) -> list[Json]:
    """Return the condition in `old` by which another operator says that it leaves the pipeline alone, if it is new."""
    told = [each for each in old.get("conditions", []) if each["type"] == ConditionType.ONE_OPERATOR.value]
    with suppress(ValueError):  # a time that Python cannot express: the status was edited
        return [each for each in told if now_s - seconds(each["lastTransitionTime"]) < within_s]
    return []


def _billed_per_hour(state: PipelineState, plan: PipelinePlan, pools: Mapping[PoolName, PoolState]) -> float:
    """Return the price in USD per hour of the whole instances that the plan's replicas occupy.

    Those of a shared stage count at the pipeline that scales them.
    """
    sizes: dict[PoolName, list[tuple[Size, int]]] = {}
    replicas = plan.replicas()
    for key, placement in state.spec.placements().items():
        if key[0] not in state.spec.borrowed:
            sizes.setdefault(placement.pool, []).append((placement.prior.per_instance, replicas.get(key, 0)))
    return sum(
        whole_instances(occupied) * pools[pool].spec.price_per_hour for pool, occupied in sizes.items() if pool in pools
    )


def _last_decision(decision: PipelineDecision, old: Json, now_s: float) -> Json | None:
    if not decision.changes:
        return old.get("lastDecision")
    return {
        "time": timestamp(now_s),
        "reason": decision.changes[0].reason.value,
        "message": reason_sentence(decision),
    }


def _stage(stage: StageProfile, state: PipelineState, decision: PipelineDecision) -> Json:
    stages = () if decision.plan is None else decision.plan.stages
    planned = {p.name: p for own in stages if own.name == stage.name for p in own.placements}
    (spec,) = (own for own in state.spec.stages if own.name == stage.name)
    declared = {placement.name: placement.declared for placement in spec.placements}
    rate = stage.readings.get(Quantity.ARRIVAL_RATE)
    shared = decision.shared.get(stage.name)
    return {
        "name": stage.name,
        "rate": number(rate),
        "utilization": number(stage.readings.get(Quantity.UTILIZATION)),
        "p95Seconds": number(stage.readings.get(Quantity.LATENCY_P95)),
        "latencyFactor": number(stage.latency_factor),
        "queue": number(stage.readings.get(Quantity.QUEUE_DEPTH)),
        "sessions": number(stage.readings.get(Quantity.SESSIONS)),
        "rxQueuePressure": number(stage.readings.get(Quantity.RX_QUEUE_PRESSURE)),
        "deviceUtilization": number(stage.devices.get(DeviceQuantity.UTILIZATION)),
        "collectiveActivity": number(stage.devices.get(DeviceQuantity.COLLECTIVE_ACTIVITY)),
        "passRatio": number(stage.pass_ratio),
        "cascadeShare": number(stage.cascade_share),
        "sharedFrom": None if spec.shared_from is None else "/".join(spec.shared_from),
        "costShare": None if shared is None else number(shared.cost_share),
        "pressure": number(stage.pressure),
        "absent": [
            f"{quantity.value}: {reading.reason.value}"
            for quantity, reading in stage.readings.items()
            if isinstance(reading, Absence)
        ],
        "rebalance": [
            {
                "pod": replica.pod,
                "sessions": number(replica.sessions),
                "giveUp": replica.give_up,
                "keep": replica.keep,
            }
            for skew in decision.skews
            if skew.stage == stage.name
            for replica in skew.crowded[:MAX_CROWDED]
        ]
        or None,
        "placements": [
            _placement(
                (stage.name, placement.name),
                placement,
                declared[placement.name],
                state,
                decision,
                planned.get(placement.name),
            )
            for placement in stage.placements
        ],
    }


def _batching(memory: BatchMemory | None) -> Json | None:
    if memory is None or memory.decided is None:
        return None
    return {
        "max": memory.decided.limit,
        "waitMicroseconds": round(memory.decided.wait_s * 1e6),
        "inForce": [settings for settings, _ in memory.seen] == [memory.decided],
    }


def _law(law: ServiceLaw | None) -> Json:
    if law is None:
        return {}
    return {
        "fixedSeconds": number(law.fixed_s),
        "perItemSeconds": number(law.per_item_s),
        "floorSeconds": number(law.floor_s) if law.floor_s else None,
        "points": [{"batch": size, "seconds": number(time_s)} for size, time_s in law.points] or None,
        "prefillSeconds": number(law.prefill_s) if law.prefill_s else None,
        "cv": number(law.cv),
    }


def _placement(
    key: PlacementKey,
    profile: PlacementProfile,
    declared: Declared,
    state: PipelineState,
    decision: PipelineDecision,
    plan: PlacementPlan | None,
) -> Json:
    target = state.target(*key)
    found = None if isinstance(target, TargetMissing) else target
    batch_size = profile.readings.get(Quantity.BATCH_SIZE)
    prior_s = profile.prior.occupied_s(batch_size if isinstance(batch_size, float) else 1) if declared.service else None
    law = profile.service if declared.service or profile.batch_times is not None else None
    return {
        "variant": "",  # as the API server fills it in: one of the keys of the list
        **placement_fields(profile.name),
        "current": None if found is None else found.desired,
        "ready": None if found is None else found.ready,
        "terminating": None if found is None else found.terminating,
        "updated": None if found is None or not found.rolling else found.updated,
        "desired": decision.desired.get(key),
        "recommended": decision.recommended.get(key),
        "unconstrained": decision.unconstrained.get(key),
        "batch": None if plan is None else plan.batch,
        "batchWaitSeconds": None if plan is None else number(plan.wait_s),
        "batching": _batching(decision.memory.batching.get(key)),
        "serviceTime": {
            "priorSeconds": number(prior_s),
            "measuredSeconds": number(profile.readings.get(Quantity.SERVICE_TIME)),
            "factor": number(profile.service_factor if declared.service else None),
            **_law(law),
            "relativeError": number(profile.relative_error),
            "measuredBatch": number(profile.measured_batch),
        },
        "startupSeconds": number(None if declared.startup else decision.memory.learned.startups_s.get(key)),
        "saturationRate": number(profile.saturation_rps),
    }
