"""One pipeline: how good and how fast plans are, beside a MILP solver and the rules of other planners.

All get the same tables in the same run. Percentiles add up here, because HiGHS takes linear constraints only.
Exit status 1 when a plan disagrees with HiGHS.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import instances
import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from optimizer.model import Composition
from optimizer.search import tables
from optimizer.search.exact import Solution, solve
from optimizer.search.greedy import cheapest, search
from optimizer.search.subproblem import Choice, Subproblem

Array = NDArray[np.float64]
SAME = 1e-6


def by_milp(subproblem: Subproblem) -> float | None:
    """Ask HiGHS. Latencies are in thousandths of the SLA: a row may be exceeded by 1e-6, which in seconds is a miss."""
    owner = np.concatenate([np.full(len(table), number) for number, table in enumerate(subproblem.tables)])
    answer = optimize.milp(
        np.concatenate(subproblem.prices),
        integrality=np.ones(len(owner)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(np.arange(len(subproblem.tables))[:, None] == owner, 1, 1),
            optimize.LinearConstraint(
                np.concatenate([table.percentile_s for table in subproblem.tables])[None]
                * (1e3 / subproblem.latency_s),
                -np.inf,
                1e3,
            ),
            optimize.LinearConstraint(
                np.concatenate([table.use for table in subproblem.tables]).T, -np.inf, subproblem.capacity
            ),
        ],
        options={"mip_rel_gap": 0},
    )
    return float(answer.fun) if answer.status == 0 else None


def by_search(subproblem: Subproblem) -> float | None:
    walk = search(subproblem)
    return None if walk is None else subproblem.price(walk.answer)


def by_proof(subproblem: Subproblem) -> float | None:
    solution = solve(subproblem)
    return None if solution.walk is None else subproblem.price(solution.walk.answer)


def slowest_first(subproblem: Subproblem) -> float | None:
    """Give the stage with the longest latency its next dearer row that is faster, until the SLA is met."""
    choice = cheapest(subproblem)
    while choice is not None and subproblem.latency(choice) > subproblem.latency_s:
        choice = _next_of_slowest(subproblem, choice)
    return None if choice is None else subproblem.price(choice)


def _next_of_slowest(subproblem: Subproblem, choice: Choice) -> Choice | None:
    now = [float(table.percentile_s[row]) for table, row in zip(subproblem.tables, choice, strict=True)]
    for stage in sorted(range(len(now)), key=lambda stage: -now[stage]):
        table, prices = subproblem.tables[stage], subproblem.prices[stage]
        better = (table.percentile_s < now[stage]) & subproblem.fitting(choice, stage)
        if better.any():
            row = int(np.argmin(np.where(better, prices, np.inf)))
            return (*choice[:stage], row, *choice[stage + 1 :])
    return None


def split_sla(subproblem: Subproblem) -> float | None:
    """Give each stage the part of the SLA that its fastest row has of all fastest rows, and the cheapest row in it."""
    fastest = np.array([table.percentile_s.min() for table in subproblem.tables])
    choice = []
    for table, prices, part in zip(subproblem.tables, subproblem.prices, fastest / fastest.sum(), strict=True):
        enough = table.percentile_s <= part * subproblem.latency_s
        if not enough.any():
            return None
        choice.append(int(np.argmin(np.where(enough, prices, np.inf))))
    return subproblem.price(tuple(choice)) if subproblem.fits(tuple(choice)) else None


def single_action_descent(subproblem: Subproblem) -> float | None:
    """From the fastest rows, take the one change that saves most and keeps the SLA, until none does.

    A change is to the next cheaper row of the same or of other placements.
    """
    choice: Choice = tuple(int(np.argmin(table.percentile_s)) for table in subproblem.tables)
    if not subproblem.fits(choice) or subproblem.latency(choice) > subproblem.latency_s:
        return None
    while True:
        best: tuple[float, Choice] | None = None
        for stage, prices in enumerate(subproblem.prices):
            allowed = (subproblem.latencies(choice, stage) <= subproblem.latency_s) & subproblem.fitting(choice, stage)
            cheaper = prices < prices[choice[stage]] - SAME
            mixes = (subproblem.tables[stage].replicas > 0) @ (
                1 << np.arange(subproblem.tables[stage].replicas.shape[1])
            )
            for mix in np.unique(mixes[cheaper]):
                row = int(np.argmax(np.where(cheaper & (mixes == mix), prices, -np.inf)))
                saved = float(prices[choice[stage]] - prices[row])
                if allowed[row] and (best is None or saved > best[0]):
                    best = saved, (*choice[:stage], row, *choice[stage + 1 :])
        if best is None:
            return subproblem.price(choice)
        choice = best[1]


def by_steps(steps: int) -> Callable[[Subproblem], float | None]:
    """Return dynamic programming over the SLA in `steps`, latencies rounded up; it does not know of pools."""

    def plan(subproblem: Subproblem) -> float | None:
        best, chosen = np.zeros(steps + 1), []
        for table, prices in zip(subproblem.tables, subproblem.prices, strict=True):
            occupied = np.ceil(table.percentile_s / subproblem.latency_s * steps - 1e-9).astype(np.int64)
            after, rows = np.full(steps + 1, np.inf), np.full(steps + 1, -1)
            for row in np.nonzero(occupied <= steps)[0].tolist():
                sums = best[: steps + 1 - occupied[row]] + prices[row]
                better = sums < after[occupied[row] :]
                after[occupied[row] :][better] = sums[better]
                rows[occupied[row] :][better] = row
            chosen.append((occupied, rows))
            best = after
        if not np.isfinite(best[steps]):
            return None
        left, choice = steps, []
        for occupied, rows in reversed(chosen):
            choice.append(int(rows[left]))
            left -= int(occupied[rows[left]])
        answer = tuple(reversed(choice))
        return subproblem.price(answer) if subproblem.fits(answer) else None

    return plan


PLANNERS: dict[str, Callable[[Subproblem], float | None]] = {
    "with proof": by_proof,
    "search alone": by_search,
    "+1 on the slowest stage": slowest_first,
    "SLA split by stage": split_sla,
    "single-action descent": single_action_descent,
    "DP over 100 SLA steps": by_steps(100),
    "DP over 1000 SLA steps": by_steps(1000),
    "HiGHS": by_milp,
}


ASKED_EACH_TIME = ("with proof", "search alone", "HiGHS")
SAMPLE = 500
"""The other planners get the first so many of the instances: some take a hundred times as long."""


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return min, median, p99 and max, in milliseconds."""
    ms = 1e3 * np.array(times)
    return {
        "min": float(ms.min()),
        "median": float(np.median(ms)),
        "p99": float(np.percentile(ms, 99)),
        "max": float(ms.max()),
    }


