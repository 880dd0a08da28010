"""Puts the causes together: which there are, in which order, and for how long a finding stands. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.diagnose import causes
from controller.core.diagnose.baseline import remembered
from controller.core.diagnose.evidence import Look
from controller.core.state.decision import PipelineDecision, VariantSwitch
from controller.core.state.diagnosis import Because, Cause, DiagnosisMemory, Finding, Seen, Switched
from controller.core.state.spec import PipelineSpec, PlacementSpec
from optimizer.model import PlacementName, StageName

STANDS_S = 300.0
"""So long a finding stands while the SLA is missed and its evidence is gone: queues last longer than their cause."""
SWITCH_S = 3600.0
"""So long a switch of variants is named where it made the words worse: until a person has seen it."""
WORSE, WORSE_BY = 1.2, 0.005
"""A word error rate that is so many times that of before, and by so much higher, is worse."""

_UNEXPLAINED = {Because.LAG, Because.LIMIT, Because.REFUSED}
"""Forms of causes that are named only where no other cause is."""
_OF_ALL = {Cause.DEMAND, Cause.METRICS}
"""Causes that explain the queues of all stages."""
_OF_NO_QUEUE = {Cause.QUEUEING, Cause.QUALITY_DROP}
"""Causes that explain no queue: a queue itself, and words that are wrong."""
_OF_LATENCIES = {Cause.DEMAND, Cause.SLOWER_STAGE, Cause.QUEUEING}
"""Causes with which the latencies of stages change."""


def with_diagnosis(
    assessment: Assessment, decision: PipelineDecision, interval_s: float, now_s: float
) -> PipelineDecision:
    """Return `decision` with what the diagnosis finds, the most certain first, and with its memory."""
    before = assessment.state.memory.diagnosis
    memory = remembered(assessment, decision, now_s)
    memory = replace(memory, switched=tuple(_switched(decision, before.switched, now_s)))
    decision = replace(decision, memory=replace(decision.memory, diagnosis=memory))
    look = Look(assessment=assessment, decision=decision, baseline=before.baseline, interval_s=interval_s, now_s=now_s)
    found = _found(look, _standing_before(before, look))
    seen = _standing(found, before, look)
    findings = tuple(sorted((_as_of_now(each, now_s) for each in seen), key=lambda each: -each.confidence))
    memory = replace(memory, seen=tuple(seen) if look.late else ())
    return replace(decision, diagnosis=findings, memory=replace(decision.memory, diagnosis=memory))


def _found(look: Look, standing: Sequence[Finding]) -> Sequence[Finding]:
    """Return what speaks for a cause now, the strongest finding of each cause at each stage.

    What was found before and still stands, `standing`, explains the queues that are left of it.
    """
    found = [
        *causes.memory_growth(look),
        *causes.quality_drop(look),
        *causes.metrics(look),
        *causes.uneven_sessions(look),
    ]
    if look.late:
        found += [*causes.demand(look), *causes.pool(look), *causes.cold_start(look), *causes.slower_stage(look)]
        vary = any(each.cause in _OF_LATENCIES for each in (*found, *standing))
        vary = vary and not any(each.because is Because.OVERHEAD for each in standing)
        found += [*causes.pass_ratio(look), *causes.data_plane(look, stages_vary=vary)]
        found = _without_restarts(found)
        reasons = [each for each in (*found, *standing) if each.cause not in _OF_NO_QUEUE]
        reasons = [each for each in reasons if each.because not in _UNEXPLAINED]
        explained: set[StageName | None] = {None for each in reasons if each.cause in _OF_ALL}
        explained |= {each.stage for each in reasons if each.stage is not None}
        explained |= {name for each in reasons if _brings_more(each) for name in _following(look, each.stage)}
        queues = [*causes.queueing(look, explained)]
        found += queues
        if not reasons and not queues:
            found += [*causes.limits(look), *causes.refusals(look)]
    return _strongest(found)


def _standing_before(before: DiagnosisMemory, look: Look) -> Sequence[Finding]:
    """Return what was found in earlier cycles of this miss and still stands."""
    return [each.finding for each in before.seen if _stands(each, look)] if look.late else []


def _stands(seen: Seen, look: Look) -> bool:
    return 0 <= look.now_s - seen.seen_s <= STANDS_S  # a clock may have been set back


def _as_of_now(seen: Seen, now_s: float) -> Finding:
    """Return a finding, with the time since when its evidence is gone."""
    ago_s = now_s - seen.seen_s
    return seen.finding if ago_s <= 0 else replace(seen.finding, numbers={**seen.finding.numbers, "ago_s": ago_s})


def _without_restarts(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without the cold starts of stages whose replicas start again after they ran out of memory."""
    ended = {each.stage for each in found if each.cause is Cause.MEMORY_GROWTH}
    return [each for each in found if each.cause is not Cause.COLD_START or each.stage not in ended]


