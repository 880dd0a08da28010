"""Questions for the optimizer: small builders with defaults for all that a test does not care about."""

from collections.abc import Mapping, Sequence

from optimizer.model import (
    Demand,
    Pipeline,
    PipelineKey,
    Placement,
    Pool,
    PoolName,
    Problem,
    Routing,
    ServiceLaw,
    Size,
    Sla,
    Stage,
    StageName,
)


def on(
    pool: str,
    *,
    service: tuple[float, float] = (0.02, 0.0),
    cv: float = 0.2,
    bounds: tuple[int, int] = (0, 10),
    per_instance: Size = 1,
    batches: Sequence[int] = (1,),
    wait_s: float = 0.0,
    slots: int | None = None,
    wer: float | None = None,
    concurrency: int = 1,
    saturation_rps: float | None = None,
    current: int = 0,
) -> Placement:
    return Placement(
        pool=PoolName(pool),
        service=ServiceLaw(fixed_s=service[0], per_item_s=service[1], cv=cv),
        min_replicas=bounds[0],
        max_replicas=bounds[1],
        per_instance=per_instance,
        concurrency=concurrency,
        batch_sizes=tuple(batches),
        batch_wait_s=wait_s,
        session_slots=slots,
        wer=wer,
        saturation_rps=saturation_rps,
        current=current,
    )


def a_stage(
    name: str,
    *placements: Placement,
    after: Sequence[str] = (),
    pass_ratio: float = 1.0,
    routing: Routing = Routing.LEAST_LOADED,
    floor: int = 1,
) -> Stage:
    return Stage(
        name=StageName(name),
        placements=placements,
        after=tuple(StageName(stage) for stage in after),
        pass_ratio=pass_ratio,
        routing=routing,
        min_replicas=floor,
    )


def a_pipeline(
    *stages: Stage,
    key: str = "speech/captions",
    rate_rps: float = 100.0,
    sessions: float | None = None,
    sla_s: float = 0.2,
    percentile: float = 95.0,
    budget: float | None = None,
    priority: int = 0,
    max_wer: float | None = None,
) -> Pipeline:
    return Pipeline(
        key=PipelineKey(key),
        stages=stages,
        demand=Demand(entry_rate_rps=rate_rps, sessions=sessions),
        sla=Sla(latency_s=sla_s, percentile=percentile),
        budget_per_hour=budget,
        priority=priority,
        max_wer=max_wer,
    )


def pools(**sizes: tuple[float, int]) -> Mapping[PoolName, Pool]:
    """Return pools by name: price per hour and instances."""
    return {
        PoolName(name): Pool(name=PoolName(name), price_per_hour=price, instances=instances)
        for name, (price, instances) in sizes.items()
    }


def a_problem(
    *pipelines: Pipeline,
    where: Mapping[PoolName, Pool] | None = None,
    budget: float | None = None,
    switching: float = 0.0,
) -> Problem:
    return Problem(
        pipelines=pipelines,
        pools=where or pools(cpu=(0.5, 20), inferentia=(1.0, 20), gpu=(2.0, 20)),
        budget_per_hour=budget,
        switching_cost_per_hour=switching,
    )
