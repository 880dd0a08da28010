"""Choose one allocation for each stage that several pipelines share, so that each of these meets its own SLA.

The pipelines that share stages are its users. A user's own plan, made with the load of all users, says which replicas
it would choose. These choices are tried first, then the other allocations of the stage that could be cheaper. For each
one the replicas of the stage are fixed for all users, and their other stages are planned around it. The cheapest choice
with which all users are served counts. A user's least cost with the stage for free bounds what a choice can cost, so
that most allocations need not be tried.

Where no choice serves all users in full, the users of the highest priority get the largest share that can be served
with the same share for each of them, then those of the next priority. After that, each user alone gets more where it
can.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from optimizer.latency.predict import stage_load
from optimizer.latency.stage import capacity_rps
from optimizer.model import Mixing, Pipeline, PipelineKey, PoolName, Problem, Stage, StageName, whole_instances
from optimizer.plan import Limit, LimitKind, PipelinePlan, Plan
from optimizer.search.tables import stage_options, supply_of

Solve = Callable[[Problem], Plan]
Server = tuple[PipelineKey, StageName]
"""A shared stage, by the pipeline that owns it and its name there."""

MOST_TRIED = 48
"""The most allocations of a shared stage that are tried where all users can be served."""
MOST_TRIED_SHORT = 8
"""The most that are tried for each share of the demand where not all users can be served."""
_STEPS = 64
"""Shares of the demand are multiples of 1 / `_STEPS`."""
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The problem with one allocation of each shared stage for all its users.

    `parts` are problems to be solved one by one; together they have all pipelines. In them, the shared stages have the
    chosen replicas, and the demand of a user is what is served of it: the share `served` of those that are not served
    in full, for the reason in `limits`. `relaxed` has problems whose least costs together are a lower bound of the cost
    of any plan that serves all pipelines in full.
    """

    parts: tuple[Problem, ...]
    served: Mapping[PipelineKey, float]
    limits: Mapping[PipelineKey, Limit]
    relaxed: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """Replicas and batch limit of each placement of a shared stage; `price_per_hour` is their whole cost in USD."""

    replicas: tuple[int, ...]
    batches: tuple[int, ...]
    price_per_hour: float


_Rows = Mapping[Server, _Row]


def settle(problem: Problem, solve: Solve, estimate: Solve) -> Settled | None:
    """Return `problem` with the replicas of its shared stages chosen; None where no two of its pipelines share a stage.

    `solve` plans a problem in which shared stages are fixed; `estimate` does so without a replay, which is enough to
    find the shares to serve: a plan is still checked when these are known. A stage whose owner is not in the problem
    stays as its bounds say: its replicas are not for these pipelines to choose.
    """
    keys = {pipeline.key for pipeline in problem.pipelines}
    names = {
        stage.sharing.owner
        for pipeline in problem.pipelines
        for stage in pipeline.stages
        if stage.sharing is not None and stage.sharing.borrowed and stage.sharing.owner in keys
    }
    users = [pipeline for pipeline in problem.pipelines if _linked(pipeline, names)]
    if not users:
        return None
    rest = tuple(pipeline for pipeline in problem.pipelines if not _linked(pipeline, names))
    relaxed = (
        *(_alone(problem, user) for user in users),
        *((replace(problem, pipelines=rest),) if rest else ()),
    )
    search = _Search(replace(problem, pipelines=tuple(users)), solve, estimate)
    found = search.cheapest()
    if found is not None:
        whole = replace(problem, pipelines=tuple(pinned(pipeline, found) for pipeline in problem.pipelines))
        if not rest:
            return Settled(parts=(whole,), served={}, limits={}, relaxed=relaxed)
        plan = solve(whole)
        if plan.feasible:
            return Settled(parts=(whole,), served={}, limits={}, relaxed=relaxed)
    else:
        plan = solve(problem)
    # Pools or money are short: the users get what the other pipelines leave, and these what the users then leave.
    others = [plan.of(pipeline.key) for pipeline in rest]
    left = without(search.problem, rest, others)
    search = _Search(left, solve, estimate)
    found = search.cheapest() if rest else None
    if found is not None:
        served: Mapping[PipelineKey, float] = {user.key: 1.0 for user in users}
    else:
        served, found = search.shares()
    if found is None:  # not even the least replicas fit
        found = search.least()
    scaled = replace(left, pipelines=tuple(pinned(user, found) for user in _at(users, served)))
    limits = {
        user.key: plan.of(user.key).limited_by or search.limit(user, found) for user in users if served[user.key] < 1
    }
    parts: tuple[Problem, ...] = (scaled,)
    if rest:
        own = solve(scaled)
        parts = (scaled, without(replace(problem, pipelines=rest), scaled.pipelines, own.pipelines))
    return Settled(parts=parts, served=served, limits=limits, relaxed=relaxed)


