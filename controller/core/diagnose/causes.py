"""The causes of a missed SLA, a function each: what speaks for it now. Pure.

Each threshold is where the evidence is as likely to be chance as not, so that its confidence is one half.
"""

import math
from collections.abc import Collection, Iterator

from controller.core.assess.skews import UNEVEN
from controller.core.diagnose.evidence import FULL, MOST_CONFIDENT, Look, confidence, known
from controller.core.state.decision import HoldReason, OutOfMemory
from controller.core.state.diagnosis import Because, Cause, Finding
from controller.core.state.spec import DemandUnit
from optimizer.model import LATENCY_FACTORS, Placement, PlacementKey, Stage, StageName
from optimizer.plan import LimitKind
from profiler.correction import THROUGHPUT_FACTORS
from profiler.estimate import FACTOR_BOUNDS, MOST_WARMING, composed_latency_s, measured_batch
from profiler.samples import Absence, AbsenceReason, AtLeast, DeviceQuantity, Quantity
from profiler.stages import PlacementProfile

RISEN = 1.2
"""A demand that is so many times that of some minutes ago has risen: minutes of steady traffic differ by less."""
SLOWER = 1.25
"""Batches that take so many times as long as before are slower: a minute of measurements differs by less."""
MORE_PASSES = 1.25
LATER_START = 1.5
"""A start that takes so many times as long as planned is late: starts of one image differ by less."""
WAITS = 0.25
"""Items that wait for more than this share of the SLA before one stage wait too long."""
ADDED = 0.15
"""Time outside the stages, added since all was well, that is more than this share of the SLA is too long."""
MORE_OVERHEAD = 1.5
PRESSED = 0.8
"""The receive pressure from which on the kernel loses packets in bursts."""
RETRIED = 1.2
"""So many times the items that the demand explains arrive where clients try again."""
THROTTLED = 1.1
"""With more than a tenth of its periods throttled, a replica stops for parts of them."""
NEIGHBOURS_SLOW = 1.1
OTHERS_RISEN = 1.3
IDLE = 0.6
LOST_S = 60.0

_OUTAGES = {
    HoldReason.POOL_UNAVAILABLE,
    HoldReason.NOT_CREATED,
    HoldReason.FRAGMENTED,
    HoldReason.CANNOT_START,
}


def demand(look: Look) -> Iterator[Finding]:
    """Yield that more is offered than the ready replicas serve, where it has risen."""
    # What clients send again is no demand.
    observed = look.queried if any(_retries(look)) else max(look.observed or 0.0, look.arriving or 0.0)
    loads = {stage.name: load for stage in look.assessment.pipeline.stages if (load := look.load(stage)) is not None}
    usual = look.usual
    if not observed or usual is None or not loads or not look.observed:
        return
    fullest = max(loads, key=lambda name: loads[name])
    rise, load = observed / usual, loads[fullest] * observed / look.observed
    if rise < RISEN or load < FULL:
        return
    carried = 0.0 if math.isinf(load) else observed * FULL / load
    yield Finding(
        cause=Cause.DEMAND,
        stage=fullest,
        confidence=confidence(rise, RISEN),
        numbers={"before": usual, "now": observed, "ready_for": carried},
        cost_per_hour=look.more_per_hour,
    )


def pool(look: Look) -> Iterator[Finding]:
    """Yield the pools that do not deliver replicas which are desired."""
    named: set[str] = set()
    for hold in look.decision.holds:
        if hold.reason in _OUTAGES and hold.placement is not None and hold.placement not in named:
            named.add(hold.placement)
            yield Finding(
                cause=Cause.POOL,
                stage=hold.stage,
                placement=hold.placement,
                confidence=MOST_CONFIDENT,
                names=(hold.reason.value, *filter(None, [hold.detail])),
            )
    for stage in look.assessment.pipeline.stages:
        for own in stage.placements:
            target = look.target(stage.name, own)
            waiting = () if target is None else target.waiting
            if own.name in named or not waiting:
                continue
            oldest = min(waiting, key=lambda each: each.since_s)
            age_s = max(0.0, look.now_s - oldest.since_s)
            if age_s >= 2 * look.interval_s:
                named.add(own.name)
                yield Finding(
                    cause=Cause.POOL,
                    stage=stage.name,
                    placement=own.name,
                    confidence=confidence(1 + age_s / (4 * look.interval_s), 1.5),
                    numbers={"waiting": float(len(waiting)), "waits_s": age_s},
                    names=(oldest.reason,) if oldest.reason else (),
                )


