"""Texts for a pipeline whose latency exceeds its SLA: how bad it is, what users see, what is done, what would help."""

from collections.abc import Iterator

from controller.core.messages.phrases import count_of, demand_words, duration, number, timestamp
from controller.core.messages.relief import next_words, relief
from controller.core.messages.sentences import latency_of_sla
from controller.core.state.decision import PipelineDecision, StartingReplicas
from optimizer.model import PlacementName
from profiler.samples import Absence, Quantity


def missed_briefly(decision: PipelineDecision) -> Iterator[str]:
    """Yield clauses about a missed SLA: how bad and since when, what is refused, and what is done or would help."""
    yield f"SLA missed{_since(decision)}: {latency_of_sla(decision)}"
    yield from _refused(decision)
    yield from starting_words(decision)
    if not decision.starting:
        yield from filter(None, [next_words(decision)])
        yield from _would_help(decision)


def missed_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield the lines about a missed SLA, each with one answer."""
    lasts = "" if decision.miss is None else f", for {duration(round(decision.miss.for_s))}"
    yield f"SLA missed{_since(decision)}{lasts}: {latency_of_sla(decision)}"
    refused = list(_refused(decision))
    unseen = "what the ingress itself refuses is unknown"
    yield from refused or [f"refused: none by a limit of status.admissible; {unseen}"]
    percentile = decision.spec.sla.percentile
    yield f"late: more than {number(100 - percentile)}% of the items that are served"
    yield "cut: unknown; Sluice reads no metric of it, see sluice_ingress_sessions_cut_total"
    doing = list(starting_words(decision)) or [words for words in [next_words(decision)] if words]
    yield from (f"being done: {words}" for words in doing or ["nothing; no replica is starting"])
    yield from _would_help(decision)


def starting_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield a text for each placement whose replicas start: how many, and when they are expected to be ready."""
    by_placement: dict[PlacementName, list[StartingReplicas]] = {}
    for starting in decision.starting:
        by_placement.setdefault(starting.placement, []).append(starting)
    for placement, each in by_placement.items():
        stages = ", ".join(dict.fromkeys(own.stage for own in each))
        count = sum(own.count for own in each)
        yield f"{count_of(count, 'replica')} starting on {placement} ({stages}), {_ready(each)}"


def _would_help(decision: PipelineDecision) -> Iterator[str]:
    if words := relief(decision):
        yield f"would help: {words}"


def _ready(starting: list[StartingReplicas]) -> str:
    known = [(own.ready_in_s, own) for own in starting if own.ready_in_s is not None]
    if len(known) < len(starting):
        return "ready at an unknown time: one has no node, or is overdue"
    ready_in_s, last = max(known, key=lambda pair: pair[0])
    origin = "measured" if last.measured else "not measured yet"
    return f"ready in about {max(1, round(ready_in_s))} s (start-up {duration(last.startup_s)}, {origin})"


def _since(decision: PipelineDecision) -> str:
    return "" if decision.miss is None else f" since {timestamp(decision.miss.since_s)}"


def _refused(decision: PipelineDecision) -> Iterator[str]:
    """Yield what is known of refused streams: above the limit, or because no replica has a free slot."""
    observed, refused = decision.demand.observed, decision.refused
    if decision.admissible is not None:
        if refused is None or isinstance(observed, Absence):
            yield "refused: unknown, because the demand is missing"
        elif refused > 0:
            yield f"refused: {number(refused)} of {demand_words(decision.spec, observed)}, above status.admissible"
    for stage in decision.profile.stages:
        rate = stage.readings.get(Quantity.SESSION_REFUSALS)
        if isinstance(rate, float | int) and rate > 0:
            yield f"refused: {number(rate)} streams/s at stage {stage.name}, no slot is free"