def measure(family: str, limits: bool, count: int) -> dict[str, object]:
    prices: dict[str, list[float | None]] = {name: [] for name in PLANNERS}
    times: dict[str, list[float]] = {name: [] for name in PLANNERS}
    processor: dict[str, list[float]] = {name: [] for name in PLANNERS}
    scratch: list[float] = []
    unproven, unproven_rss, disagreements = 0, 0, []
    for seed in range(count):
        subproblem = instances.a_subproblem(family, seed, limits=limits)
        for name, planner in PLANNERS.items():
            if seed >= SAMPLE and name not in ASKED_EACH_TIME:
                continue
            asked = replace(subproblem)  # nothing is remembered from the planner before
            start, begun = time.perf_counter(), time.process_time()
            prices[name].append(planner(asked))
            processor[name].append(time.process_time() - begun)
            times[name].append(time.perf_counter() - start)
        solution, best = solve(subproblem), prices["HiGHS"][-1]
        in_rss = replace(subproblem, composition=Composition.RSS)
        unproven_rss += not _is_proof(in_rss, solve(in_rss))
        mine = None if solution.walk is None else subproblem.price(solution.walk.answer)
        unproven += not _is_proof(subproblem, solution)
        if (best is None) != (mine is None) or (best is not None and mine is not None and _apart(best, mine)):
            disagreements.append(seed)
        if family == "queueing":
            problem = instances.a_queueing_problem(seed)
            _forget_tables()
            start = time.perf_counter()
            tables = instances.tables_of(problem).tables
            solve(replace(subproblem, tables=tables, prices=tuple(table.objective_per_hour for table in tables)))
            scratch.append(time.perf_counter() - start)
    reference = prices["HiGHS"]
    feasible = [number for number, best in enumerate(reference) if best is not None]
    rows = {}
    for name in PLANNERS:
        asked_of = [n for n in feasible if n < len(prices[name])]
        found = [(prices[name][n], reference[n]) for n in asked_of]
        gaps = np.array([mine / best - 1 for mine, best in found if mine is not None and best])
        rows[name] = {
            "mean_gap": float(gaps.mean()) if len(gaps) else None,
            "largest_gap": float(gaps.max()) if len(gaps) else None,
            "exact": float((gaps < SAME).sum() / max(1, len(asked_of))),
            "no_plan": float(sum(mine is None for mine, _ in found) / max(1, len(asked_of))),
            "instances": len(prices[name]),
            "ms": spread(times[name]),
            "processor_ms": spread(processor[name]),
        }
    return {
        "family": family,
        "limits": limits,
        "instances": count,
        "infeasible": count - len(feasible),
        "unproven": unproven,
        "unproven_where_squares_add_up": unproven_rss,
        "disagreements": disagreements,
        "planners": rows,
        "from_scratch_ms": spread(scratch) if scratch else None,
    }