def _brings_more(finding: Finding) -> bool:
    """Return whether a cause brings more items to the stages after its own."""
    return finding.cause is Cause.PASS_RATIO or finding.because is Because.RETRIES


def _following(look: Look, stage: StageName | None) -> Iterator[StageName]:
    """Yield the stages after `stage`, which get more where it gets more or lets more pass."""
    after = {stage}
    for own in look.assessment.seen.stages:
        if after & set(own.after):
            after.add(own.name)
            yield own.name


def _strongest(found: Iterable[Finding]) -> Sequence[Finding]:
    best: dict[tuple[Cause, StageName | None], Finding] = {}
    for each in map(_finite, found):
        known = best.get((each.cause, each.stage))
        if known is None or each.confidence > known.confidence:
            best[each.cause, each.stage] = each
    return [*best.values()]


def _finite(finding: Finding) -> Finding:
    """Return a finding without numbers that are not finite, such as the wait before replicas that complete nothing."""
    return replace(finding, numbers={name: value for name, value in finding.numbers.items() if math.isfinite(value)})


def _standing(found: Sequence[Finding], before: DiagnosisMemory, look: Look) -> Sequence[Seen]:
    """Return what was found now, and what was found since the SLA is missed and still stands."""
    earlier = {(each.finding.cause, each.finding.stage): each.finding for each in before.seen} if look.late else {}
    now = {
        (each.cause, each.stage): Seen(
            finding=_as_before(each, earlier.get((each.cause, each.stage))), seen_s=look.now_s
        )
        for each in found
    }
    if look.late:
        better = any(each.because not in _UNEXPLAINED for each in found)
        for each in before.seen:
            key = each.finding.cause, each.finding.stage
            stands = _stands(each, look) and not (better and each.finding.because in _UNEXPLAINED)
            if key not in now and stands:
                now[key] = each
    return [*now.values()]


def _as_before(finding: Finding, earlier: Finding | None) -> Finding:
    """Return a finding in the form of before where it now has that of replicas which were added because of it."""
    if earlier is None or finding.because is not Because.COLD_CACHES or earlier.because is Because.COLD_CACHES:
        return finding
    numbers = {name: value for name, value in finding.numbers.items() if name != "warming"}
    return replace(finding, because=earlier.because, names=earlier.names, numbers={**earlier.numbers, **numbers})


def _switched(decision: PipelineDecision, before: Sequence[Switched], now_s: float) -> Iterator[Switched]:
    """Yield the switches of the last hour that made words worse; a later one of the same stage replaces an earlier."""
    new = {each.stage: own for each in decision.switches if (own := _as_worse(decision.spec, each, now_s)) is not None}
    again = {each.stage for each in decision.switches}
    yield from (each for each in before if each.stage not in again and 0 <= now_s - each.at_s <= SWITCH_S)
    yield from new.values()


def _as_worse(spec: PipelineSpec, switch: VariantSwitch, now_s: float) -> Switched | None:
    placements = {key[1]: own for key, own in spec.placements().items() if key[0] == switch.stage}
    before, after = _rates(placements, switch.before), _rates(placements, switch.after)
    worse = {
        name: (rate, after[name])
        for name, rate in before.items()
        if name in after and after[name] >= max(WORSE * rate, rate + WORSE_BY)
    }
    if not worse:
        return None
    return Switched(
        stage=switch.stage,
        at_s=now_s,
        before=switch.before,
        after=switch.after,
        wers=worse,
        saving_per_hour=switch.saving_per_hour,
    )


def _rates(placements: Mapping[PlacementName, PlacementSpec], names: Sequence[PlacementName]) -> dict[str, float]:
    """Return the worst stated word error rates of some placements, by slice of the audio; "" is all audio."""
    rates: dict[str, float] = {}
    for name in names:
        own = placements[name]
        stated = {**own.wer_by_slice, **({} if own.prior.wer is None else {"": own.prior.wer})}
        for slice_name, rate in stated.items():
            rates[slice_name] = max(rate, rates.get(slice_name, 0.0))
    return rates