def pinned(pipeline: Pipeline, rows: _Rows) -> Pipeline:
    """Return `pipeline` with the replicas and batch limits of `rows` for its shared stages."""
    return replace(pipeline, stages=tuple(_pinned(stage, rows) for stage in pipeline.stages))


def _pinned(stage: Stage, rows: _Rows) -> Stage:
    row = None if stage.sharing is None else rows.get((stage.sharing.owner, stage.sharing.stage))
    if row is None:
        return stage
    return replace(
        stage,
        min_replicas=1,
        placements=tuple(
            replace(
                placement,
                min_replicas=count,
                max_replicas=count,
                batch_sizes=(batch,),
                batch_waits_s=(),  # the shortest: in the latency model a longer one is never better
                current=count if stage.borrowed else placement.current,
            )
            for placement, count, batch in zip(stage.placements, row.replicas, row.batches, strict=True)
        ),
    )


def without(problem: Problem, pipelines: Sequence[Pipeline], plans: Sequence[PipelinePlan]) -> Problem:
    """Return `problem` with the instances and the money that `plans` of `pipelines` leave."""
    replicas = {(plan.key, *key): count for plan in plans for key, count in plan.replicas().items()}
    budget = problem.budget_per_hour

    def used(pool: PoolName) -> int:
        return whole_instances(
            (placement.per_instance, replicas[pipeline.key, stage.name, placement.name])
            for pipeline in pipelines
            for stage in pipeline.stages
            if not stage.borrowed
            for placement in stage.placements
            if placement.pool == pool
        )

    return replace(
        problem,
        pools={
            name: replace(pool, instances=max(0, pool.instances - used(name))) for name, pool in problem.pools.items()
        },
        budget_per_hour=None if budget is None else max(0.0, budget - sum(plan.cost_per_hour for plan in plans)),
        budgets=tuple(
            replace(
                group,
                per_hour=max(0.0, group.per_hour - sum(p.cost_per_hour for p in plans if p.key in group.pipelines)),
            )
            for group in problem.budgets
        ),
    )


def _linked(pipeline: Pipeline, owners: set[PipelineKey]) -> bool:
    return any(stage.sharing is not None and stage.sharing.owner in owners for stage in pipeline.stages)


def _alone(problem: Problem, user: Pipeline, cost_share: float | None = None) -> Problem:
    """Return the problem of one user with all pools, and `cost_share` of the price of shared stages (None: its own)."""
    if cost_share is None:
        return replace(problem, pipelines=(user,))
    stages = tuple(
        stage if stage.sharing is None else replace(stage, sharing=replace(stage.sharing, cost_share=cost_share))
        for stage in user.stages
    )
    return replace(problem, pipelines=(replace(user, stages=stages),))


@dataclass(frozen=True, slots=True)
class _Use:
    """What one pipeline asks of a shared stage in full: items per second and sessions, and its share of the cost."""

    user: PipelineKey
    rate_rps: float
    sessions: float
    cost_share: float


def _at(users: Sequence[Pipeline], served: Mapping[PipelineKey, float]) -> tuple[Pipeline, ...]:
    """Return the users with the shares `served` of their demands, and of each other's load on shared stages.

    They pay for shared stages in proportion to what is served of them.
    """
    uses: dict[Server, list[_Use]] = {}
    for user in users:
        for stage in user.stages:
            if stage.sharing is not None:
                rate_rps = user.demand.entry_rate_rps * user.visit_ratios[stage.name]
                use = _Use(user.key, rate_rps, user.demand.sessions or 0.0, stage.cost_share)
                uses.setdefault((stage.sharing.owner, stage.sharing.stage), []).append(use)

    def shared(user: Pipeline, stage: Stage) -> Stage:
        if (sharing := stage.sharing) is None:
            return stage
        known = uses[sharing.owner, sharing.stage]
        others = [use for use in known if use.user != user.key]
        own_rps = sum(served[use.user] * use.rate_rps for use in known if use.user == user.key)
        all_rps = sum(served[use.user] * use.rate_rps for use in known)
        paid = sum(use.cost_share for use in known)
        # What is not that of these users, such as of a pipeline that does not act, stays.
        return replace(
            stage,
            sharing=replace(
                sharing,
                other_rps=max(0.0, sharing.other_rps - sum((1 - served[use.user]) * use.rate_rps for use in others)),
                other_sessions=max(
                    0.0, sharing.other_sessions - sum((1 - served[use.user]) * use.sessions for use in others)
                ),
                cost_share=min(1.0, paid * own_rps / all_rps) if all_rps > 0 else sharing.cost_share,
            ),
        )

    return tuple(
        replace(
            user,
            demand=user.demand.scaled(served[user.key]),
            stages=tuple(shared(user, stage) for stage in user.stages),
        )
        for user in users
    )


