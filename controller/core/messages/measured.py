"""Texts for what measurements have shown: service laws, corrections, time outside the stages, and what follows."""

from collections.abc import Iterator

from controller.core.messages.phrases import count_of, duration, law_words, number, share_words, timestamp
from controller.core.state.decision import PipelineDecision
from controller.core.state.spec import PlacementSpec, StageSpec
from optimizer.model import StageName
from profiler.batch_times import LEAST_WEIGHT
from profiler.correction import left_to_stages_s
from profiler.law import ENOUGH_WEIGHT
from profiler.samples import DeviceQuantity, Quantity
from profiler.stages import PlacementProfile, StageProfile

NOTABLE_RECEIVE_PRESSURE = 0.5
_NOTABLE = 0.05  # a correction factor closer to 1 than this does not change a plan


def measured_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield the texts about the measurements that the plan follows: the time outside the stages, then each stage's.

    A correction that is too small to change the plan has no text.
    """
    yield from _overhead_words(decision)
    yield from (cascade_words(stage) for stage in decision.spec.stages if stage.cascade is not None)
    placements = decision.spec.placements()
    for stage in decision.profile.stages:
        if abs(stage.latency_factor - 1) >= _NOTABLE:
            modelled = "" if stage.modelled_p95_s is None else f" (model now: {duration(stage.modelled_p95_s)})"
            factor = number(stage.latency_factor)
            yield f"{stage.name}: measured p95 is {factor} × the model's; correction applied{modelled}"
        received = stage.readings.get(Quantity.RX_QUEUE_PRESSURE)
        if isinstance(received, float) and received >= NOTABLE_RECEIVE_PRESSURE:
            yield f"{stage.name}: receive pressure of the worst pod is {received:.2f} (datagrams are lost at 1)"
        losses_rps = stage.devices.get(DeviceQuantity.NODE_RX_LOSSES_RPS)
        if isinstance(losses_rps, float) and losses_rps > 0:
            yield f"{stage.name}: a node of its pods loses {number(losses_rps)} packets/s on reception"
        used = {own.name for own in stage.placements if decision.desired.get((stage.name, own.name))}
        for placement in stage.placements:
            key = (stage.name, placement.name)
            if not placements[key].declared.service:
                fallback = bool(used) and placement.name not in used
                yield f"{stage.name} on {placement.name}: {_undeclared_law(placement, fallback=fallback)}"
            startup_s = decision.memory.learned.startups_s.get(key)
            yield from _placement_words(stage, placement, placements[key], startup_s)
            limit = decision.memory.learned.receive_limits.get(key)
            if limit is not None and limit.lost_at_s is not None:
                yield (
                    f"{stage.name} on {placement.name}: packets were lost at {timestamp(limit.lost_at_s)}; a replica "
                    f"takes {number(limit.packets_per_s)} packets/s, {number(limit.packets_per_item)} per item"
                )
        yield from _feedback_words(decision, stage.name)
    yield from _neighbour_words(decision)


def cascade_words(stage: StageSpec) -> str:
    """Return what a cascade is planned with, measured or declared: the share that goes on, and the errors of both."""
    cascade = stage.cascade
    assert cascade is not None
    declared = "" if cascade.share == cascade.declared_share else f" (declared {share_words(cascade.declared_share)})"
    wers = [own.prior.wer for own in stage.placements if own.name != cascade.to and own.prior.wer is not None]
    errors = f"; both models together make {share_words(max(wers))} word errors" if wers else ""
    return f"{stage.name}: {share_words(cascade.share)} of the items go on to {cascade.to}{declared}{errors}"


def _neighbour_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield the texts about what replicas on the same instances add to service times, and where that is not known."""
    unknown: list[str] = []
    for stage in decision.profile.stages:
        for placement in stage.placements:
            crowding, where = stage.crowding(placement.name), f"{stage.name} on {placement.name}"
            if crowding.planned >= 1 + _NOTABLE:
                added = ", ".join(
                    f"{name.rpartition('/')[2]} {number(1 + addition)} ×"
                    for name, addition in crowding.additions.items()
                    if addition >= _NOTABLE
                )
                yield (
                    f"{where}: planned with {number(crowding.planned)} × the service time alone, because of neighbours "
                    f"on its instances (now {number(crowding.now)} ×; while one is busy: {added})"
                )
            if crowding.unknown:
                unknown.append(where)
    if unknown:
        yield f"not compared with and without busy neighbours on the instance, so not in the plan: {', '.join(unknown)}"


