"""Free mixes of pools: what they save over overflow, how long plans take, and how far the latency model is off.

Run `python tests/bench/bench_mixing.py [--pipelines 60]`. Pipelines are drawn from seeds (`tests/support/mixed_loads`):
stages of very different machines, with a load that needs few or many instances. Nothing is cached between plans. The
errors are those of the p95 against event simulations of 60,000 items, for single placements and for mixes of 1 to 6 and
1 to 3 replicas whose service times differ by factors of 1 to 8.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from mixed_loads import LOADS, a_mixed_problem
from problems import a_pipeline, a_stage, on

from optimizer import allocate as plans
from optimizer import verification
from optimizer.fleet import fleet
from optimizer.latency.stage import StageLoad, capacity_rps, predict_all
from optimizer.model import Mixing, PlacementName, PoolName, Routing, StageName
from optimizer.plan import Plan
from optimizer.replay.replay import replay
from optimizer.reports.certificate import certified_plan
from optimizer.search import tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One pipeline: the share of the cost that free mixes save, times of both plans in seconds, and the gap with them.

    `mixed` says that the plan mixes placements.
    """

    saved: float
    overflow_s: float
    free_s: float
    gap: float
    mixed: bool


def forget() -> None:
    """Empty all caches, so that a plan takes as long as the first one of its load."""
    tables._TABLES.clear()
    fleet._SUBPROBLEMS.clear()
    plans._PLANS.clear()
    verification._replayed.cache_clear()


def timed(load: str, seed: int, mixing: Mixing) -> tuple[float, Plan]:
    problem = a_mixed_problem(load, seed, mixing)
    forget()
    began = time.process_time()
    plans.allocate(problem)
    return time.process_time() - began, certified_plan(problem)


def compared(load: str, pipelines: int) -> Iterator[Compared]:
    for seed in range(pipelines):
        overflow_s, overflow = timed(load, seed, Mixing.OVERFLOW)
        free_s, free = timed(load, seed, Mixing.FREE)
        if overflow.feasible:
            yield Compared(
                saved=1 - free.cost_per_hour / overflow.cost_per_hour,
                overflow_s=overflow_s,
                free_s=free_s,
                gap=free.gap if free.gap is not None else float("nan"),
                mixed=any(
                    sum(placement.replicas > 0 for placement in stage.placements) > 1
                    for stage in free.pipelines[0].stages
                ),
            )


def show_savings(pipelines: int) -> None:
    print("load    plans  mixed  saved: mean    p90    max   proven  gap: mean    max   ms: overflow    free  ratio")
    for load in LOADS:
        found = list(compared(load, pipelines))
        saved = np.array([each.saved for each in found])
        gap = np.array([each.gap for each in found])
        overflow, free = (np.median([getattr(each, name) for each in found]) * 1e3 for name in ("overflow_s", "free_s"))
        print(
            f"{load:6} {len(found):6} {np.mean([each.mixed for each in found]):6.0%} {saved.mean():12.1%}"
            f" {np.quantile(saved, 0.9):6.1%} {saved.max():6.1%} {np.mean(gap <= 1e-6):8.0%} {np.nanmean(gap):10.1%}"
            f" {np.nanmax(gap):6.1%} {overflow:14.0f} {free:7.0f} {free / overflow:6.1f}"
        )


def errors(routing: Routing, points: int) -> Iterator[tuple[bool, float]]:
    """Yield whether a point is a mix, and the relative error of its p95."""
    rng = random.Random(1)
    for _ in range(points):
        ratio, short = rng.choice((1, 1.5, 2, 4, 8)), rng.choice((0.01, 0.03))
        cv, busy = rng.choice((0.1, 0.3, 1.0)), rng.choice((0.3, 0.5, 0.7, 0.85))
        both = (rng.choice((1, 2, 3, 6)), rng.choice((1, 1, 2, 3)))
        batches = rng.choice(((1,), (8,)))
        placements = tuple(
            on(pool, service=(short * slower, 0.2 * short * slower if batches == (8,) else 0.0), cv=cv, batches=batches)
            for pool, slower in (("gpu", 1.0), ("inferentia", ratio))
        )
        for counts in ((both[0], 0), (0, both[1]), both):
            rate = busy * sum(count * capacity_rps(p, batches[0]) for count, p in zip(counts, placements, strict=True))
            sessions = float(max(20, round(rate))) if routing is Routing.STICKY else None
            model = predict_all(
                StageLoad(rate_rps=rate, sessions=sessions, periodic=sessions is not None),
                placements,
                np.array([counts]),
                (batches[0], batches[0]),
                routing=routing,
                percentile=95.0,
            )
            pipeline = a_pipeline(a_stage("a", *placements, routing=routing), rate_rps=rate, sessions=sessions)
            names: list[PlacementName] = [PoolName("gpu"), PoolName("inferentia")]
            replicas = {(StageName("a"), name): count for name, count in zip(names, counts, strict=True)}
            simulated = replay(pipeline, replicas, {}, items=60_000)
            if simulated is not None and np.isfinite(model.percentile_s[0]):
                yield all(counts), float(model.percentile_s[0]) / simulated.latency_s - 1


def show_errors(points: int) -> None:
    print("\nerror of the p95   alone: mean   90 % within   mixes: mean   90 % within   lowest   highest")
    for routing in Routing:
        found = list(errors(routing, points))
        alone, mixed = (np.array([error for is_mix, error in found if is_mix == wanted]) for wanted in (False, True))
        print(
            f"{routing.value:18} {alone.mean():+12.1%} {np.quantile(abs(alone), 0.9):13.1%} {mixed.mean():+13.1%}"
            f" {np.quantile(abs(mixed), 0.9):13.1%} {mixed.min():+8.1%} {mixed.max():+9.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=60, help="of each load")
    parser.add_argument("--points", type=int, default=60, help="mixes of each routing that are simulated")
    arguments = parser.parse_args()
    for mixing in Mixing.FREE, Mixing.OVERFLOW:  # what is compiled once does not count
        for load in LOADS:
            timed(load, -1, mixing)
    show_savings(arguments.pipelines)
    show_errors(arguments.points)


if __name__ == "__main__":
    main()
