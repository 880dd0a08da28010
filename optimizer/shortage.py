"""When not everything can be served: who gets what, and which constraint is to blame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf, log

import numpy as np
from numpy.typing import NDArray

from optimizer.case import TOLERANCE, Case, Walk
from optimizer.fleet import Answer, Fleet, by_priority, own_budget
from optimizer.greedy import cheapest
from optimizer.latency import capacity_rps
from optimizer.model import Pipeline, PipelineKey, Placement, Stage, StageName
from optimizer.options import StageOptions, Supply, without_replicas
from optimizer.plan import Limit, LimitKind

Counts = NDArray[np.int64]

RESOLUTION = 256
"""Shares are multiples of 1 / RESOLUTION; those below it, of the powers of that."""

_PLENTY = 10.0
"""Replicas for this many times the load queue no longer: more cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pipeline gets: the share of its demand and how it is served; no answer: not even its minimums."""

    served: float
    answer: Answer | None
    limit: Limit | None


def share_out(fleet: Fleet, room: Counts, budget_per_hour: float) -> Mapping[PipelineKey, Share]:
    """Return the largest shares that fit, by priority; pipelines of equal priority get equal shares first.

    Minimums come before anyone's SLA, those of the most important pipelines first.
    """
    pipelines = by_priority(fleet.problem.pipelines)
    minimums: dict[PipelineKey, Answer] = {}
    shares: dict[PipelineKey, Share] = {}
    for pipeline in pipelines:
        left = room - _use(minimums, room)
        money = budget_per_hour - _cost(minimums)
        minimum, limit = _minimum(fleet, pipeline, left, money)
        if minimum is None:
            shares[pipeline.key] = Share(served=0.0, answer=None, limit=limit)
        else:
            minimums[pipeline.key] = minimum
    answers = dict(minimums)
    served = dict.fromkeys(minimums, 0.0)
    for priority in sorted({p.priority for p in pipelines}, reverse=True):
        group = [p.key for p in pipelines if p.priority == priority and p.key in minimums]
        equals = _Group(fleet=fleet, answers=answers, room=room, budget_per_hour=budget_per_hour)
        for keys in ([group] if len(group) > 1 else []) + [[key] for key in group]:
            _raise(equals, served, keys)
        for pipeline in pipelines:
            if pipeline.key in group and served[pipeline.key] == 0:
                _raise_a_little(equals, served, pipeline)
    for pipeline in pipelines:
        if pipeline.key in answers:
            share, answer = served[pipeline.key], answers[pipeline.key]
            left = room - _use(answers, room) + answer.use
            money = budget_per_hour - _cost(answers) + answer.cost_per_hour
            more = share + min(1 / RESOLUTION, _reach(fleet, pipeline))
            limit = None if share >= 1 else blame(fleet, pipeline, more, left, money)
            shares[pipeline.key] = Share(served=share, answer=answer, limit=limit)
    return shares


def blame(fleet: Fleet, pipeline: Pipeline, share: float, room: Counts, budget_per_hour: float) -> Limit:
    """Return the constraint that keeps `share` of the demand from being served in what others leave.

    Money is to blame if more of it alone would help. Otherwise all constraints but the SLA are lifted and put back
    one by one; the first that cannot be put back is to blame.
    """
    share = min(share, 1.0)

    def servable(constraints: frozenset[Limit]) -> bool:
        money = max(0.0, min(budget_per_hour, own_budget(pipeline)))
        relaxed = replace(
            pipeline,
            budget_per_hour=money if Limit(kind=LimitKind.BUDGET) in constraints and np.isfinite(money) else None,
            stages=tuple(
                stage
                if Limit(kind=LimitKind.BOUNDS, name=stage.name) in constraints
                else _unbounded(stage, pipeline, share)
                for stage in pipeline.stages
            ),
        )
        bound = np.array([Limit(kind=LimitKind.POOL, name=name) in constraints for name in fleet.supply.pools])
        ample = _ample(relaxed, fleet.supply)
        supply = replace(fleet.supply, limits=np.where(bound, fleet.supply.limits, ample))
        asked = Fleet(replace(fleet.problem, pipelines=(relaxed,)), supply)
        return asked.alone(relaxed, share, np.where(bound, room, ample), exact=False) is not None

    budget = Limit(kind=LimitKind.BUDGET)
    physical = [*_pool_limits(pipeline), *_bound_limits(pipeline)]
    if not servable(frozenset()):
        return Limit(kind=LimitKind.SLA)
    if servable(frozenset(physical)):
        return budget
    kept: frozenset[Limit] = frozenset()
    for limit in physical:
        if not servable(kept | {limit}):
            return limit
        kept |= {limit}
    return budget


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The state of sharing out: `answers` so far, to be improved in what is left of room and budget."""

    fleet: Fleet
    answers: dict[PipelineKey, Answer]
    room: Counts
    budget_per_hour: float

    def attempt(self, keys: list[PipelineKey], share: float, *, exact: bool) -> Mapping[PipelineKey, Answer] | None:
        """Return how `share` of the demand of each of `keys` is served beside the others' answers, or None."""
        others = {key: answer for key, answer in self.answers.items() if key not in keys}
        room, budget_per_hour = self.room - _use(others, self.room), self.budget_per_hour - _cost(others)
        return self.fleet.together(dict.fromkeys(keys, share), room, budget_per_hour, exact=exact)


