"""What a diagnosis says in the situations in which it matters most: outages, masked causes, findings that grew old."""

from dataclasses import replace

from builders import NOW_S, a_placement, a_snapshot, a_spec, a_stage, a_state, a_target, seen

from controller.core.cycle import decide
from controller.core.messages.diagnosis import cause_words
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Because, Cause, DiagnosisMemory, Finding, Seen
from controller.core.state.policy import Policy
from controller.core.state.snapshot import TargetState
from controller.core.state.spec import Mode
from optimizer.model import PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, Reading

NOW = NOW_S * 10
VAD: PlacementKey = (StageName("vad"), PoolName("cpu"))
ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
POLICY = Policy(interval_s=15.0)


def diagnosed(
    *,
    latency_s: Reading = 8.0,
    completes_rps: float = 40.0,
    demand: float = 60.0,
    most: int = 2,
    mode: Mode = Mode.AUTO,
    vad: TargetState | int = 3,
    asr: TargetState | int = 2,
    memory: DiagnosisMemory | None = None,
) -> PipelineDecision:
    """Return the decision about a pipeline whose SLA is missed for 5 min, with 200 items before its second stage."""
    first = a_stage("vad", a_placement("cpu", service_s=0.01, startup_s=20))
    second = a_stage("asr", a_placement("gpu", service_s=0.05, startup_s=20, bounds=(0, most)), after=["vad"])
    state = a_state(
        replace(a_spec(first, second), mode=mode),
        demand=demand,
        replicas={VAD: vad, ASR: asr},
        samples={
            VAD: seen(queue_depth=0.0, completion_rate=60.0, utilization=0.2, arrival_rate=demand),
            ASR: seen(queue_depth=200.0, completion_rate=completes_rps, utilization=1.0, arrival_rate=demand),
        },
        memory=PipelineMemory(missed_since_s=NOW - 300, diagnosis=memory or DiagnosisMemory()),
    )
    world = a_snapshot(replace(state, latency_s=latency_s), now_s=NOW)
    (decision,) = decide(world, POLICY).pipelines
    return decision


def named(decision: PipelineDecision) -> list[tuple[Cause, Because | None, StageName | None]]:
    return [(each.cause, each.because, each.stage) for each in decision.diagnosis]


def words(decision: PipelineDecision) -> str:
    found = [cause_words(each, decision) for each in decision.diagnosis]
    return "\n".join(line for each in found for line in (each.title, *each.evidence, each.remedy))


def test_an_outage_without_any_answer_is_diagnosed_although_no_latency_is_known() -> None:
    nothing = Absence(reason=AbsenceReason.NOT_A_NUMBER)
    for latency_s in (8.0, nothing):
        decision = diagnosed(latency_s=latency_s, completes_rps=0.0)
        assert (Cause.QUEUEING, Because.STUCK_REPLICA, ASR[0]) in named(decision)
        assert "none is completed" in words(decision)
        assert "other replicas work" not in words(decision)


def test_without_demand_and_latency_nothing_is_said() -> None:
    nothing = Absence(reason=AbsenceReason.NO_TRAFFIC)
    assert not named(diagnosed(latency_s=nothing, completes_rps=0.0, demand=0.0))


def test_a_replica_that_ends_again_and_again_hides_no_queue_of_another_stage() -> None:
    crashing = a_target(4, ready=3, existing=4, starting_since_s=[NOW - 21_600])
    for vad in (3, crashing):
        assert (Cause.QUEUEING, Because.LIMIT, ASR[0]) in named(diagnosed(vad=vad))
    said = words(diagnosed(vad=crashing))
    assert "what ends its replicas on cpu with CrashLoopBackOff: kubectl -n speech describe pods" in said
    assert "faster start" not in said


def test_in_mode_recommend_no_replica_is_said_to_start() -> None:
    said = words(diagnosed(mode=Mode.RECOMMEND, most=20))
    assert "the recommended replicas set by hand, or mode: Auto" in said
    assert "that start now" not in said


def test_a_replica_that_is_new_hides_none_that_waits_for_minutes() -> None:
    waiting = a_target(3, ready=1, existing=3, pending_since_s=[NOW - 200, NOW - 200])
    for vad in (a_target(2), a_target(2, ready=1, existing=2, pending_since_s=[NOW - 5])):
        assert (Cause.POOL, None, ASR[0]) in named(diagnosed(vad=vad, asr=waiting))


def of_before(seen_s: float) -> DiagnosisMemory:
    finding = Finding(
        cause=Cause.COLD_START,
        stage=ASR[0],
        placement=ASR[1],
        because=Because.FROM_ZERO,
        confidence=0.9,
        numbers={"starting": 1.0, "for_s": 30.0, "expected_s": 20.0},
    )
    return DiagnosisMemory(seen=(Seen(finding=finding, seen_s=seen_s),))


def test_a_finding_whose_evidence_is_gone_says_since_when() -> None:
    decision = diagnosed(memory=of_before(NOW - 200))
    assert named(decision)[0] == (Cause.COLD_START, Because.FROM_ZERO, ASR[0])
    assert "so it was until 200 s ago" in words(decision)
    assert "ago_s" not in dict(decision.memory.diagnosis.seen[0].finding.numbers), "the memory has it as it was found"


def test_a_clock_that_was_set_back_makes_no_finding_stand_for_ever() -> None:
    assert Cause.COLD_START not in {cause for cause, _, _ in named(diagnosed(memory=of_before(NOW + 3600)))}


def test_a_cause_that_stands_explains_the_queue_that_it_left() -> None:
    slower = Finding(
        cause=Cause.SLOWER_STAGE,
        stage=ASR[0],
        placement=ASR[1],
        confidence=0.9,
        numbers={"before_s": 0.05, "now_s": 0.2, "batch": 1.0, "times": 4.0},
    )
    decision = diagnosed(memory=DiagnosisMemory(seen=(Seen(finding=slower, seen_s=NOW - 60),)))
    assert named(decision) == [(Cause.SLOWER_STAGE, None, ASR[0])]
