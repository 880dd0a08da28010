"""The results of a study in rows of tables and in sentences, the same for the terminal and the page. Pure."""

from collections.abc import Iterator, Sequence

from controller.core.messages.phrases import duration
from controller.core.state.spec import DemandUnit
from simulations.regions.model import Assignment
from simulations.regions.scenario import Regions
from simulations.regions.study import Loss, Study
from simulations.report import formats

LEAST_SHOWN = 0.5
"""Less load than this is the end of a long session, or within the tolerance of the solver."""
COSTS = ("region", ">peak of its users", ">peak served", ">alone", ">shifted", "paid", ">SLA", ">way of users", ">left")
"""The columns of `costs`; > marks numbers."""
LOSSES = (
    "lost",
    ">cost of a day",
    ">more",
    ">no room at once",
    ">worst hour",
    ">ready after",
    ">no place then",
    ">worst hour",
)
"""The columns of `losses`."""


def unit(study: Study) -> str:
    """Return what loads are counted in."""
    (found, *_) = {spec.unit for spec in study.specs.values()}
    return "streams" if found is DemandUnit.STREAMS else "requests/s"


def clock(time_s: float) -> str:
    """Return a time of day such as 06:00."""
    minutes = round(time_s / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def hour_columns(study: Study) -> tuple[str, ...]:
    """Return the columns of `hours`."""
    pairs = [column for region in study.regions for column in (f">{region.name}: users", ">served")]
    return ("from", *pairs, "elsewhere")


def hours(study: Study, regions: Regions) -> Iterator[tuple[str, ...]]:
    """Yield where streams go in each step of the day."""
    shifted = study.shifted
    for hour in range(len(study.regions[0].loads)):
        moved = [
            f"{users} → {to} {_load(loads[hour])}"
            for (users, to), loads in shifted.flows.items()
            if users != to and loads[hour] >= LEAST_SHOWN
        ]
        left = [
            f"no place for {_load(loads[hour])} of {name}"
            for name, loads in shifted.unserved.items()
            if loads[hour] >= LEAST_SHOWN
        ]
        cells = [
            cell
            for region in study.regions
            for cell in (_load(region.loads[hour]), _load(shifted.served(region.name, hour)))
        ]
        yield clock(hour * regions.step_s), *cells, ", ".join((*moved, *left))


def costs(study: Study, regions: Regions) -> Iterator[tuple[str, ...]]:
    """Yield what each region costs, alone and shifted."""
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


def verdict(study: Study) -> str:
    """Return what shifting saves."""
    alone, shifted = study.alone, study.shifted
    saved = f" ({formats.share(abs(study.saving) / alone.cost)})" if alone.cost > 0 else ""
    return (
        f"alone {formats.money(alone.cost)}, shifted {formats.money(shifted.cost)}: "
        f"{formats.money(abs(study.saving))}{saved} {'less' if study.saving >= 0 else 'more'} for the day"
    )


def peaks(study: Study) -> tuple[float, float]:
    """Return the sum of the highest loads of the regions, alone and shifted."""
    every = range(len(study.regions[0].loads))
    return (
        sum(max(region.loads) for region in study.regions),
        sum(max(study.shifted.served(region.name, hour) for hour in every) for region in study.regions),
    )


def findings(study: Study, regions: Regions) -> Iterator[str]:
    """Yield what else is to be said of the cost: peaks, the bound, and load without a place."""
    own, served = peaks(study)
    yield f"the peaks of the regions together: {_load(own)} {unit(study)} alone, {_load(served)} shifted"
    if (over := above(study)) is not None:
        yield (
            f"no assignment costs less than {formats.money(study.bound)}: this one is at most "
            f"{formats.share(over)} above"
        )
    for words, assignment in (("alone", study.alone), ("shifted", study.shifted)):
        if assignment.leaves_load:
            yield f"{words}: {_left(study, assignment, regions)} has no place; the cost is that of the rest"
    for users, to in study.too_far:
        yield f"{users} → {to}: the way takes all of the SLA; nothing is sent"


def above(study: Study) -> float | None:
    """Return the share by which the cost may be above the least; None where there is no bound above 0."""
    return max(0.0, study.shifted.cost / study.bound - 1) if study.shifted.cost > 0 and study.bound > 0 else None


def losses(study: Study, regions: Regions) -> Iterator[tuple[str, ...]]:
    """Yield what each lost region costs."""
    for name, loss in study.losses.items():
        more = loss.assignment.cost - study.shifted.cost
        at_once, later = no_room_at_once(loss), no_place_then(loss)
        yield (
            name,
            formats.money(loss.assignment.cost),
            f"{'+' if more >= 0 else '−'}{formats.money(abs(more))}",
            share_of(at_once, loss),
            _worst(at_once, regions),
            duration(loss.startup_s),
            share_of(later, loss),
            _worst(later, regions),
        )


def no_room_at_once(loss: Loss) -> list[float]:
    """Return, for each step of the day, the load that the running replicas of the other regions have no room for."""
    return [gone - room for gone, room in zip(loss.displaced, loss.at_once, strict=True)]


def no_place_then(loss: Loss) -> list[float]:
    """Return, for each step of the day, the load without a place once the others have started replicas."""
    return [sum(loads[hour] for loads in loss.assignment.unserved.values()) for hour in range(len(loss.displaced))]


def share_of(left: Sequence[float], loss: Loss) -> str:
    """Return the load without a place over the day, as a share of what the lost region served."""
    whole = sum(loss.displaced)
    return formats.share(sum(left) / whole) if whole > 0 and _load(sum(left)) != "0" else "0 %"


def trust(study: Study) -> Iterator[str]:
    """Yield what the numbers are, and what they leave out."""
    yield (
        "Shares are of the load that the lost region served, over the day. At once: on the replicas that run "
        "elsewhere; then: once the others have started theirs. A lost region costs nothing."
    )
    unserved = [name for name, loss in study.losses.items() if loss.assignment.leaves_load]
    if unserved:
        yield f"The cost without {formats.listed(unserved)} is that of the load that has a place."
    yield "Costs are plans for the mean load of each step, as sluice plan makes them: no headroom, no overlap."


def _load(value: float) -> str:
    return formats.count(round(value, 0 if value >= 100 else 1))


def _left(study: Study, assignment: Assignment, regions: Regions) -> str:
    """Return how much load of the day has no place."""
    left = sum(map(sum, assignment.unserved.values()))
    offered = sum(sum(region.loads) for region in study.regions)
    amount = formats.count(round(left * regions.step_s / 3600))
    words = "stream-hours" if unit(study) == "streams" else "requests/s times hours"
    return f"{amount} {words} ({formats.share(left / offered)} of the load of all)"


def _worst(left: Sequence[float], regions: Regions) -> str:
    """Return the most load without a place in a step, and when that is."""
    hour = max(range(len(left)), key=lambda each: left[each])
    return f"{_load(left[hour])} at {clock(hour * regions.step_s)}" if _load(left[hour]) != "0" else formats.MISSING
