"""Explains a decision: in one sentence, and in the sections of `sluice explain`."""

import re
from collections.abc import Iterable, Iterator

from controller.core.messages.backlog import backlog_lines, progress_words
from controller.core.messages.bounds import bounds_in_force
from controller.core.messages.diagnosis import cause_titles, diagnosis_lines
from controller.core.messages.measured import measured_words
from controller.core.messages.missed import missed_briefly, missed_words
from controller.core.messages.phrases import (
    count_of,
    demand_words,
    duration,
    first_names,
    limit_words,
    mixing_words,
    money,
    money_needed,
    next_step_words,
    number,
    reading_words,
    step_words,
)
from controller.core.messages.relief import obstacles, relief_of_plan, slower_stages
from controller.core.messages.sentences import (
    batching_words,
    brief_holds,
    change_words,
    closing_words,
    crowded_words,
    demand_change,
    demand_reason,
    held,
    hold_words,
    latency_of_sla,
    metrics_words,
    missed,
    planned_words,
    replicas_words,
    season_words,
    shared_words,
    silent_rule,
    spend_of_budget,
    switch_words,
)
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.spec import Mode
from profiler.samples import Absence

_CHANGE = re.compile(r"\d→\d+ on | goes from ")
"""A change of replicas or a switch of variants, in the words of `change_words` and `switch_words`."""


def reason_sentence(decision: PipelineDecision) -> str:
    """Return the decision in one line: changes with reasons, or why there are none, then demand, latency and spend.

    While the latency exceeds the SLA, that comes first, with what is done about it.
    """
    late = missed(decision)
    if decision.backlog is not None:
        numbers = [progress_words(decision.backlog), spend_of_budget(decision)]
    else:
        numbers = [demand_change(decision), *([] if late else [latency_of_sla(decision)]), spend_of_budget(decision)]
    changes, holds = "; ".join([*change_words(decision), *switch_words(decision)]), "; ".join(brief_holds(decision))
    answer = changes or ("no change" + (f": {holds}" if holds else ""))
    if late:
        how_bad, *more = missed_briefly(decision)
        more = [*cause_titles(decision), *more]
        return "; ".join([how_bad, *([answer, *more] if changes else [*more, answer]), *numbers])
    return f"{answer}{'; ' if holds and not changes else ': '}{'; '.join(numbers)}"


def causes_of(sentence: str) -> list[str]:
    """Return the changes in a `reason_sentence`: one text for each cause, without the numbers behind them."""
    return [clause for clause in re.split("; |: ", sentence) if _CHANGE.search(clause)] or [sentence]


def explain_pipeline(decision: PipelineDecision, now_s: float) -> list[str]:
    """Return the explanation of one pipeline's decision, made at `now_s`: section titles, each with indented lines."""
    return [
        *(_section("SLA missed", missed_words(decision)) if missed(decision) else []),
        *(_section("Diagnosis", diagnosis_lines(decision)) if missed(decision) or decision.diagnosis else []),
        *_section("What", _what(decision)),
        *_section("Why", _why(decision)),
        *_section("Why not more", _why_not_more(decision)),
        *_section("Why not now", _why_not_now(decision, now_s)),
        *_section("Bounds", bounds_in_force(decision)),
        *_section("What would change it", _what_would_change(decision)),
    ]


def without_bound(decision: PipelineDecision, other: Decision, mechanism: str) -> list[str]:
    """Return what `other` decides, which was made without the bounds of `mechanism`, beside `decision`."""
    (own,) = (each for each in other.pipelines if each.key == decision.key)
    same = own.goal == decision.goal and own.desired == decision.desired
    lines = [f"the same: {mechanism} does not bind"] if same else [*change_words(own)] or ["no change"]
    if own.plan is not None and decision.plan is not None:
        lines.append(f"{planned_words(own.plan)}, instead of {money(decision.plan.cost_per_hour)}")
    return _section(f"Without {mechanism}", lines)


def _what(decision: PipelineDecision) -> Iterator[str]:
    yield from change_words(decision)
    yield from switch_words(decision)
    yield from batching_words(decision)
    if not decision.changes:
        yield f"no change: {replicas_words(decision)}"
    for (stage, pool), wanted in decision.unconstrained.items():
        desired = decision.desired[(stage, pool)]
        if wanted != desired:
            yield f"planned but not applied: {stage} {desired}→{wanted} on {pool}"


def _why(decision: PipelineDecision) -> Iterator[str]:
    if decision.backlog is not None:
        yield from _why_of_backlog(decision)
        return
    observed = reading_words(decision.demand.observed)
    forecast = "-" if decision.demand.forecast is None else number(decision.demand.forecast)
    reason = f"; {words}" if (words := demand_reason(decision)) else ""
    yield f"{demand_change(decision)} (observed {observed}, forecast {forecast}{reason})"
    if words := season_words(decision):
        yield words
    if words := metrics_words(decision):
        yield words
    yield latency_of_sla(decision)
    yield spend_of_budget(decision)
    yield from shared_words(decision)
    if decision.profile.bottleneck is not None:
        pressure = next(
            stage.pressure for stage in decision.profile.stages if stage.name == decision.profile.bottleneck
        )
        yield f"bottleneck now: {decision.profile.bottleneck} (pressure {reading_words(pressure)})"
    yield from crowded_words(decision)
    yield from closing_words(decision)
    yield from _rule_words(decision)
    yield from measured_words(decision)
    if decision.plan is not None:
        uneven = first_names([str(skew.stage) for skew in decision.skews])
        yield planned_words(decision.plan) + (f", were the sessions of {uneven} spread evenly" if uneven else "")
        yield from (step_words(step) for step in decision.plan.steps)
        yield from mixing_words(decision.plan)


