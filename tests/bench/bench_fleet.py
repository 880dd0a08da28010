"""How good and how fast plans for fleets are that share scarce pools, beside a MILP solver.

Five pools; the two that the unconstrained optimum uses most hold 90 % or 70 % of what it wants. The gap is to the best
bound known: the larger of ours and the solver's. HiGHS gets the same tables, once the time ours took and once
`--milp-seconds`. Tables are drawn directly, and given to both: the time is that of the search. Times are wall-clock
on whatever else the machine does; each row shows the least, the middle and the most over the seeds.

The last rows ask through `allocate`, tables and words included, for pipelines whose tables come from the latency model.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from fleets import a_fleet, cut, solved

from optimizer.fleet.lagrangian import Shared, share_pools
from optimizer.model import Composition
from optimizer.search.subproblem import Subproblem

ROWS = (  # name, pipelines, share of the two pools, stress, composed by RSS, joins
    ("20 at 70 %", 20, 0.7, False, False, False),
    ("200 at 90 %", 200, 0.9, False, False, False),
    ("200 at 70 %", 200, 0.7, False, False, False),
    ("200 stress at 90 %", 200, 0.9, True, False, False),
    ("200 stress at 70 %", 200, 0.7, True, False, False),
    ("20 RSS at 70 %", 20, 0.7, False, True, False),
    ("200 RSS at 90 %", 200, 0.9, False, True, False),
    ("200 RSS at 70 %", 200, 0.7, False, True, False),
    ("200 RSS stress 70 %", 200, 0.7, True, True, False),
    ("20 joins at 70 %", 20, 0.7, False, True, True),
    ("200 joins at 70 %", 200, 0.7, False, True, True),
    ("1000 at 70 %", 1000, 0.7, False, False, False),
    ("1000 RSS at 70 %", 1000, 0.7, False, True, False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fleet: costs in USD per hour, times in seconds of the clock and of the CPU, gaps as shares."""

    fleet: str
    seed: int
    options: int
    cost: float
    bound: float
    seconds: float
    gap: float
    own_gap: float
    cpu_seconds: float
    again_seconds: float
    again_cpu_seconds: float
    again_gap: float
    work: int
    milp_seconds: float | None = None
    milp_over_ours: float | None = None
    milp_same_time_over_ours: float | None = None


def cost_of(subproblems: Sequence[Subproblem], shared: Shared) -> float:
    assert shared.choices is not None, "a fleet of the benchmark has a plan"
    return sum(subproblem.price(choice) for subproblem, choice in zip(subproblems, shared.choices, strict=True))


