"""The parts of a scenario in words: pipelines, SLAs and budgets, load, faults, what-ifs."""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from controller.core.messages.phrases import duration, timestamp
from controller.core.state.spec import DemandUnit, PipelineSpec
from controller.resources.fields import duration_s
from simulations.report import formats
from simulations.report.chart import Band
from simulations.results.scoring import Interval
from simulations.scenario.reference_service import ReferenceService
from simulations.scenario.scenario import Fault, Load, LoadFields, Scenario, WhatIf
from simulations.scenario.values import EVERYTHING


def sla_and_budget(pipeline: PipelineSpec) -> str:
    """Return the SLA, or the deadline of a backlog, and the budget of a pipeline in words."""
    sla, backlog = pipeline.sla, pipeline.backlog
    promise = f"SLA: {sla.percentile:g} % of the items answered within {duration(sla.latency_s)}"
    if backlog is not None and backlog.within_s is not None:
        promise = f"deadline: {duration(backlog.within_s)} after the backlog was last empty"
    elif backlog is not None and backlog.deadline_s is not None:
        promise = f"deadline: {timestamp(backlog.deadline_s)}"
    return f"{promise}; budget: ${pipeline.budget_per_hour:,.2f} per hour"


def item(pipeline: PipelineSpec) -> str:
    """Return in words what an item of the pipeline is: a chunk of audio, or a request."""
    if pipeline.unit is DemandUnit.STREAMS and pipeline.chunk_s is not None:
        chunk = duration(pipeline.chunk_s)
        return f"an item is a chunk of {chunk} of audio; every open stream sends one in each such interval"
    return "an item waits until a replica takes it" if pipeline.backlog is not None else "an item is a request"


def load_words(load: Load) -> str:
    """Return a load entry in words."""
    if load.backlog is not None:
        return f"{load.pipeline}: a backlog of {load.backlog.items:,} items, {load.backlog.at} after the begin"
    return f"{load.pipeline}: {', '.join(_load_parts(load))}"


def bands(scenario: Scenario) -> tuple[Band, ...]:
    """Return the bands that mark faults and noise in charts, in the order of the file, with letters A, B, C, …"""
    end_s = scenario.file.clock.duration_s
    marked = [(fault.interval, fault_words(fault)) for fault in scenario.file.faults]
    marked += _noise(scenario.file.speech, end_s)
    return tuple(
        Band(letter=_letter(index), words=words, from_s=span.from_s, until_s=min(span.until_s, end_s))
        for index, (span, words) in enumerate(marked)
    )


def _noise(service: ReferenceService | None, end_s: float) -> Iterator[tuple[Interval, str]]:
    """Yield the times with more noise than at the beginning, with the noise in words."""
    spans = [] if service is None else service.noise_until(end_s)
    for span, snr_db in spans:
        if snr_db < spans[0][1]:
            yield span, f"noise: speech has {snr_db:g} dB more power than it"


