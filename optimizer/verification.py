"""Check plans by replay: where one misses the SLA, tighten its latency target; serve less load as a last resort.

The latency composed from the stages is right on average, not for every plan. The replay decides: a pipeline counts as
served in full only if its replay keeps the SLA, or misses it by at most the replay's half-width. Plans that are far
below their SLA need no replay.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from optimizer.fleet.fleet import Fleet, Target
from optimizer.latency.predict import predicted_latency_s
from optimizer.latency.stage import UNKNOWN_ERROR
from optimizer.model import (
    Composition,
    Demand,
    Mixing,
    Pipeline,
    PipelineKey,
    PlacementKey,
    PlacementName,
    Stage,
    StageName,
)
from optimizer.overload.overload import Share
from optimizer.plan import USED, Limit, LimitKind
from optimizer.replay.replay import Replayed, replay
from optimizer.runtime.effort import REPLAY

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

LOOSENINGS = 2
"""How often later targets are tried for plans whose replays leave a part of the SLA unused."""

_AIM = 0.965
"""A later target aims at this share of the SLA: a plan is kept only where its replay leaves room for its noise."""

MOST_LATER = 2.0
"""Composed latencies of more than this many SLAs are not worth a replay, nor a target."""

_STEP = 0.01
_EPSILON_S = 1e-9
_CUTS = 5
_DIGITS = 3
_Placed = tuple[StageName, PlacementName, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A plan whose replay missed the SLA; `replayed` is None where no latency could be measured."""

    pipeline: Pipeline
    replayed: Replayed | None

    @property
    def settled(self) -> bool:
        """Return whether the plan may stay if none is better: the miss is within the replay's noise, or unmeasured."""
        return self.replayed is None or self.replayed.may_keep(self.pipeline.sla.latency_s)

    @property
    def doubtful(self) -> bool:
        """Return whether the replayed latency is within the SLA, but by less than the replay's noise."""
        return self.replayed is not None and self.replayed.latency_s <= self.pipeline.sla.latency_s


def doubted(fleet: Fleet, pipeline: Pipeline, share: Share) -> bool:
    """Return whether the plan needs a replay: its composed latency is at least SLA / (1 + `DOUBT`).

    A plan also needs one if its pipeline has a target in `fleet.targets`, because the composition is known to err
    there, or if a stage mixes placements, where the model errs most, or if the model's error was not measured under
    the conditions of one of its stages. Plans that serve no load or leave a stage without replicas never need one.
    """
    answer = share.answer
    if answer is None or share.served <= 0 or not answer.complete or pipeline.demand.entry_rate_rps <= 0:
        return False
    if pipeline.key in fleet.targets or answer.mixes:
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
    """Return the replay of the demand that the plan serves; None where it is not needed or measured no latency.

    None also where the account of the pipeline is exhausted. `doubted` says whether a replay is needed.
    """
    if fleet.exhausted(pipeline) or not doubted(fleet, pipeline, share):
        return None
    return replayed_share(fleet, pipeline, share)


def replayed_share(fleet: Fleet, pipeline: Pipeline, share: Share) -> Replayed | None:
    """Return the replay of the demand that the plan serves; None where it measured no latency.

    The demand is first rounded up to three digits, so that loads that hardly differ share one replay. If that replay
    misses the SLA, the exact demand is replayed.
    """
    answer = share.answer
    assert answer is not None
    fleet.charge(pipeline, REPLAY)
    placed = tuple(
        (table.stage.name, placement.name, replicas, batch)
        for table, row in zip(answer.subproblem.tables, answer.choice, strict=True)
        for placement, replicas, batch in table.placed(row)
    )
    tables = answer.subproblem.tables
    if any(table.waits_s is not None for table in tables):
        chosen = zip(pipeline.stages, tables, answer.choice, strict=True)
        stages = (replace(own, placements=tuple(p for p, _, _ in table.placed(row))) for own, table, row in chosen)
        pipeline = replace(pipeline, stages=tuple(stages))
    return _replayed_demand(pipeline if share.served >= 1 else pipeline.scaled(share.served), placed)


def keeps_sla(
    pipeline: Pipeline,
    replicas: Mapping[PlacementKey, int],
    batches: Mapping[PlacementKey, int],
    composition: Composition,
    *,
    limit_s: float,
    replays: bool,
) -> bool:
    """Return whether `replicas` keep the pipeline's SLA: by their composed latency, or else, if it `replays`, by that.

    `limit_s` takes the place of the SLA for composed latencies. A plan may have a longer composed latency, where its
    replay showed that the SLA is kept. Where a stage mixes placements, which is where the model errs most, a replay
    decides.
    """
    sla_s = pipeline.sla.latency_s
    composed_s = predicted_latency_s(pipeline, replicas, batches, composition=composition)
    if composed_s is None:
        return False
    replays = replays and composition is Composition.RSS
    if composed_s <= limit_s + _EPSILON_S and not (replays and _mixes(pipeline, replicas)):
        return True
    if not replays or composed_s > MOST_LATER * sla_s:
        return False
    placed = tuple(
        (
            stage.name,
            p.name,
            replicas.get((stage.name, p.name), 0),
            batches.get((stage.name, p.name), p.batch_sizes[-1]),
        )
        for stage in pipeline.stages
        for p in stage.placements
    )
    replayed = _replayed_demand(pipeline, placed)
    return replayed is not None and replayed.latency_s <= sla_s