def _overhead_words(decision: PipelineDecision) -> Iterator[str]:
    overhead_s, sla = decision.profile.overhead_s, decision.spec.sla
    if not overhead_s:
        return
    left_s = left_to_stages_s(sla.latency_s, overhead_s)
    left = f"{duration(left_s)} of {duration(sla.latency_s)}"
    if left_s == sla.latency_s:
        left = f"all of {duration(sla.latency_s)}, because this is within the error of the measurement"
    yield f"overhead: {duration(overhead_s)} of p{sla.percentile:g} are outside the stages; they are left {left}"


def _placement_words(
    stage: StageProfile, profile: PlacementProfile, spec: PlacementSpec, startup_s: float | None
) -> Iterator[str]:
    where = f"{stage.name} on {profile.name}"
    corrected = abs(profile.service_factor - 1) >= _NOTABLE
    if corrected and profile.measured:
        law = law_words(profile.service)
        yield f"{where}: measured {number(profile.service_factor)} × the declared service time: {law}"
    elif corrected:
        factor = number(profile.service_factor)
        yield f"{where}: not measured; planned with {factor} × the declared service time, as on the stage's other pools"
    if not spec.declared.startup and startup_s is not None:
        yield f"{where}: replicas start in {duration(startup_s)}, measured; not declared"
    if profile.saturation_rps is not None:
        origin = "declared" if spec.declared.service and not corrected else "measured"
        yield (
            f"{where}: a replica served at most {number(profile.saturation_rps)} items/s, less than its {origin} "
            "service time allows; correction applied"
        )


def _undeclared_law(profile: PlacementProfile, *, fallback: bool) -> str:
    """Return the text about a service time that was not declared: the one measured, or what is missing for that.

    `fallback` says that the stage has replicas, but none on this pool.
    """
    times, error = profile.batch_times, profile.relative_error
    if times is None or error is None:
        words = "service time not declared and not measured yet"
        return f"{words}; a fallback only, until a replica there has been measured" if fallback else words
    law = f"{law_words(profile.service)} (± {error:.0%})"
    if profile.known:
        return f"{law}, measured; not declared"
    if profile.enough:
        return f"{law}, measured up to batches of {number(profile.measured_batch or 1)}; not declared"
    few = times.weight < LEAST_WEIGHT
    needed = f"{LEAST_WEIGHT:g} measurements" if few else f"{ENOUGH_WEIGHT:g} measurements, because they scatter"
    return f"{law}, being measured; not declared; needs {needed}; has {number(times.weight)}"


def _feedback_words(decision: PipelineDecision, stage: StageName) -> Iterator[str]:
    """Yield the texts about capacity of `stage` that a measured miss of the SLA has led to, or has not justified."""
    memory, percentile = decision.memory.feedback, decision.spec.sla.percentile
    least = decision.floors.get(stage)
    if least is not None:
        yield f"{stage}: at least {count_of(least, 'replica')}, because the measured latency exceeded the SLA"
    if (step := memory.step) is not None and step.stage == stage:
        yield (
            f"{stage}: the step to {count_of(step.replicas, 'replica')} at {timestamp(step.at_s)} is kept only if it "
            f"lowers p{percentile:g}, which was {duration(step.before_s)}"
        )
    if (until_s := memory.useless_until_s.get(stage)) is not None:
        yield (
            f"{stage}: more replicas did not lower p{percentile:g} and were taken back; no further step before "
            f"{timestamp(until_s)}"
        )
