"""Compose the latencies of stages into the latency of the pipeline: series add up, joins wait for the slowest branch.

A time is given by its mean m and its excess e = percentile − mean. In series means add up. Excesses add up like
standard deviations (`Composition.RSS`: e² adds up) or plainly (`Composition.SUM`).

At a join the branches are assumed to be independent, in both modes: the distribution functions multiply. Each branch is
m + e·Z, where Z is an Erlang variable, shifted to mean 0 and scaled to 1 at the percentile. The time after a join has
another distribution. It is given by three numbers: mean, excess, and the spread s of the tail beyond the percentile
(s = e where there was no join). With Q = m + e, the time is Q + s·(Z − 1) where Z ≥ 1, and Q + b·(Z − 1) below, with
the b that keeps the mean. A join keeps the larger s of its branches. This overstates the tail, which matters at a
further join only. In return the latency of the pipeline never falls when m, e or s of one part grows and its other two
numbers stay. Without joins it never falls when m or m + e grows and the other of these two stays.

A percentile below the mean (p50 of a skewed time) gives no spread. Such a stage counts as a constant time: its mean
minus its shortfall / √(number of stages). That is exact for one stage and for equal stages in series. Otherwise it is
too high, at a join of such branches too low. Below p75 a join treats the excesses as if they were those at p75: at
lower percentiles Z cannot be scaled well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Composition, StageName
from optimizer.runtime.compiled import compiled

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Chain = tuple[int, ...]

_ORDER = 2.0
"""The order of the Erlang variable, fitted to simulated joins (tests/oracle/test_joins.py); closed forms rely on it."""
_LOWEST_LEVEL = 0.75
_BODY_NODES = 12
_TAIL_NODES = 4
_NEWTON_STEPS = 40
_FAR = 700.0
_SURE_S = 1e-12
"""A spread below this counts as 0, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean and percentile of a time, in seconds, as arrays that broadcast against each other."""

    mean_s: Array
    percentile_s: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Parts that an item passes in sequence."""

    parts: tuple["Tree", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Branches of a join, which waits for all of them.

    They are composed pairwise from the left, in the order of their stages' names.
    """

    branches: tuple["Tree", ...]


Tree = int | Series | Parallel
"""A pipeline whose branches nest, or a part of it: a stage by index, a series, or branches in parallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The graph of the stages, split at the joins. Stages are numbers: their positions in the pipeline.

    `gates[v]` are the branches that stage v waits for. Each is a chain: the stages that all paths of the branch pass,
    from the fork of the branches to stage v, both excluded. A stage that is no join has one empty chain. `spine` has
    the stages that all paths of the pipeline pass, in order. Where several branches end the pipeline together, `exits`
    are these branches, from their fork on.

    `program` (operations, 3) computes the latency of the pipeline on registers; the first registers are the stages'
    own. A row is (operation, target, source), with the operation `COPY`, `ADD` or `JOIN`. The target of the last row
    holds the result.
    """

    gates: tuple[tuple[Chain, ...], ...]
    spine: Chain
    exits: tuple[Chain, ...]
    tree: Tree | None
    """Stages in series and in parallel; None where branches share stages, so that no such tree exists."""
    program: Counts = field(compare=False, repr=False)

    @property
    def serial(self) -> bool:
        """Return whether the pipeline has no join."""
        return not self.exits and all(len(gate) == 1 for gate in self.gates)


COPY, ADD, JOIN = 0, 1, 2


def shape_of(stages: Sequence[tuple[StageName, Sequence[StageName]]]) -> Shape:
    """Return the shape of a pipeline: `stages` are (name, names of its inputs), and inputs come first."""
    index = {name: position for position, (name, _) in enumerate(stages)}
    above: list[Chain] = []  # the dominators of each stage, from the entry down, itself included
    gates: list[tuple[Chain, ...]] = []
    for name, after in stages:
        shared, branches = _meet([above[index[source]] for source in after], stages)
        gates.append(branches)
        above.append((*shared, index[name]))
    sources = {source for _, after in stages for source in after}
    last = [above[index[name]] for name, _ in stages if name not in sources]
    spine, exits = _meet(last, stages)
    exits = () if len(exits) == 1 else exits
    return Shape(
        gates=tuple(gates),
        spine=spine,
        exits=exits,
        tree=_tree(gates, spine, exits),
        program=_program(gates, spine, exits),
    )


def mean_and_excess(mean_s: Array, percentile_s: Array, stages: int) -> tuple[Array, Array]:
    """Return m and e ≥ 0, in seconds, with which a stage enters the composition in a pipeline of `stages` stages.

    They differ from `mean_s` and `percentile_s` − `mean_s` where the percentile is below the mean: see the module.
    """
    with np.errstate(invalid="ignore"):
        excess = percentile_s - mean_s  # NaN where both are infinite: then the mean is infinite, too
    return mean_s + np.fmin(excess, 0.0) / math.sqrt(stages), np.fmax(excess, 0.0)


def end_to_end(shape: Shape, stages: Sequence[Latency], *, composition: Composition, percentile: float) -> Latency:
    """Return the latency from the entry to the last stage; not finite where the latency of a stage is not.

    `stages` has the latency of each stage. `mean_s` of the result is the composed mean, which is below the true mean
    where a stage's percentile is below its mean.
    """
    pairs = [mean_and_excess(stage.mean_s, stage.percentile_s, len(stages)) for stage in stages]
    if shape.serial:
        mean = sum((m for m, _ in pairs[1:]), pairs[0][0])
        if composition is Composition.SUM:
            return Latency(mean_s=mean, percentile_s=mean + sum((e for _, e in pairs[1:]), pairs[0][1]))
        squares = sum((e * e for _, e in pairs[1:]), pairs[0][1] ** 2)
        return Latency(mean_s=mean, percentile_s=mean + np.sqrt(squares))
    arrays = np.broadcast_arrays(*(array for pair in pairs for array in pair))
    form = arrays[0].shape
    means = np.ascontiguousarray(np.stack(arrays[::2], axis=-1).reshape(-1, len(stages)), dtype=np.float64)
    excesses = np.ascontiguousarray(np.stack(arrays[1::2], axis=-1).reshape(-1, len(stages)), dtype=np.float64)
    whole = np.empty((len(means), 2))
    _compose_rows(shape.program, means, excesses, composition is Composition.RSS, join_law(percentile), whole)
    return Latency(mean_s=whole[:, 0].reshape(form), percentile_s=whole[:, 1].reshape(form))


@lru_cache(maxsize=64)
def join_law(percentile: float) -> Array:
    """Return the parameters that `join` needs at `percentile` (0–100, exclusive), as one array for compiled functions.

    They are: the logarithm of the level, the unit of Z, the mean of Z (0), E max(Z − 1, 0), the number of nodes n; then
    the n nodes of a quadrature over Z, and their n weights. A node is the mean of Z over its part of the distribution.
    No part extends across Z = 1, so that the quadrature keeps the mean although the spread differs on the two sides.
    """
    level = max(percentile / 100, _LOWEST_LEVEL)
    unit = _erlang_quantile(level) - _ORDER
    tail = (1 - level) * np.array([0.5**part for part in range(_TAIL_NODES)] + [0.0])
    edges = np.concatenate((np.linspace(0, level, _BODY_NODES + 1), 1 - tail[1:]))
    cuts = [0.0, *(_erlang_quantile(edge) for edge in edges[1:-1])]
    # The part of the mean of an Erlang variable below x is its order times the next order's distribution function.
    below = np.array([_ORDER * _erlang_cdf(cut, int(_ORDER) + 1) for cut in cuts] + [_ORDER])
    weights = np.diff(edges)
    nodes = (np.diff(below) / weights - _ORDER) / unit
    law = np.concatenate(
        ([math.log(level), unit, 0.0, _erlang_beyond(_ORDER + unit) / unit, len(nodes)], nodes, weights)
    )
    law.setflags(write=False)
    return law


@compiled
def join(
    mean_s: float,
    excess_s: float,
    spread_s: float,
    other_mean_s: float,
    other_excess_s: float,
    other_spread_s: float,
    law: Array,
) -> tuple[float, float, float]:
    """Return mean, excess and spread of the later of two independent branches, in seconds.

    A branch without a join has `spread_s` equal to `excess_s`. `law` is `join_law(percentile)`. The result is monotone:
    when mean, mean + excess or spread of a branch grows, none of these three falls in the result.
    """
    m, q, s, other_m, other_q, other_s = (
        mean_s,
        mean_s + excess_s,
        spread_s,
        other_mean_s,
        other_mean_s + other_excess_s,
        other_spread_s,
    )
    unit, above, nodes = law[1], law[3], int(law[4])
    mean = 0.0
    for _ in range(2):  # one branch by quadrature and the other in closed form, then vice versa
        # b keeps the mean: Q − b·(1 + above) + s·above = m.
        body = (q - m + s * above) / (1.0 + above)
        other_body = (other_q - other_m + other_s * above) / (1.0 + above)
        for node in range(nodes):
            z = law[5 + node]
            x = q + (s if z > 1.0 else body) * (z - 1.0)
            value, base, scale = x, 0.0, other_s
            if x < other_q:
                value, base, scale = other_m, 1.0, other_body
            if scale > _SURE_S:
                # E max(x, T) = x + E max(T − x, 0) where x is in the tail of T, else m + E max(x − T, 0).
                z = 1.0 + (x - other_q) / scale
                y = _ORDER + unit * z
                beyond = _ORDER - y
                if y > 0.0:
                    beyond = math.exp(-y) * (_ORDER + y) if y < _FAR else 0.0
                value += scale * (base * z + beyond / unit)
            mean += 0.5 * law[5 + nodes + node] * value
        m, q, s, other_m, other_q, other_s = other_m, other_q, other_s, m, q, s
    later = _quantile_of_later(q, s, other_q, other_s, law)
    return mean, max(later - mean, 0.0), max(spread_s, other_spread_s)


@compiled
def _quantile_of_later(first: float, spread: float, second: float, other_spread: float, law: Array) -> float:
    """Return the time at which the product of the branches' distribution functions reaches the level.

    The logarithm of the product is concave, so that Newton's steps from the left stay left of the solution.
    """
    level, unit = law[0], law[1]
    x = max(first, second)
    for _ in range(_NEWTON_STEPS):
        value, slope = -level, 0.0
        for branch in range(2):
            q, s = (first, spread) if branch == 0 else (second, other_spread)
            if s <= _SURE_S:
                continue  # a constant time, which has ended by x
            y = _ORDER + unit * (1.0 + (x - q) / s)
            if y > _FAR:
                continue
            tail = math.exp(-y)
            below = 1.0 - tail * (1.0 + y)
            value += math.log(below)
            slope += y * tail / below * unit / s
        if value >= 0.0 or slope <= 0.0:
            break
        step = -value / slope
        x += step
        if step <= 1e-13 * x:
            break
    return x


@compiled
def compose(program: Counts, mean_s: Array, excess_s: Array, rss: bool, law: Array) -> tuple[float, float]:
    """Return mean and percentile of the latency of the pipeline, in seconds; infinite where a stage's is.

    `program` is `Shape.program`, `law` is `join_law(percentile)`. `mean_s` and `excess_s` (stages,) are as returned by
    `mean_and_excess`. `rss`: squared excesses add up in series.
    """
    stages = len(mean_s)
    registers = stages
    for row in range(len(program)):
        registers = max(registers, program[row, 1] + 1)
    mean, excess, spread = (
        np.empty(registers),
        np.empty(registers),
        np.empty(registers),
    )  # in RSS squares of the last two
    for stage in range(stages):
        e = excess_s[stage]
        if not (mean_s[stage] + e < np.inf):
            return np.inf, np.inf
        mean[stage] = mean_s[stage]
        excess[stage] = e * e if rss else e
        spread[stage] = excess[stage]
    whole = 0
    for row in range(len(program)):
        whole, source = program[row, 1], program[row, 2]
        if program[row, 0] == COPY:
            mean[whole], excess[whole], spread[whole] = mean[source], excess[source], spread[source]
        elif program[row, 0] == ADD:
            mean[whole] += mean[source]
            excess[whole] += excess[source]
            spread[whole] += spread[source]
        else:
            if rss:
                excess[whole], spread[whole] = math.sqrt(excess[whole]), math.sqrt(spread[whole])
                excess[source], spread[source] = math.sqrt(excess[source]), math.sqrt(spread[source])
            m, e, s = join(mean[whole], excess[whole], spread[whole], mean[source], excess[source], spread[source], law)
            mean[whole] = m
            excess[whole] = e * e if rss else e
            spread[whole] = s * s if rss else s
    return mean[whole], mean[whole] + (math.sqrt(excess[whole]) if rss else excess[whole])


@compiled
def _compose_rows(program: Counts, means: Array, excesses: Array, rss: bool, law: Array, whole: Array) -> None:
    """Write mean and percentile of each row, shape (rows, stages), to `whole` (rows, 2)."""
    for row in range(len(means)):
        whole[row, 0], whole[row, 1] = compose(program, means[row], excesses[row], rss, law)


def _erlang_cdf(x: float, order: int) -> float:
    return 1 - math.exp(-x) * sum(x**power / math.factorial(power) for power in range(order))


def _erlang_beyond(x: float) -> float:
    """Return E max(X − x, 0) of the Erlang variable X; `join` has a copy in its loop."""
    return math.exp(-x) * (_ORDER + x)


def _erlang_quantile(level: float) -> float:
    low, high = 0.0, 800.0
    for _ in range(80):
        middle = (low + high) / 2
        if _erlang_cdf(middle, int(_ORDER)) < level:
            low = middle
        else:
            high = middle
    return high


def _program(gates: Sequence[tuple[Chain, ...]], spine: Chain, exits: Sequence[Chain]) -> Counts:
    """Return the rows (operation, target, source) of `Shape.program`.

    The register of a join becomes the latency since its branches forked, its own included.
    """
    rows: list[tuple[int, int, int]] = []
    scratch = len(gates)

    def chain(stages: Chain, into: int) -> None:
        rows.append((COPY, into, stages[0]))
        rows.extend((ADD, into, stage) for stage in stages[1:])

    def slowest(branches: Sequence[Chain]) -> None:
        chain(branches[0], scratch)
        for branch in branches[1:]:
            chain(branch, scratch + 1)
            rows.append((JOIN, scratch, scratch + 1))

    for stage, gate in enumerate(gates):
        if len(gate) > 1:
            slowest(gate)
            rows.append((ADD, stage, scratch))
    if exits:
        slowest(exits)
        rows.extend((ADD, scratch, stage) for stage in spine)
    else:
        rows.extend((ADD, spine[0], stage) for stage in spine[1:])
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _tree(gates: Sequence[tuple[Chain, ...]], spine: Chain, exits: Sequence[Chain]) -> Tree | None:
    occupied: set[int] = set()

    def stage(index: int) -> list[Tree] | None:
        if index in occupied:
            return None
        occupied.add(index)
        if len(gates[index]) == 1:
            return [index]
        joined = parallel(gates[index])
        return None if joined is None else [joined, index]

    def chain(stages: Chain) -> list[Tree] | None:
        parts: list[Tree] = []
        for index in stages:
            some = stage(index)
            if some is None:
                return None
            parts += some
        return parts

    def parallel(branches: Sequence[Chain]) -> Tree | None:
        ends: list[Tree] = []
        for branch in branches:
            parts = chain(branch)
            if parts is None:
                return None
            ends.append(_in_series(parts))
        return Parallel(branches=tuple(ends))

    parts = chain(spine)
    if parts is not None and exits:
        joined = parallel(exits)
        parts = None if joined is None else [*parts, joined]
    return None if parts is None else _in_series(parts)


def _in_series(parts: Sequence[Tree]) -> Tree:
    return parts[0] if len(parts) == 1 else Series(parts=tuple(parts))


def _meet(
    paths: Sequence[Chain], stages: Sequence[tuple[StageName, Sequence[StageName]]]
) -> tuple[Chain, tuple[Chain, ...]]:
    """Return the common prefix of all `paths`, and what follows it in each, without repetitions.

    The order of the second value depends on the stages' names only.
    """
    if not paths:
        return (), ((),)
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    # A path that is a prefix of the others needs no branch: they wait for it already.
    rest = sorted({path[shared:] for path in paths} - {()}, key=lambda chain: [stages[stage][0] for stage in chain])
    if len(rest) <= 1:
        return max(paths, key=len), ((),)
    return paths[0][:shared], tuple(rest)
