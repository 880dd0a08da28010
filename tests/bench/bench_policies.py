"""Every policy on the stated loads, as documented and as trained, beside the bound.

The steady load is run three times more: with replicas that take 1, 7 and 13 minutes to start, the launch of a node
included. For Sluice it is printed what the longer ones cost beyond their bounds, over what the short one does.

Run `python tests/bench/bench_policies.py [--scenario steady]… [--policy NAME]… [--seeds 1,2] [--warm-up S]
[--mixing Free] [--jobs 2]`. The jump, which takes an hour, is run where it is named. With `--warm-up`, scoring begins
after so many seconds instead of the scenarios' five or six minutes: the sooner, the more the cold start counts, in
which replicas that are provisioned beforehand are best.

The bound is a lower bound on the cost of schedules that know load and faults, respect caps, capacity and start-up, and
meet the SLA in at least 99.5 % of the scored windows. `as promised` is the share of the users served within the SLA;
`refused`, `late` and `lost` are the users that were not. Users are open streams, as a mean over the scored time. `cut`
are sessions that were moved while under way, `windows` is the share of the scored windows within the SLA, `admitted`
the same with shed items left out, `changes` sums the replicas by which what is asked for changed, `over cap` counts
intervals of spend above the budget. A run is dominated by another that is at least as cheap and meets the SLA in as
many windows and for as many items, and is better in one of these, both without spending above the cap. Numbers are
means over the seeds. `trained` settings come from `simulations/policies/trained.json`, found by `python -m
simulations.experiment.training` on load that is not in these scenarios.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import click
from stated_scenarios import (
    COLD_START,
    ENDLESS,
    JUMP,
    LEAST_WINDOWS,
    MOST_OVER_QUICK,
    SCENARIOS,
    SLOW_STARTS,
    number,
    stated,
)

from controller.commands.terminal import Page
from simulations.experiment.experiment import planned_runs, run_and_bound
from simulations.experiment.hindsight import BoundRequest
from simulations.experiment.provenance import provenance
from simulations.policies.catalogue import POLICIES
from simulations.report.conclusions import first_sentence, subject, users_of_all
from simulations.results.results import Experiment, Run, Tuning, dominated_by, to_json
from simulations.scenario.scenario import Scenario

SLUICE = "sluice"
_USUAL = (*SCENARIOS, COLD_START, ENDLESS, *SLOW_STARTS)
_SCENARIOS = (*_USUAL, JUMP)
_QUICK = next(iter(SLOW_STARTS))
MOST_OVER_BOUND = {"steady": 1.10, "daily": 1.10}
COLUMNS = (
    "policy",
    "settings",
    ">cost",
    ">x bound",
    ">as promised",
    ">refused",
    ">cut",
    ">late",
    ">lost",
    ">windows",
    ">admitted",
    ">changes",
    ">over cap",
    ">wall",
    "dominated by",
)


def mixed(scenario: Scenario, mixing: str | None) -> Scenario:
    """Return the scenario with `scaling.mixing` of all pipelines, where it is given."""
    if mixing is None:
        return scenario
    return replace(
        scenario,
        pipelines=tuple(
            own.model_copy(
                update={
                    "spec": own.spec.model_copy(
                        update={"scaling": own.spec.scaling.model_copy(update={"mixing": mixing})}
                    )
                }
            )
            for own in scenario.pipelines
        ),
    )


def warmed_up(name: str, warm_up_s: int | None) -> Scenario:
    """Return a stated scenario, with another warm-up where one is given."""
    scenario = stated(name)
    if warm_up_s is None:
        return scenario
    if warm_up_s >= scenario.file.clock.duration_s:
        rule = f"must be shorter than {name}, {scenario.file.clock.duration_s:g} s"
        raise click.BadParameter(f"{warm_up_s}: {rule}.", param_hint="'--warm-up'")
    return replace(scenario, file=scenario.file.model_copy(update={"warmup": f"{warm_up_s}s"}))


def experiment(scenario: Scenario, policies: tuple[str, ...], seeds: tuple[int, ...] | None, jobs: int) -> Experiment:
    """Run the policies and find the bounds of one scenario."""
    requests = planned_runs(scenario, policies=policies, what_ifs=(), seeds=seeds)
    used = tuple(dict.fromkeys(request.seed for request in requests))
    results, bounds = run_and_bound(
        scenario, requests, [BoundRequest(what_if=None, seed=seed) for seed in used], jobs=jobs
    )
    return Experiment(
        scenario=scenario.file.name,
        seeds=used,
        results=results,
        bounds=bounds,
        self_checks=(),
        provenance=provenance(scenario, sys.argv, results),
    )


def row(run: Run, runs: tuple[Run, ...]) -> tuple[str, ...]:
    wall_s = sum(result.wall_s for result in run.results) / len(run.results)
    return (
        run.policy,
        run.tuning.value,
        number(run.mean("cost"), ".2f"),
        number(run.cost_over_bound, ".2f"),
        number(run.served_as_promised, ".1%"),
        users_of_all(run, "refused"),
        number(run.mean("sessions_cut"), ".0f"),
        users_of_all(run, "late"),
        users_of_all(run, "lost"),
        number(run.mean("sla_windows_met"), ".1%"),
        number(run.mean("sla_windows_met_admitted"), ".1%"),
        number(run.mean("replica_changes"), ".0f"),
        number(run.mean("cap_violations"), ".1f"),
        f"{wall_s:.1f} s",
        ", ".join(f"{other.policy} {other.tuning.value}" for other in dominated_by(run, runs)),
    )


def verdict(found: Experiment) -> str | None:
    """Return what Sluice was to reach here and whether it did, None where it was not run."""
    runs = found.runs()
    mine = [run for run in runs if run.policy == SLUICE]
    if not mine:
        return None
    own = next((run for run in mine if run.tuning is Tuning.DEFAULT), mine[0])
    ahead = [other for other in dominated_by(own, runs) if other.policy != SLUICE]
    met, ratio, most = own.mean("sla_windows_met"), own.cost_over_bound, MOST_OVER_BOUND.get(found.scenario)
    parts = [f"dominated by {', '.join(other.policy for other in ahead)}" if ahead else "dominated by none"]
    if most is not None:
        good = ratio is not None and ratio <= most and met is not None and met >= LEAST_WINDOWS
        wanted = f"at most {most:.2f} x bound at {LEAST_WINDOWS:.1%} of the windows"
        parts.append(f"{wanted}: {'reached' if good else 'missed'}")
    return f"sluice on {found.scenario}: {number(ratio, '.2f')} x bound, {number(met, '.1%')}; {'; '.join(parts)}"


def of_slow_starts(found: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield what Sluice pays for slow starts beyond what the bound does, by scenario; nothing without the quick one."""
    own = {
        name: run.cost_over_bound
        for name, experiment in found.items()
        for run in experiment.runs()
        if name in SLOW_STARTS and run.policy == SLUICE and run.tuning is Tuning.DEFAULT
    }
    quick = own.pop(_QUICK, None)
    for name, ratio in own.items():
        if quick and ratio is not None:
            reached = "reached" if ratio <= MOST_OVER_QUICK * quick else "missed"
            yield f"sluice on {name}: {ratio / quick:.2f} x {_QUICK}; at most {MOST_OVER_QUICK:.2f}: {reached}"