def cold_start(look: Look) -> Iterator[Finding]:
    """Yield the placements whose replicas take longer to start than planned, and stages that start from none."""
    for stage in look.assessment.pipeline.stages:
        ready = look.ready(stage)
        for placement in stage.placements:
            target = look.target(stage.name, placement)
            if target is None or not target.starting:
                continue
            expected_s = _startup_s(look, stage.name, placement)
            age_s = look.now_s - min(each.since_s for each in target.starting)
            late = age_s / max(expected_s, look.interval_s)
            if ready == 0 or late >= LATER_START:
                yield Finding(
                    cause=Cause.COLD_START,
                    stage=stage.name,
                    placement=placement.name,
                    because=Because.FROM_ZERO if ready == 0 else Because.LATE_START,
                    confidence=0.9 if ready == 0 else confidence(late, LATER_START),
                    numbers={"starting": float(len(target.starting)), "for_s": age_s, "expected_s": expected_s},
                    names=tuple(dict.fromkeys(each.reason for each in target.starting if each.reason))[:1],
                )


def _startup_s(look: Look, stage: StageName, placement: Placement) -> float:
    """Return the start-up time that a placement is planned with."""
    spec = look.assessment.spec.placements()[stage, placement.name]
    learned_s = look.assessment.learned.startups_s.get((stage, placement.name))
    return spec.startup_s if learned_s is None or spec.declared.startup else learned_s


def slower_stage(look: Look) -> Iterator[Finding]:
    """Yield the placements whose batches take longer than while all was well, and longer than declared without that."""
    inputs = {(stage.name, own.name): (stage, own) for stage in look.assessment.seen.stages for own in stage.placements}
    for stage in look.assessment.profile.stages:
        for own in stage.placements:
            key = (stage.name, own.name)
            law = None if look.baseline is None else look.baseline.laws.get(key)
            seen, placement = inputs[key]
            declared = law is None
            if law is None:
                if not placement.law_declared:
                    continue
                law = own.prior
            measured = measured_batch(placement, law, seen.window_s)
            if measured is None:
                continue
            batch, time_s = measured
            before_s = law.occupied_s(batch)
            ratio = time_s / before_s
            if ratio < SLOWER:
                continue
            because, numbers, names = _why_slower(look, stage.name, own)
            yield Finding(
                cause=Cause.SLOWER_STAGE,
                stage=stage.name,
                placement=own.name,
                because=Because.DECLARED if declared and because is None else because,
                confidence=confidence(ratio, SLOWER) * (0.8 if declared else 1.0),
                numbers={"before_s": before_s, "now_s": time_s, "batch": batch, "times": ratio, **numbers},
                names=names,
                cost_per_hour=look.more_per_hour,
            )
    yield from _throttled(look)


def _why_slower(
    look: Look, stage: StageName, own: PlacementProfile
) -> tuple[Because | None, dict[str, float], tuple[str, ...]]:
    """Return why a placement is slower, where something else changed with it."""
    key = (stage, own.name)
    throttled = known(look.profile(stage).of_devices(DeviceQuantity.CPU_THROTTLED))
    if throttled is not None and 1 + throttled >= THROTTLED:
        return Because.CPU_QUOTA, {"throttled": throttled}, ()
    target = next((found for at, found in look.assessment.state.found() if at == key), None)
    before = "" if look.baseline is None else look.baseline.revisions.get(key, "")
    if target is not None and before and target.revision and target.revision != before:
        return Because.NEW_VERSION, {}, (before, target.revision)
    inputs = next(each.placements for each in look.assessment.seen.stages if each.name == stage)
    seen = next(each for each in inputs if each.name == own.name)
    additions = look.profile(stage).crowding(own.name).additions
    # Without its own replicas: whatever makes these slower makes them busier too.
    itself = f"{look.assessment.spec.key}/{stage}"
    added = {
        each.name: additions.get(each.name, 0.0) * (each.exposure or 0.0)
        for each in seen.neighbours
        if each.name != itself
    }
    slowed = 1 + sum(added.values())
    if slowed >= NEIGHBOURS_SLOW:
        busiest = max(added, key=lambda name: added[name])
        return Because.NEIGHBOURS, {"by_neighbours": slowed}, (busiest,)
    if seen.warming > MOST_WARMING:
        return Because.COLD_CACHES, {"warming": seen.warming}, ()
    return None, {}, ()


