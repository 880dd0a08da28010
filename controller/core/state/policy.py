"""How the operator as a whole behaves: settings that an operator can have an opinion on, as a value."""

from dataclasses import dataclass

from optimizer.model import Composition


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the cycle, the same for all pipelines.

    `interval_s` is the time between cycles. `budget_per_hour` caps the fleet (None: only the pipelines' own
    budgets). `latency_headroom` is the share of the SLA that plans leave free, for what the model does not see; what
    runs is left alone until it uses that up. `switching_cost_per_hour` is what changing one replica must save.
    `composition` says how the latencies of stages make up that of a pipeline; `search_effort` bounds the search of a
    decision in units of work, as `optimizer.model.Problem` has it. `advice` asks what pipelines that cannot be served
    would take, which changes no decision and takes some thirty searches for each.
    """

    interval_s: float = 15.0
    budget_per_hour: float | None = None
    composition: Composition = Composition.RSS
    latency_headroom: float = 0.1
    switching_cost_per_hour: float = 0.05
    search_effort: int | None = None
    advice: bool = True