def _is_proof(subproblem: Subproblem, solution: Solution) -> bool:
    if solution.walk is None:
        return solution.bound == np.inf
    return subproblem.price(solution.walk.answer) <= solution.bound * (1 + SAME)


def warm() -> None:
    """Compile all that is measured: small and large questions, with and without a plan, within limits and without."""
    for family in instances.FAMILIES:
        for seed in range(30):
            for limits in (False, True):
                subproblem = instances.a_subproblem(family, seed, limits=limits)
                for composition in Composition:
                    solve(replace(subproblem, composition=composition))
    for planner in PLANNERS.values():
        planner(subproblem)


def _apart(one: float, two: float) -> bool:
    return abs(one - two) > SAME * max(1.0, abs(one))


def _forget_tables() -> None:
    tables._TABLES.clear()


def first_call_s() -> tuple[float, float]:
    """Return how long the first plans of a process take that finds no compiled code, in seconds.

    On the clock and on the processor, which differ where others work too. All kernels are used.
    """
    code = (
        "import time, instances\nfrom optimizer.search.exact import solve\n"
        "case = instances.a_case('stress', 1, limits=False)\n"
        "start = time.perf_counter(), time.process_time()\n"
        "solve(case); solve(case.within(case.room * 0 + 30))\n"
        "print(time.perf_counter() - start[0], time.process_time() - start[1])"
    )
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"NUMBA_CACHE_DIR": empty, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
    clock, processor = (float(word) for word in done.stdout.split())
    return clock, processor


def show(result: dict[str, object]) -> None:
    print(
        f"\n{result['family']}, pool limits {'bind' if result['limits'] else 'do not bind'}: {result['instances']} "
        f"instances, {result['infeasible']} infeasible, {result['unproven']} unproven "
        f"({result['unproven_where_squares_add_up']} as RSS), "
        f"{len(result['disagreements'])} disagreements with HiGHS"  # type: ignore[arg-type]
    )
    print(
        f"{'':26}{'asked':>6}{'gap mean':>9}{'max':>9}{'exact':>9}{'no plan':>9}"
        f"{'ms min':>9}{'median':>9}{'p99':>9}{'max':>9}"
        f"{'processor ms median':>21}{'p99':>9}"
    )
    rows: dict[str, dict[str, float]] = result["planners"]  # type: ignore[assignment]
    for name, row in rows.items():
        ms: dict[str, float] = row["ms"]  # type: ignore[assignment]
        cpu: dict[str, float] = row["processor_ms"]  # type: ignore[assignment]
        gaps = [f"{row[key]:>9.2%}" if row[key] is not None else f"{'–':>9}" for key in ("mean_gap", "largest_gap")]
        print(
            f"{name:26}{row['instances']:>6}{''.join(gaps)}{row['exact']:>9.1%}{row['no_plan']:>9.1%}"
            f"{ms['min']:>9.2f}{ms['median']:>9.2f}{ms['p99']:>9.2f}{ms['max']:>9.2f}"
            f"{cpu['median']:>21.2f}{cpu['p99']:>9.2f}"
        )
    if result["from_scratch_ms"]:
        scratch: dict[str, float] = result["from_scratch_ms"]  # type: ignore[assignment]
        print("with tables from scratch, ms: " + ", ".join(f"{key} {value:.1f}" for key, value in scratch.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=2000, help="per family, with and without limits")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    first, processor = first_call_s()
    print(f"first plans of a process without compiled code: {first:.1f} s, {processor:.1f} s of processor")
    warm()
    results = []
    for family in instances.FAMILIES:
        for limits in (False, True):
            results.append(measure(family, limits, arguments.instances))
            show(results[-1])
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps({"first_plans_s": first, "first_plans_processor_s": processor, "results": results}, indent=2)
        )
    return 1 if any(result["disagreements"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
