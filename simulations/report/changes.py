"""The report's section about what to change, and what each change is worth: from runs, what-ifs, plan and bound."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from controller.commands.sensitivity_output import MOST_STAGES, sensitivity_lines
from controller.core.assess.optimizer_input import optimizer_pipeline, optimizer_pool
from controller.core.state.policy import Policy
from controller.html import Markup, element
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import Problem
from optimizer.plan import Plan
from optimizer.reports.certificate import certified_plan
from optimizer.reports.sensitivity import StageSensitivity, service_time_sensitivity
from simulations.report import formats
from simulations.report.conclusions import Today, bound_per_hour, label
from simulations.report.table import table
from simulations.results.results import Run
from simulations.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change in words, what it saves in USD per hour (below 0: it costs more), what it does to users, its source.

    `saved_per_hour` is None where it is not known.
    """

    words: object
    saved_per_hour: float | None
    users: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The plan for the highest load in a window of a run, and what it would be with other service times."""

    plan: Plan
    sensitivity: tuple[StageSensitivity, ...]


def peak_of(scenario: Scenario, run: Run) -> Peak:
    """Return the optimizer's plan for the highest load in a window of `run`, with shadow prices and advice.

    It is made with the service times, prices and budgets that the scenario begins with. A backlog has no peak.
    """
    specs = [pipeline_spec(resource) for resource in scenario.pipelines]
    pools = [pool_spec(resource) for resource in scenario.pools]
    peaks = {own.pipeline: max(own.offered_rps, default=0.0) for own in run.results[0].series.pipelines}
    problem = Problem(
        pipelines=tuple(
            optimizer_pipeline(
                spec,
                0.0 if spec.backlog is not None else peaks.get(str(spec.key), 0.0) / spec.items_per_unit_s,
                latency_headroom=Policy().latency_headroom,
            )
            for spec in specs
        ),
        pools={pool.name: optimizer_pool(pool, pool.instances or 0) for pool in pools},
        composition=Policy().composition,
    )
    plan = certified_plan(problem, shadow_prices=True, advice=True, lower_bound=False)
    few = plan.feasible and sum(len(spec.stages) for spec in specs) <= MOST_STAGES
    return Peak(plan=plan, sensitivity=tuple(service_time_sensitivity(problem)) if few else ())


def sensitivity_of(peak: Peak | None) -> list[str]:
    """Return what the plan for the peak would cost with other service times, a line for each stage after a heading."""
    return [] if peak is None else list(sensitivity_lines(peak.sensitivity, peak.plan.cost_per_hour))


def sensitivity_list(peak: Peak | None) -> Markup | None:
    """Return what the plan for the peak would cost with other service times as HTML; None where it is not known."""
    heading, *lines = sensitivity_of(peak) or [""]
    if not lines:
        return None
    return Markup.of(
        element("h3", "Against other service times"),
        element("p", f"In the plan for the peak, {heading}"),
        element("ul", [element("li", line.strip()) for line in lines]),
    )


def changes_section(changes: Sequence[Change]) -> Markup | None:
    """Return the section with the changes, the most valuable first; None without any."""
    if not changes:
        return None
    known = sorted(changes, key=lambda one: -(one.saved_per_hour or 0.0))
    return Markup.of(
        element("p", "A month has 730 hours of the same load. Worth more than 0 is saved, less is paid."),
        table(
            ("#change", ">worth per month", "users as promised", "known from"),
            ((one.words, _worth(one.saved_per_hour), one.users, one.source) for one in known),
            label="What to change and what it is worth",
        ),
    )


def changes(
    run: Run,
    others: Sequence[Run],
    *,
    today: Today | None,
    peak: Peak | None,
    words: Callable[[str], str],
) -> Iterator[Change]:
    """Yield the changes that `run` and the `others` know of; `words` returns what a what-if changes.

    `peak` is the plan for the highest load; None: it was not made.
    """
    cost = run.cost_per_hour
    if today is not None and cost is not None:
        before = None if today.run is None else today.run.served_as_promised
        yield Change(
            words=f"{label(run)} in place of {today.name}",
            saved_per_hour=today.cost_per_hour - cost,
            users=_users(before, run.served_as_promised),
            source="both runs",
        )
    for other in others:
        if other.what_if is None or (other.policy, other.tuning) != (run.policy, run.tuning):
            continue
        theirs = other.cost_per_hour
        yield Change(
            words=Markup.of(other.what_if, element("small", words(other.what_if))),
            saved_per_hour=None if cost is None or theirs is None else cost - theirs,
            users=_users(run.served_as_promised, other.served_as_promised),
            source="the what-if",
        )
    yield from _of_plan(None if peak is None else peak.plan)
    bound = bound_per_hour(run)
    if bound is not None and cost is not None and cost > bound:
        yield Change(
            words="Any better policy: at most",
            saved_per_hour=cost - bound,
            users="the SLA in 99.5 % of the windows",
            source="the bound, which knows load and faults in advance",
        )


def _of_plan(peak: Plan | None) -> Iterator[Change]:
    if peak is None:
        return
    for pool in peak.pools:
        if pool.shadow_price_per_hour is not None and pool.shadow_price_per_hour > 0:
            yield Change(
                words=f"One more instance of {pool.name} at the peak",
                saved_per_hour=pool.shadow_price_per_hour,
                users="all, as before",
                source="the shadow price in the plan for the peak, while the peak lasts",
            )
    for answer in peak.pipelines:
        if not answer.feasible:
            needed = answer.advice.required_budget_per_hour
            yield Change(
                words=f"A budget of {formats.money(needed)} per hour for {answer.key}"
                if needed is not None
                else f"More capacity than the pools have for {answer.key}",
                saved_per_hour=None,
                users=f"{formats.share(answer.served_fraction)} → 100 % of the peak",
                source="the plan for the peak",
            )


def _users(before: float | None, after: float | None) -> str:
    if before is None:
        return formats.share(after)
    return f"{formats.share(before)} → {formats.share(after)}"


def _worth(saved_per_hour: float | None) -> Markup:
    if saved_per_hour is None:
        return Markup.of(formats.MISSING)
    sign = "+" if saved_per_hour > 0 else ""
    return element("span", sign + formats.money_month(saved_per_hour), class_="good" if saved_per_hour > 0 else None)
