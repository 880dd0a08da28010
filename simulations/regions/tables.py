"""The results of a study in rows of tables and in sentences, the same for the terminal and the page. Pure."""

from collections.abc import Iterator, Sequence

from controller.core.messages.phrases import duration
from controller.core.state.spec import DemandUnit
from simulations.regions.model import Assignment
from simulations.regions.scenario import Regions
from simulations.regions.study import Loss, Study
from simulations.report import formats

_SAME_USD = 5e-4
"""Costs of a day (USD) that differ by less are the same."""
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


def least_shown(study: Study) -> float:
    """Return the least load that is shown: less is the end of a long session, or within the solver's tolerance."""
    return 0.5 if unit(study) == "streams" else 0.05


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
    shifted, least = study.shifted, least_shown(study)
    for hour in range(len(study.regions[0].loads)):
        moved = [
            f"{users} → {to} {_load(loads[hour])}"
            for (users, to), loads in shifted.flows.items()
            if users != to and loads[hour] >= least
        ]
        left = [
            f"no place for {_load(loads[hour])} of {name}"
            for name, loads in shifted.unserved.items()
            if loads[hour] >= least
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


def verdict(study: Study, regions: Regions) -> str:
    """Return what shifting costs, and what it saves or serves."""
    costs = f"alone {formats.money(study.alone.cost)}, shifted {formats.money(study.shifted.cost)}"
    if study.saving is None:
        return f"{costs}: {_gain(study, regions)}"
    return f"{costs}: {_amount(study)} {'less' if study.saving >= 0 else 'more'} for the day"


def headline(study: Study, regions: Regions) -> str:
    """Return what shifting saves or serves, in a sentence."""
    if study.saving is None:
        found = _gain(study, regions)
    elif study.saving >= 0:
        found = f"saves {_amount(study)} a day"
    else:
        found = f"costs {_amount(study)} a day more"
    return f"Serving {unit(study).removesuffix('/s')} across regions {found}."


def _amount(study: Study) -> str:
    """Return the difference between the costs of both assignments, and its share of those alone."""
    usd = abs(study.alone.cost - study.shifted.cost)
    return formats.money(usd) + (f" ({formats.share(usd / study.alone.cost)})" if study.alone.cost > 0 else "")


def _gain(study: Study, regions: Regions) -> str:
    """Return what is served that has no place alone, and what that costs."""
    more = study.shifted.cost - study.alone.cost
    cost = f"for {formats.money(abs(more))} {'more' if more > 0 else 'less'} a day"
    served = f"serves {_in_day(study, study.gained, regions)} that have no place alone"
    return f"{served}, {cost if abs(more) >= _SAME_USD else 'at the same cost'}"


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
        more = loss.cost - study.shifted.cost
        at_once, later = no_room_at_once(loss), no_place_then(loss)
        yield (
            name,
            formats.money(loss.cost),
            f"{'+' if more > -_SAME_USD else '−'}{formats.money(abs(more))}",
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
        "elsewhere; then: once the others have started theirs."
    )
    yield (
        "What is reserved for the day is paid in a loss too, also in the lost region. A lost region that is paid by "
        "the hour costs nothing."
    )
    unserved = [name for name, loss in study.losses.items() if loss.assignment.leaves_load]
    if unserved:
        yield f"The cost without {formats.listed(unserved)} is that of the load that has a place."
    yield "Costs are plans for the mean load of each step, as sluice plan makes them: no headroom, no overlap."


def _load(value: float) -> str:
    return formats.count(round(value, 0 if value >= 100 else 1))


def _left(study: Study, assignment: Assignment, regions: Regions) -> str:
    """Return how much load of the day has no place."""
    offered = sum(sum(region.loads) for region in study.regions)
    share = formats.share(assignment.left / offered)
    return f"{_in_day(study, assignment.left, regions)} ({share} of the load of all)"


def _in_day(study: Study, load: float, regions: Regions) -> str:
    """Return a load that is summed over the steps of the day, as stream-hours or as a number of requests."""
    if unit(study) == "streams":
        return f"{_load(load * regions.step_s / 3600)} stream-hours"
    return f"{_load(load * regions.step_s)} requests"


def _worst(left: Sequence[float], regions: Regions) -> str:
    """Return the most load without a place in a step, and when that is."""
    hour = max(range(len(left)), key=lambda each: left[each])
    return f"{_load(left[hour])} at {clock(hour * regions.step_s)}" if _load(left[hour]) != "0" else formats.MISSING