def _throttled(look: Look) -> Iterator[Finding]:
    """Yield the stages whose replicas are throttled: means may be as before, and only the latest items be later."""
    for stage in look.assessment.profile.stages:
        throttled = known(stage.of_devices(DeviceQuantity.CPU_THROTTLED))
        if throttled is not None and 1 + throttled >= THROTTLED:
            yield Finding(
                cause=Cause.SLOWER_STAGE,
                stage=stage.name,
                because=Because.CPU_QUOTA,
                confidence=confidence(1 + throttled, THROTTLED),
                numbers={"throttled": throttled},
            )


def pass_ratio(look: Look) -> Iterator[Finding]:
    """Yield the stages that let more items go on than while all was well."""
    before = {} if look.baseline is None else look.baseline.pass_ratios
    for stage in look.assessment.profile.stages:
        usual = before.get(stage.name)
        if usual is None or usual <= 0:
            continue
        # The smoothed one: single measurements are off while replicas start, and where items are tried again.
        ratio, newest = stage.pass_ratio / usual, known(stage.pass_ratio_measured)
        if ratio >= MORE_PASSES:
            yield Finding(
                cause=Cause.PASS_RATIO,
                stage=stage.name,
                confidence=confidence(ratio, MORE_PASSES),
                numbers={"before": usual, "now": max(stage.pass_ratio, min(newest or 0.0, 1.0))},
                cost_per_hour=look.more_per_hour,
            )


def uneven_sessions(look: Look) -> Iterator[Finding]:
    """Yield the stages whose long sessions are on too few replicas."""
    for skew in look.decision.skews:
        fullest = skew.crowded[0]
        share = fullest.sessions * skew.replicas / skew.sessions
        yield Finding(
            cause=Cause.UNEVEN_SESSIONS,
            stage=skew.stage,
            placement=fullest.placement,
            # The skew is of the share that the replica should have, which is not the same for all of them.
            confidence=confidence(max(share, UNEVEN), UNEVEN),
            numbers={
                "sessions": skew.sessions,
                "replicas": float(skew.replicas),
                "most": fullest.sessions,
                "utilization": skew.utilization,
                "move": float(sum(each.give_up for each in skew.crowded)),
            },
            names=tuple(each.pod for each in skew.crowded[:3]),
            cost_per_hour=0.0,
        )


def data_plane(look: Look, *, stages_vary: bool) -> Iterator[Finding]:
    """Yield what is lost between the stages: time, packets, items that come again.

    `stages_vary` says that the latencies of stages change for a cause of their own. The query of the SLA may look
    further back than the stages' metrics: then a difference between both is no time outside the stages.
    """
    sla_s = look.sla_s
    overhead_s = None if stages_vary else _outside_s(look)
    before_s = None if look.baseline is None else look.baseline.overhead_s
    added = overhead_s is not None and before_s is not None and overhead_s - before_s >= ADDED * sla_s
    if overhead_s is not None and before_s is not None and added and not _late_by_refusals(look):
        times = overhead_s / max(before_s, 0.01 * sla_s)
        if times >= MORE_OVERHEAD:
            yield Finding(
                cause=Cause.DATA_PLANE,
                because=Because.OVERHEAD,
                confidence=confidence(times, MORE_OVERHEAD),
                numbers={"before_s": before_s, "now_s": overhead_s},
            )
    for stage in look.assessment.profile.stages:
        pressure = look.reading(stage.name, Quantity.RX_QUEUE_PRESSURE) or 0.0
        busy = look.reading(stage.name, Quantity.UTILIZATION)
        losses = known(stage.of_devices(DeviceQuantity.NODE_RX_LOSSES_RPS)) or 0.0
        # What a server with a queue does not take waits in the kernel: then the server is the cause.
        queues = (look.wait_s(stage.name) or 0.0) >= WAITS * sla_s
        own = pressure >= PRESSED and busy is not None and busy < FULL and not queues
        if own or losses > 0:
            yield Finding(
                cause=Cause.DATA_PLANE,
                because=Because.NETWORK,
                stage=stage.name,
                confidence=min(MOST_CONFIDENT, max(pressure if own else 0.0, 0.6 if losses > 0 else 0.0)),
                numbers={"pressure": pressure, "lost_per_s": losses},
            )
    yield from _retries(look)


