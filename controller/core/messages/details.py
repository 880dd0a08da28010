"""Texts for the details of holds and failures: the object that they are about, and the cause."""

from collections.abc import Iterable, Mapping, Sequence

from controller.core.messages.phrases import count_of, duration, number, timestamp
from controller.core.state.carry_over import Conflict
from controller.core.state.decision import BatchWrite
from controller.core.state.snapshot import PendingReplica
from controller.core.state.spec import PAUSE_ANNOTATION, PIN_ANNOTATION, Pause, Pin, Target
from optimizer.model import BatchSettings, PipelineKey, PlacementName, Size, Sla, StageName
from optimizer.plan import Limit
from profiler.samples import ABSURD, Absence, Quantity

_SHOWN = 3  # names in a text
DEMAND_OF_ANOTHER = "demand of another pipeline that uses this stage"
REPLACEMENTS_NOT_READY = "the replacements of these replicas are not ready"


def conflict(placement: PlacementName, cause: str | Conflict) -> str:
    """Return the text about another controller that sets the replicas of `placement`: its name, or its changes."""
    if isinstance(cause, str):
        return f"{placement}: {cause} sets the replicas too"
    return (
        f"{placement}: another controller sets the replicas too: {cause.found} found after {cause.written} written, "
        f"{cause.changes} times so far"
    )


def followed(placement: PlacementName, by: str) -> str:
    """Return the text about the autoscaler `by`, which sets the replicas of `placement` as recommended."""
    return f"{placement}: {by} follows this decision"


def paused(pause: Pause | None) -> str:
    """Return what pauses a pipeline as text: an annotation and its end, or (None) the mode."""
    return "spec.mode is Paused" if pause is None else f"annotation {PAUSE_ANNOTATION}{_until(pause.until_s)}"


def pinned(pin: Pin, count: int) -> str:
    """Return the text about a pin, of which `count` replicas are possible now."""
    limited = ""
    if pin.short_of:
        limited = f"; {pin.short_of} has room for {pin.fits}"
    elif count < pin.replicas:
        limited = f"; only {count} are possible now"
    return f"{pin.replicas} by annotation {PIN_ANNOTATION}{_until(pin.until_s)}{limited}"


def _until(until_s: float | None) -> str:
    return "" if until_s is None else f", until {timestamp(until_s)}"


def on_placement(placement: PlacementName, reason: str) -> str:
    """Return `reason`, which is about a placement, with its name."""
    return f"{placement}: {reason}"


def owner_not_acting(pipeline: PipelineKey, stage: StageName) -> str:
    """Return the text about a shared stage whose replicas belong to `stage` of `pipeline`, which does not act."""
    return f"shared from {pipeline}, stage {stage}"


def no_capacity(placement: PlacementName, limit: Limit) -> str:
    """Return the text about `limit`, which leaves no capacity for a replica of `placement`."""
    return f"no capacity on {placement} within {limit}"


def no_fleet_budget(placement: PlacementName) -> str:
    """Return the text about the budget of all pipelines, which has nothing left for a replica of `placement`."""
    return f"no capacity on {placement} within the budget of the fleet"


def no_allowance(placement: PlacementName, amount: int, capacity: int) -> str:
    """Return the text about the allowance of a shard, which leaves no capacity for a replica of `placement`."""
    return f"no capacity on {placement} within the allowance of this shard: {amount} of {capacity} instances"


def missing_reading(placement: PlacementName, quantity: Quantity, absence: Absence) -> str:
    """Return the text about a missing quantity, with the reason."""
    return f"{quantity.value} on {placement}: {absence.reason.value} {absence.detail}".rstrip()


def window_too_short(
    field: str, window_s: float, scrape_interval_s: float, absence: Absence, *, is_observed: bool
) -> str:
    """Return the text about a reading that is absent because the window of `field` is too short for the scrapes."""
    found = f"{absence.reason.value} {absence.detail}".rstrip()
    interval = duration(scrape_interval_s)
    source = f"{interval} observed" if is_observed else f"--scrape-interval {interval}"
    return f"{field}: {duration(window_s)}: must be at least two scrape intervals ({source}), better four; {found}"


def invalid_demand(value: float) -> str:
    """Return the text about a demand that cannot be used because of its value."""
    return f"demand.query returned {value!r}: must be from 0 to {ABSURD:g}"


def demand_of_completions(names: Sequence[str]) -> str:
    """Return that `demand.query` is made of counters of completed items only, and what to measure instead."""
    return (
        f"demand.query: {', '.join(names)}: counts completed items. These are never more than the capacity, so "
        "nothing would scale up. Measure the offered load at the ingress, with what is refused"
    )


