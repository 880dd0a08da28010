"""What the pipelines that come first are expected to leave of pools and budgets in later hours."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from controller.core.assess.assessment import Assessment
from controller.core.assess.expected import expected_demands
from controller.core.assess.optimizer_input import NO_REPLICAS, optimizer_demand
from controller.core.plan.ledger import totals_of
from controller.core.plan.schedule import Course, Period, Segment
from controller.core.state.snapshot import PoolState
from optimizer.latency.stage import carried_rps
from optimizer.model import Pipeline, PipelineKey, Placement, PlacementKey, Pool, PoolName, Problem, Stage

USED = 0.5
"""So much of its capacity a single replica is taken to use, where more demand is expected of its stage."""
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What is taken in one period: instances by pool, and spend by pipeline in USD per hour."""

    instances: Mapping[PoolName, float]
    per_hour: Mapping[PipelineKey, float]


def taken_later(
    taken: Sequence[Assessment],
    settled: Mapping[PipelineKey, Mapping[PlacementKey, int]],
    pipelines: Mapping[PipelineKey, Pipeline],
    pools: Mapping[PoolName, PoolState],
    *,
    now_s: float,
    step_s: float,
    steps: int,
) -> Sequence[Taken]:
    """Return what `taken`, which have their replicas as `current`, take in each of `steps` periods of `step_s` seconds.

    The first is the present one. After it, pipelines have their `settled` replicas, or the present ones, and those of
    live pipelines follow the expected demand. What does not act or shares stages keeps them.
    """
    prices = {name: pool.spec.price_per_hour for name, pool in pools.items()}
    later = [
        (
            each.key,
            [(key, own.pool, own.prior.per_instance) for key, own in each.spec.placements().items()],
            _replicas_later(
                each, settled.get(each.key, each.present), pipelines.get(each.key), prices, now_s, step_s, steps
            ),
        )
        for each in taken
    ]
    totals, per_hour, found = totals_of(()), dict[PipelineKey, float](), list[Taken]()
    for index in range(steps):
        changed = False
        for name, placements, counts in later:
            now, before = counts[index], counts[index - 1] if index else NO_REPLICAS
            if now is before:
                continue
            changed, paid = True, 0.0
            for key, pool, size in placements:
                count = now.get(key, 0)
                totals.move(pool, size, before.get(key, 0), count)
                paid += prices[pool] / size * count
            per_hour[name] = paid
        if changed or not index:
            instances = {name: float(totals.instances(name)) for name in totals.pools() if name in pools}
            found.append(Taken(instances=instances, per_hour=dict(per_hour)))
        else:
            found.append(found[-1])
    return found