def _mixes(pipeline: Pipeline, replicas: Mapping[PlacementKey, int]) -> bool:
    return any(
        stage.cascade is None and sum(replicas.get((stage.name, own.name), 0) > 0 for own in stage.placements) > 1
        for stage in pipeline.stages
    )


def _replayed_demand(served: Pipeline, placed: tuple[_Placed, ...]) -> Replayed | None:
    """Return the replay of the whole demand of `served`, or of a little more that keeps the SLA."""
    if served.demand.entry_rate_rps <= 0:  # the share rounds to no load
        return None
    running = {(stage, name) for stage, name, replicas, _ in placed if replicas}
    sla_s = served.sla.latency_s
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
    if replayed is None or not replayed.keeps(sla_s):
        replayed = _replayed(served, placed)
    return replayed


def _queues_only(stage: Stage, running: Collection[PlacementKey]) -> Stage:
    """Return the stage reduced to what its queues depend on: its placements in `running`; unchanged if there are none.

    Plans that differ in nothing else then share one cached replay.
    """
    placements = tuple(
        replace(placement, min_replicas=0, max_replicas=1, per_instance=1, session_slots=None, wer=None, current=0)
        for placement in stage.placements
        if (stage.name, placement.name) in running
    )
    if not placements:
        return stage
    sharing = None if stage.sharing is None else replace(stage.sharing, borrowed=False, cost_share=1.0)
    cascade = stage.cascade if len(placements) > 1 else None  # without its first models all items go to the last
    return replace(
        stage, placements=placements, min_replicas=1, sharing=sharing, cascade=cascade, mixing=Mixing.OVERFLOW
    )


def misses(fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> Mapping[PipelineKey, Miss]:
    """Return the plans that need a replay (see `doubted`) and whose replay exceeds the SLA or measures no latency.

    The plan of a pipeline whose account is exhausted stays as it is.
    """
    missed: dict[PipelineKey, Miss] = {}
    for pipeline in fleet.problem.pipelines:
        share = shares[pipeline.key]
        if fleet.exhausted(pipeline) or not doubted(fleet, pipeline, share):
            continue
        replayed = replayed_share(fleet, pipeline, share)
        if replayed is None or not replayed.keeps(pipeline.sla.latency_s):
            missed[pipeline.key] = Miss(pipeline=pipeline, replayed=replayed)
    return missed


def tightened(before: Target | None, miss: Miss, rounds: int) -> Target | None:
    """Return the target to plan for after the `rounds`-th miss of a pipeline (from 1); None: keep the present plan.

    `before` is the present target, None for the SLA. Rounds 1 to `ROUNDS` lower the target, with latencies composed by
    `Composition.RSS`. The next round, or an earlier one whose replay measured no latency, starts again from the SLA,
    with latencies composed by `Composition.SUM`; later rounds lower that target. The result is None after
    `ROUNDS` + 1 + `SUM_ROUNDS` rounds, where the plan by SUM is `settled`, and after the first round where the miss is
    `doubtful`.

    Other rounds never raise the target, because one replay is too noisy for that. Round `ROUNDS` + 1 returns to the
    SLA even if an earlier round changed to SUM and lowered the target since.
    """
    sla_s = miss.pipeline.sla.latency_s
    summed = before is not None and before.composition is Composition.SUM
    if rounds > ROUNDS + 1 + SUM_ROUNDS or (summed and miss.settled) or (rounds > 1 and miss.doubtful):
        return None
    if rounds == ROUNDS + 1 or miss.replayed is None:
        return Target(latency_s=sla_s, composition=Composition.SUM)
    target_s = sla_s if before is None else before.latency_s
    composition = Composition.RSS if before is None else before.composition
    replayed_s = miss.replayed.latency_s / MARGIN
    if miss.doubtful and math.isfinite(miss.replayed.at_most_s):
        replayed_s = max(replayed_s, miss.replayed.at_most_s)
    return Target(latency_s=target_s * min(MARGIN, sla_s / replayed_s), composition=composition)


def loosened(
    before: Target | None, composed_s: float, replayed: Replayed, sla_s: float, refused_s: float
) -> Target | None:
    """Return a later target for a plan whose replay leaves a part of the SLA unused; None where none is worth trying.

    `before` is the present target, None for the SLA; `composed_s` is the composed latency of its plan. `refused_s` is
    the earliest target whose plan missed the SLA in its replay, infinite where none did; the middle is tried then.
    """
    if replayed.latency_s <= 0 or replayed.latency_s >= USED * sla_s:
        return None
    at_s = sla_s if before is None else before.latency_s
    later_s = min(composed_s * _AIM * sla_s / replayed.latency_s, (at_s + refused_s) / 2, MOST_LATER * sla_s)
    # The plan stays the same up to the next corner of the cost over latency: a small step would find it again.
    if later_s <= at_s * (1 + _STEP):
        return None
    return Target(latency_s=later_s, composition=Composition.RSS)


def cut_down(fleet: Fleet, miss: Miss, share: Share) -> Share:
    """Return a smaller share of the demand that keeps the SLA in its replay, on no more of any pool than `share` uses.

    The last resort where no tighter target helped. Each share tried is smaller than the one before in proportion to the
    replayed latency; after five without success the share is 0. The binding constraint of the result is the SLA.
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
    """Return the demand with its rate rounded up to three digits, and its sessions raised in proportion."""
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
    """Return the replay of a plan; cached, so that the replay of an unchanged plan is not repeated."""
    return replay(
        pipeline,
        {(stage, name): replicas for stage, name, replicas, _ in placed},
        {(stage, name): batch for stage, name, _, batch in placed},
        decides_s=pipeline.sla.latency_s,
    )
