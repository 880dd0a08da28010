"""What `sluice regions` prints: tables and sentences for people, a document for programs."""

from collections.abc import Iterator, Sequence
from typing import Any

from controller.commands.terminal import Page
from controller.core.messages.phrases import duration
from controller.core.state.spec import DemandUnit
from simulations.regions.model import Assignment
from simulations.regions.scenario import Regions
from simulations.regions.study import Loss, Study
from simulations.report import formats

_LEAST_SHOWN = 0.5
"""Less load than this is the end of a long session, or within the tolerance of the solver."""


def print_study(study: Study, regions: Regions) -> None:
    """Print where streams go in each step of the day, what that costs and saves, and what each lost region costs."""
    page = Page()
    page.say(f"{regions.file.name}: {_unit(study)} by time of day (UTC)", style="bold")
    names = [region.name for region in study.regions]
    pairs = [column for name in names for column in (f">{name}: users", ">served")]
    page.table(("from", *pairs, "elsewhere"), _hours(study, regions))
    page.say()
    page.say("Cost of a day", style="bold")
    page.table(
        (
            "region",
            ">peak of its users",
            ">peak served",
            ">alone",
            ">shifted",
            "paid",
            ">SLA",
            ">way of users",
            ">left",
        ),
        _costs(study, regions),
    )
    for sentence in _sentences(study, regions):
        page.say(sentence)
    page.say()
    page.say("If a region is lost", style="bold")
    page.table(
        (
            "lost",
            ">cost of a day",
            ">more",
            ">no room at once",
            ">worst hour",
            ">ready after",
            ">no place then",
            ">worst hour",
        ),
        (_lost(name, loss, study, regions) for name, loss in study.losses.items()),
    )
    for sentence in _trust(study):
        page.say(sentence)


def _unit(study: Study) -> str:
    (unit, *_) = {spec.unit for spec in study.specs.values()}
    return "streams" if unit is DemandUnit.STREAMS else "requests/s"


def _hours(study: Study, regions: Regions) -> Iterator[tuple[str, ...]]:
    shifted = study.shifted
    for hour in range(len(study.regions[0].loads)):
        moved = [
            f"{users} → {to} {_load(loads[hour])}"
            for (users, to), loads in shifted.flows.items()
            if users != to and loads[hour] >= _LEAST_SHOWN
        ]
        left = [
            f"no place for {_load(loads[hour])} of {name}"
            for name, loads in shifted.unserved.items()
            if loads[hour] >= _LEAST_SHOWN
        ]
        cells = [
            cell
            for region in study.regions
            for cell in (_load(region.loads[hour]), _load(shifted.served(region.name, hour)))
        ]
        yield _clock(hour * regions.step_s), *cells, ", ".join((*moved, *left))


def _load(value: float) -> str:
    return formats.count(round(value, 0 if value >= 100 else 1))