def _replicas_later(
    each: Assessment,
    after: Mapping[PlacementKey, int],
    pipeline: Pipeline | None,
    prices: Mapping[PoolName, float],
    now_s: float,
    step_s: float,
    steps: int,
) -> Sequence[Mapping[PlacementKey, int]]:
    present, same = each.present, [after] * (steps - 1)
    alone = pipeline is not None and all(own.sharing is None for own in pipeline.stages)
    if pipeline is None or not alone or not each.acting or each.pace is not None:
        return [present, *same]
    held_s = each.spec.scaling.down.stabilization_s
    demands = expected_demands(each.demand, each.spec.at_least, held_s, now_s, step_s, steps)
    if demands is None:
        return [present, *same]
    known: dict[float, Mapping[PlacementKey, int]] = {demands[0]: after}
    stages, unit_rps = ranked(pipeline, prices), optimizer_demand(each.spec, 1.0).entry_rate_rps
    for demand in demands:
        if demand not in known:
            known[demand] = later_replicas(stages, after, demands[0] * unit_rps, demand * unit_rps)
    return [present, *(known[demand] for demand in demands[1:])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A stage with its placements, those with the cheapest items first: (placement, items per second of a replica).

    `visits` is how many items it has for one at the entry.
    """

    stage: Stage
    visits: float
    placements: tuple[tuple[Placement, float], ...]


def ranked(pipeline: Pipeline, prices: Mapping[PoolName, float]) -> Sequence[Ranked]:
    """Return the stages of `pipeline`; `prices` are those of instances in USD per hour."""
    found: list[Ranked] = []
    for stage in pipeline.stages:
        rates = [(each, _rps(stage, each)) for each in stage.placements]
        rates.sort(key=lambda pair: prices[pair[0].pool] / pair[0].per_instance / pair[1])
        found.append(Ranked(stage=stage, visits=pipeline.visit_ratios[stage.name], placements=tuple(rates)))
    return found


def later_replicas(
    stages: Sequence[Ranked], present: Mapping[PlacementKey, int], now_rps: float, then_rps: float
) -> Mapping[PlacementKey, int]:
    """Return the replicas of `stages` at `then_rps` items per second at the entry; at `now_rps` they have `present`.

    The capacity of each stage follows the rate. Of less, the replicas with the most expensive items go; of more, those
    with the cheapest come.
    """
    found = dict(present)
    for each in stages:
        name, own = each.stage.name, each.placements
        capacity = sum(found.get((name, one.name), 0) * rate for one, rate in own)
        count = sum(found.get((name, one.name), 0) for one, _ in own)
        if now_rps > 0 and (then_rps <= now_rps or count > 1):
            target = capacity * then_rps / now_rps
        else:
            target = max(capacity, then_rps * each.visits / USED)
        for one, rate in reversed(own):
            key = (name, one.name)
            spare = int(max(0.0, capacity - target) / rate + _EPSILON)
            gone = min(spare, max(0, found.get(key, 0) - one.min_replicas), max(0, count - each.stage.min_replicas))
            found[key] = found.get(key, 0) - gone
            capacity, count = capacity - gone * rate, count - gone
        for one, rate in own:
            key = (name, one.name)
            lacking = ceil(max(0.0, target - capacity) / rate - _EPSILON)
            more = min(lacking, max(0, one.max_replicas - found.get(key, 0)))
            found[key] = found.get(key, 0) + more
            capacity += more * rate
    return found


def _rps(stage: Stage, placement: Placement) -> float:
    return carried_rps(stage, placement, placement.batch_sizes[-1])


def with_courses(taken: Sequence[Taken], courses: Mapping[PipelineKey, Course], step_s: float) -> Sequence[Taken]:
    """Return `taken` with what the courses of backlogs use in later periods of `step_s` seconds more than now."""
    instances, per_hour = [dict(each.instances) for each in taken], [dict(each.per_hour) for each in taken]
    for key, course in courses.items():
        first = course.now
        before = {pool: ceil(count - _EPSILON) for pool, count in first.instances.items()}
        for index, then in enumerate(course.busiest(step_s, len(taken))):
            if not index:
                continue  # the present one, from which plans take what the course uses
            for pool, count in then.instances.items():
                more = ceil(count - _EPSILON) - before.get(pool, 0)
                if more > 0:
                    instances[index][pool] = instances[index].get(pool, 0.0) + more
            per_hour[index][key] = per_hour[index].get(key, 0.0) + max(0.0, then.per_hour - first.per_hour)
    return [Taken(instances=own, per_hour=paid) for own, paid in zip(instances, per_hour, strict=True)]


def periods_of(
    problem: Problem, key: PipelineKey, taken: Sequence[Taken], step_s: float, without: Collection[PoolName] = ()
) -> tuple[Period, ...]:
    """Return the periods for the backlog `key`, whose `problem` has what is left in the first of `taken`.

    The pools in `without`, which do not exist, have no capacity in them: what it costs there is not known.
    """
    own = next(each for each in problem.pipelines if each.key == key)
    found: dict[tuple[tuple[tuple[PoolName, float], ...], float], tuple[Segment, ...]] = {}
    periods: list[Period] = []
    for each in taken:
        instances = {
            name: max(0.0, pool.instances + taken[0].instances.get(name, 0.0) - each.instances.get(name, 0.0))
            if name not in without
            else 0.0
            for name, pool in problem.pools.items()
        }
        budget = _budget(problem, key, taken[0], each)
        place = tuple(sorted(instances.items())), budget
        if place not in found:
            found[place] = segments(own, problem.pools, instances, budget)
        periods.append(Period(length_s=step_s, segments=found[place]))
    return tuple(periods)


def _budget(problem: Problem, key: PipelineKey, now: Taken, then: Taken) -> float:
    """Return what the backlog `key` may cost in USD per hour: in a group and in the fleet what others leave."""
    own = next(each for each in problem.pipelines if each.key == key)
    caps = [float("inf") if own.budget_per_hour is None else own.budget_per_hour]

    def more(keys: Iterable[PipelineKey]) -> float:
        return sum(then.per_hour.get(each, 0.0) - now.per_hour.get(each, 0.0) for each in keys)

    if problem.budget_per_hour is not None:
        caps.append(problem.budget_per_hour - more(then.per_hour))
    caps += [each.per_hour - more(each.pipelines) for each in problem.budgets if key in each.pipelines]
    return max(0.0, min(caps))


def segments(
    pipeline: Pipeline, pools: Mapping[PoolName, Pool], instances: Mapping[PoolName, float], budget_per_hour: float
) -> tuple[Segment, ...]:
    """Return the capacity for `pipeline` on `instances` of the pools, the cheapest first, within the budget.

    Every stage takes its placements in the order of the price of an item. Exact where no two stages want one pool.
    """
    left = dict(instances)
    replicas = {
        (stage.name, each.name): float(each.max_replicas) for stage in pipeline.stages for each in stage.placements
    }
    found: list[Segment] = []
    spent = 0.0
    while True:
        chosen = [_next(pipeline, stage, pools, left, replicas) for stage in pipeline.stages]
        using = [each for each in chosen if each is not None]
        if len(using) < len(chosen):
            break
        use: dict[PoolName, float] = {}
        for each in using:
            use[each.pool] = use.get(each.pool, 0.0) + each.replicas / each.per_instance
        cost = sum(each.replicas * each.price_per_hour for each in using)  # USD per hour of an item per second
        rate = min(
            *(replicas[each.key] / each.replicas for each in using),
            *(left[pool] / count for pool, count in use.items()),
        )
        within = (budget_per_hour - spent) / cost if cost > 0 else float("inf")
        if within <= _EPSILON:
            break
        rate = min(rate, within)
        found.append(Segment(rate_rps=rate, item_cost=cost / 3600, use=use))
        spent += rate * cost
        for each in using:
            replicas[each.key] -= rate * each.replicas
        for pool, count in use.items():
            left[pool] -= rate * count
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A placement that a stage takes next: `replicas` of it do one item per second at the entry."""

    key: PlacementKey
    pool: PoolName
    per_instance: float
    price_per_hour: float
    replicas: float


def _next(
    pipeline: Pipeline,
    stage: Stage,
    pools: Mapping[PoolName, Pool],
    left: Mapping[PoolName, float],
    replicas: Mapping[PlacementKey, float],
) -> _Choice | None:
    """Return the placement with the cheapest items that has replicas and instances left, None where there is none."""
    choices = [
        _Choice(
            key=(stage.name, each.name),
            pool=each.pool,
            per_instance=float(each.per_instance),
            price_per_hour=pools[each.pool].replica_price_per_hour(each),
            replicas=pipeline.visit_ratios[stage.name] / _rps(stage, each),
        )
        for each in stage.placements
        if replicas[stage.name, each.name] > _EPSILON and left[each.pool] > _EPSILON
    ]
    return min(choices, key=lambda each: (each.price_per_hour * each.replicas, each.key), default=None)