@click.command()
@click.option("--scenario", "scenarios", multiple=True, type=click.Choice(_SCENARIOS))
@click.option("--policy", "policies", multiple=True, type=click.Choice(list(POLICIES)))
@click.option("--seeds", help="comma-separated; default: the scenario's")
@click.option("--warm-up", type=click.IntRange(min=0), help="seconds that are not scored; default: the scenarios'")
@click.option("--mixing", type=click.Choice(["Free", "Overflow"]), help="default: the manifests'")
@click.option("--jobs", type=click.IntRange(min=1), default=2)
@click.option("--json", "document", type=click.Path(path_type=Path), help="also write the results here")
def main(
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: str | None,
    warm_up: int | None,
    mixing: str | None,
    jobs: int,
    document: Path | None,
) -> None:
    chosen = None if seeds is None else tuple(int(seed) for seed in seeds.split(","))
    page = Page()
    documents = []
    all_found = {}
    for scenario in [mixed(warmed_up(name, warm_up), mixing) for name in scenarios or _USUAL]:
        found = experiment(scenario, policies or tuple(POLICIES), chosen, jobs)
        runs = found.runs()
        bound = found.bound_cost(None)
        documents.append(to_json(found))
        all_found[found.scenario] = found
        asked = f"seeds {', '.join(map(str, found.seeds))}, scored from {scenario.file.clock.warmup_s:g} s on"
        page.say(f"{found.scenario}: {first_sentence(subject(found))}", style="bold")
        page.say(f"{asked}; bound {number(bound, '.2f')} USD")
        page.table(COLUMNS, (row(run, runs) for run in runs))
        sentence = verdict(found)
        if sentence is not None:
            page.say(sentence)
        page.say()
    for sentence in of_slow_starts(all_found):
        page.say(sentence)
    page.say(
        "The bound: no schedule costs less that knows load and faults, respects caps, capacity and start-up times,"
    )
    page.say("and meets the SLA in at least 99.5 % of the scored windows.")
    if document is not None:
        document.write_text(json.dumps(documents, indent=1))


if __name__ == "__main__":
    main()