def measure(
    name: str, pipelines: int, share: float, seed: int, *, stress: bool, rss: bool, joins: bool, milp_seconds: float
) -> Row:
    rows = 100 if stress else 20
    composition = Composition.RSS if rss else Composition.SUM
    subproblems = a_fleet(pipelines, seed, rows=rows, stress=stress, composition=composition, joins=joins)
    capacity = cut(subproblems, share)
    began, busy = time.perf_counter(), time.process_time()
    shared = share_pools(subproblems, capacity)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - busy
    cost = cost_of(subproblems, shared)

    few = max(1, pipelines // 20)
    changed = [
        *subproblems[few:],
        *a_fleet(few, seed + 1000, rows=rows, stress=stress, composition=composition, joins=joins),
    ]
    began, busy = time.perf_counter(), time.process_time()
    again = share_pools(changed, capacity, start=shared.unit_prices)
    again_seconds, again_cpu_seconds = time.perf_counter() - began, time.process_time() - busy
    again_gap = max(0.0, cost_of(changed, again) / again.bound - 1)

    bound, milp, same, spent = shared.bound, None, None, None
    if milp_seconds > 0:
        brief = solved(subproblems, capacity, seconds=max(seconds, 0.05), gap=1e-6)
        same = None if brief.cost is None else brief.cost / cost - 1
        began = time.perf_counter()
        long = solved(subproblems, capacity, seconds=milp_seconds, gap=1e-6)
        spent = time.perf_counter() - began
        milp = None if long.cost is None else long.cost / cost - 1
        bound = max(bound, min(long.bound, cost))
    return Row(
        fleet=name,
        seed=seed,
        options=sum(len(table) for subproblem in subproblems for table in subproblem.tables),
        cost=cost,
        bound=bound,
        seconds=seconds,
        gap=max(0.0, cost / bound - 1),
        own_gap=max(0.0, cost / shared.bound - 1),
        cpu_seconds=cpu_seconds,
        again_seconds=again_seconds,
        again_cpu_seconds=again_cpu_seconds,
        again_gap=again_gap,
        work=shared.work,
        milp_seconds=spent,
        milp_over_ours=milp,
        milp_same_time_over_ours=same,
    )


def spread(values: Sequence[float | None], unit: float, digits: int) -> str:
    """Return least / middle / most of the values that exist."""
    there = [value for value in values if value is not None]
    if not there:
        return "no plan" if values else "-"
    text = " / ".join(f"{value * unit:.{digits}f}" for value in (min(there), median(there), max(there)))
    return text if len(there) == len(values) else f"{text} ({len(values) - len(there)} without)"


def report(name: str, rows: Sequence[Row], *, milp: bool) -> None:
    print(
        f"{name:<20} {int(median(row.options for row in rows)):>7} options"
        f"  gap % {spread([row.gap for row in rows], 100, 4)}; own % {spread([row.own_gap for row in rows], 100, 4)};"
        f" ms {spread([row.seconds for row in rows], 1e3, 0)} (CPU {spread([row.cpu_seconds for row in rows], 1e3, 0)})"
    )
    print(
        f"{'':<20} {'':>7} 5 % changed: gap % {spread([row.again_gap for row in rows], 100, 4)};"
        f" ms {spread([row.again_seconds for row in rows], 1e3, 0)}"
        f" (CPU {spread([row.again_cpu_seconds for row in rows], 1e3, 0)})"
    )
    if milp:
        print(
            f"{'':<20} {'HiGHS':>7} above ours %: same time "
            f"{spread([r.milp_same_time_over_ours for r in rows], 100, 3)}, "
            f"long {spread([r.milp_over_ours for r in rows], 100, 4)} "
            f"in s {spread([r.milp_seconds for r in rows], 1, 1)}"
        )


def fresh(pipelines: int) -> dict[str, float]:
    """Return memory and time of a process that plans one fleet and nothing else."""
    text = subprocess.run(
        [sys.executable, __file__, "--fresh", str(pipelines)], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, float] = json.loads(text.splitlines()[-1])
    return found


def peak_mib() -> float:
    """Return the most memory this process has held; what a parent held before it started is not counted."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def be_fresh(pipelines: int) -> None:
    before = peak_mib()
    began = time.perf_counter()
    subproblems = a_fleet(pipelines, 0)
    capacity = cut(subproblems, 0.7)
    made = time.perf_counter() - began
    began = time.perf_counter()
    share_pools(subproblems, capacity)
    print(
        json.dumps(
            {
                "imported_mib": before,
                "peak_mib": peak_mib(),
                "first_s": made,
                "second_s": time.perf_counter() - began,
            }
        )
    )


def through_allocate(pipelines: int, seed: int) -> dict[str, float]:
    """Return times of whole plans for pipelines of the latency model: cold tables, unchanged, 5 % changed."""
    from dataclasses import replace

    from instances import a_queueing_problem

    from optimizer.model import Demand, Pipeline, PipelineKey, Pool, PoolName, Problem, Sla
    from optimizer.reports.certificate import certified_plan

    asked: list[Pipeline] = []
    pools: dict[PoolName, Pool] = {}
    for number in range(pipelines):
        problem = a_queueing_problem(10_000 * (seed + 1) + number)
        pools.update(problem.pools)
        (pipeline,) = problem.pipelines
        asked.append(replace(pipeline, key=PipelineKey(f"bench/p{number:04}"), sla=Sla(latency_s=1.5)))
    pools = {
        PoolName(name): Pool(name=name, price_per_hour=p.price_per_hour, instances=100_000) for name, p in pools.items()
    }
    free = Problem(pipelines=tuple(asked), pools=pools)
    times: dict[str, float] = {}

    def timed(name: str, problem: Problem) -> Any:
        began = time.perf_counter()
        answer = certified_plan(problem, packing=True)
        times[name] = time.perf_counter() - began
        return answer

    plan = timed("unlimited_s", free)
    served = {answer.key for answer in plan.pipelines if answer.feasible}
    asked = [pipeline for pipeline in asked if pipeline.key in served]
    most = sorted(plan.pools, key=lambda pool: -pool.instances)[:2]
    limited = {**pools, **{p.name: replace(pools[p.name], instances=int(0.7 * p.instances)) for p in most}}
    scarce = Problem(pipelines=tuple(asked), pools=limited)
    plan = timed("scarce_s", scarce)
    times["gap"] = plan.gap if plan.gap is not None else float("nan")
    timed("unchanged_s", scarce)
    few = max(1, len(asked) // 20)
    moved = [
        replace(p, demand=Demand(entry_rate_rps=1.1 * p.demand.entry_rate_rps)) if number % 20 == 0 else p
        for number, p in enumerate(asked)
    ]
    again = timed("changed_s", Problem(pipelines=tuple(moved), pools=limited))
    times["changed_gap"] = again.gap if again.gap is not None else float("nan")
    times["pipelines"], times["changed"] = len(asked), few
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--milp-seconds", type=float, default=60.0, help="0 leaves HiGHS out")
    parser.add_argument("--quick", action="store_true", help="one seed, HiGHS for 5 s")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help="only the fleet of this name")
    parser.add_argument("--fresh", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fresh is not None:
        be_fresh(arguments.fresh)
        return
    seeds, milp_seconds = arguments.seeds, arguments.milp_seconds
    if arguments.quick:
        seeds, milp_seconds = 1, min(milp_seconds, 5.0)
    warm = a_fleet(3, 0)
    share_pools(warm, cut(warm, 0.7))
    results: dict[str, Any] = {"rows": []}
    print("gap: to the best bound known; own: to ours. least / middle / most over the seeds")
    chosen = [row for row in ROWS if arguments.row is None or arguments.row == row[0]]
    for name, pipelines, share, stress, rss, joins in chosen:
        milp = milp_seconds if pipelines <= 200 and not rss and not joins else 0.0
        rows = [
            measure(name, pipelines, share, seed, stress=stress, rss=rss, joins=joins, milp_seconds=milp)
            for seed in range(seeds)
        ]
        report(name, rows, milp=milp > 0)
        results["rows"].extend(asdict(row) for row in rows)
    for pipelines in (200, 1000) if arguments.row is None else ():
        found = fresh(pipelines)
        results[f"fresh_{pipelines}"] = found
        print(
            f"a fresh process, {pipelines} pipelines: {found['imported_mib']:.0f} MiB imported, "
            f"{found['peak_mib']:.0f} MiB at most; first search with loading of code {found['first_s']:.1f} s, "
            f"the next {found['second_s']:.2f} s"
        )
    if not arguments.quick and arguments.row is None:
        found = through_allocate(200, 0)
        results["allocate_200"] = found
        print(
            f"allocate, {found['pipelines']:.0f} pipelines of the latency model: "
            f"tables anew {found['unlimited_s']:.2f} s; two pools at 70 % {found['scarce_s']:.2f} s, "
            f"gap {found['gap']:.4%}; nothing changed {found['unchanged_s'] * 1e3:.0f} ms; "
            f"{found['changed']:.0f} changed {found['changed_s'] * 1e3:.0f} ms, gap {found['changed_gap']:.4%}"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1, default=lambda value: np.asarray(value).tolist()))


if __name__ == "__main__":
    main()