def _outside_s(look: Look) -> float | None:
    """Return the time of an item outside the stages: the learned one, or what no stage can explain at this moment.

    The learned one needs the model of every stage, and minutes. Until then: the measured latency without the sum of the
    stages' percentiles along the slowest path. Latencies that add up differ from that sum only where queues grow or
    shrink, so nothing is said while a stage has a queue.
    """
    profile = look.assessment.profile
    latency_s = profile.latency_s
    queues = any((look.wait_s(stage.name) or 0.0) >= WAITS * look.sla_s for stage in profile.stages)
    if isinstance(latency_s, Absence) or queues:
        return profile.overhead_s
    # Without means, percentiles take their place: that is their sum.
    no_mean = {Quantity.LATENCY_MEAN: Absence(reason=AbsenceReason.UNSUPPORTED)}
    stages_s = composed_latency_s(
        look.assessment.seen.stages,
        {stage.name: {**stage.readings, **no_mean} for stage in profile.stages},
        look.assessment.spec.sla.percentile,
    )
    if isinstance(stages_s, Absence | AtLeast):
        return profile.overhead_s
    return max(profile.overhead_s or 0.0, latency_s - stages_s)


def _late_by_refusals(look: Look) -> bool:
    """Return whether so many requests find no free slot that the percentile of the SLA is one of theirs.

    The ingress counts them as later than every bound. Streams that are refused have no latency.
    """
    if look.assessment.spec.unit is not DemandUnit.REQUESTS:
        return False
    refused_rps = sum(
        look.reading(own.name, Quantity.SESSION_REFUSALS) or 0.0 for own in look.assessment.profile.stages
    )
    most_rps = look.assessment.spec.sla.late_share * (look.queried or 0.0)
    return refused_rps > 0 and refused_rps >= most_rps


def refusals(look: Look) -> Iterator[Finding]:
    """Yield the stages that refuse sessions: a cause only where nothing else is one."""
    for stage in look.assessment.profile.stages:
        refused = look.reading(stage.name, Quantity.SESSION_REFUSALS) or 0.0
        if refused > 0:
            yield Finding(
                cause=Cause.DATA_PLANE,
                because=Because.REFUSED,
                stage=stage.name,
                confidence=0.7,
                numbers={"per_s": refused},
                cost_per_hour=look.more_per_hour,
            )


def _retries(look: Look) -> Iterator[Finding]:
    """Yield that more items arrive than the demand explains, at stages where the load enters, and the demand is steady.

    A demand that fell meanwhile is a query that no longer counts all of it: see `metrics`. One that rises may look
    further back than the stages' metrics, and says later what arrives already.
    """
    queried, usual, spec = look.queried, look.usual, look.assessment.spec
    if queried is None or usual is None or queried <= 0 or not usual / RISEN <= queried <= usual * RISEN:
        return
    offered = queried * spec.items_per_unit_s
    for stage in look.assessment.seen.stages:
        arrives = look.reading(stage.name, Quantity.ARRIVAL_RATE)
        if stage.after or stage.shared is not None or arrives is None:
            continue
        if arrives / offered >= RETRIED:
            yield Finding(
                cause=Cause.DATA_PLANE,
                because=Because.RETRIES,
                stage=stage.name,
                confidence=confidence(arrives / offered, RETRIED),
                numbers={"offered": offered, "arrives": arrives},
            )


