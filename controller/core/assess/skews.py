"""Sessions that last: which replicas hold more than their share of the streams, and how many each should give up.

With `Routing.STICKY` a stream keeps its replica until it ends. Streams that last for hours stay where they began, and
new replicas get new streams only: one replica is full while others idle, and no number of replicas mends it. An ingress
that can move streams without a cut needs to know how many; see `docs/how-to/sessions.md`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment
from controller.core.state.decision import CrowdedReplica, Skew
from controller.core.state.snapshot import TargetMissing
from controller.core.state.spec import DemandUnit
from optimizer.latency.predict import stage_load
from optimizer.latency.stage import capacity_rps
from optimizer.model import Placement, PlacementName, Routing, Stage, StageName
from profiler.samples import Absence

UNEVEN = 1.2
"""A replica is crowded if it holds more than this multiple of its share, and more than `_WHOLE` sessions above it."""
_WHOLE = 1.0

FULL = 0.9
"""The utilisation from which a crowded replica costs the SLA, also while the measured latency does not show it yet."""

PLAUSIBLE = 2.0
"""Replicas that report more sessions than this multiple of the streams, and of those planned for, are not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSessions:
    """The sessions that a ready replica reports, the load that it can take (items per second), and its slots."""

    pod: str
    placement: PlacementName
    sessions: float
    capacity_rps: float
    slots: float

    def most(self, session_rps: float) -> float:
        """Return the most sessions that it serves in time, each with `session_rps` items per second."""
        return min(self.slots, FULL * self.capacity_rps / session_rps if session_rps > 0 else math.inf)


def skews(assessment: Assessment) -> Iterator[Skew]:
    """Yield a skew for each sticky stage where crowded replicas cost the SLA: a full one, or a measured miss.

    Replicas that report no sessions neither give nor take. Nothing is yielded for a stage where fewer than two replicas
    report them, or where they contradict the number of streams. How many sessions a replica gives up follows from
    what it holds now, so that the same advice may be read twice: it keeps at most `keep`.
    """
    latency_s = assessment.profile.latency_s
    missed = not isinstance(latency_s, Absence) and latency_s > assessment.spec.sla.latency_s
    for stage in assessment.pipeline.stages:
        if stage.routing is not Routing.STICKY or stage.borrowed:
            continue
        held = tuple(held_sessions(assessment, stage))
        total = sum(replica.sessions for replica in held)
        if len(held) < 2 or total <= 0 or not _plausible(assessment, stage, total):
            continue
        found = _skew(stage, held, stage_load(assessment.pipeline, stage).rate_rps)
        if found is not None and (missed or found.utilization >= FULL):
            yield found


def sessions_unread(assessment: Assessment) -> Iterator[StageName]:
    """Yield the sticky stages with several ready replicas of which fewer than two report their sessions."""
    for stage in assessment.pipeline.stages:
        if stage.routing is Routing.STICKY and not stage.borrowed:
            ready = sum(assessment.state.ready(stage.name, placement.name) for placement in stage.placements)
            if ready > 1 and len([*held_sessions(assessment, stage)]) < 2:
                yield stage.name


def held_sessions(assessment: Assessment, stage: Stage) -> Iterator[HeldSessions]:
    """Yield the ready replicas of a stage that report their sessions, without those whose nodes are being removed."""
    for placement in stage.placements:
        target = assessment.state.target(stage.name, placement.name)
        if isinstance(target, TargetMissing):
            continue
        sessions, empty = assessment.state.samples_of(stage.name, placement.name).sessions, empty_replica(placement)
        for replica in target.serving:
            count = sessions.get(replica.name, math.nan)
            if not replica.leaving and math.isfinite(count) and count >= 0:
                yield replace(empty, pod=replica.name, sessions=count)


def empty_replica(placement: Placement) -> HeldSessions:
    """Return what a replica without sessions can take."""
    return HeldSessions(
        pod="",
        placement=placement.name,
        sessions=0.0,
        capacity_rps=capacity_rps(placement, placement.batch_sizes[-1]),
        slots=math.inf if placement.session_slots is None else placement.session_slots,
    )


def _plausible(assessment: Assessment, stage: Stage, total: float) -> bool:
    """Return whether `total` sessions can be those of the streams; always where the demand has no streams."""
    if assessment.spec.unit is not DemandUnit.STREAMS:
        return True
    observed = assessment.demand.observed
    streams = max(assessment.planned_demand, 0.0 if isinstance(observed, Absence) else observed)
    others = 0.0 if stage.sharing is None else stage.sharing.other_sessions
    return total <= PLAUSIBLE * (streams + others)


def _skew(stage: Stage, held: tuple[HeldSessions, ...], rate_rps: float) -> Skew | None:
    """Return the skew of a stage with `rate_rps` items per second; None where no replica is crowded."""
    total = sum(replica.sessions for replica in held)
    capacity = sum(replica.capacity_rps for replica in held)
    shares = {replica.pod: total * replica.capacity_rps / capacity for replica in held}
    room = sum(
        max(0.0, min(shares[replica.pod], replica.slots) - replica.sessions)
        for replica in held  # what the others take without being crowded themselves
    )
    crowded = [
        replica
        for replica in held
        if replica.sessions > max(UNEVEN * shares[replica.pod], shares[replica.pod] + _WHOLE)
    ]
    above = sum(replica.sessions - shares[replica.pod] for replica in crowded)
    part = min(1.0, room / above) if above > 0 else 0.0
    gives = {replica.pod: math.floor(part * (replica.sessions - shares[replica.pod])) for replica in crowded}
    if not any(gives.values()):
        return None
    return Skew(
        stage=stage.name,
        sessions=total,
        replicas=len(held),
        utilization=max(r.sessions * rate_rps / total / r.capacity_rps for r in crowded),
        crowded=tuple(
            CrowdedReplica(pod=r.pod, placement=r.placement, sessions=r.sessions, give_up=gives[r.pod])
            for r in sorted(crowded, key=lambda r: (-r.sessions, r.pod))
            if gives[r.pod]
        ),
    )
