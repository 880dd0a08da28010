"""What not knowing the load costs: Sluice beside itself, told the load, and beside the clairvoyant bound.

Run `make bench-foresight` or `python tests/bench/bench_foresight.py [--scenario steady]… [--seeds 1,2] [--jobs 2]`.

Where a run costs more than the bound, either the load was not known, or its plans cost more than the bound. The bound
leaves queues out: nobody need be able to run at it. Who is told the load makes the same plans for the highest demand
from now until what is decided now serves, and `beyond` seconds farther: little moves replicas at each turn of the load,
much pays for what is not needed yet. The rest is as in a run: start-ups, drains, measured service times. Of these runs
the cheapest with 99.5 % of the windows within the SLA says what a perfect forecast would be worth. Numbers are means
over the seeds.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import click
from stated_scenarios import LEAST_WINDOWS, SCENARIOS, number, stated

from controller.commands.terminal import Page
from simulations.experiment import SLUICE, RunRequest, run_and_bound
from simulations.hindsight import BoundRequest
from simulations.policies.sluice import Foresight
from simulations.results import RunResult, mean_or_none

BEYOND_S = (0.0, 60.0, 180.0, 600.0)
COLUMNS = ("load", ">cost", ">x bound", ">windows", ">items", ">changes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to run, over all seeds."""

    beyond_s: float | None
    """None where the load is not known."""
    results: tuple[RunResult, ...]

    @property
    def cost(self) -> float:
        return sum(result.cost for result in self.results) / len(self.results)

    @property
    def windows(self) -> float:
        return mean_or_none([result.sla_windows_met for result in self.results]) or 0.0

    def cells(self, bound: float | None) -> tuple[str, ...]:
        items = mean_or_none([result.within_sla_share for result in self.results])
        changes = mean_or_none([float(result.replica_changes) for result in self.results])
        return (
            "measured" if self.beyond_s is None else f"told, {self.beyond_s:g} s beyond",
            number(self.cost, ".2f"),
            number(None if bound is None else self.cost / bound, ".2f"),
            number(self.windows, ".1%"),
            number(items, ".1%"),
            number(changes, ".0f"),
        )


def verdict(name: str, mine: Row, told: list[Row], bound: float | None) -> str:
    """Return where what Sluice pays above the bound comes from."""
    good = [row for row in told if row.windows >= LEAST_WINDOWS]
    if not good:
        return f"{name}: told the load, no run meets {LEAST_WINDOWS:.1%} of the windows"
    best = min(good, key=lambda row: row.cost)
    over_bound = number(None if bound is None else best.cost / bound, ".2f")
    ratio = mine.cost / best.cost
    return f"{name}: {ratio:.2f} x the cheapest run that is told the load, which costs {over_bound} x bound"


@click.command()
@click.option("--scenario", "scenarios", multiple=True, type=click.Choice(SCENARIOS))
@click.option("--seeds", help="comma-separated; default: the scenario's")
@click.option("--jobs", type=click.IntRange(min=1), default=2)
@click.option("--json", "document", type=click.Path(path_type=Path), help="also write the results here")
def main(scenarios: tuple[str, ...], seeds: str | None, jobs: int, document: Path | None) -> None:
    page = Page()
    documents = []
    for scenario in [stated(name) for name in scenarios or SCENARIOS]:
        used = scenario.file.seeds if seeds is None else tuple(int(seed) for seed in seeds.split(","))
        ways = [None, *(Foresight(beyond_s=beyond_s) for beyond_s in BEYOND_S)]
        requests = [RunRequest(policy=SLUICE, seed=seed, settings=way) for way in ways for seed in used]
        results, bounds = run_and_bound(
            scenario, requests, [BoundRequest(what_if=None, seed=seed) for seed in used], jobs=jobs
        )
        rows = [
            Row(
                beyond_s=None if way is None else way.beyond_s,
                results=results[index * len(used) : (index + 1) * len(used)],
            )
            for index, way in enumerate(ways)
        ]
        bound = mean_or_none([found.cost for found in bounds])
        seeds_used = ", ".join(map(str, used))
        page.say(f"{scenario.file.name}: seeds {seeds_used}; bound {number(bound, '.2f')} USD", style="bold")
        page.table(COLUMNS, (row.cells(bound) for row in rows))
        page.say(verdict(scenario.file.name, rows[0], rows[1:], bound))
        page.say()
        documents.append(
            {
                "scenario": scenario.file.name,
                "seeds": list(used),
                "bound": bound,
                "runs": [{"beyond_s": row.beyond_s, "cost": row.cost, "windows": row.windows} for row in rows],
            }
        )
    if document is not None:
        document.write_text(json.dumps(documents, indent=1))


if __name__ == "__main__":
    main()