def _clock(time_s: float) -> str:
    minutes = round(time_s / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _costs(study: Study, regions: Regions) -> Iterator[tuple[str, ...]]:
    for region, cluster in zip(study.regions, regions.clusters, strict=True):
        name, sla_s = region.name, study.specs[region.name].sla.latency_s
        way_s = study.way_s(name)
        yield (
            name,
            _load(max(region.loads)),
            _load(max(study.shifted.served(name, hour) for hour in range(len(region.loads)))),
            formats.money(sum(study.alone.costs[name])),
            formats.money(sum(study.shifted.costs[name])),
            {"ByHour": "by the hour", "ForDay": "for the day"}[cluster.region.paid],
            duration(sla_s),
            duration(way_s) if way_s else formats.MISSING,
            duration(sla_s - way_s),
        )
    if ways := sum(study.shifted.ways):
        yield ("transfer", "", "", "", formats.money(ways), "", "", "", "")


def _sentences(study: Study, regions: Regions) -> Iterator[str]:
    alone, shifted = study.alone, study.shifted
    saved = f" ({formats.share(abs(study.saving) / alone.cost)})" if alone.cost > 0 else ""
    yield (
        f"alone {formats.money(alone.cost)}, shifted {formats.money(shifted.cost)}: "
        f"{formats.money(abs(study.saving))}{saved} {'less' if study.saving >= 0 else 'more'} for the day"
    )
    peaks = sum(max(region.loads) for region in study.regions)
    served = sum(
        max(shifted.served(region.name, hour) for hour in range(len(region.loads))) for region in study.regions
    )
    yield f"the peaks of the regions together: {_load(peaks)} {_unit(study)} alone, {_load(served)} shifted"
    if shifted.cost > 0 and study.bound > 0:
        over = shifted.cost / study.bound - 1
        yield (
            f"no assignment costs less than {formats.money(study.bound)}: this one is at most "
            f"{formats.share(max(0.0, over))} above"
        )
    for words, assignment in (("alone", alone), ("shifted", shifted)):
        if assignment.leaves_load:
            yield f"{words}: {_left(study, assignment, regions)} has no place; the cost is that of the rest"
    for users, to in study.too_far:
        yield f"{users} → {to}: the way takes all of the SLA; nothing is sent"


def _left(study: Study, assignment: Assignment, regions: Regions) -> str:
    """Return how much load of the day has no place."""
    left = sum(map(sum, assignment.unserved.values()))
    offered = sum(sum(region.loads) for region in study.regions)
    hours = formats.count(round(left * regions.step_s / 3600))
    unit = "stream-hours" if _unit(study) == "streams" else "requests/s times hours"
    return f"{hours} {unit} ({formats.share(left / offered)} of the load of all)"


def _lost(name: str, loss: Loss, study: Study, regions: Regions) -> tuple[str, ...]:
    more = loss.assignment.cost - study.shifted.cost
    at_once = [gone - room for gone, room in zip(loss.displaced, loss.at_once, strict=True)]
    later = [sum(loads[hour] for loads in loss.assignment.unserved.values()) for hour in range(len(loss.displaced))]
    return (
        name,
        formats.money(loss.assignment.cost),
        f"{'+' if more >= 0 else '−'}{formats.money(abs(more))}",
        _share(at_once, loss),
        _worst(at_once, regions),
        duration(loss.startup_s),
        _share(later, loss),
        _worst(later, regions),
    )


def _share(left: Sequence[float], loss: Loss) -> str:
    """Return the load without a place over the day, as a share of what the lost region served."""
    whole = sum(loss.displaced)
    return formats.share(sum(left) / whole) if whole > 0 and _load(sum(left)) != "0" else "0 %"


def _worst(left: Sequence[float], regions: Regions) -> str:
    """Return the most load without a place in a step, and when that is."""
    hour = max(range(len(left)), key=lambda each: left[each])
    return f"{_load(left[hour])} at {_clock(hour * regions.step_s)}" if _load(left[hour]) != "0" else formats.MISSING


def _trust(study: Study) -> Iterator[str]:
    yield (
        "Shares are of the load that the lost region served, over the day. At once: on the replicas that run "
        "elsewhere; then: once the others have started theirs. A lost region costs nothing."
    )
    unserved = [name for name, loss in study.losses.items() if loss.assignment.leaves_load]
    if unserved:
        yield f"The cost without {formats.listed(unserved)} is that of the load that has a place."
    yield "Costs are plans for the mean load of each step, as sluice plan makes them: no headroom, no overlap."


def document(study: Study, regions: Regions) -> dict[str, Any]:
    """Return the document that `-o json` prints. Costs are USD for the day, loads in the unit of the pipelines."""
    return {
        "name": regions.file.name,
        "unit": _unit(study),
        "step_s": regions.step_s,
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
                "more": loss.assignment.cost - study.shifted.cost,
                "displaced": list(loss.displaced),
                "at_once": list(loss.at_once),
                "startup_s": loss.startup_s,
                **_assignment(loss.assignment),
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
