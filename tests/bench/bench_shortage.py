"""When not everything can be served: how much is, and how long the answer takes.

Fleets of the queueing family with a budget at 30, 60 and 90 % of the way from carrying every load at whatever latency
to meeting every SLA. HiGHS gets the same tables in the same run. Priorities come one after the other, so it maximises
those served whole of the highest priority first, keeps that and goes on; weights are the priorities, and "best" is the
weight of its bounds. Where a pipeline of a higher priority cannot be served whole, ours gives it as large a share as
can be before anyone of a lower one, which HiGHS does not: such fleets ("apart") are counted, and a second figure leaves
them out. "one priority" has no such case.

Then one pipeline alone, longer and longer, short of each constraint: the time of `allocate` with nothing remembered,
tables and reasons included.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from shortages import SHORT_OF, a_poor_fleet, an_overload, most_whole

from optimizer.allocate import allocate
from optimizer.fleet import fleet
from optimizer.model import Problem
from optimizer.plan import Plan
from optimizer.runtime.cache import BoundedCache
from optimizer.search import tables

SIZES = ((4, 3), (6, 4), (12, 8), (20, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fleet short of money: weights of the pipelines served whole, seconds."""

    kind: str
    way: float
    seed: int
    weight: int
    milp_weight: int
    best: int
    apart: bool
    lowest_share: float
    seconds: float
    cpu_seconds: float
    milp_seconds: float


def forget() -> None:
    """Forget every table and question, as a process that has just begun."""
    tables._TABLES.clear()
    fleet._SUBPROBLEMS = BoundedCache(2048)


def timed(problem: Problem) -> tuple[Plan, float, float]:
    """Return the plan and how long it took, on the clock and on the processor."""
    forget()
    began, busy = time.perf_counter(), time.process_time()
    plan = allocate(problem)
    return plan, time.perf_counter() - began, time.process_time() - busy


def measure(kind: str, count: int, way: float, seed: int, *, seconds: float) -> Row:
    priorities = (1, 2, 5) if kind == "priorities 1, 2, 5" else (1,)
    problem = a_poor_fleet(count, seed, way, priorities=priorities)
    plan, took, busy = timed(problem)
    spent = sum(answer.cost_per_hour for answer in plan.pipelines)
    assert problem.budget_per_hour is not None
    assert spent <= problem.budget_per_hour + 1e-6, "a plan spends more than there is"
    began = time.perf_counter()
    levels = most_whole(problem, seconds=seconds)
    milp_seconds = time.perf_counter() - began
    assert levels is not None
    whole = {level.priority: 0 for level in levels}
    for pipeline in problem.pipelines:
        whole[pipeline.priority] += plan.of(pipeline.key).feasible
    return Row(
        kind=kind,
        way=way,
        seed=seed,
        weight=sum(priority * number for priority, number in whole.items()),
        milp_weight=sum(level.priority * level.found for level in levels),
        best=sum(level.priority * level.at_most for level in levels),
        apart=any(
            not plan.of(pipeline.key).feasible
            for pipeline in problem.pipelines
            if pipeline.priority > levels[-1].priority
        ),
        lowest_share=min(answer.served_fraction for answer in plan.pipelines),
        seconds=took,
        cpu_seconds=busy,
        milp_seconds=milp_seconds,
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in (min(values), median(values), max(values)))


def report(rows: Sequence[Row]) -> None:
    best = sum(row.best for row in rows)
    alike = [row for row in rows if not row.apart]
    of_alike = f"{sum(row.weight for row in alike) / sum(row.best for row in alike):.3%}" if alike else "–"
    took, busy = spread([row.seconds for row in rows]), spread([row.cpu_seconds for row in rows])
    print(
        f"{rows[0].kind:<20} {rows[0].way:>4.0%}  ours {sum(row.weight for row in rows) / best:>8.3%}"
        f", not apart {of_alike:>8}"
        f"  HiGHS {sum(row.milp_weight for row in rows) / best:>8.3%} of {best};  s {took} (CPU {busy})"
        f" HiGHS {spread([r.milp_seconds for r in rows], 1)}  apart {sum(row.apart for row in rows)} of {len(rows)}"
    )


def overloads(seeds: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for stages, placements in SIZES:
        for short_of in SHORT_OF:
            short, cpu, shares, limits = [], [], [], []
            for seed in range(seeds):
                plan, took, busy = timed(an_overload(stages, placements, short_of, seed))
                (answer,) = plan.pipelines
                short.append(took)
                cpu.append(busy)
                shares.append(answer.served_fraction)
                limits.append(str(answer.limited_by))
            found.append(
                {
                    "stages": stages,
                    "placements": placements,
                    "short_of": short_of,
                    "seconds": short,
                    "cpu_seconds": cpu,
                    "served": shares,
                    "limited_by": limits,
                }
            )
            print(
                f"{stages:>3} × {placements}  short of {short_of:<8} s {spread(short)} (CPU {spread(cpu)})"
                f"   served {spread(shares)}   {', '.join(sorted(set(limits)))}"
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--pipelines", type=int, default=60)
    parser.add_argument("--milp-seconds", type=float, default=60.0, help="for each priority")
    parser.add_argument("--quick", action="store_true", help="one seed, HiGHS for 10 s")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else arguments.seeds
    milp_seconds = min(10.0, arguments.milp_seconds) if arguments.quick else arguments.milp_seconds
    for short_of in SHORT_OF:  # compiled code is loaded
        allocate(an_overload(2, 2, short_of, 0))
    allocate(a_poor_fleet(8, 99, 0.5, priorities=(1,)))
    print("least / middle / most over the seeds")
    rows: list[Row] = []
    for kind in ("one priority", "priorities 1, 2, 5"):
        for way in (0.3, 0.6, 0.9):
            mine = [measure(kind, arguments.pipelines, way, seed, seconds=milp_seconds) for seed in range(seeds)]
            report(mine)
            rows += mine
    single = overloads(seeds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"fleets": [asdict(row) for row in rows], "single": single}, indent=1))


if __name__ == "__main__":
    main()
