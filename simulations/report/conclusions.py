"""The results in sentences and key figures, for readers who do not know Sluice yet: users first, then money."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.core.state.spec import DemandUnit
from simulations.policies.recorded import RECORDED
from simulations.report import formats
from simulations.results.results import Experiment, Run, Tuning
from simulations.results.users import Users, by_unit, promise_kept

SUBJECT = "sluice"
_STATIC_PEAK = "static-peak"
_LIVE_PEAK = "a static allocation for the peak"
_TODAY = {RECORDED: "what runs today", _STATIC_PEAK: _LIVE_PEAK}
"""What a run is compared with first, in this order: what ran, or else the peak provisioned throughout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A key figure: its name, its value as text, a note, and whether it is good (None where that does not apply)."""

    name: str
    words: str
    note: str
    good: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """What a run is compared with: its `name` in a sentence, its cost in USD per hour, and its run if there is one."""

    name: str
    cost_per_hour: float
    run: Run | None = None


def subject(experiment: Experiment) -> Run:
    """Return the run that a report is about: that of Sluice, with default settings if possible, or else the first."""
    runs = experiment.runs()
    ours = [run for run in runs if run.policy == SUBJECT and run.what_if is None]
    ours.sort(key=lambda run: run.tuning is not Tuning.DEFAULT)
    return (ours or list(runs))[0]


def label(run: Run) -> str:
    """Return the name of a run's policy as readers see it, such as "Sluice" or "hpa (trained)"."""
    name = run.policy.capitalize() if run.policy == SUBJECT else run.policy
    return name if run.tuning is Tuning.DEFAULT else f"{name} (trained)"


def first_sentence(run: Run) -> str:
    """Return how many users a run served as promised, and how many it refused, cut, or served late or not at all."""
    return served_sentence(label(run), run.users, run.mean("sessions_cut") or 0.0)


def served_sentence(name: str, users: Sequence[Users], sessions_cut: float) -> str:
    """Return how many of `users` were served as promised by `name`, and how many were refused, cut, late or lost."""
    groups = [_served_words(group) for group in by_unit(users) if group.offered]
    if not groups:
        return f"{name} had no users to serve."
    streams = any(one.unit is DemandUnit.STREAMS for one in users)
    cut = f"; {cut_words(sessions_cut)}" if streams else ""
    return f"{name} served {', and '.join(groups)}{cut}."


def cut_words(sessions_cut: float) -> str:
    """Return how many sessions were cut, as the end of a sentence."""
    return f"{formats.count(sessions_cut)} {'session was' if sessions_cut == 1 else 'sessions were'} cut"


_NOUNS = {DemandUnit.STREAMS: "open streams (mean)", DemandUnit.REQUESTS: "requests", DemandUnit.ITEMS: "items"}


def users_words(users: Users) -> str:
    """Return the users in words, such as `405 of 412 open streams (mean)`."""
    return f"{formats.users(users.as_promised)} of {formats.users(users.offered)} {_NOUNS[users.unit]}"


def users_of_all(run: Run, fate: str) -> str:
    """Return how many users of a run met a fate, `refused`, `late` or `lost`, by unit where there are both units."""
    groups = by_unit(run.users)
    several = len(groups) > 1
    return " + ".join(
        formats.users(getattr(one, fate)) + (f" {one.unit.value.lower()}" if several else "") for one in groups
    )


def _served_words(users: Users) -> str:
    asked = formats.share(users.promised_share)
    promise = "deadline" if users.unit is DemandUnit.ITEMS else "SLA"
    against = f"the {promise} asks for {asked}" if users.kept else f"below the {asked} of the {promise}"
    parts = ((users.refused, "refused"), (users.late, "late"), (users.lost, "lost"))
    rest = ", ".join(f"{formats.users(count)} {word}" for count, word in parts)
    return f"{users_words(users)} as promised ({formats.share(users.share)}; {against}): {rest}"


def today_of(experiment: Experiment, run: Run, static_peak_cost: float | None = None) -> Today | None:
    """Return what `run` is compared with: the recorded run, or else the static peak; None where there is neither.

    `static_peak_cost` is the cost in USD of the static peak of a live run, over the scored time.
    """
    if static_peak_cost and run.scored_h:
        return Today(name=_LIVE_PEAK, cost_per_hour=static_peak_cost / run.scored_h)
    for policy, name in _TODAY.items():
        for other in experiment.runs():
            per_hour = other.cost_per_hour
            if other.policy == policy and other.what_if == run.what_if and other is not run and per_hour:
                return None if run.policy == policy else Today(name=name, cost_per_hour=per_hour, run=other)
    return None


def bound_per_hour(run: Run) -> float | None:
    """Return the bound of a run in USD per hour of scored time; None without a bound."""
    return None if run.bound is None or not run.scored_h else run.bound / run.scored_h