def fault_words(fault: Fault) -> str:
    """Return the effect of a fault in words."""
    if fault.slow_start is not None:
        return f"new replicas on {fault.slow_start.pool} take {fault.slow_start.factor:g} times as long to start"
    if fault.roll_out is not None:
        return f"the pods of {fault.roll_out} are replaced, one at a time"
    if fault.cpu_quota is not None:
        return f"replicas of {fault.cpu_quota} stop in each 100 ms once their share of a core is used up"
    if fault.slow_stage is not None:
        return f"batches of {fault.slow_stage.stage} take {fault.slow_stage.factor:g} times as long"
    if (cold := fault.cold_caches) is not None:
        return f"new replicas of {cold.stage} take {cold.factor:g} times as long for their first {cold.lasts}"
    if fault.stuck_replica is not None:
        return f"a replica of {fault.stuck_replica} completes nothing"
    if fault.pass_ratio is not None:
        return f"{formats.share(fault.pass_ratio.ratio)} of the items of {fault.pass_ratio.stage} go on"
    if fault.slow_transit is not None:
        return f"items of {fault.slow_transit.pipeline} take {fault.slow_transit.by} more outside the stages"
    if fault.retries is not None:
        return f"clients of {fault.retries.pipeline} send each item {fault.retries.factor:g} times on average"
    if fault.spot_reclaim is not None:
        notice = "" if duration_s(fault.spot_reclaim.notice) == 0 else f", {fault.spot_reclaim.notice} after the notice"
        taken = f"{formats.share(fault.spot_reclaim.share)} of the nodes of {fault.spot_reclaim.pool}"
        return f"{taken} are reclaimed{notice}"
    if fault.spike is not None:
        return f"the load of {fault.spike.pipeline} is multiplied by {fault.spike.factor:g}"
    if fault.metrics_partial is not None:
        missing = formats.share(fault.metrics_partial.share)
        return f"{missing} of the metrics{_whose(fault.metrics_partial.pipeline)} are missing"
    if fault.metrics_noisy is not None:
        cv = fault.metrics_noisy.cv
        return f"metrics{_whose(fault.metrics_noisy.pipeline)} are noisy (coefficient of variation {cv:g})"
    if fault.metrics_lost is not None:
        return f"metrics{_whose(fault.metrics_lost)} are lost"
    if fault.metrics_stale is not None:
        return f"metrics{_whose(fault.metrics_stale)} are stale"
    if fault.pool_lost is not None:
        return f"the nodes of {fault.pool_lost} and the replicas on them are lost"
    if fault.pool_unavailable is not None:
        return f"new replicas get no node of {fault.pool_unavailable}; running ones stay"
    return patch_words(fault.set_ or {})


def what_if_words(what_if: WhatIf) -> str:
    """Return the changes of a what-if in words."""
    load = ", ".join(_load_parts(what_if.load)) if what_if.load is not None else ""
    return "; ".join(filter(None, [patch_words(what_if.set_ or {}), load and f"load with {load}"]))


def patch_words(patches: Mapping[str, Mapping[str, Any]]) -> str:
    """Return merge patches in words: by resource, the fields that they set, with the new values."""
    return "; ".join(
        f"{resource}: {', '.join(f'{path} = {value}' for path, value in _leaves(patch))}"
        for resource, patch in patches.items()
    )


def path_of_an_item(pipeline: PipelineSpec) -> str:
    """Return the stages in words, in the order in which an item passes them."""
    names = [stage.name for stage in pipeline.stages]
    in_line = all(stage.after == ((names[i - 1],) if i else ()) for i, stage in enumerate(pipeline.stages))
    if in_line:
        return " → ".join(names)
    return "; ".join(
        f"{stage.name} (after {formats.listed(list(stage.after))})" if stage.after else stage.name
        for stage in pipeline.stages
    )


def _load_parts(load: LoadFields) -> Iterator[str]:
    if load.trace is not None:
        columns = {"arrivals": "sessions that start", "streams": "open streams", "rate_per_s": "requests per second"}
        yield f"recording {load.trace}" + (f" ({columns[load.column]})" if load.column else "")
    elif load.column is not None:
        yield f"column {load.column}"
    if load.copies is not None:
        yield f"{load.copies} superposed copies" if load.copies > 1 else "one copy"
    if load.session is not None:
        mean = formats.span(duration_s(load.session.mean))
        yield f"sessions of {mean} on average (log-normal, coefficient of variation {load.session.cv:g})"
    if load.speed is not None and load.speed != 1:
        yield f"{load.speed:g} times as fast as recorded"
    if load.offset is not None:
        yield f"starting {load.offset} into the recording"


def _leaves(patch: Mapping[str, Any], path: Sequence[str] = ()) -> Iterator[tuple[str, object]]:
    for field, value in patch.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(field)))
        else:
            yield ".".join((*path, str(field))), value


def _whose(which: str) -> str:
    return "" if which == EVERYTHING else f" of {which}"


def _letter(index: int) -> str:
    return ascii_uppercase[index] if index < len(ascii_uppercase) else str(index + 1)
