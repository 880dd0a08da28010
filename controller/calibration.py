"""Converts the time limit of a decision into units of search work, by a measurement on this machine at start-up.

The search counts its work instead of reading a clock, so that a decision can be reproduced from its record. This module
measures on a fixed problem how many units of work this machine does per second.
"""

import math
import time
from collections.abc import Callable

from optimizer.fleet.fleet import Fleet
from optimizer.fleet.lagrangian import share_pools
from optimizer.model import (
    Demand,
    Mixing,
    Pipeline,
    PipelineKey,
    Placement,
    Pool,
    PoolName,
    Problem,
    ServiceLaw,
    Sla,
    Stage,
    StageName,
)
from optimizer.search.tables import supply_of

RUNS = 5
_PIPELINES, _STAGES = 12, 4
_NEAR, _FAR = PoolName("near"), PoolName("far")


def search_effort(decision_s: float, *, solve: Callable[[], int] | None = None) -> int:
    """Return the units of search work that this machine does in `decision_s` seconds, rounded down to a power of two.

    `solve` solves a problem and returns the units of work it took; by default `reference()`. It is called once to be
    compiled and then `RUNS` times. The fastest run counts, because other work on the machine slowed the others down.
    Only CPU time of this thread is measured, because other threads read thousands of resources at the same time. With
    the rounding, two starts on the same machine mostly agree.
    """
    solve = solve or reference()
    solve()
    best = 0.0
    for _ in range(RUNS):
        started_s = time.thread_time()
        units = solve()
        best = max(best, units / max(time.thread_time() - started_s, 1e-9))
    return 1 << max(0, math.floor(math.log2(max(1.0, best * decision_s))))


def reference() -> Callable[[], int]:
    """Return a function that solves the reference problem and returns the units of search work it took.

    The problem: twelve pipelines of four stages compete for two scarce pools. Its work does not depend on the machine.
    """
    problem = Problem(
        pipelines=tuple(_pipeline(number) for number in range(_PIPELINES)),
        pools={
            _NEAR: Pool(name=_NEAR, price_per_hour=1.0, instances=20),
            _FAR: Pool(name=_FAR, price_per_hour=2.5, instances=14),
        },
    )
    supply = supply_of(problem)
    fleet = Fleet(problem, supply)
    subproblems = [fleet.subproblem(pipeline, 1.0, Mixing.OVERFLOW) for pipeline in problem.pipelines]
    return lambda: share_pools(subproblems, supply.limits).work


def _pipeline(number: int) -> Pipeline:
    stages = tuple(
        Stage(
            name=StageName(f"stage{k}"),
            after=(StageName(f"stage{k - 1}"),) if k else (),
            placements=tuple(
                Placement(pool=pool, service=ServiceLaw(fixed_s=fixed_s, cv=0.8), max_replicas=30, per_instance=2)
                for pool, fixed_s in (
                    (_NEAR, 0.020 + 0.003 * ((7 * number + 3 * k) % 11)),
                    (_FAR, 0.010 + 0.002 * ((5 * number + k) % 7)),
                )
            ),
        )
        for k in range(_STAGES)
    )
    return Pipeline(
        key=PipelineKey(f"calibration/{number:02}"),
        stages=stages,
        demand=Demand(entry_rate_rps=10.0 + 5 * (number % 9)),
        sla=Sla(latency_s=0.4 + 0.02 * (number % 5)),
    )