def _why_of_backlog(decision: PipelineDecision) -> Iterator[str]:
    yield from backlog_lines(decision)
    if words := metrics_words(decision):
        yield words
    yield spend_of_budget(decision)
    yield from _rule_words(decision)
    yield from measured_words(decision)
    if decision.plan is not None:
        yield f"planned: {money(decision.plan.cost_per_hour)}"
        yield from mixing_words(decision.plan)


def _rule_words(decision: PipelineDecision) -> Iterator[str]:
    for rule in decision.rules:
        if rule.floor is not None:
            value = reading_words(rule.reading)
            yield f"rule {rule.name} keeps stage {rule.stage} at {rule.floor} replicas or more (its value: {value})"


def _why_not_more(decision: PipelineDecision) -> Iterator[str]:
    if decision.backlog is not None:
        yield from _why_not_faster(decision)
        return
    plan, spec = decision.plan, decision.spec
    waits = decision.admissible is not None and decision.admissible == decision.admitted_meanwhile
    if decision.admissible is not None and waits:
        yield f"until pending replicas are ready, the ingress admits {demand_words(spec, decision.admissible)}"
    if plan is None:
        yield "there is no plan"
        return
    if plan.feasible and missed(decision):
        steps = ": steps add replicas while they lower it" if spec.mode is Mode.AUTO else ""
        yield f"by the model the plan meets the SLA; measured, it is missed{steps}"
    elif plan.feasible:
        yield "the plan meets the SLA; more replicas would only add cost"
    else:
        served = f"{plan.served_fraction:.0%} of the demand can be served within the SLA"
        yield f"limited by {limit_words(plan.limited_by, spec.budget_per_hour, decision.budgets)}: {served}"
        if decision.admissible is not None and not waits:
            yield f"the ingress admits {demand_words(spec, decision.admissible)}"
        if plan.advice.required_budget_per_hour is not None:
            yield f"serving the whole demand within the SLA needs {money_needed(plan.advice.required_budget_per_hour)}"
        if plan.advice.best_latency_s is not None:
            within = money(spec.budget_per_hour)
            yield f"best latency for the whole demand within {within}: {duration(plan.advice.best_latency_s)}"
    if plan.next_step is not None:
        yield next_step_words(plan.next_step)


def _why_not_faster(decision: PipelineDecision) -> Iterator[str]:
    plan, spec = decision.plan, decision.spec
    if plan is None:
        yield "there is no plan"
    elif plan.feasible:
        yield "the plan meets its pace; more replicas would finish earlier, and not cheaper"
    else:
        limit = limit_words(plan.limited_by, spec.budget_per_hour, decision.budgets)
        yield f"limited by {limit}: {plan.served_fraction:.0%} of the pace is planned"
        if plan.advice.required_budget_per_hour is not None:
            yield f"the whole pace needs {money_needed(plan.advice.required_budget_per_hour)}"


def _why_not_now(decision: PipelineDecision, now_s: float) -> Iterator[str]:
    for hold in held(decision):
        left = "" if hold.until_s is None else f"; {max(0.0, hold.until_s - now_s):.0f} s left"
        yield f"{hold_words(hold)}{left}"
        if hold.reason is HoldReason.WITHIN_TOLERANCE:
            yield from _saving_not_taken(decision)
    for rule in decision.rules:
        if isinstance(rule.reading, Absence):
            yield silent_rule(rule)


def _saving_not_taken(decision: PipelineDecision) -> Iterator[str]:
    moved = sum(abs(wanted - decision.desired[key]) for key, wanted in decision.unconstrained.items())
    saved = 0.0 if decision.plan is None else decision.spend_per_hour - decision.plan.cost_per_hour
    if moved and saved > 0:
        yield f"a plan that costs {money(saved)} less would change {count_of(moved, 'replica')}"


def _what_would_change(decision: PipelineDecision) -> Iterator[str]:
    reasons = {hold.reason for hold in decision.holds}
    yield from obstacles(decision)
    if HoldReason.METRICS_MISSING in reasons:
        yield "the missing metrics"
    if HoldReason.IDLE in reasons:
        yield "demand above 0" if decision.backlog is None else "items in the backlog"
    if missed(decision):
        yield from slower_stages(decision)
    if decision.backlog is not None and (decision.plan is None or decision.plan.feasible):
        yield "more items, another deadline, another price, or other capacity that live pipelines leave"
    elif decision.plan is not None:
        yield from filter(None, [relief_of_plan(decision, decision.plan)])


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [title, *(f"  {line}" for line in _unique(lines) or ["-"])]


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