def _raise_a_little(group: _Group, served: dict[PipelineKey, float], pipeline: Pipeline) -> None:
    """Raise the share of a pipeline whose demand is so many times its capacity that it is lost in the resolution."""
    power = max(2, 1 + floor(-log(_reach(group.fleet, pipeline), RESOLUTION)))
    if group.attempt([pipeline.key], float(RESOLUTION) ** -(power + 1), exact=False) is None:
        return  # not for the load
    for unit in (float(RESOLUTION) ** -power, float(RESOLUTION) ** -(power + 1)):
        if served[pipeline.key] == 0:
            _raise(group, served, [pipeline.key], unit)


def _reach(fleet: Fleet, pipeline: Pipeline) -> float:
    """Return a share above which the replicas there may be cannot serve; of one item per second where there are none.

    It keeps questions about an absurd demand as small as what can be done about it.
    """
    demand, share = pipeline.demand, 1.0
    for stage in pipeline.stages:
        most = [(min(p.max_replicas, fleet.supply.most(p)), p) for p in stage.placements]
        rate = demand.entry_rate_rps * pipeline.visit_ratios[stage.name]
        carried = sum(count * capacity_rps(p, p.batch_sizes[-1]) for count, p in most)
        share = min(share, (carried or 1.0) / rate if rate > 0 else 1.0)
        slots = sum(inf if p.session_slots is None else count * p.session_slots for count, p in most if count)
        share = min(share, (slots or 1.0) / demand.sessions if demand.sessions else 1.0)
    return share


def _raise(
    group: _Group, served: dict[PipelineKey, float], keys: list[PipelineKey], unit: float = 1 / RESOLUTION
) -> None:
    """Raise the shares of `keys` together as far as they go, by bisection, above the least of them."""
    low, high = round(min(served[key] for key in keys) / unit), RESOLUTION + 1
    found: Mapping[PipelineKey, Answer] | None = None
    level = RESOLUTION
    while high - low > 1:
        answer = group.attempt(keys, level * unit, exact=False)
        if answer is None:
            high = level
        else:
            low, found = level, answer
        level = (low + high) // 2
    if found is not None:
        group.answers.update(group.attempt(keys, low * unit, exact=True) or found)
        served.update(dict.fromkeys(keys, low * unit))


def _minimum(
    fleet: Fleet, pipeline: Pipeline, room: Counts, budget_per_hour: float
) -> tuple[Answer | None, Limit | None]:
    """Return the cheapest way to keep stages at their minimum, all that have room; or nothing, and what forbids it."""
    whole = fleet.case(pipeline, 0.0).within(room)
    case = whole.priced([table.cost_per_hour for table in whole.tables])
    choice = cheapest(case)
    if choice is None:
        case = _those_with_room(case)
        choice = cheapest(case)
    assert choice is not None, "stages that do not run always have room"
    if case.cost_per_hour(choice) > min(own_budget(pipeline), budget_per_hour) + TOLERANCE:
        return None, Limit(kind=LimitKind.BUDGET)
    if not case.use(choice).any():
        return None, blame(fleet, pipeline, 0.0, room, budget_per_hour)
    return Answer(case=case, walk=Walk(visited=(choice,))), None


def _those_with_room(case: Case) -> Case:
    """Return the case with as many stages as find room, those nearest to the entry first; the others run nothing."""
    depth: dict[StageName, int] = {}
    for table in case.tables:
        depth[table.stage.name] = 1 + max((depth[name] for name in table.stage.after), default=0)
    tables = [without_replicas(table) for table in case.tables]
    for stage, table in sorted(
        enumerate(case.tables), key=lambda entry: (depth[entry[1].stage.name], entry[1].stage.name)
    ):
        tried = [*tables[:stage], table, *tables[stage + 1 :]]
        if cheapest(_over(case, tried)) is not None:
            tables = tried
    return _over(case, tables)


def _over(case: Case, tables: Sequence[StageOptions]) -> Case:
    return replace(case, tables=tuple(tables), prices=tuple(table.cost_per_hour for table in tables))


def _unbounded(stage: Stage, pipeline: Pipeline, share: float) -> Stage:
    """Return the stage with as many replicas allowed as can make a difference."""
    demand = pipeline.demand.scaled(share)
    rate = demand.entry_rate_rps * pipeline.visit_ratios[stage.name]

    def enough(placement: Placement) -> Placement:
        count = ceil(_PLENTY * rate / capacity_rps(placement, placement.batch_sizes[-1])) + 1
        if placement.session_slots is not None and demand.sessions is not None:
            count = max(count, ceil(demand.sessions / placement.session_slots))
        return replace(placement, max_replicas=max(placement.max_replicas, count))

    return replace(stage, placements=tuple(enough(placement) for placement in stage.placements))


def _ample(pipeline: Pipeline, supply: Supply) -> int:
    """Return units that hold every replica of the pipeline on one pool."""
    replicas = sum(p.max_replicas for stage in pipeline.stages for p in stage.placements)
    return int(replicas * supply.units_per_instance.max(initial=1))


def _pool_limits(pipeline: Pipeline) -> Iterator[Limit]:
    for name in sorted({p.pool for stage in pipeline.stages for p in stage.placements}):
        yield Limit(kind=LimitKind.POOL, name=name)


def _bound_limits(pipeline: Pipeline) -> Iterator[Limit]:
    names: list[StageName] = sorted(stage.name for stage in pipeline.stages)
    for name in names:
        yield Limit(kind=LimitKind.BOUNDS, name=name)


def _use(answers: Mapping[PipelineKey, Answer], room: Counts) -> Counts:
    return np.asarray(sum((answer.use for answer in answers.values()), np.zeros_like(room)), dtype=np.int64)


def _cost(answers: Mapping[PipelineKey, Answer]) -> float:
    return sum(answer.cost_per_hour for answer in answers.values())
