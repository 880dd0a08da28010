"""Texts about work that can wait: items left, pace, expected finish, and why a deadline is missed."""

from collections.abc import Iterator

from controller.core.messages.phrases import demand_words, limit_words, number, reading_words, share_words, timestamp
from controller.core.state.decision import BacklogOutlook, LateReason, PipelineDecision
from profiler.samples import Absence

_CENT = 0.01


def left_words(own: BacklogOutlook) -> str:
    """Return the number of items left as text, such as `12,000 items left`."""
    if isinstance(own.left, Absence):
        return f"items left unknown ({reading_words(own.left)})"
    return f"{number(own.left)} items left"


def progress_words(own: BacklogOutlook) -> str:
    """Return in one line what is left, when it is expected to be done, and when it must be."""
    words = [left_words(own)]
    if own.unmeasured is not None:
        words.append(f"expected finish unknown (the service time of stage {own.unmeasured} is not known yet)")
    if own.finish_s is not None:
        words.append(f"expected finish {timestamp(own.finish_s)}")
    if own.due_s is not None:
        words.append(f"deadline {timestamp(own.due_s)}")
    return ", ".join(words)


def finish_of_deadline(own: BacklogOutlook) -> str:
    """Return the expected finish and the deadline for a column, such as `12-01T04:31Z / 12-01T06:00Z`; `-`: unknown."""
    return " / ".join("-" if at_s is None else f"{timestamp(at_s)[5:16]}Z" for at_s in (own.finish_s, own.due_s))


def waiting_words(own: BacklogOutlook) -> str:
    """Return what the work waits for, and until when; empty where it does not wait."""
    if own.waits_until_s is None:
        return ""
    return f"waits for cheaper capacity, which is expected at {timestamp(own.waits_until_s)}"


def missed_words(late: LateReason) -> str:
    """Return that the deadline is missed, or expected to be."""
    return "deadline missed" if late is LateReason.DEADLINE_PASSED else "expected to miss the deadline"


def late_words(decision: PipelineDecision) -> str:
    """Return why the deadline is missed; empty where it is not."""
    own, plan = decision.backlog, decision.plan
    if own is None or own.late is None:
        return ""
    match own.late:
        case LateReason.DEADLINE_PASSED:
            return "the work goes on as fast as budgets and pools allow"
        case LateReason.BUDGET_TOO_LOW | LateReason.CAPACITY_TOO_SMALL:
            limit = None if plan is None else plan.limited_by
            return f"limited by {limit_words(limit, decision.spec.budget_per_hour, decision.budgets)}"
        case LateReason.STARTUP_TOO_LONG:
            return "replicas that start now are ready too late"
        case LateReason.HELD_BACK:
            return "fewer replicas than planned; the holds say why"


def deadline_words(decision: PipelineDecision) -> str:
    """Return whether the deadline is met, as text, with why it is missed or what is waited for."""
    own = decision.backlog
    assert own is not None
    said = waiting_words(own) if own.late is None else missed_words(own.late)
    return "; ".join(filter(None, [said, progress_words(own), late_words(decision)]))


def backlog_lines(decision: PipelineDecision) -> Iterator[str]:
    """Yield what `sluice explain` says about a backlog: items, pace, finish, cost, and what a later deadline saves."""
    own, spec = decision.backlog, decision.spec
    assert own is not None
    yield progress_words(own)
    if own.required_rps is not None and own.left != 0:
        planned = "" if own.rate_rps is None else f"planned {demand_words(spec, own.rate_rps)}, "
        yield f"pace: {planned}{demand_words(spec, own.required_rps)} meets the deadline with its reserve"
    if words := waiting_words(own):
        yield words
    if own.late is not None:
        words = late_words(decision)
        yield f"{missed_words(own.late)}: {words}"
    if own.cost is not None:
        yield f"expected cost ${own.cost:.2f}"
    for later in own.later:
        saves = f"saves ${later.saving:.2f}" if later.saving >= _CENT / 2 else "saves nothing"
        yield f"{share_words(later.extension)} more time {saves}"
