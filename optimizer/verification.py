"""Plans put to the test before they are given out: replayed, planned anew for a tighter target, at last for less load.

A composition is right on average, not always. What a replay says is believed: a pipeline is served whole only if its
replay keeps the SLA, or misses it by no more than the replay's own noise.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from optimizer.fleet.fleet import Fleet, Target
from optimizer.latency.stage import UNKNOWN_ERROR
from optimizer.model import Composition, Demand, Pipeline, PipelineKey, PoolName, Stage, StageName
from optimizer.overload.overload import Share
from optimizer.plan import Limit, LimitKind
from optimizer.replay.replay import ROUNDS, replay, tighter_target_s

DOUBT = 0.5
"""A plan whose composed latency is below SLA / (1 + DOUBT) is not replayed.

Of 1,102 plans (tandems, mixed pools with batches, joins, streams) the replays of 0.2 % took more than half as long
again as composed, at most 63 %; of those composed to less than SLA / 1.4 none missed it.
"""

SUM_ROUNDS = 3
"""How often a plan by `Composition.SUM` is tightened."""

_CUTS = 5
_DIGITS = 3
_Placed = tuple[StageName, PoolName, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a replay took, in seconds, and by how much another of different luck may differ (nine of ten)."""

    latency_s: float
    half_width_s: float

    def keeps(self, sla_s: float) -> bool:
        """Return whether the SLA is kept."""
        return self.latency_s <= sla_s

    def may_keep(self, sla_s: float) -> bool:
        """Return whether the SLA is kept, or missed by no more than the noise."""
        return self.latency_s <= sla_s + self.half_width_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A plan that was replayed and took too long; `verdict` is None where the replay says nothing."""

    pipeline: Pipeline
    verdict: Verdict | None

    @property
    def settled(self) -> bool:
        """Return whether it may be given out if nothing better is found."""
        return self.verdict is None or self.verdict.may_keep(self.pipeline.sla.latency_s)


def doubted(fleet: Fleet, pipeline: Pipeline, share: Share) -> bool:
    """Return whether a replay has anything to tell: something runs, and is composed to SLA / (1 + `DOUBT`) or more.

    A pipeline whose target was tightened is doubted ever after: of it, the composition is known to err. So is one
    with a stage outside the region in which the model's error was measured.
    """
    answer = share.answer
    if answer is None or share.served <= 0 or not answer.complete or pipeline.demand.entry_rate_rps <= 0:
        return False
    if pipeline.key in fleet.targets:
        return True
    errors = (
        table.latency_error[row]
        for table, row in zip(answer.subproblem.tables, answer.choice, strict=True)
        if table.latency_error is not None
    )
    if any(error >= UNKNOWN_ERROR for error in errors):
        return True
    composed_s = replace(answer.subproblem, composition=Composition.RSS).latency(answer.choice)
    return composed_s * (1 + DOUBT) >= pipeline.sla.latency_s


def verdict_of(fleet: Fleet, pipeline: Pipeline, share: Share) -> Verdict | None:
    """Return what the share of the demand that is served experiences in a replay; None: not `doubted`, or no answer.

    The demand is rounded up to three digits first, so that loads that hardly differ need one replay; where that misses
    the SLA the exact demand is replayed.
    """
    return _verdict(pipeline, share) if doubted(fleet, pipeline, share) else None


def _verdict(pipeline: Pipeline, share: Share) -> Verdict | None:
    answer = share.answer
    assert answer is not None
    placed = tuple(
        (stage.name, placement.pool, int(replicas), int(batch))
        for stage, table, row in zip(pipeline.stages, answer.subproblem.tables, answer.choice, strict=True)
        for placement, replicas, batch in zip(stage.placements, table.replicas[row], table.batches[row], strict=True)
    )
    asked = pipeline if share.served >= 1 else replace(pipeline, demand=pipeline.demand.scaled(share.served))
    if asked.demand.entry_rate_rps <= 0:  # so little that the share of it is nothing
        return None
    running = {(stage, pool) for stage, pool, replicas, _ in placed if replicas}
    # Neither name nor money make a difference to the queues, nor what might run and does not.
    asked = replace(
        asked,
        key=PipelineKey(""),
        stages=tuple(_as_it_runs(stage, running) for stage in asked.stages),
        budget_per_hour=None,
        priority=0,
        max_wer=None,
    )
    placed = tuple(entry for entry in placed if entry[:2] in running)
    above = replace(asked, demand=_rounded_up(asked.demand))
    found = None if above == asked else _replayed(above, placed)
    if found is None or not found.keeps(pipeline.sla.latency_s):
        found = _replayed(asked, placed)
    return found


def _as_it_runs(stage: Stage, running: Collection[tuple[StageName, PoolName]]) -> Stage:
    """Return the stage as its queues are, whatever it may run besides and ran before; unchanged where nothing runs."""
    placements = tuple(
        replace(placement, min_replicas=0, max_replicas=1, per_instance=1, session_slots=None, wer=None, current=0)
        for placement in stage.placements
        if (stage.name, placement.pool) in running
    )
    return replace(stage, placements=placements, min_replicas=1) if placements else stage


def misses(fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> Mapping[PipelineKey, Miss]:
    """Return the pipelines that are doubted and whose replay does not say that their plan keeps the SLA."""
    found: dict[PipelineKey, Miss] = {}
    for pipeline in fleet.problem.pipelines:
        share = shares[pipeline.key]
        if not doubted(fleet, pipeline, share):
            continue
        verdict = _verdict(pipeline, share)
        if verdict is None or not verdict.keeps(pipeline.sla.latency_s):
            found[pipeline.key] = Miss(pipeline=pipeline, verdict=verdict)
    return found


def tightened(before: Target | None, miss: Miss, rounds: int) -> Target | None:
    """Return what to plan for after the `rounds`-th miss (from 1), None: this is to be lived with.

    Tighter targets by `Composition.RSS` first, then the SLA by `Composition.SUM`, then tighter ones of that as long as
    the miss is more than noise.
    """
    sla_s = miss.pipeline.sla.latency_s
    summed = before is not None and before.composition is Composition.SUM
    if rounds > ROUNDS + 1 + SUM_ROUNDS or (summed and miss.settled):
        return None
    if rounds == ROUNDS + 1 or miss.verdict is None:
        return Target(latency_s=sla_s, composition=Composition.SUM)
    target_s = sla_s if before is None else before.latency_s
    composition = Composition.RSS if before is None else before.composition
    return Target(latency_s=tighter_target_s(target_s, sla_s, miss.verdict.latency_s), composition=composition)


def cut_down(fleet: Fleet, miss: Miss, share: Share) -> Share:
    """Return a share of the demand that the pipeline can serve within the SLA in a replay, on no more than it had.

    For a plan that no tightening has helped. The shares tried fall in proportion to what the replays take; nothing is
    served where five of them were not small enough. It is the SLA that keeps the rest out.
    """
    pipeline, limit = miss.pipeline, Limit(kind=LimitKind.SLA)
    assert share.answer is not None
    served, verdict = share.served, miss.verdict
    for _ in range(_CUTS):
        over = 1.25 if verdict is None else max(1.02, verdict.latency_s / pipeline.sla.latency_s)
        served /= over
        answer = fleet.alone(pipeline, served, share.answer.use, exact=False)
        if answer is None:
            continue
        less = Share(served=served, answer=answer, limit=limit)
        verdict = verdict_of(fleet, pipeline, less)
        if verdict is None or verdict.keeps(pipeline.sla.latency_s):
            return less
    return Share(served=0.0, answer=share.answer, limit=limit)


def _rounded_up(demand: Demand) -> Demand:
    """Return the demand with the least rate of three digits that is not below its own, and sessions in proportion."""
    places = _DIGITS - 1 - math.floor(math.log10(demand.entry_rate_rps))
    rate = round(demand.entry_rate_rps, places)
    if rate < demand.entry_rate_rps:
        rate = round(rate + 10.0**-places, places)
    sessions = demand.sessions
    if sessions is not None:
        sessions = float(math.ceil(sessions * (rate / demand.entry_rate_rps) - 1e-9))
    return replace(demand, entry_rate_rps=rate, sessions=sessions)


@lru_cache(maxsize=1024)
def _replayed(pipeline: Pipeline, placed: tuple[_Placed, ...]) -> Verdict | None:
    """Replay a plan once: one that has not changed need not be replayed again."""
    seen = replay(
        pipeline,
        {(stage, pool): replicas for stage, pool, replicas, _ in placed},
        {(stage, pool): batch for stage, pool, _, batch in placed},
        decides_s=pipeline.sla.latency_s,
    )
    return None if seen is None else Verdict(latency_s=seen.latency_s, half_width_s=seen.half_width_s)
