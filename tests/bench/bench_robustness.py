"""Sluice with wrong or no service-time numbers, beside a run with the right ones.

Run `python tests/bench/bench_robustness.py [--load steady]… [--case 'decoder x 0.2']… [--seeds 1] [--jobs 2]`.

A case is a stage (or all stages) whose declared service times are the true ones times a factor, or a run in which no
numbers are declared. The simulated servers have the true ones. Windows are counted from minute ten, and so is the cost;
a window is met when enough of the items offered in it were answered within the SLA. `cost` is relative to the run of
the same load and seed with the right numbers. A case is reached with at least 97 % of the windows at no more than 1.15
times that cost. The fourth load is that of a chat model, recorded in Azure. The next two are the steady one with
replicas that take 7 and 13 minutes to start, the launch of a node included: there windows count from minute forty. In
two after them the true servers are not lines: rooflines and points, and a language model with prefill (all batch
continuously there). The last load, `reference service`, is real speech on the lab (`fidelity/speech.yaml`): first with
nothing declared, then with what was learned in that run declared. It needs an idle machine and takes six minutes.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
from live_service import MAX_LAG_S, lived
from stated_scenarios import SCENARIOS, SLOW_STARTS, TRUE_LAWS, stated

from controller.commands.terminal import Page
from simulations.experiment.experiment import run_one
from simulations.results.results import RunResult
from simulations.scenario.scenario import Scenario, load_scenario

FACTORS = ("0.2", "0.33", "0.5", "2", "3", "5")
FROM_S = 600
LEAST_WINDOWS = 0.97
MOST_COST = 1.15
TRUE, NOTHING = "as declared", "nothing declared"
CONVERSATION = Path(__file__).parent / "conversation.yaml"
SERVICE = "reference service"
LOADS = (*SCENARIOS, "conversation", *list(SLOW_STARTS)[1:], *TRUE_LAWS, SERVICE)
SERVICE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run: shares of windows and items within the SLA, cost in USD, and what was not served."""

    load: str
    case: str
    seed: int
    windows: float
    items: float
    cost: float
    changes: int
    shed: int
    refused: int
    lost: int


def scenario_of(load: str) -> Scenario:
    """Return the scenario of a load, scored from minute ten, or when slow starts are over."""
    if load in SLOW_STARTS:
        return stated(load)
    return scored_late(load_scenario(CONVERSATION) if load == "conversation" else stated(load))


def scored_late(scenario: Scenario) -> Scenario:
    return replace(scenario, file=scenario.file.model_copy(update={"warmup": f"{FROM_S}s"}))


def cases(scenario: Scenario) -> Mapping[str, Mapping[str, object]]:
    """Return the fields of the scenario file that each case changes."""
    stages = [stage.name for pipeline in scenario.pipelines for stage in pipeline.spec.stages]
    found: dict[str, Mapping[str, object]] = {TRUE: {}}
    for stage, factor in product(stages, FACTORS):
        found[f"{stage} x {factor}"] = {"profile_error": {stage: float(factor)}}
    for factor in FACTORS:
        found[f"all x {factor}"] = {"profile_error": dict.fromkeys(stages, float(factor))}
    return {**found, NOTHING: {"hide_profiles": True}}


def service_outcomes(seed: int) -> Iterator[Outcome]:
    """Yield the outcomes of two live runs of the reference service: with nothing declared, and as learned in it."""
    first = lived(seed, SERVICE_INTERVAL_S)
    again = lived(seed, SERVICE_INTERVAL_S, declared=first.learned)
    for case, own in ((TRUE, again), (NOTHING, first)):
        if own.lag_p99_s > MAX_LAG_S:
            click.echo(f"{SERVICE}, {case}: the load was late by {own.lag_p99_s:.3f} s (p99)", err=True)
        yield _outcome(SERVICE, case, seed, own.result)


def outcome(load: str, case: str, seed: int) -> Outcome:
    """Return the outcome of one run."""
    scenario = scenario_of(load)
    scenario = replace(scenario, file=scenario.file.model_copy(update=dict(cases(scenario)[case])))
    return _outcome(load, case, seed, run_one(scenario, policy="sluice", seed=seed))


def _outcome(load: str, case: str, seed: int, result: RunResult) -> Outcome:
    return Outcome(
        load=load,
        case=case,
        seed=seed,
        windows=result.sla_windows_met or 0.0,
        items=result.within_sla_share or 0.0,
        cost=result.cost,
        changes=result.replica_changes,
        shed=result.shed,
        refused=result.refused,
        lost=result.lost,
    )


def rows(load: str, found: list[Outcome]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each case of a load: means over the seeds."""
    own = [each for each in found if each.load == load]
    right = {each.seed: each.cost for each in own if each.case == TRUE}
    for case in dict.fromkeys(each.case for each in own):
        runs = [each for each in own if each.case == case]

        def mean(name: str, runs: list[Outcome] = runs) -> float:
            return float(sum(getattr(each, name) for each in runs)) / len(runs)

        ratio = sum(each.cost for each in runs) / sum(right[each.seed] for each in runs)
        reached = mean("windows") >= LEAST_WINDOWS and ratio <= MOST_COST
        yield (
            case,
            f"{mean('windows'):.1%}",
            f"{mean('items'):.1%}",
            f"{mean('cost'):.2f}",
            f"{ratio:.2f}",
            f"{mean('changes'):.0f}",
            *(f"{mean(name):.0f}" for name in ("shed", "refused", "lost")),
            "reached" if reached else "missed",
        )


@click.command()
@click.option("--load", "loads", multiple=True, type=click.Choice(LOADS))
@click.option("--case", "chosen", multiple=True, help="only these cases; the run with the right numbers is always made")
@click.option("--seeds", default="1", help="comma-separated")
@click.option("--jobs", type=click.IntRange(min=1), default=2)
@click.option("--json", "document", type=click.Path(path_type=Path), help="also write the results here")
def main(loads: tuple[str, ...], chosen: tuple[str, ...], seeds: str, jobs: int, document: Path | None) -> None:
    """Print, for every load and case, the windows within the SLA and the cost."""
    page = Page()
    found: list[Outcome] = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tasks = [
            pool.submit(outcome, load, case, int(seed))
            for load in loads or LOADS
            if load != SERVICE
            for case in cases(scenario_of(load))
            if not chosen or case == TRUE or case in chosen
            for seed in seeds.split(",")
        ]
        found = [task.result() for task in tasks]
    if not loads or SERVICE in loads:  # after the others: real servers share the machine with nothing else
        found += [own for seed in seeds.split(",") for own in service_outcomes(int(seed))]
    for load in loads or LOADS:
        table = list(rows(load, found))
        page.say(f"{load}: {sum(row[-1] == 'reached' for row in table)} of {len(table)} cases reached", style="bold")
        page.table(
            ("declared", ">windows", ">items", ">cost", ">x right", ">changes", ">shed", ">refused", ">lost", "target"),
            table,
        )
        page.say()
    if document is not None:
        document.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
