"""The sections of the readiness page, from manifest, learned numbers, plans, status and checks. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.adoption.check import Check
from controller.core.messages.diagnosis import SECTION, TITLES, certain_words
from controller.core.messages.phrases import (
    demand_words,
    duration,
    latency_words,
    law_words,
    limit_words,
    money,
    money_needed,
    number,
    share_words,
)
from controller.core.messages.reasons import ConditionType
from controller.core.messages.summary import READY
from controller.core.state.diagnosis import Cause
from controller.core.state.learned import LearnedPlacement
from controller.core.state.spec import DemandUnit, Mode, PipelineSpec, PlacementSpec
from controller.monitoring.alerts import ALERTS
from controller.monitoring.pipeline_dashboard import PIPELINE_DASHBOARD
from controller.readiness.points import Point, Readiness, Section, blocks, note, ok, risk, table, unknown
from controller.readiness.profiled import Load, Profiled
from optimizer.model import PlacementKey, PoolName
from optimizer.plan import PipelinePlan
from profiler.samples import Answer

_SLOWER = 1.25
"""A measured start-up time above the declared one by this factor is named: replicas are then added too late."""
_TOLERANCE = 0.1
_ROLLED = frozenset({"Deployment", "StatefulSet"})
_HEADROOM = 0.1
"""A cost above this share below the budget is named: the next rise of the load may not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The plan for the highest load, and the one without each pool.

    `demand` is in the pipeline's unit, `source` says who states it. `percentiles_s` has the predicted end-to-end
    latency by percentile, None where it is infinite.
    """

    demand: float
    source: str
    plan: PipelinePlan
    percentiles_s: Mapping[float, float | None]
    without: Mapping[PoolName, PipelinePlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What the cluster says: the status of the pipeline, None where it is not applied, and the checks of doctor."""

    status: Mapping[str, Any] | None
    explanation: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One pipeline. `declared` is as in the manifest, `spec` has the `learned` numbers filled in.

    `profiles` has what `sluice profile` measured of the servers of placements.

    `missing` are the numbers without which no plan is possible, `todo` the lines marked TODO in the manifests. `peak`
    is None without a plan; `unplanned` then says why. `live` is None without a cluster.
    """

    declared: PipelineSpec
    spec: PipelineSpec
    learned: Mapping[PlacementKey, LearnedPlacement] = field(default_factory=dict)
    profiles: Mapping[PlacementKey, Profiled] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    peak: Peak | None = None
    unplanned: str = ""
    live: Live | None = None


def readiness(subject: Subject) -> Readiness:
    """Return the page about `subject`."""
    return Readiness(
        name=subject.spec.key,
        sections=(
            _contract(subject),
            _capacity(subject),
            _loss(subject),
            _latency(subject),
            _cold_start(subject),
            _memory(subject),
            _quality(subject),
            _operation(subject),
            _rollback(subject),
            _measured(subject),
            _diagnosis(subject),
            _live(subject),
        ),
    )


def _contract(subject: Subject) -> Section:
    spec = subject.spec
    points = [
        note(f"p{spec.sla.percentile:g} within {duration(spec.sla.latency_s)}, from entry to last stage"),
        note(f"at most {money(spec.budget_per_hour)}; priority {spec.priority}"),
        ok("latency measured end to end by sla.query")
        if spec.queries.latency
        else risk("sla.query is not set: the latency is composed of the stages' latencies, not measured"),
    ]
    match spec.mode:
        case Mode.AUTO:
            points.append(note("mode Auto: Sluice scales"))
        case Mode.RECOMMEND:
            points.append(note("mode Recommend: Sluice plans, and changes nothing"))
        case Mode.PAUSED:
            points.append(blocks("mode Paused: Sluice neither plans nor scales; set Recommend or Auto"))
    points += [blocks(f"a value is marked TODO: {each}") for each in subject.todo]
    return Section(title="Contract", points=tuple(points))


def _capacity(subject: Subject) -> Section:
    title, spec, peak = "Capacity at the peak", subject.spec, subject.peak
    if peak is None:
        return Section(title=title, points=(blocks(f"not computed: {subject.unplanned}"),))
    plan = peak.plan
    load = f"{demand_words(spec, peak.demand)} ({peak.source})"
    cost = f"{money(plan.cost_per_hour)} of {money(spec.budget_per_hour)}"
    points: list[Point] = []
    if plan.feasible:
        points.append(
            ok(f"{load}: p{spec.sla.percentile:g} {latency_words(plan.latency_s, plan.latency_error)} for {cost}")
        )
        if plan.cost_per_hour > (1 - _HEADROOM) * spec.budget_per_hour:
            points.append(
                risk(f"the peak takes {share_words(plan.cost_per_hour / spec.budget_per_hour)} of the budget")
            )
    else:
        limit = limit_words(plan.limited_by, spec.budget_per_hour)
        points.append(blocks(f"{load}: {share_words(plan.served_fraction)} can be served, limited by {limit}; {cost}"))
        if plan.advice.required_budget_per_hour is not None:
            points.append(note(f"the whole load needs {money_needed(plan.advice.required_budget_per_hour)}"))
    rows = [
        (
            stage.name,
            number(stage.rate_rps),
            "-" if stage.utilization is None else f"{stage.utilization:.0%}",
            ", ".join(f"{one.name} × {one.replicas}" for one in stage.placements if one.replicas) or "none",
        )
        for stage in plan.stages
    ]
    return table(title, points, ("stage", "items/s", "utilization", "replicas"), rows)


def _loss(subject: Subject) -> Section:
    title, spec, peak = "Loss of a pool at the peak", subject.spec, subject.peak
    if peak is None:
        return Section(title=title, points=(unknown("not computed, as there is no plan for the peak"),))
    points = []
    for pool, plan in peak.without.items():
        only = [stage.name for stage in spec.stages if {each.pool for each in stage.placements} == {pool}]
        if only:
            points.append(risk(f"without {pool} nothing is served: {', '.join(only)} has no other pool"))
        elif plan.feasible:
            points.append(ok(f"without {pool} the peak is served within the SLA for {money(plan.cost_per_hour)}"))
        else:
            limit = limit_words(plan.limited_by, spec.budget_per_hour)
            share = share_words(plan.served_fraction)
            points.append(risk(f"without {pool} {share} of the peak is served, limited by {limit}"))
    return Section(title=title, points=tuple(points))


def _latency(subject: Subject) -> Section:
    spec, peak, status = subject.spec, subject.peak, _status(subject)
    points = []
    if peak is not None:
        known = ", ".join(f"p{percent:g} {duration(value)}" for percent, value in peak.percentiles_s.items() if value)
        points.append(
            note(f"predicted at the peak, by the latency model: {known}") if known else unknown("no prediction")
        )
    latency = status.get("latency") or {}
    if latency.get("seconds") is not None:
        kind = "measured end to end" if latency.get("source") == "Measured" else "composed of the stages' percentiles"
        points.append(note(f"now: p{spec.sla.percentile:g} {duration(float(latency['seconds']))}, {kind}"))
    else:
        points.append(unknown(f"p{spec.sla.percentile:g} of real load: no status of a cluster was read"))
    for key, profile in subject.profiles.items():
        points.append(note(f"{_where(key)}: {_loads(profile)}"))
    first = [stage.name for stage in spec.stages if stage.metrics_answer is Answer.FIRST]
    points.append(
        note(f"first answer: latencies of {', '.join(first)} are those of the first answer (metrics.answer)")
        if first
        else unknown("first answer of real load: no stage has metrics.answer First")
    )
    return Section(title="Latency", points=tuple(points))


def _where(key: PlacementKey) -> str:
    return f"{key[0]} on {key[1]}"


def _loads(profile: Profiled) -> str:
    """Return the latencies of a warm server, alone and at its highest load, as text."""

    def words(load: Load) -> str:
        middle = "" if load.p50_s is None else f"p50 {duration(load.p50_s)}, "
        tail = "" if load.p95_s is None else f"p95 {duration(load.p95_s)} "
        return f"{middle}{tail}with {number(load.concurrency or 0.0)} inside ({number(load.rate_rps)} answers/s)"

    warm, busiest = profile.warm, profile.busiest
    if warm is None:
        return "no latencies in the profile"
    most = "" if busiest is None or busiest is warm else f"; {words(busiest)}"
    return f"warm: {words(warm)}{most} (sluice profile)"


def _cold_start(subject: Subject) -> Section:
    points = []
    slowest = max(
        (placement for placement in subject.spec.placements().values()), key=lambda placement: placement.startup_s
    )
    for (stage, pool), placement in subject.declared.placements().items():
        learned = subject.learned.get((stage, pool))
        if placement.declared.startup:
            points.append(note(f"{stage} on {pool}: {duration(placement.startup_s)} (declared)"))
        elif learned is not None and learned.startup_s is not None:
            points.append(note(f"{stage} on {pool}: {duration(learned.startup_s)} (measured)"))
        else:
            assumed = duration(placement.startup_s)
            points.append(unknown(f"{stage} on {pool}: start-up time neither declared nor measured; {assumed} assumed"))
        points += _profiled_start(f"{stage} on {pool}", placement, subject.profiles.get((stage, pool)))
    points.append(note(f"a new replica serves after up to {duration(slowest.startup_s)}, plus the time for a node"))
    points.append(note(f"a replica that is removed drains for up to {duration(subject.spec.scaling.drain_s)}"))
    return Section(title="Cold start", points=tuple(points))


def _profiled_start(where: str, placement: PlacementSpec, profile: Profiled | None) -> Iterator[Point]:
    if profile is None:
        return
    if profile.first_answer_s is not None:
        steady = "" if profile.warm_up_s is None else f", steady after {duration(profile.warm_up_s)} of load"
        yield note(f"{where}: first answer after {duration(profile.first_answer_s)}{steady} (sluice profile)")
    if profile.startup_s is None:
        return
    said = f"{where}: its pod took {duration(profile.startup_s)} to start (sluice profile)"
    if placement.declared.startup and profile.startup_s > _SLOWER * placement.startup_s:
        yield risk(f"{said}, {duration(placement.startup_s)} is declared: it is added too late")
    else:
        yield note(said)


def _memory(subject: Subject) -> Section:
    spec, peak = subject.spec, subject.peak
    points = [
        note(f"{_where(key)}: a session takes {number(profile.memory_per_session_bytes / 2**20)} MiB (sluice profile)")
        for key, profile in subject.profiles.items()
        if profile.memory_per_session_bytes is not None
    ]
    points += _growth(spec)
    for stage in spec.stages:
        slots = {placement.name: placement.prior.session_slots for placement in stage.placements}
        for name, count in slots.items():
            points.append(
                unknown(f"{stage.name} on {name}: no limit on sessions is declared or measured")
                if count is None
                else note(f"{stage.name} on {name}: {count} sessions per replica")
            )
        if peak is None or spec.unit is not DemandUnit.STREAMS or None in slots.values():
            continue
        planned = {key: count for key, count in peak.plan.replicas().items() if key[0] == stage.name}
        total = sum(count * (slots[name] or 0) for (_, name), count in planned.items())
        points.append(note(f"{stage.name}: {total} sessions fit at the peak, of {number(peak.demand)} streams"))
    return Section(title="Memory", points=tuple(points))


def _growth(spec: PipelineSpec) -> Iterator[Point]:
    silent = []
    for key, placement in spec.placements().items():
        growth = None if placement.cache is None else placement.cache.growth
        if growth is None:
            silent.append(_where(key))
            continue
        length = duration(growth.length_s)
        rate = number(growth.tokens_per_s)
        yield note(f"{_where(key)}: a session grows by {rate} tokens/s; one lasts {length} (declared)")
    if silent:
        yield unknown(f"growth of sessions with their age (memory.kvCache.growth is not declared): {', '.join(silent)}")


def _quality(subject: Subject) -> Section:
    spec = subject.spec
    points = [
        note("no limit on the word error rate (sla.maxWer)")
        if spec.max_wer is None
        else note(f"word error rate at most {spec.max_wer:g} (sla.maxWer)")
    ]
    points += [
        note(f"word error rate of {name} audio at most {limit:g} (sla.maxWerBySlice)")
        for name, limit in spec.max_wer_by_slice.items()
    ]
    for (stage, name), placement in spec.placements().items():
        wer = placement.prior.wer
        if wer is None and not placement.wer_by_slice:
            continue
        slices = [f"{own} audio {rate:g}" for own, rate in placement.wer_by_slice.items()]
        stated = slices if wer is None else [f"{wer:g}", *slices]
        excess = spec.excess_wer(placement)
        unused = "" if excess is None else f": never used, above {excess.field}"
        points.append(note(f"{stage} on {name}: {', '.join(stated)} as declared{unused}"))
    if all(placement.prior.wer is None for placement in spec.placements().values()):
        points.append(unknown("word error rate: no placement states one (placements[].wer)"))
    points.append(unknown("quality under real load: Sluice has no metric for it"))
    return Section(title="Quality", points=tuple(points))


def _operation(subject: Subject) -> Section:
    spec, board = subject.spec, PIPELINE_DASHBOARD
    link = f"/d/{board.uid}?var-namespace={spec.namespace}&var-pipeline={spec.name}"
    rows = [
        (alert.name, alert.severity, f"docs/runbook.md#{alert.anchor}")
        for alert in ALERTS
        if "$labels.pipeline" in alert.summary + alert.description
    ]
    points = [note(f'dashboard "{board.title}": {link}'), note("alerts about this pipeline, each with its section:")]
    return table("Dashboards and alerts", points, ("alert", "severity", "runbook"), rows)


def _rollback(subject: Subject) -> Section:
    spec = subject.spec
    workloads = sorted({str(own.target).lower() for own in spec.placements().values() if own.target.kind in _ROLLED})
    undo = f"kubectl rollout undo -n {spec.namespace}"
    patch = f"kubectl patch speechpipeline {spec.name} -n {spec.namespace} --type merge -p"
    return Section(
        title="Rollback",
        points=(
            note(f"""stop scaling, keep planning: {patch} '{{"spec":{{"mode":"Recommend"}}}}'"""),
            note("replicas stay as they are then, and also if the SpeechPipeline or Sluice is removed"),
            *([note(f"a new version of a model: {undo} {', or '.join(workloads)}")] if workloads else []),
            note("if another autoscaler did the work before, apply it again after that, not before"),
        ),
    )


def _measured(subject: Subject) -> Section:
    points = [blocks(each) for each in subject.missing]
    rows = [
        (*key, *_source(placement, subject.learned.get(key), subject.profiles.get(key)), *_covered(subject, key))
        for key, placement in subject.declared.placements().items()
    ]
    points += [
        risk(f"{_where(key)}: sluice profile measured {law_words(profile.law)}: the plan is made with less")
        for key, profile in subject.profiles.items()
        if _law_is_slower(profile, subject.declared.placements()[key])
    ]
    if guesses := [f"{row[0]} on {row[1]}" for row in rows if row[2] == "declared" and "measured" not in row[3]]:
        points.append(unknown(f"service time declared, not measured: {', '.join(guesses)}"))
    columns = (
        *("stage", "pool", "service time from", "time of a batch", "error or confidence"),
        *("start-up", "first answer", "memory of a session"),
    )
    return table("What was measured", points, columns, rows)


def _covered(subject: Subject, key: PlacementKey) -> tuple[str, str, str]:
    """Return what start-up time, first answer and memory of a session of a placement are from."""
    placement, profile, learned = (
        *(subject.declared.placements()[key], subject.profiles.get(key)),
        subject.learned.get(key),
    )
    measured = (profile is not None and profile.startup_s is not None) or (learned and learned.startup_s is not None)
    startup = "measured" if measured else "declared" if placement.declared.startup else "not measured"
    first = "not measured" if profile is None or profile.first_answer_s is None else "measured"
    if profile is not None and profile.memory_per_session_bytes is not None:
        return startup, first, "measured"
    return startup, first, "declared" if placement.prior.session_slots is not None else "not measured"


def _law_is_slower(profile: Profiled, placement: PlacementSpec) -> bool:
    """Whether the server was slower than declared, alone or in full batches, by more than the error of the profile."""
    if not placement.declared.service:
        return False
    margin = 1 + max(_TOLERANCE, profile.relative_error or 0.0)
    sizes = (1, max(placement.prior.batch_sizes))
    return any(profile.law.mean_s(size) > margin * placement.prior.service.mean_s(size) for size in sizes)


def _source(
    placement: PlacementSpec, learned: LearnedPlacement | None, profile: Profiled | None
) -> tuple[str, str, str]:
    law = placement.prior.service
    if profile is not None:
        error = "-" if profile.relative_error is None else f"± {share_words(profile.relative_error)}"
        if not placement.declared.service:
            return "sluice profile", f"{law_words(profile.law)}: declare it", error
        return "declared", f"{law_words(law)}; measured {law_words(profile.law)}", error
    if placement.declared.service:
        time = law_words(law)
        said = " ".join(filter(None, [placement.source, placement.confidence]))
        if learned is None or replace(learned.law, cv=law.cv) == law:
            return "declared", time, said or "-"
        return "declared", f"{time}; measured {law_words(learned.law)}", said or "-"
    if learned is None:
        return "nothing", "not measured", "-"
    error = "-" if learned.relative_error is None else f"± {share_words(learned.relative_error)}"
    return "measured", law_words(learned.law), error


def _diagnosis(subject: Subject) -> Section:
    title, status = SECTION, _status(subject)
    if not status:
        return Section(title=title, points=(unknown("no status of a cluster was read, so nothing was diagnosed"),))
    causes = status.get("diagnosis") or ()
    if not causes:
        missed = any(
            each["type"] == ConditionType.SLA_MET.value and each["status"] == "False"
            for each in status.get("conditions") or ()
        )
        point = unknown("it is missed, and the diagnosis found no cause") if missed else ok("nothing was diagnosed")
        return Section(title=title, points=(point,))
    return Section(title=title, points=tuple(blocks(_cause(each)) for each in causes))


def _cause(cause: Mapping[str, Any]) -> str:
    where = f"{cause['stage']}: " if cause.get("stage") else ""
    evidence = "; ".join(cause.get("evidence") or ())
    certain = certain_words(float(cause["confidence"]))
    return f"{where}{TITLES[Cause(cause['cause'])]}, {certain}: {evidence}; would help: {cause['remedy']}"


def _live(subject: Subject) -> Section:
    title, live = "On the cluster", subject.live
    if live is None:
        return Section(title=title, points=(unknown("status and checks of the cluster: --live reads them"),))
    points = list(_checked(live.checks))
    if live.status is None:
        points.append(note("not applied to the cluster yet"))
        return Section(title=title, points=tuple(points))
    health = (live.status.get("summary") or {}).get("health")
    if health is None:
        points.append(blocks("no decision yet: check that the operator is running"))
    elif health in {each.value for each in READY} and not _is_unready(live.status):
        points.append(ok(f"health {health}"))
    else:
        points.append(blocks(f"health {health}: docs/troubleshooting.md has the remedy"))
    points += [note(line.strip()) for line in live.explanation]
    return Section(title=title, points=tuple(points))


def _is_unready(status: Mapping[str, Any]) -> bool:
    """Whether the condition Ready is False: a missed SLA may hide another problem in the health."""
    ready = ConditionType.READY.value
    return any(each["type"] == ready and each["status"] == "False" for each in status.get("conditions") or ())


def _checked(checks: Sequence[Check]) -> Iterator[Point]:
    """Yield a point for each check of doctor that did not pass, and one for all that did."""
    passed = sum(check.ok is True for check in checks)
    if passed:
        yield ok(f"{passed} of {len(checks)} checks of sluice doctor passed")
    for check in checks:
        if check.ok is not True:
            words = f"{check.subject}: {check.name}: {check.message}"
            yield blocks(words) if check.ok is False else unknown(words)


def _status(subject: Subject) -> Mapping[str, Any]:
    return {} if subject.live is None or subject.live.status is None else subject.live.status
