"""The settings of the operator that concern decisions, as one value."""

from dataclasses import dataclass

from optimizer.model import Composition


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the cycle, the same for all pipelines.

    `interval_s`: the time between cycles.
    `scrape_interval_s`: the time between two scrapes of a pod, None where it is not known. Windows must have two.
    `budget_per_hour`: the cap of the fleet; None: only the pipelines have budgets.
    `composition`: how the latencies of the stages make up the latency of a pipeline.
    `latency_headroom`: the share of the SLA that plans leave free for model errors. Current replicas may use it.
    `switching_cost_per_hour`: the least saving for which one replica is changed.
    `search_effort`: the limit on the work of a search, as in `optimizer.model.Problem`.
    `advice`: whether plans say what it takes to serve a pipeline that is not served in full, which takes some thirty
    searches for each such pipeline, and what one more instance of a pool saves, one search each. This changes no
    decision.
    """

    interval_s: float = 15.0
    scrape_interval_s: float | None = None
    budget_per_hour: float | None = None
    composition: Composition = Composition.RSS
    latency_headroom: float = 0.1
    switching_cost_per_hour: float = 0.05
    search_effort: int | None = None
    advice: bool = True
