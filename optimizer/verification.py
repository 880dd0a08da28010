"""Check plans by replay, tighten the latency target of those that miss the SLA, and reduce their load as a last resort.

A composition of stage latencies is right on average, not always. The replay decides: a pipeline counts as served in
full only if its replay keeps the SLA, or misses it by at most the replay's half-width.
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
from optimizer.replay.replay import Replayed, replay

DOUBT = 0.5
"""A plan whose composed latency is below SLA / (1 + DOUBT) is not replayed.

Of 1,102 plans (tandems, mixed pools with batches, joins, streams) 0.2 % had a replayed latency more than 1.5 times the
composed one, at most 1.63 times; of those composed to less than SLA / 1.4 none missed the SLA.
"""

ROUNDS = 5
"""How often the target of a plan by `Composition.RSS` is tightened."""

SUM_ROUNDS = 3
"""How often the target of a plan by `Composition.SUM` is tightened."""

MARGIN = 0.985
"""A tightened target aims this much below the SLA, so that one round suffices more often than not."""

_CUTS = 5
_DIGITS = 3
_Placed = tuple[StageName, PoolName, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A plan whose replay missed the SLA; `replayed` is None where no latency could be measured."""

    pipeline: Pipeline
    replayed: Replayed | None

    @property
    def settled(self) -> bool:
        """Return whether the plan is acceptable if no better one is found."""
        return self.replayed is None or self.replayed.may_keep(self.pipeline.sla.latency_s)


def doubted(fleet: Fleet, pipeline: Pipeline, share: Share) -> bool:
    """Return whether the plan needs a replay: it has replicas and its composed latency is at least SLA / (1 + `DOUBT`).

    A pipeline whose target was tightened before needs one always, because the composition is known to err for it. So
    does one with a stage outside the region in which the model's error was measured.
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


def verdict_of(fleet: Fleet, pipeline: Pipeline, share: Share) -> Replayed | None:
    """Return the replay of the share of the demand that is served; None: no need (`doubted`), or no latency measured.

    The demand is rounded up to three digits first, so that loads that hardly differ share one replay; where that misses
    the SLA the exact demand is replayed.
    """
    return _replayed_share(pipeline, share) if doubted(fleet, pipeline, share) else None


def _replayed_share(pipeline: Pipeline, share: Share) -> Replayed | None:
    answer = share.answer
    assert answer is not None
    placed = tuple(
        (table.stage.name, placement.pool, replicas, batch)
        for table, row in zip(answer.subproblem.tables, answer.choice, strict=True)
        for placement, replicas, batch in table.placed(row)
    )
    served = pipeline if share.served >= 1 else replace(pipeline, demand=pipeline.demand.scaled(share.served))
    if served.demand.entry_rate_rps <= 0:  # the share rounds to no load
        return None
    running = {(stage, pool) for stage, pool, replicas, _ in placed if replicas}
    # Name, money and placements without replicas do not change the queues: without them more plans share a replay.
    served = replace(
        served,
        key=PipelineKey(""),
        stages=tuple(_queues_only(stage, running) for stage in served.stages),
        budget_per_hour=None,
        priority=0,
        max_wer=None,
    )
    placed = tuple(entry for entry in placed if entry[:2] in running)
    above = replace(served, demand=_rounded_up(served.demand))
    replayed = None if above == served else _replayed(above, placed)
    if replayed is None or not replayed.keeps(pipeline.sla.latency_s):
        replayed = _replayed(served, placed)
    return replayed


def _queues_only(stage: Stage, running: Collection[tuple[StageName, PoolName]]) -> Stage:
    """Return the stage with only what its queues depend on: its placements in `running`; unchanged if none is."""
    placements = tuple(
        replace(placement, min_replicas=0, max_replicas=1, per_instance=1, session_slots=None, wer=None, current=0)
        for placement in stage.placements
        if (stage.name, placement.pool) in running
    )
    return replace(stage, placements=placements, min_replicas=1) if placements else stage


def misses(fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> Mapping[PipelineKey, Miss]:
    """Return the pipelines that need a replay (`doubted`) and do not keep the SLA in it."""
    missed: dict[PipelineKey, Miss] = {}
    for pipeline in fleet.problem.pipelines:
        share = shares[pipeline.key]
        if not doubted(fleet, pipeline, share):
            continue
        replayed = _replayed_share(pipeline, share)
        if replayed is None or not replayed.keeps(pipeline.sla.latency_s):
            missed[pipeline.key] = Miss(pipeline=pipeline, replayed=replayed)
    return missed


def tightened(before: Target | None, miss: Miss, rounds: int) -> Target | None:
    """Return the target to plan for after the `rounds`-th miss (from 1); None: keep the plan as it is.

    First tighter targets by `Composition.RSS`, then the SLA by `Composition.SUM`, then tighter targets by it as long
    as the miss exceeds the replay's half-width. A target is never loosened: that would chase the noise of one replay.
    """
    sla_s = miss.pipeline.sla.latency_s
    summed = before is not None and before.composition is Composition.SUM
    if rounds > ROUNDS + 1 + SUM_ROUNDS or (summed and miss.settled):
        return None
    if rounds == ROUNDS + 1 or miss.replayed is None:
        return Target(latency_s=sla_s, composition=Composition.SUM)
    target_s = sla_s if before is None else before.latency_s
    composition = Composition.RSS if before is None else before.composition
    return Target(latency_s=target_s * MARGIN * sla_s / miss.replayed.latency_s, composition=composition)


def cut_down(fleet: Fleet, miss: Miss, share: Share) -> Share:
    """Return a share of the demand for which the replay keeps the SLA, on no more resources than `share` uses.

    For a plan that no tighter target helped. The shares tried fall in proportion to the replayed latency; the share is
    0 where five of them still miss the SLA. The limit is the SLA.
    """
    pipeline, limit = miss.pipeline, Limit(kind=LimitKind.SLA)
    assert share.answer is not None
    served, replayed = share.served, miss.replayed
    for _ in range(_CUTS):
        over = 1.25 if replayed is None else max(1.02, replayed.latency_s / pipeline.sla.latency_s)
        served /= over
        answer = fleet.alone(pipeline, served, share.answer.use, exact=False)
        if answer is None:
            continue
        less = Share(served=served, answer=answer, limit=limit)
        replayed = verdict_of(fleet, pipeline, less)
        if replayed is None or replayed.keeps(pipeline.sla.latency_s):
            return less
    return Share(served=0.0, answer=share.answer, limit=limit)


def _rounded_up(demand: Demand) -> Demand:
    """Return the demand with its rate rounded up to three digits, and its sessions in proportion."""
    places = _DIGITS - 1 - math.floor(math.log10(demand.entry_rate_rps))
    rate = round(demand.entry_rate_rps, places)
    if rate < demand.entry_rate_rps:
        rate = round(rate + 10.0**-places, places)
    sessions = demand.sessions
    if sessions is not None:
        sessions = float(math.ceil(sessions * (rate / demand.entry_rate_rps) - 1e-9))
    return replace(demand, entry_rate_rps=rate, sessions=sessions)


@lru_cache(maxsize=1024)
def _replayed(pipeline: Pipeline, placed: tuple[_Placed, ...]) -> Replayed | None:
    """Return the replay of a plan, which an unchanged plan does not repeat."""
    return replay(
        pipeline,
        {(stage, pool): replicas for stage, pool, replicas, _ in placed},
        {(stage, pool): batch for stage, pool, _, batch in placed},
        decides_s=pipeline.sla.latency_s,
    )
