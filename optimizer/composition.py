"""From the latencies of stages to that of the pipeline: series add up, joins wait for the slowest branch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Composition, StageName
from optimizer.tails import maximum

Array = NDArray[np.float64]
Chain = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean and percentile of a time, in seconds; arrays that broadcast against each other."""

    mean_s: Array
    percentile_s: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the stages hang together, taken apart at the joins.

    `gates[v]` are the branches that stage v waits for, counted from the point where they last were one (the nearest
    common dominator): each a chain of stages. A stage that is no join has one empty chain. `spine` leads from the
    entry through these points to the last stage, or to the `exits` that are last together.
    """

    gates: tuple[tuple[Chain, ...], ...]
    spine: Chain
    exits: tuple[Chain, ...]

    @property
    def serial(self) -> bool:
        """Return whether no item waits for another branch."""
        return not self.exits and all(len(gate) == 1 for gate in self.gates)


def shape_of(stages: Sequence[tuple[StageName, Sequence[StageName]]]) -> Shape:
    """Return the shape of `stages`: names with the stages they take from, each after those."""
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
    return Shape(gates=tuple(gates), spine=spine, exits=() if len(exits) == 1 else exits)


def end_to_end(shape: Shape, stages: Sequence[Latency], *, composition: Composition, percentile: float) -> Latency:
    """Return the latency from the entry to the last stage.

    Branches of a join are taken as independent, which overstates the maximum of branches that share a past.
    """

    def series(parts: Sequence[Latency]) -> Latency:
        mean = sum((part.mean_s for part in parts[1:]), parts[0].mean_s)
        if composition is Composition.SUM:
            return Latency(mean_s=mean, percentile_s=sum((p.percentile_s for p in parts[1:]), parts[0].percentile_s))
        excess = sum(
            ((part.percentile_s - part.mean_s) ** 2 for part in parts[1:]),
            (parts[0].percentile_s - parts[0].mean_s) ** 2,
        )
        return Latency(mean_s=mean, percentile_s=mean + np.sqrt(excess))

    def slowest(branches: Sequence[Chain]) -> Latency:
        ends = [series([local[stage] for stage in branch]) for branch in branches]
        means = np.stack(np.broadcast_arrays(*(end.mean_s for end in ends)))
        quantiles = np.stack(np.broadcast_arrays(*(end.percentile_s for end in ends)))
        mean, quantile = maximum(means, quantiles, percentile)
        return Latency(mean_s=mean, percentile_s=quantile)

    local: list[Latency] = []  # from the point where a stage's branches last were one to its own end
    for gate, stage in zip(shape.gates, stages, strict=True):
        local.append(stage if len(gate) == 1 else series([slowest(gate), stage]))
    parts = [local[stage] for stage in shape.spine]
    if shape.exits:
        parts.append(slowest(shape.exits))
    return series(parts)


def _meet(
    paths: Sequence[Chain], stages: Sequence[tuple[StageName, Sequence[StageName]]]
) -> tuple[Chain, tuple[Chain, ...]]:
    """Return what all `paths` begin with, and the rest of each, in an order that does not depend on the input's."""
    if not paths:
        return (), ((),)
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    # A path that ends where the others go on is waited for by them already.
    rest = sorted({path[shared:] for path in paths} - {()}, key=lambda chain: [stages[stage][0] for stage in chain])
    if len(rest) <= 1:
        return max(paths, key=len), ((),)
    return paths[0][:shared], tuple(rest)