def figures(experiment: Experiment, today: Today | None) -> Iterator[Figure]:
    """Yield the key figures of the experiment's `subject`, against the bound and against `today`."""
    run = subject(experiment)
    for users in by_unit(run.users):
        yield Figure(
            name="served as promised" if len(by_unit(run.users)) == 1 else f"{users.unit.value.lower()} as promised",
            words=formats.share(users.share),
            note=f"{users_words(users)}; the SLA asks for {formats.share(users.promised_share)}",
            good=promise_kept([one for one in run.users if one.unit is users.unit]),
        )
    per_hour = run.cost_per_hour
    yield Figure(
        name="cost per hour",
        words=formats.money(per_hour),
        note=_note(f"{formats.per_month(per_hour)}; whole run {formats.money(run.mean('cost'))}", run),
    )
    if run.cost_over_bound is not None:
        yield Figure(
            name="against the best possible",
            words=formats.ratio(run.cost_over_bound),
            note=f"the bound is {formats.money(bound_per_hour(run))} per hour",
        )
    if today is not None and per_hour is not None:
        yield Figure(
            name=f"against {today.name}",
            words=formats.change(per_hour / today.cost_per_hour - 1),
            note=f"{formats.money(today.cost_per_hour)} per hour, {formats.per_month(today.cost_per_hour)}",
            good=per_hour <= today.cost_per_hour,
        )
    for users in by_unit(run.users):
        yield Figure(
            name=f"{users.unit.value.lower()} refused, late, lost",
            words=formats.users(users.refused + users.late + users.lost),
            note=f"{formats.users(users.refused)} refused, {formats.users(users.late)} late, "
            f"{formats.users(users.lost)} lost",
        )
    yield Figure(
        name="sessions cut",
        words=formats.count(run.mean("sessions_cut")),
        note="moved to another replica while under way",
    )
    violations = sum(result.cap_violations for result in run.results)
    yield Figure(
        name="times above the budget",
        words=formats.count(violations),
        note="starting and draining replicas included" if not violations else "spend was above the cap",
        good=not violations,
    )
    if any(result.p50_s is not None for result in run.results):
        yield Figure(
            name="p95 latency",
            words=formats.latency(run.mean("p95_s")),
            note=f"p50 {formats.latency(run.mean('p50_s'))}, p99 {formats.latency(run.mean('p99_s'))}",
        )


def sentences(experiment: Experiment, today: Today | None = None) -> Iterator[str]:
    """Yield sentences about the experiment's `subject`: users, cost, bound, budget, then the other policies.

    `today` is what the cost is compared with first; None: the run of the experiment that `today_of` names.
    """
    run = subject(experiment)
    yield first_sentence(run)
    seeds = len(run.results)
    over = f", on average over {seeds} random loads of the same kind" if seeds > 1 else ""
    yield f"It cost {formats.per_hour_and_month(run.cost_per_hour)}{over}."
    if run.bound is not None:
        yield (
            f"The best that could be paid is {formats.per_hour_and_month(bound_per_hour(run))}: no schedule that meets "
            "the SLA in 99.5 % of the windows costs less, even if it knows load and faults in advance. The run cost "
            f"{formats.ratio(run.cost_over_bound)} this bound."
        )
    elif experiment.bounds:
        yield "No schedule can meet the SLA in 99.5 % of the windows, so there is no bound to compare with."
    against = today or today_of(experiment, run)
    if against is not None:
        yield _against_today(run, against)
    violations = sum(result.cap_violations for result in run.results)
    yield (
        "Spend never exceeded the budget, replicas that start or drain included."
        if not violations
        else f"Spend exceeded the budget {formats.plural(violations, 'time')}."
    )
    yield from _against_others(run, [other for other in experiment.runs() if other.what_if == run.what_if])


def _against_today(run: Run, today: Today) -> str:
    words = f"{_capital(today.name)} costs {formats.per_hour_and_month(today.cost_per_hour)}"
    if today.run is not None and today.run.served_as_promised is not None:
        words += f" and serves {formats.share(today.run.served_as_promised)} of the users as promised"
    per_hour = run.cost_per_hour
    if per_hour is None:
        return f"{words}."
    saving = today.cost_per_hour - per_hour
    verb = "saves" if saving >= 0 else "costs"
    more = "" if saving >= 0 else " more"
    share = formats.share(abs(saving) / today.cost_per_hour)
    return f"{words}: {label(run)} {verb} {formats.per_month(abs(saving))}{more} ({share})."


def _against_others(run: Run, runs: Sequence[Run]) -> Iterator[str]:
    others = [other for other in runs if other.policy != run.policy]
    if not others:
        return
    if run.breaks_caps:
        yield "The run spent above the cap, so it is not compared with the other policies."
        return
    cost, served = run.cost_per_hour, run.served_as_promised
    found = [(other, other.cost_per_hour, other.served_as_promised) for other in others if not other.breaks_caps]
    known = sorted(
        ((o, c, s) for o, c, s in found if c is not None and s is not None), key=lambda entry: (entry[1], -entry[2])
    )
    if cost is not None and served is not None:
        better = [(o, c, s) for o, c, s in known if c <= cost and s >= served and (c, s) != (cost, served)]
        worse = [(o, c, s) for o, c, s in known if c < cost and s < served]
        dearer = [(o, c, s) for o, c, s in known if c > cost and s >= served]
        if better:
            yield f"Better: {_named(better)} cost no more and served at least as many users as promised."
        else:
            others_words = formats.plural(len(others), "other run")
            yield f"No other policy served as many users as promised for as little ({others_words})."
        if worse:
            yield f"Cheaper, but served fewer users as promised: {_named(worse)}."
        if dearer and not better:
            other, other_cost, _ = dearer[0]
            more = formats.share(other_cost / cost - 1) if cost else formats.MISSING
            yield (
                f"The cheapest other policy that served as many is {label(other)}: {formats.money(other_cost)} per "
                f"hour, {more} more."
            )
    breakers = [label(other) for other in others if other.breaks_caps]
    if breakers:
        yield f"Not compared, because they spent above the cap: {formats.listed(breakers)}."


def _named(found: Sequence[tuple[Run, float, float]]) -> str:
    return formats.listed(
        [f"{label(other)} at {formats.money(c)} per hour ({formats.share(s)} of the users)" for other, c, s in found]
    )


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _note(text: str, run: Run) -> str:
    seeds = formats.spread(run.range("cost"), formats.money)
    return "; ".join(filter(None, [text, seeds and f"{seeds} over the seeds"]))
