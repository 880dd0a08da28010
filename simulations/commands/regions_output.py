"""What `sluice regions` prints: tables and sentences for people, a document for programs."""

from typing import Any

from controller.commands.terminal import Page
from simulations.regions import tables
from simulations.regions.model import Assignment
from simulations.regions.scenario import Regions
from simulations.regions.study import Study


def print_study(study: Study, regions: Regions) -> None:
    """Print where streams go in each step of the day, what that costs and saves, and what each lost region costs."""
    page = Page()
    page.say(f"{regions.file.name}: {tables.unit(study)} by time of day (UTC)", style="bold")
    page.table(tables.hour_columns(study), tables.hours(study, regions))
    page.say()
    page.say("Cost of a day", style="bold")
    page.table(tables.COSTS, tables.costs(study, regions))
    for sentence in (tables.verdict(study, regions), *tables.findings(study, regions)):
        page.say(sentence)
    page.say()
    page.say("If a region is lost", style="bold")
    page.table(tables.LOSSES, tables.losses(study, regions))
    for sentence in (*tables.trust(study), *(f"note: {note}" for note in regions.notes)):
        page.say(sentence)


def document(study: Study, regions: Regions) -> dict[str, Any]:
    """Return the document that `-o json` prints. Costs are USD for the day, loads in the unit of the pipelines.

    `saving` is null where load is served that has no place alone. The cost of a loss includes what is reserved.
    """
    return {
        "name": regions.file.name,
        "unit": tables.unit(study),
        "step_s": regions.step_s,
        "notes": list(regions.notes),
        "alone": _assignment(study.alone),
        "shifted": _assignment(study.shifted),
        "saving": study.saving,
        "bound": study.bound,
        "regions": [
            {
                "name": region.name,
                "loads": list(region.loads),
                "paid_for_day": region.paid_for_day,
                "sla_s": study.specs[region.name].sla.latency_s,
                "way_s": study.way_s(region.name),
            }
            for region in study.regions
        ],
        "too_far": [list(pair) for pair in study.too_far],
        "lost": {
            name: {
                **_assignment(loss.assignment),
                "cost": loss.cost,
                "reserved": loss.reserved,
                "more": loss.cost - study.shifted.cost,
                "displaced": list(loss.displaced),
                "at_once": list(loss.at_once),
                "startup_s": loss.startup_s,
            }
            for name, loss in study.losses.items()
        },
    }


def _assignment(assignment: Assignment) -> dict[str, Any]:
    return {
        "cost": assignment.cost,
        "costs": {name: list(costs) for name, costs in assignment.costs.items()},
        "transfer": list(assignment.ways),
        "flows": [
            {"users": users, "served": to, "loads": list(loads)} for (users, to), loads in assignment.flows.items()
        ],
        "unserved": {name: list(loads) for name, loads in assignment.unserved.items() if any(loads)},
    }
