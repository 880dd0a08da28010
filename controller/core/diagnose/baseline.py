"""How a pipeline is while all is well: what later cycles compare with. Pure.

A baseline is of a time at least `REBASE_S` ago, or of the first calm minute: what creeps in over a few minutes must not
become the normal state before it is noticed. A change that lasts while the SLA is met becomes part of it.
"""

from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Baseline, DiagnosisMemory
from profiler.samples import Absence, Reading

SETTLED_S = 60.0
"""How long all must have been well before the first baseline is taken."""
REBASE_S = 900.0
"""After so long a newer state of calm replaces the baseline."""


def is_calm(assessment: Assessment) -> bool:
    """Return whether all is well and known: the SLA is met, and no metric is missing."""
    latency_s, missing = assessment.profile.latency_s, assessment.missing
    return (
        not isinstance(latency_s, Absence)
        and latency_s <= assessment.spec.sla.latency_s
        and not assessment.never_down
        and not missing.pools
    )


def remembered(assessment: Assessment, decision: PipelineDecision, now_s: float) -> DiagnosisMemory:
    """Return the memory with what this cycle shows of how it is while all is well."""
    memory = assessment.state.memory.diagnosis
    if not is_calm(assessment):
        return replace(memory, calm_since_s=None, candidate=None)
    if decision.starting:  # scaling is no incident, and no state to compare with either
        return memory
    since_s = now_s if memory.calm_since_s is None else min(now_s, memory.calm_since_s)
    memory = replace(memory, calm_since_s=since_s)
    if now_s - since_s < SETTLED_S:
        return memory
    present = _observed(assessment, now_s)
    baseline, candidate = memory.baseline, memory.candidate
    if candidate is None:
        candidate = present
    elif now_s - candidate.at_s >= REBASE_S:
        baseline, candidate = candidate, present
    return replace(memory, baseline=_joined(baseline, present), candidate=candidate)


def _observed(assessment: Assessment, now_s: float) -> Baseline:
    profile, state = assessment.profile, assessment.state
    targets = {key: target for key, target in state.found() if target.ready}
    return Baseline(
        at_s=now_s,
        laws={
            (stage.name, own.name): own.service
            for stage in profile.stages
            for own in stage.placements
            if own.measured and own.known and (stage.name, own.name) in targets
        },
        revisions={key: target.revision for key, target in targets.items() if target.revision},
        pass_ratios={stage.name: stage.pass_ratio for stage in profile.stages if stage.pass_ratio_known},
        others={own.name: own.sharing.other_rps for own in assessment.pipeline.stages if own.sharing is not None},
        overhead_s=_at_most(profile.overhead_s, profile.latency_s),
    )


def _at_most(overhead_s: float | None, latency_s: Reading) -> float | None:
    """Return the time outside the stages; until it was measured, the whole latency, which it is a part of."""
    return overhead_s if overhead_s is not None or isinstance(latency_s, Absence) else latency_s


def _joined(baseline: Baseline | None, present: Baseline) -> Baseline:
    """Return the baseline with what it does not have yet, such as a placement that was not in use."""
    if baseline is None:
        return present
    return replace(
        baseline,
        laws={**present.laws, **baseline.laws},
        revisions={**present.revisions, **baseline.revisions},
        pass_ratios={**present.pass_ratios, **baseline.pass_ratios},
        others={**present.others, **baseline.others},
        overhead_s=min((own.overhead_s for own in (baseline, present) if own.overhead_s is not None), default=None),
    )
