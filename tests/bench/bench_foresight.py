"""What not knowing the load costs: Sluice beside itself, told the load, and beside the clairvoyant bound.

Run `make bench-foresight` or `python tests/bench/bench_foresight.py [--scenario steady]… [--seeds 1,2] [--jobs 2]`.

Where a run costs more than the bound, either the load was not known, or its plans cost more than the bound. The bound
leaves queues out: nobody need be able to run at it. Who is told the load makes the same plans for the highest demand
from now until what is decided now serves, and `beyond` seconds farther: little moves replicas at each turn of the load,
much pays for what is not needed yet. Some leave no headroom in the latency, which a plan for the load itself needs
less. The rest is as in a run: start-ups, drains, measured service times. Of these runs the cheapest with 99.5 % of the
windows within the SLA is the best schedule that is known, and says what a perfect forecast would be worth. Sluice is to
cost at most `MOST_OVER_BEST` times as much. Numbers are means over the seeds.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from stated_scenarios import LEAST_WINDOWS, SCENARIOS, number, seeds_of, stated

from controller.commands.terminal import Page
from simulations.experiment.experiment import SLUICE, RunRequest, run_and_bound
from simulations.experiment.hindsight import BoundRequest
from simulations.policies.sluice import Foresight, SluiceSettings
from simulations.results.results import Run, mean_or_none

BEYOND_S = (0.0, 60.0, 180.0, 600.0)
HEADROOMS = (SluiceSettings().latency_headroom, 0.0)
MOST_OVER_BEST = 1.10
COLUMNS = ("load", ">cost", ">x bound", ">windows", ">items", ">cut", ">changes")


def cells(way: Foresight | None, run: Run) -> tuple[str, ...]:
    return (
        "measured" if way is None else f"told, {way.beyond_s:g} s beyond, headroom {way.latency_headroom:.0%}",
        number(run.mean("cost"), ".2f"),
        number(run.cost_over_bound, ".2f"),
        number(run.mean("sla_windows_met"), ".1%"),
        number(run.mean("within_sla_share"), ".1%"),
        number(run.mean("sessions_cut"), ".0f"),
        number(run.mean("replica_changes"), ".0f"),
    )


def verdict(name: str, mine: Run, told: Sequence[Run]) -> str:
    """Return where what Sluice pays above the bound comes from."""
    good = [run for run in told if (run.mean("sla_windows_met") or 0.0) >= LEAST_WINDOWS]
    if not good:
        return f"{name}: told the load, no run meets {LEAST_WINDOWS:.1%} of the windows"
    best = min(good, key=cost)
    ratio, over_bound = cost(mine) / cost(best), number(best.cost_over_bound, ".2f")
    reached = "met" if ratio <= MOST_OVER_BEST and (mine.mean("sla_windows_met") or 0.0) >= LEAST_WINDOWS else "not met"
    return (
        f"{name}: {ratio:.2f} x the best known schedule, which costs {over_bound} x bound; "
        f"goal ({MOST_OVER_BEST:.2f} x, {LEAST_WINDOWS:.1%} of the windows): {reached}"
    )


def cost(run: Run) -> float:
    found = run.mean("cost")
    assert found is not None
    return found


@click.command()
@click.option("--scenario", "scenarios", multiple=True, type=click.Choice(SCENARIOS))
@click.option("--seeds", help="comma-separated; default: the scenario's")
@click.option("--jobs", type=click.IntRange(min=1), default=2)
@click.option("--json", "document", type=click.Path(path_type=Path), help="also write the results here")
def main(scenarios: tuple[str, ...], seeds: str | None, jobs: int, document: Path | None) -> None:
    page = Page()
    documents = []
    for scenario in [stated(name) for name in scenarios or SCENARIOS]:
        used = seeds_of(scenario, seeds)
        ways = [
            None,
            *(
                Foresight(beyond_s=beyond_s, latency_headroom=headroom)
                for headroom in HEADROOMS
                for beyond_s in BEYOND_S
            ),
        ]
        requests = [RunRequest(policy=SLUICE, seed=seed, settings=way) for way in ways for seed in used]
        results, bounds = run_and_bound(
            scenario, requests, [BoundRequest(what_if=None, seed=seed) for seed in used], jobs=jobs
        )
        bound = mean_or_none([found.cost for found in bounds])
        runs = [
            Run(results=results[at : at + len(used)], bound=bound, cost_over_bound_range=None)
            for at in range(0, len(results), len(used))
        ]
        seeds_used = ", ".join(map(str, used))
        page.say(f"{scenario.file.name}: seeds {seeds_used}; bound {number(bound, '.2f')} USD", style="bold")
        page.table(COLUMNS, (cells(way, run) for way, run in zip(ways, runs, strict=True)))
        page.say(verdict(scenario.file.name, runs[0], runs[1:]))
        page.say()
        documents.append(
            {
                "scenario": scenario.file.name,
                "seeds": list(used),
                "bound": bound,
                "runs": [
                    {
                        "beyond_s": None if way is None else way.beyond_s,
                        "latency_headroom": None if way is None else way.latency_headroom,
                        "cost": cost(run),
                        "windows": run.mean("sla_windows_met"),
                    }
                    for way, run in zip(ways, runs, strict=True)
                ],
            }
        )
    if document is not None:
        document.write_text(json.dumps(documents, indent=1))


if __name__ == "__main__":
    main()