def queueing(look: Look, explained: Collection[StageName | None]) -> Iterator[Finding]:
    """Yield the stages before which items wait, for a reason of their own; `explained` have another cause already.

    None among them is a cause of the whole pipeline, which explains every queue of replicas that are all busy.
    """
    for stage in look.assessment.pipeline.stages:
        wait_s = look.wait_s(stage.name)
        if wait_s is None or wait_s < WAITS * look.sla_s:
            continue
        busy, load = look.reading(stage.name, Quantity.UTILIZATION), look.load(stage)
        evidence = confidence(1 + wait_s / look.sla_s, 1 + WAITS)
        numbers = {"waits_s": wait_s, "waiting": look.reading(stage.name, Quantity.QUEUE_DEPTH) or 0.0}
        if busy is not None:
            numbers["utilization"] = busy
        stuck = {
            pod: queue
            for own in stage.placements
            for pod, queue in look.assessment.state.samples_of(stage.name, own.name).stuck.items()
        }
        if stuck:
            yield Finding(
                cause=Cause.QUEUEING,
                because=Because.STUCK_REPLICA,
                stage=stage.name,
                confidence=max(0.9, evidence),
                numbers={**numbers, "stuck": float(len(stuck)), "before_them": sum(stuck.values())},
                names=tuple(sorted(stuck, key=lambda pod: -stuck[pod])[:3]),
                cost_per_hour=0.0,
            )
            continue
        tenant = _other_tenant(look, stage)
        if tenant is not None:
            yield Finding(
                cause=Cause.QUEUEING,
                because=Because.OTHER_TENANT,
                stage=stage.name,
                confidence=confidence(tenant[1] / tenant[0], OTHERS_RISEN),
                numbers={**numbers, "others_before": tenant[0], "others_now": tenant[1]},
                cost_per_hour=look.more_per_hour,
            )
            continue
        longest_s = max((own.batch_wait_s for own in stage.placements), default=0.0)
        if busy is not None and busy < IDLE and longest_s >= WAITS * look.sla_s:
            yield Finding(
                cause=Cause.QUEUEING,
                because=Because.BATCH_WAIT,
                stage=stage.name,
                confidence=evidence,
                numbers={**numbers, "batch_wait_s": longest_s},
                cost_per_hour=0.0,
            )
            continue
        if math.isinf(wait_s) and look.ready(stage) and stage.name not in explained:
            yield Finding(
                cause=Cause.QUEUEING,
                because=Because.STUCK_REPLICA,
                stage=stage.name,
                confidence=0.9,
                numbers={**numbers, "ready": float(look.ready(stage))},
                names=tuple(
                    replica.name
                    for own in stage.placements
                    if (target := look.target(stage.name, own)) is not None
                    for replica in target.serving
                )[:3],
                cost_per_hour=0.0,
            )
            continue
        if stage.name in explained or None in explained:
            continue
        plan = look.decision.plan
        limited = plan is not None and not plan.feasible and plan.limited_by is not None
        if load is not None and load >= FULL:
            yield Finding(
                cause=Cause.QUEUEING,
                because=Because.LIMIT if limited else Because.LAG,
                stage=stage.name,
                confidence=evidence,
                numbers={**numbers, "load": load},
                names=(plan.limited_by.kind.value,) if limited and plan is not None and plan.limited_by else (),
                cost_per_hour=look.more_per_hour,
            )


def _other_tenant(look: Look, stage: Stage) -> tuple[float, float] | None:
    """Return the items/s of the other pipelines on a shared stage before and now, where they have risen."""
    before = 0.0 if look.baseline is None else look.baseline.others.get(stage.name, 0.0)
    now = 0.0 if stage.sharing is None else stage.sharing.other_rps
    return (before, now) if before > 0 and now / before >= OTHERS_RISEN else None


def limits(look: Look) -> Iterator[Finding]:
    """Yield the pool that has no room for the replicas that are needed: a cause only where nothing else is one."""
    plan = look.decision.plan
    limit = None if plan is None else plan.limited_by
    if plan is not None and limit is not None and limit.kind in {LimitKind.POOL, LimitKind.QUOTA, LimitKind.ALLOWANCE}:
        yield Finding(
            cause=Cause.POOL,
            confidence=0.9,
            because=Because.LIMIT,
            numbers={"served": plan.served_fraction},
            names=(limit.name or "",),
        )


