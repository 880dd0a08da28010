"""Where the money goes: the cost of Sluice on the stated loads, in parts that add up to the whole.

Run `make bench-money` or `python tests/bench/bench_money.py [--scenario daily]… [--seeds 1,2] [--jobs 2]`.

A part is the difference between two costs, see `simulations/results/cost_breakdown.py`. Numbers are means over the
seeds, with the share of the cost beside them. The last rows show the users, and the cost of the cheapest schedule that
is known (`make bench-foresight`).
"""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from stated_scenarios import ENDLESS, JUMP, SCENARIOS, number, seeds_of, stated

from controller.commands.terminal import Page
from simulations.experiment.experiment import SLUICE, RunRequest, run_all
from simulations.results.cost_breakdown import MEANINGS, CostBreakdown, CostPart, mean_breakdown
from simulations.results.results import Run


def rows(found: CostBreakdown) -> Sequence[tuple[str, ...]]:
    parts = [
        (part.value, number(found.parts[part], ".3f"), number(found.share(part), ".1%"), MEANINGS[part])
        for part in CostPart
        if found.parts[part]
    ]
    return [*parts, ("all", number(found.total, ".3f"), "", "")]


@click.command()
@click.option("--scenario", "scenarios", multiple=True, type=click.Choice((*SCENARIOS, ENDLESS, JUMP)))
@click.option("--seeds", help="comma-separated; default: the scenario's")
@click.option("--jobs", type=click.IntRange(min=1), default=2)
@click.option("--json", "document", type=click.Path(path_type=Path), help="also write the results here")
def main(scenarios: tuple[str, ...], seeds: str | None, jobs: int, document: Path | None) -> None:
    page = Page()
    documents = []
    for scenario in [stated(name) for name in scenarios or SCENARIOS]:
        used = seeds_of(scenario, seeds)
        results = run_all(scenario, [RunRequest(policy=SLUICE, seed=seed, breakdown=True) for seed in used], jobs=jobs)
        run = Run(results=results, bound=None, cost_over_bound_range=None)
        found = mean_breakdown(result.breakdown for result in results)
        assert found is not None
        windows, cut = number(run.mean("sla_windows_met"), ".1%"), number(run.mean("sessions_cut"), ".0f")
        page.say(
            f"{scenario.file.name}: seeds {', '.join(map(str, used))}; {windows} of the windows, {cut} sessions cut",
            style="bold",
        )
        page.table(("part", ">USD", ">share", "meaning"), rows(found))
        page.say()
        documents.append(
            {
                "scenario": scenario.file.name,
                "seeds": list(used),
                "cost": found.total,
                "parts": {part.value: usd for part, usd in found.parts.items()},
            }
        )
    if document is not None:
        document.write_text(json.dumps(documents, indent=1))


if __name__ == "__main__":
    main()
