"""The settings of the operator that concern decisions, as one value."""

from dataclasses import dataclass

from optimizer.model import Composition


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the cycle, the same for all pipelines.

    `interval_s` is the time between cycles. `budget_per_hour` caps the fleet (None: only the pipelines' own
    budgets). `latency_headroom` is the share of the SLA that plans leave free for model errors; current replicas stay
    until they use it up. `switching_cost_per_hour` is the least saving for changing one replica. `composition` says how
    the latencies of stages make up that of a pipeline; `search_effort` bounds the search of a decision in units of
    work, as in `optimizer.model.Problem`. `advice` adds what it takes to serve a pipeline that is not served in full;
    it changes no decision and takes some thirty searches for each such pipeline.
    """

    interval_s: float = 15.0
    budget_per_hour: float | None = None
    composition: Composition = Composition.RSS
    latency_headroom: float = 0.1
    switching_cost_per_hour: float = 0.05
    search_effort: int | None = None
    advice: bool = True