class _Search:
    """The search for the allocations of the shared stages of `problem`, whose pipelines are all users of them."""

    def __init__(self, problem: Problem, solve: Solve, estimate: Solve) -> None:
        self.problem = problem
        self._solve = solve
        self._estimate = estimate
        self._owned: dict[Server, tuple[Pipeline, Stage]] = {}
        owners = {pipeline.key: pipeline for pipeline in problem.pipelines}
        for pipeline in problem.pipelines:
            for stage in pipeline.stages:
                if stage.sharing is not None and stage.borrowed and stage.sharing.owner in owners:
                    owner = owners[stage.sharing.owner]
                    own = next(each for each in owner.stages if each.name == stage.sharing.stage)
                    self._owned[stage.sharing.owner, stage.sharing.stage] = owner, own

    def cheapest(self) -> _Rows | None:
        """Return the cheapest choice found that serves all users in full, or None."""
        users = self.problem.pipelines
        found = self._chosen(users, self._solve, (None, 1.0), MOST_TRIED)
        return found or self._chosen(users, self._solve, (), MOST_TRIED, mixing=Mixing.ANY, first=True)

    def fitting(self, served: Mapping[PipelineKey, float]) -> _Rows | None:
        """Return any choice that serves the shares `served` of the users' demands by the estimate, or None."""
        return self._chosen(_at(self.problem.pipelines, served), self._estimate, (1.0,), MOST_TRIED_SHORT, first=True)

    def _chosen(
        self,
        users: Sequence[Pipeline],
        solve: Solve,
        cost_shares: Sequence[float | None],
        most: int,
        *,
        mixing: Mixing = Mixing.OVERFLOW,
        first: bool = False,
    ) -> _Rows | None:
        """Return the cheapest choice tried, or the `first` one, with which all `users` are served, or None.

        `cost_shares` are the shares of the price for which the users' own choices are collected, `most` is how many
        allocations of each shared stage are tried.
        """
        free = [solve(_alone(self.problem, user, 0.0)) for user in users]
        if not all(plan.feasible for plan in free):
            return None
        others_per_hour = sum(plan.cost_per_hour for plan in free)
        choices: dict[Server, list[_Row]] = {server: [] for server in self._owned}
        for user in users:
            for share in cost_shares or (1.0,):
                self._collect(choices, user, solve(_alone(self.problem, user, share)).of(user.key))
        rows: _Rows = {
            server: max(found, key=lambda row: self._capacity(server, row)) for server, found in choices.items()
        }
        best, cost = self._tried(users, solve, rows, (None, inf))
        for server in self._owned:
            least = others_per_hour + sum(row.price_per_hour for other, row in rows.items() if other != server)
            for row in self._order(users, server, (choices[server], rows[server]), most, mixing):
                if first and best is not None:
                    return best
                if row != rows[server] and least + row.price_per_hour < cost - _TOLERANCE:
                    best, cost = self._tried(users, solve, {**rows, server: row}, (best, cost))
            rows = best or rows
        return best

    def shares(self) -> tuple[Mapping[PipelineKey, float], _Rows | None]:
        """Return the share of the demand that each user is served, and the choice with which it is."""
        steps: dict[PipelineKey, int] = {user.key: 0 for user in self.problem.pipelines}
        found: dict[tuple[int, ...], _Rows | None] = {}

        def fits(raised: Mapping[PipelineKey, int]) -> bool:
            at = tuple(raised.values())
            if at not in found:
                served = {key: count / _STEPS for key, count in raised.items()}
                found[at] = self.fitting(served)
            return found[at] is not None

        def raised(keys: Sequence[PipelineKey]) -> Mapping[PipelineKey, int]:
            # What the others pay depends on all loads, so that all of the demand may fit where a part of it does not.
            if fits({**steps, **dict.fromkeys(keys, _STEPS)}):
                return {**steps, **dict.fromkeys(keys, _STEPS)}
            low, high = min(steps[key] for key in keys), _STEPS
            while high - low > 1:
                middle = (low + high) // 2
                if fits({**steps, **{key: max(middle, steps[key]) for key in keys}}):
                    low = middle
                else:
                    high = middle
            return {**steps, **{key: max(low, steps[key]) for key in keys}}

        for priority in sorted({user.priority for user in self.problem.pipelines}, reverse=True):
            keys = sorted(user.key for user in self.problem.pipelines if user.priority == priority)
            steps.update(raised(keys))
            for key in keys:
                steps.update(raised([key]))
        fits(steps)
        return {key: count / _STEPS for key, count in steps.items()}, found[tuple(steps.values())]

    def least(self) -> _Rows:
        """Return the least replicas of each shared stage that its bounds allow."""
        rows: dict[Server, _Row] = {}
        for server, (_, stage) in self._owned.items():
            counts = tuple(placement.min_replicas for placement in stage.placements)
            rows[server] = self._row(server, counts, tuple(p.batch_sizes[0] for p in stage.placements))
        return rows

    def limit(self, user: Pipeline, rows: _Rows) -> Limit:
        """Return what keeps `user` from being served in full, where it could be if it chose the shared stages alone.

        With the choice `rows`, its own stages may be the limit. Otherwise a shared stage is: the pool of its replicas.
        """
        limit = self._solve(_alone(self.problem, pinned(user, rows))).of(user.key).limited_by
        names = {stage.name: stage.sharing for stage in user.stages if stage.sharing is not None}
        if limit is not None and (limit.kind is not LimitKind.BOUNDS or limit.name not in names):
            return limit
        for stage in user.stages:
            if (sharing := stage.sharing) is None or (limit is not None and stage.name != limit.name):
                continue
            counts = rows.get((sharing.owner, sharing.stage))
            used = [] if counts is None else zip(stage.placements, counts.replicas, strict=True)
            for placement, count in used:
                if count:
                    return Limit(kind=LimitKind.POOL, name=placement.pool)
        return Limit(kind=LimitKind.SLA)

    def _tried(
        self, users: Sequence[Pipeline], solve: Solve, rows: _Rows, best: tuple[_Rows | None, float]
    ) -> tuple[_Rows | None, float]:
        """Return `rows` and the cost of the plan with them, in USD per hour, or `best` if they are not better."""
        plan = solve(replace(self.problem, pipelines=tuple(pinned(user, rows) for user in users)))
        better = plan.feasible and plan.cost_per_hour < best[1] - _TOLERANCE
        return (rows, plan.cost_per_hour) if better else best

    def _collect(self, choices: Mapping[Server, list[_Row]], user: Pipeline, plan: PipelinePlan) -> None:
        for stage, own in zip(user.stages, plan.stages, strict=True):
            if stage.sharing is None or (stage.sharing.owner, stage.sharing.stage) not in choices:
                continue
            server = stage.sharing.owner, stage.sharing.stage
            bounds = self._owned[server][1].placements  # those of the owner count: it may have replicas that must stay
            row = self._row(
                server,
                tuple(
                    max(bound.min_replicas, min(bound.max_replicas, placement.replicas))
                    for bound, placement in zip(bounds, own.placements, strict=True)
                ),
                tuple(placement.batch for placement in own.placements),
            )
            if row not in choices[server]:
                choices[server].append(row)

    def _row(self, server: Server, replicas: tuple[int, ...], batches: tuple[int, ...]) -> _Row:
        placements = self._owned[server][1].placements
        return _Row(
            replicas,
            batches,
            sum(
                count * self.problem.pools[placement.pool].replica_price_per_hour(placement)
                for placement, count in zip(placements, replicas, strict=True)
            ),
        )

    def _capacity(self, server: Server, row: _Row) -> float:
        placements = self._owned[server][1].placements
        return sum(
            count * capacity_rps(placement, batch)
            for placement, count, batch in zip(placements, row.replicas, row.batches, strict=True)
        )

    def _order(
        self,
        users: Sequence[Pipeline],
        server: Server,
        chosen: tuple[Sequence[_Row], _Row],
        most: int,
        mixing: Mixing,
    ) -> Iterator[_Row]:
        """Yield at most `most` allocations of a shared stage: the users' choices, then others.

        `chosen` has these choices, and the row to which the others' prices are to be near.
        """
        tried, near = list(chosen[0][:most]), chosen[1]
        yield from tried
        rows = dict.fromkeys(row for row in self._options(users, server, mixing) if row not in tried)
        distances = sorted(rows, key=lambda row: (abs(row.price_per_hour - near.price_per_hour), row.price_per_hour))
        yield from distances[: most - len(tried)]

    def _options(self, users: Sequence[Pipeline], server: Server, mixing: Mixing) -> Iterator[_Row]:
        """Yield the allocations of a shared stage that carry the load of all users, without dominated ones."""
        supply = supply_of(self.problem)
        owner = next(user for user in users if user.key == server[0])
        stage = next(each for each in owner.stages if each.name == server[1])
        wers = [user.max_wer for user in users if user.max_wer is not None and self._uses(user, server)]
        for percentile in sorted({user.sla.percentile for user in users if self._uses(user, server)}):
            table = stage_options(
                stage,
                stage_load(owner, stage),
                supply,
                percentile=percentile,
                max_wer=min(wers, default=None),
                mixing=mixing,
            )
            for replicas, batches in zip(table.replicas.tolist(), table.batches.tolist(), strict=True):
                yield self._row(server, tuple(replicas), tuple(batches))

    def _uses(self, user: Pipeline, server: Server) -> bool:
        return any(
            stage.sharing is not None and (stage.sharing.owner, stage.sharing.stage) == server for stage in user.stages
        )
