"""What the causes of a missed SLA have in common: what is looked at, and how far it is above a threshold. Pure."""

import math
from dataclasses import dataclass
from statistics import median

from controller.core.assess.assessment import Assessment
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Baseline
from controller.core.state.snapshot import TargetMissing, TargetState
from optimizer.latency.predict import stage_load
from optimizer.latency.stage import capacity_rps
from optimizer.model import Placement, Stage, StageName
from profiler.samples import Absence, Quantity, Reading
from profiler.stages import StageProfile

FULL = 0.9
"""The utilization from which on queues grow long: no plan goes further."""
MOST_CONFIDENT = 0.99


RISES_WITHIN_S = 600.0
"""A demand is compared with that of so many seconds before."""


def confidence(ratio: float, threshold: float) -> float:
    """Return how much a `ratio` speaks for a cause: one half at its `threshold` (above 1), more the further above."""
    above, needed = max(0.0, ratio - 1), threshold - 1
    return min(MOST_CONFIDENT, above / (above + needed)) if math.isfinite(above) else MOST_CONFIDENT


def known(reading: Reading | None) -> float | None:
    """Return a reading, None where it is absent."""
    return None if reading is None or isinstance(reading, Absence) else float(reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a diagnosis looks at: a pipeline in one cycle at `now_s`, and how it was before, where that is known."""

    assessment: Assessment
    decision: PipelineDecision
    baseline: Baseline | None
    interval_s: float
    now_s: float

    @property
    def sla_s(self) -> float:
        """Return the latency of the SLA."""
        return self.assessment.spec.sla.latency_s

    @property
    def late(self) -> bool:
        """Return whether the SLA is missed, and not only for a moment: for two cycles.

        While nothing completes there is no latency: then it is missed as before, as long as there is demand.
        """
        since_s = self.decision.memory.missed_since_s
        if since_s is None or (self.decision.miss is None and not self.observed):
            return False
        return self.now_s - since_s >= 2 * self.interval_s

    @property
    def observed(self) -> float | None:
        """Return the observed demand in the pipeline's unit, None where it is missing."""
        return known(self.assessment.demand.observed)

    @property
    def queried(self) -> float | None:
        """Return what the demand query says in the pipeline's unit, None where it is missing: more may arrive."""
        return known(self.assessment.state.demand)

    @property
    def arriving(self) -> float | None:
        """Return what arrives at the stages where the load enters, in the pipeline's unit, None where it is missing.

        A demand query that looks further back than the stages' metrics says it later.
        """
        spec = self.assessment.spec
        arrivals = [
            self.reading(stage.name, Quantity.ARRIVAL_RATE)
            for stage in self.assessment.seen.stages
            if not stage.after and stage.shared is None
        ]
        return max((rate / spec.items_per_unit_s for rate in arrivals if rate is not None), default=None)

    @property
    def usual(self) -> float | None:
        """Return the median demand of the last ten minutes, None where it is not known.

        While more arrives than the demand query says, it is that of before.
        """
        # The decision's memory has this cycle's answer.
        until_s = min(self.now_s, self.decision.memory.contradicted_since_s or math.inf)
        before = [
            sample.observed
            for sample in self.assessment.demand.samples
            if sample.observed and self.now_s - RISES_WITHIN_S <= sample.t_s < until_s
        ]
        # The median: some minutes begin with a pipeline that begins, or have a gap.
        return median(before) if before else None

    @property
    def more_per_hour(self) -> float | None:
        """Return what the plan costs more than the present replicas, in USD per hour; None where it costs no more."""
        plan = self.decision.plan
        more = 0.0 if plan is None else plan.cost_per_hour - self.decision.spend_per_hour
        return more if more > 0 else None

    def target(self, stage: StageName, placement: Placement) -> TargetState | None:
        """Return the workload of a placement, None where it is not known."""
        target = self.assessment.state.target(stage, placement.name)
        return None if isinstance(target, TargetMissing) else target

    def ready(self, stage: Stage) -> int:
        """Return the ready replicas of a stage, on all its placements."""
        return sum(0 if (own := self.target(stage.name, each)) is None else own.ready for each in stage.placements)

    def profile(self, stage: StageName) -> StageProfile:
        """Return what is measured of a stage."""
        return next(own for own in self.assessment.profile.stages if own.name == stage)

    def reading(self, stage: StageName, quantity: Quantity) -> float | None:
        """Return what is measured of a stage, None where it is absent."""
        return known(self.profile(stage).readings.get(quantity))

    def wait_s(self, stage: StageName) -> float | None:
        """Return how long an item waits before a stage, by Little's law; None where that is not known."""
        waiting, served = self.reading(stage, Quantity.QUEUE_DEPTH), self.reading(stage, Quantity.COMPLETION_RATE)
        if waiting is None or served is None:
            return None
        return waiting / served if served > 0 else math.inf if waiting > 0 else None

    def load(self, stage: Stage) -> float | None:
        """Return the utilization of the ready replicas of a stage by the observed demand, None where none is known.

        It is above 1 where they cannot serve it, and infinite without a ready replica. Session slots count too.
        """
        planned, observed = self.assessment.planned_demand, self.observed
        if observed is None or planned <= 0:
            return None
        load = stage_load(self.assessment.pipeline, stage)
        ready = {
            own.name: target.ready for own in stage.placements if (target := self.target(stage.name, own)) is not None
        }
        capacity = sum(ready.get(own.name, 0) * capacity_rps(own, own.batch_sizes[-1]) for own in stage.placements)
        by_rate = math.inf if capacity <= 0 else load.rate_rps * observed / planned / capacity
        if load.sessions is None or any(own.session_slots is None for own in stage.placements):
            return by_rate
        slots = sum(ready.get(own.name, 0) * (own.session_slots or 0) for own in stage.placements)
        return max(by_rate, FULL * load.sessions * observed / planned / slots if slots else math.inf)
