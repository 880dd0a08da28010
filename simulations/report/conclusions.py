"""The results in sentences and key figures, for readers who do not know Sluice yet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulations.report import formats
from simulations.results.results import Experiment, Run, Tuning, dominates

SUBJECT = "sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A key figure: its name, its value as text, a note, and whether it is good (None where that does not apply)."""

    name: str
    words: str
    note: str
    good: bool | None = None


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


def figures(run: Run, required: float) -> Iterator[Figure]:
    """Yield the key figures of a run; `required` is the share (0–1) of windows that should meet the SLA."""
    met, calm = run.mean("sla_windows_met"), run.mean("sla_windows_met_calm")
    yield Figure(
        name="windows within the SLA",
        words=formats.share(met),
        note=_note(_calm_words(run), run, "sla_windows_met", formats.share),
        good=None if calm is None else calm >= required,
    )
    yield Figure(
        name="cost", words=formats.money(run.mean("cost")), note=_note("USD, whole run", run, "cost", formats.money)
    )
    if run.cost_over_bound is not None:
        yield Figure(
            name="times the bound",
            words=formats.ratio(run.cost_over_bound),
            note=f"the bound is {formats.money(run.bound)}",
        )
    violations = sum(result.cap_violations for result in run.results)
    yield Figure(
        name="times above the budget",
        words=formats.count(violations),
        note="starting and draining replicas included" if not violations else "spend was above the cap",
        good=not violations,
    )
    lost, refused, shed, offered = (run.mean(name) or 0.0 for name in ("lost", "refused", "shed", "offered"))
    yield Figure(
        name="items without an answer",
        words=formats.count(lost + refused + shed),
        note=f"{formats.count(lost)} lost, {formats.count(refused)} refused, {formats.count(shed)} shed, "
        f"of {formats.count(offered)} offered",
        good=lost + refused + shed == 0,
    )
    p95 = run.mean("p95_s")
    if any(result.p50_s is not None for result in run.results):
        yield Figure(
            name="p95 latency",
            words=formats.latency(p95),
            note=f"p50 {formats.latency(run.mean('p50_s'))}, p99 {formats.latency(run.mean('p99_s'))}",
        )


def sentences(experiment: Experiment) -> Iterator[str]:
    """Yield sentences about the result of the experiment's `subject`, compared with the bound and other policies."""
    run = subject(experiment)
    seeds = len(run.results)
    over = f", on average over {seeds} random loads of the same kind" if seeds > 1 else ""
    calm = _calm_words(run)
    yield (
        f"{label(run)} met the SLA in {formats.share(run.mean('sla_windows_met'))} of the windows"
        f"{f' ({calm})' if calm else ''} "
        f"for {formats.money(run.mean('cost'))}{over}."
    )
    if run.bound is not None:
        yield (
            f"No schedule that meets the SLA in 99.5 % of the windows costs less than {formats.money(run.bound)}, even "
            f"if it knows load and faults in advance. The run cost {formats.ratio(run.cost_over_bound)} this bound."
        )
    elif experiment.bounds:
        yield "No schedule can meet the SLA in 99.5 % of the windows, so there is no bound to compare with."
    violations = sum(result.cap_violations for result in run.results)
    yield (
        "Spend never exceeded the budget, replicas that start or drain included."
        if not violations
        else f"Spend exceeded the budget {formats.plural(violations, 'time')}."
    )
    yield from _against_others(run, [other for other in experiment.runs() if other.what_if == run.what_if])


def _against_others(run: Run, runs: Sequence[Run]) -> Iterator[str]:
    autoscalers = [other for other in runs if other.policy != run.policy]
    if not autoscalers:
        return
    better = [other for other in autoscalers if dominates(other, run)]
    if run.breaks_caps:
        yield "The run spent above the cap, so it is not compared with the other policies."
    elif better:
        names = formats.listed([label(other) for other in better])
        yield f"Better: {names} cost no more and met the SLA in at least as many windows."
    else:
        others = formats.plural(len(autoscalers), "other run")
        yield f"No other policy was as cheap and met the SLA as often ({others})."
    cost, met = run.mean("cost"), run.mean("sla_windows_met")
    if cost is None or met is None:
        return
    sound = [
        (other, other.mean("cost"), other.mean("sla_windows_met")) for other in autoscalers if not other.breaks_caps
    ]
    cheaper = [(o, c, m) for o, c, m in sound if c is not None and m is not None and c < cost and o not in better]
    if cheaper:
        texts = [
            f"{label(other)} at {formats.money(c)} ({formats.share(m)} of the windows)"
            for other, c, m in sorted(cheaper, key=lambda found: found[1])
        ]
        yield f"Cheaper, but met the SLA less often: {formats.listed(texts)}."
    as_good = [(o, c, m) for o, c, m in sound if c is not None and m is not None and m >= met]
    if as_good and not better:
        other, other_cost, _ = min(as_good, key=lambda found: found[1])
        more = formats.share(other_cost / cost - 1) if cost else formats.MISSING
        yield (
            f"The cheapest other policy that met it as often is {label(other)}: "
            f"{formats.money(other_cost)}, {more} more."
        )
    breakers = [label(other) for other in autoscalers if other.breaks_caps]
    if breakers:
        yield f"Not compared, because they spent above the cap: {formats.listed(breakers)}."


def _calm_words(run: Run) -> str:
    """Return the share of windows away from faults that met the SLA; empty when it equals the share of all windows."""
    calm = run.mean("sla_windows_met_calm")
    return "" if calm is None or calm == run.mean("sla_windows_met") else f"{formats.share(calm)} away from faults"


def _note(text: str, run: Run, measure: str, words: formats.Words) -> str:
    seeds = formats.spread(run.range(measure), words)
    return "; ".join(filter(None, [text, seeds and f"{seeds} over the seeds"]))