def no_room_for_step(sla: Sla, latency_s: float) -> str:
    """Return the text about a stage that gets no replica although the measured latency exceeds the SLA."""
    return f"{_measured(sla, latency_s)}; budget, pools and replicas.max leave no room for another replica"


def unexplained(
    sla: Sla, latency_s: float, overhead_s: float | None, *, tried: Iterable[StageName], silent: Iterable[StageName]
) -> str:
    """Return the text about a miss of the SLA that more replicas do not mend.

    `overhead_s` is the time outside the stages, None: not known. `tried` are stages where more replicas did not lower
    the latency, and `silent` those of which no latency is measured.
    """
    outside = "the time outside the stages is not known"
    if overhead_s is not None:
        outside = f"{duration(overhead_s)} of it are outside the stages"
    words = f"{_measured(sla, latency_s)}; {outside}"
    if names := ", ".join(tried):
        words += f"; more replicas of {names} did not lower it"
    if names := ", ".join(silent):
        words += f"; no p95 is measured at {names}"
    return words


def _measured(sla: Sla, latency_s: float) -> str:
    return f"measured p{sla.percentile:g} {duration(latency_s)} of {duration(sla.latency_s)}"


def no_demand(after_s: float) -> str:
    """Return the text about a pipeline that has had no demand for `after_s` seconds or longer."""
    return f"no demand for {duration(after_s)}"


def uncreated(count: int, desired: int, refusal: str) -> tuple[str, str]:
    """Return which replicas are not created, and why, as texts; `refusal` has the words of their controller."""
    return f"{count} of {desired} replicas", f"not created: {refusal or 'their controller does not say why'}"


def rolling_out(updated: int, existing: int, waiting: int) -> str:
    """Return the text about a roll-out: `updated` of `existing` replicas are of the new revision."""
    words = f"{updated} of {existing} replicas are of the new revision"
    return f"{words}; {waiting} of these are not ready" if waiting else words


def outside(pods: Mapping[str, str]) -> str:
    """Return the text about pods that run on nodes outside their pool, each with its node."""
    names = [f"{pod} on {node}" for pod, node in sorted(pods.items())]
    more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
    return f"{count_of(len(names), 'replica')} on other nodes: {', '.join(names[:_SHOWN])}{more}"


def wrong_per_instance(per_instance: Size, fits: Size) -> str:
    """Return the text about a `perInstance` that is not what a node holds, or runs, or an `instancesPerReplica`."""
    if 0 < fits < 1 or per_instance < 1:
        return f"instancesPerReplica is {1 / per_instance}, but its pods are on {count_of(int(1 / fits), 'node')}"
    if fits > per_instance:
        return f"perInstance is {per_instance}, but a node runs {fits} on average; {fits} counts"
    return f"perInstance is {per_instance}, but the allocatable resources of a node hold {fits}"


def resized(by: str) -> str:
    """Return the text about an object that changes the requests of a workload's pods, as `Kind/name`."""
    return f"{by} changes the requests of its pods, and may evict them for it: perInstance then no longer holds"


def orphan(namespace: str, target: Target, replicas: int, pipeline: PipelineKey) -> str:
    """Return the text about a workload that Sluice scaled for `pipeline`, which does not have it any more."""
    return f"{target.kind} {namespace}/{target.name} has {count_of(replicas, 'replica')}, set for {pipeline}"


def contradicted(queried: float, arriving: float, since_s: float | None) -> str:
    """Return the text about a demand query that says `queried` where `arriving` arrive, or nothing since `since_s`."""
    if since_s is None:
        return f"demand.query reports {number(queried)}, but {number(arriving)} arrive at this stage; that counts"
    return (
        f"demand.query reports {number(queried)}, but nothing has arrived since {timestamp(since_s)}; the query counts"
    )


def batch_settings(settings: BatchSettings) -> str:
    """Return batch settings as text."""
    wait = f", wait {duration(settings.wait_s)}" if settings.wait_s else ""
    return f"batches of up to {settings.limit}{wait}"


def batching_written(write: BatchWrite) -> str:
    """Return the text about batch settings that were written for servers."""
    before = "no usable value" if write.before is None else batch_settings(write.before)
    words = f"{write.stage} on {write.placement}: {batch_settings(write.settings)} written to {write.at}"
    if write.restores:
        return f"{words} again: another client had set {before}. Pause the pipeline to keep other settings"
    return f"{words}; before: {before}"


def batching_unwritten(write: BatchWrite, problem: str) -> str:
    """Return the text about batch settings that could not be written for servers."""
    return f"{write.stage} on {write.placement}: {batch_settings(write.settings)} not written to {problem}"


def pending(replica: PendingReplica) -> str:
    """Return the text about a replica that does not become ready, with the reason."""
    return f"{replica.name}{' of the new revision' if replica.updated else ''}: {replica.reason}"
