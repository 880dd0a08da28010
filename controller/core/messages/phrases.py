"""Texts for single values: numbers, durations, money, readings, limits and the steps of a plan."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.model import ServiceLaw
from optimizer.plan import Limit, LimitKind, PipelinePlan, PlacementStep, Step
from profiler.samples import Absence, Reading

MOST_CHARACTERS = 250
"""The longest message of a condition or an Event: more is cut off by what shows them."""


_LEAST_PART = 40
"""The fewest characters of a clause that are worth showing."""


_END = 60
"""The most characters of the end of a clause that is cut in its middle."""


def brief(clauses: Iterable[str]) -> str:
    """Return `clauses` as one text of at most `MOST_CHARACTERS`, each once.

    The first clause that does not fit is cut at a word, and further ones are counted. Where it is the last one, its end
    is kept too: what a provider says of an error comes last.
    """
    different = list(dict.fromkeys(part for clause in clauses for part in clause.split("; ") if part))
    whole = "; ".join(different)
    if len(whole) <= MOST_CHARACTERS:
        return whole
    for fitting, clause in enumerate(different):
        left = len(different) - fitting - 1
        more = f"; and {left} more" if left else ""
        before = "".join(f"{kept}; " for kept in different[:fitting])
        room = MOST_CHARACTERS - len(before) - len(more)
        if len(clause) <= room:
            continue
        if room < _LEAST_PART:
            return f"{before}and {left + 1} more"
        end = "" if left or room < 2 * _END else clause[-_END:].partition(" ")[2]
        start = clause[: room - 2 - len(end) - bool(end)]
        return f"{before}{start.rpartition(' ')[0] or start} …{' ' * bool(end)}{end}{more}"
    return whole  # not reached: of clauses that all fit, the whole fits


def number(value: float) -> str:
    """Return `value` as text with three significant digits, or as a whole number from 100 on; without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"


def count_of(count: int, noun: str) -> str:
    """Return `count` and `noun` as text, in the plural unless `count` is 1: `3 replicas`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_names(names: Sequence[str]) -> str:
    """Return up to three of `names` as text, with the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def duration(seconds: float | None) -> str:
    """Return a time as text: in ms below one second, otherwise in s; `-` for None."""
    if seconds is None:
        return "-"
    return f"{number(seconds * 1000)} ms" if seconds < 1 else f"{number(seconds)} s"


def law_words(law: ServiceLaw) -> str:
    """Return a service law as text, such as `12 ms + 4 ms per item`."""
    if law.points:
        words = "batches of " + ", ".join(f"{size}: {duration(time_s)}" for size, time_s in law.points)
    else:
        line = [duration(law.fixed_s)] if law.fixed_s > 0 or law.per_item_s <= 0 else []
        words = " + ".join([*line, *([f"{duration(law.per_item_s)} per item"] if law.per_item_s > 0 else [])])
        if law.floor_s > 0:
            words = f"{words}, at least {duration(law.floor_s)}"
    return f"{words}, and {duration(law.prefill_s)} of prefill" if law.prefill_s > 0 else words


def timestamp(seconds: float) -> str:
    """Return `seconds` since the epoch as an RFC 3339 time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def money(per_hour: float) -> str:
    """Return an amount in USD per hour as text, such as `$1.50/h`."""
    return f"${per_hour:.2f}/h"


def price(per_hour: float) -> str:
    """Return the price of an instance as text with four significant digits, such as `$0.7582/h`."""
    return f"${float(f'{per_hour:.4g}'):g}/h"


def money_needed(per_hour: float) -> str:
    """Return a required amount in USD per hour as text, rounded up to the cent."""
    return money(math.ceil(per_hour * 100 - 1e-6) / 100)


def share_words(share: float) -> str:
    """Return a share (0–1) in percent as text. A small share that is not zero is never shown as zero."""
    if 0 < share < 1e-6:
        return "under 0.0001%"
    return f"{share:.1%}" if share >= 0.001 or share <= 0 else f"{float(f'{share * 100:.2g}'):.5f}".rstrip("0") + "%"


def demand_words(spec: PipelineSpec, demand: float) -> str:
    """Return `demand` with the pipeline's unit, such as `40 streams`, `12 requests/s` or `3 items/s`."""
    words = {DemandUnit.STREAMS: "streams", DemandUnit.REQUESTS: "requests/s", DemandUnit.ITEMS: "items/s"}
    return f"{number(demand)} {words[spec.unit]}"


