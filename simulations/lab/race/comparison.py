"""How far the simulator is off for each entrant of a race: its simulated runs beside the live ones. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from simulations.results.results import RunResult, Tuning
from simulations.results.users import share_as_promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The simulated runs of an entrant against its live runs with the same loads, as means over the seeds.

    `cost` is simulated over live cost. `users` and `windows` are the simulated share (0–1) of users served as promised,
    and of windows within the SLA, minus the live one; None where a run has none. `replicas` is the mean absolute
    difference of the desired replicas of all placements at the end of each window, over the live mean of their sum.
    `behind_s` is by how much the simulated replicas have to be shifted to fit the live ones best, in whole windows:
    above 0 the live ones come later.
    """

    policy: str
    tuning: Tuning
    cost: float
    users: float | None
    windows: float | None
    replicas: float
    behind_s: float


def deviations(live: Sequence[RunResult], simulated: Sequence[RunResult]) -> Iterator[Deviation]:
    """Yield the deviation of each entrant, in the order of the live runs.

    Raises:
        ValueError: a live run has no simulated run of the same policy, settings and seed.
    """
    by_run = {(own.policy, own.tuning, own.seed): own for own in simulated}
    missing = [own for own in live if (own.policy, own.tuning, own.seed) not in by_run]
    if missing:
        raise ValueError(f"simulated: has no run of {missing[0].policy} ({missing[0].tuning}), seed {missing[0].seed}")
    for policy, tuning in dict.fromkeys((own.policy, own.tuning) for own in live):
        pairs = [
            (own, by_run[policy, tuning, own.seed]) for own in live if (own.policy, own.tuning) == (policy, tuning)
        ]
        offs = [_replicas_off(own, other, 0) for own, other in pairs]
        yield Deviation(
            policy=policy,
            tuning=tuning,
            cost=fmean(other.cost for _, other in pairs) / fmean(own.cost for own, _ in pairs),
            users=_mean_difference([(share_as_promised(o.users), share_as_promised(s.users)) for o, s in pairs]),
            windows=_mean_difference([(own.sla_windows_met, other.sla_windows_met) for own, other in pairs]),
            replicas=fmean(offs),
            behind_s=fmean(_behind_s(own, other) for own, other in pairs),
        )


def _mean_difference(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    differences = [other - own for own, other in pairs if own is not None and other is not None]
    return fmean(differences) if len(differences) == len(pairs) else None


_SHIFTS = range(-3, 4)


def _behind_s(live: RunResult, simulated: RunResult) -> float:
    best = min(_SHIFTS, key=lambda shift: (round(_replicas_off(live, simulated, shift), 9), abs(shift)))
    return best * live.series.length_s[0]


def _replicas_off(live: RunResult, simulated: RunResult, shift: int) -> float:
    """Return the difference of the replicas, with the simulated ones moved back by `shift` windows."""
    own, other = _replicas(live), _replicas(simulated)
    keys = sorted(own.keys() | other.keys())
    count = min(len(live.series.t_s), len(simulated.series.t_s))
    windows = [at for at in range(count) if 0 <= at - shift < count]
    zero = (0,) * count
    off = sum(abs(own.get(key, zero)[at] - other.get(key, zero)[at - shift]) for key in keys for at in windows)
    total = sum(own.get(key, zero)[at] for key in keys for at in windows)
    return off / total if total else float(off > 0)


def _replicas(run: RunResult) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """Return the desired replicas of each placement: pipeline, stage and name, whatever their order."""
    return {
        (pipeline.pipeline, placement.stage, placement.placement): placement.desired
        for pipeline in run.series.pipelines
        for placement in pipeline.placements
    }