def memory_growth(look: Look) -> Iterator[Finding]:
    """Yield the placements of which replicas ran out of memory with no more sessions than they have slots for."""
    ended: dict[PlacementKey, list[OutOfMemory]] = {}
    for each in look.decision.out_of_memory:
        ended.setdefault((each.stage, each.placement), []).append(each)
    present = {(stage.name, own.name) for stage in look.assessment.pipeline.stages for own in stage.placements}
    for (stage, placement), replicas in ended.items():
        if (stage, placement) not in present:
            continue
        held = look.assessment.state.samples_of(stage, placement).sessions
        slots, most = float(replicas[-1].slots), max(held.values(), default=0.0)
        yield Finding(
            cause=Cause.MEMORY_GROWTH,
            stage=stage,
            placement=placement,
            confidence=min(MOST_CONFIDENT, 0.6 + 0.15 * len(replicas)),
            numbers={"ended": float(len(replicas)), "slots": slots, "most": most},
            names=tuple(each.pod for each in replicas[:3]),
        )


def quality_drop(look: Look) -> Iterator[Finding]:
    """Yield the switches to cheaper variants after which more words are wrong, overall or in one slice of the audio."""
    for switch in look.decision.memory.diagnosis.switched:
        if not any(look.decision.desired.get((switch.stage, name), 0) for name in switch.after):
            continue  # it was taken back
        saving = switch.saving_per_hour
        worst = max(switch.wers, key=lambda name: switch.wers[name][1] / max(switch.wers[name][0], 1e-3))
        before, after = switch.wers[worst]
        yield Finding(
            cause=Cause.QUALITY_DROP,
            stage=switch.stage,
            confidence=confidence(after / max(before, 1e-3), RISEN),
            numbers={"before": before, "now": after, "since_s": look.now_s - switch.at_s},
            names=(worst, " and ".join(switch.before), " and ".join(switch.after)),
            cost_per_hour=saving if saving is not None and saving > 0 else None,
        )


def metrics(look: Look) -> Iterator[Finding]:
    """Yield what is measured and cannot be, and what has been missing for long."""
    use, memory = look.decision.metrics, look.decision.memory
    if use.lost_for_s is not None and use.lost_for_s >= LOST_S:
        yield Finding(
            cause=Cause.METRICS,
            because=Because.LOST,
            confidence=MOST_CONFIDENT,
            numbers={"for_s": use.lost_for_s},
        )
    for name, reading in look.assessment.missing.samples.items() if look.late else ():
        yield Finding(
            cause=Cause.METRICS,
            because=Because.MISSING,
            stage=name,
            placement=reading.placement,
            confidence=0.6,
            names=(reading.quantity.value, reading.absence.detail or reading.absence.reason.value),
        )
    since_s = memory.contradicted_since_s
    if since_s is not None and look.now_s - since_s >= LOST_S:
        contradicted = Finding(
            cause=Cause.METRICS,
            because=Because.CONTRADICTED,
            confidence=0.9,
            numbers={"for_s": look.now_s - since_s},
        )
        yield from [*_retries(look)] or [contradicted]
    for stage in look.assessment.profile.stages:
        factors = [("p95", stage.latency_factor, LATENCY_FACTORS)]
        factors += [("serviceTime", own.service_factor, FACTOR_BOUNDS) for own in stage.placements if own.measured]
        factors += [
            ("throughput", own.throughput_correction.factor, (THROUGHPUT_FACTORS[0], math.inf))
            for own in stage.placements
            if own.throughput_correction is not None
        ]
        for what, factor, (low, high) in factors:
            if look.late and (factor <= low * 1.01 or factor >= high * 0.99):
                yield Finding(
                    cause=Cause.METRICS,
                    because=Because.IMPLAUSIBLE,
                    stage=stage.name,
                    confidence=0.8,
                    numbers={"times": factor},
                    names=(what,),
                )