def latency_words(latency_s: float | None, error: float | None) -> str:
    """Return a predicted latency with its error bar as text; `error` is a share of the latency, None: unknown."""
    return duration(latency_s) + ("" if error is None or latency_s is None else f" ± {error:.0%}")


def reading_words(reading: Reading) -> str:
    """Return a reading as text, or the reason why it is absent."""
    if isinstance(reading, Absence):
        return f"{reading.reason.value}: {reading.detail}" if reading.detail else reading.reason.value
    return number(reading)


def limit_words(
    limit: Limit | None, budget_per_hour: float | None, budgets: Mapping[str, float] = MappingProxyType({})
) -> str:
    """Return a plan's binding constraint in words, such as `pool l4`; None means several limits together.

    `budget_per_hour` is the amount to name where the budget binds, None to leave it out. `budgets` has the amounts of
    ComputeBudgets by name.
    """
    if limit is None:
        return "several limits together"
    match limit.kind:
        case LimitKind.BUDGET if limit.name is not None:
            amount = budgets.get(limit.name)
            return f"ComputeBudget {limit.name}" + ("" if amount is None else f" of {money(amount)}")
        case LimitKind.BUDGET:
            return "the budget" + ("" if budget_per_hour is None else f" of {money(budget_per_hour)}")
        case LimitKind.POOL:
            return f"pool {limit.name}"
        case LimitKind.ALLOWANCE:
            return f"the allowance of this shard on pool {limit.name}"
        case LimitKind.QUOTA:
            return f"quota {limit.name} of the AWS account"
        case LimitKind.BOUNDS:
            return "the replica bounds" + ("" if limit.name is None else f" of stage {limit.name}")
        case LimitKind.SLA:
            return "the SLA itself"


def step_words(step: Step) -> str:
    """Return one step of a plan as text: its changes, the latency it saves or adds, and its cost."""
    moves = ", ".join(_placement_step_words(change) for change in step.changes)
    latency = f"{'−' if step.latency_saved_s > 0 else '+'}{duration(abs(step.latency_saved_s))}"
    cost = step.cost_added_per_hour
    if abs(cost) < 0.005:
        price = "at the same cost"
    elif cost < 0:
        price = f"saving {money(-cost)}"
    elif step.latency_saved_s > 0:
        price = f"for {money(cost)}"
    else:  # slower at a higher cost: such a step only frees a pool for another stage
        freed = sorted(change.name for change in step.changes if change.after < change.before)
        price = f"and {money(cost)} more" + (f", which frees {', '.join(freed)}" if freed else "")
    return f"{step.stage} {moves}: {latency} {price}"


def next_step_words(step: Step) -> str:
    """Return the text about `step`, which saves most latency for its cost but is not part of the plan."""
    return f"the next dollar would go to: {step_words(step)}"


def mixing_words(plan: PipelinePlan) -> Iterator[str]:
    """Yield the texts that say why stages run on several placements, where that saves money."""
    for stage in plan.stages:
        if stage.mixing_saves_per_hour is not None:
            used = " and ".join(placement.name for placement in stage.placements if placement.replicas)
            saved = money(stage.mixing_saves_per_hour)
            yield f"{stage.name} runs on {used}: cheaper together than on one of them alone, saves {saved}"


def _placement_step_words(change: PlacementStep) -> str:
    more = change.after - change.before
    if more == 0:
        return f"batches of {change.batch} on {change.name}"
    batches = f" in batches of {change.batch}" if change.before == 0 and change.batch > 1 else ""
    return f"{'+' if more > 0 else '−'}{abs(more)} on {change.name}{batches}"
