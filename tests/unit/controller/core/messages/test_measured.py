"""Measured values are reported beside the declared ones."""

from collections.abc import Mapping
from dataclasses import replace

from builders import ENCODER, ENCODER_GPU, NOW_S, VAD, a_placement, a_spec, a_stage, a_state
from explained import decision_of, explain, section

from controller.core.messages.measured import measured_words
from controller.core.state.carry_over import FeedbackFloor, FeedbackMemory, FeedbackStep, PipelineMemory
from controller.core.state.decision import PipelineDecision
from controller.core.state.spec import Declared, PipelineSpec
from optimizer.model import PlacementKey, ServiceLaw, StageName
from profiler.batch_times import BatchTimes
from profiler.neighbours import Crowding
from profiler.samples import DeviceQuantity, Quantity
from profiler.stages import Learned, PlacementProfile, ReceiveLimit

UNDECLARED = Declared(service=False, cv=False, startup=False)
LAW = ServiceLaw(fixed_s=0.014, per_item_s=0.003)
TIMES = BatchTimes(weight=20.0, batch=3.0, time_s=0.023)


def a_pipeline(*undeclared: str) -> PipelineSpec:
    def place(pool: str) -> object:
        return replace(a_placement(pool), declared=UNDECLARED) if pool in undeclared else a_placement(pool)

    encoder = a_stage("encoder", place("inferentia"), place("gpu"), after=["vad"])  # type: ignore[arg-type]
    return a_spec(a_stage("vad", a_placement("cpu", service_s=0.01, per_instance=4)), encoder)


def decided(*undeclared: str, learned: Learned | None = None) -> PipelineDecision:
    memory = PipelineMemory(learned=learned or Learned())
    state = a_state(a_pipeline(*undeclared), replicas={VAD: 2, ENCODER: 4}, memory=memory)
    return decision_of(state).pipelines[0]


def told(
    decision: PipelineDecision,
    placements: Mapping[PlacementKey, Mapping[str, object]] | None = None,
    crowdings: Mapping[PlacementKey, Crowding] | None = None,
) -> list[str]:
    """Return the texts of `decision` as if the profiles of `placements` had these values, and these `crowdings`."""

    def changed(stage: StageName, profile: PlacementProfile) -> PlacementProfile:
        return replace(profile, **(placements or {}).get((stage, profile.name), {}))  # type: ignore[arg-type]

    stages = tuple(
        replace(
            stage,
            placements=tuple(changed(stage.name, own) for own in stage.placements),
            crowdings={pool: own for (name, pool), own in (crowdings or {}).items() if name == stage.name},
        )
        for stage in decision.profile.stages
    )
    return list(measured_words(replace(decision, profile=replace(decision.profile, stages=stages))))


def test_what_is_declared_and_measured_so_has_no_text() -> None:
    assert told(decided()) == []


def test_what_neighbours_add_is_told_and_where_nothing_was_compared() -> None:
    known = Crowding(now=1.2, planned=1.664, additions={"speech/captions/lm": 0.83, "speech/captions/encoder": 0.01})
    unknown = Crowding(unknown=("speech/captions/vad",))
    assert told(decided(), crowdings={ENCODER: known, VAD: unknown}) == [
        (
            "encoder on inferentia: planned with 1.66 × the service time alone, because of neighbours on its instances "
            "(now 1.2 ×; while one is busy: lm 1.83 ×)"
        ),
        "not compared with and without busy neighbours on the instance, so not in the plan: vad on cpu",
    ]


def test_a_learned_law_is_told_with_its_error() -> None:
    law = {"service": LAW, "relative_error": 0.031, "batch_times": TIMES, "known": True, "measured": True}
    assert told(decided("inferentia"), {ENCODER: law}) == [
        "encoder on inferentia: 14 ms + 3 ms per item (± 3%), measured; not declared"
    ]


def test_a_law_of_small_batches_says_up_to_which_it_was_measured() -> None:
    law = {"service": LAW, "relative_error": 0.4, "batch_times": TIMES, "known": False, "enough": True}
    law["measured_batch"] = 3.2
    assert told(decided("inferentia"), {ENCODER: law}) == [
        "encoder on inferentia: 14 ms + 3 ms per item (± 40%), measured up to batches of 3.2; not declared"
    ]


def test_a_law_without_batches_is_one_time() -> None:
    law = {"service": ServiceLaw(fixed_s=0.0421), "relative_error": 0.02, "batch_times": TIMES, "known": True}
    assert told(decided("inferentia"), {ENCODER: law}) == [
        "encoder on inferentia: 42.1 ms (± 2%), measured; not declared"
    ]


def test_a_law_that_is_being_learned_says_what_is_missing() -> None:
    unknown = {"service": LAW, "known": False, "enough": False}
    few = {**unknown, "relative_error": 0.1, "batch_times": replace(TIMES, weight=2.5)}
    vague = {**unknown, "relative_error": 0.22, "batch_times": replace(TIMES, weight=5.0)}
    law = "encoder on inferentia: 14 ms + 3 ms per item"
    assert told(decided("inferentia"), {ENCODER: few}) == [
        f"{law} (± 10%), being measured; not declared; needs 4 measurements; has 2.5"
    ]
    assert told(decided("inferentia"), {ENCODER: vague}) == [
        f"{law} (± 22%), being measured; not declared; needs 16 measurements, because they scatter; has 5"
    ]


def test_a_placement_that_was_never_measured_is_a_fallback_beside_one_that_serves() -> None:
    unmeasured = "service time not declared and not measured yet"
    assert told(decided("inferentia")) == [f"encoder on inferentia: {unmeasured}"]
    assert told(decided("gpu")) == [
        f"encoder on gpu: {unmeasured}; a fallback only, until a replica there has been measured"
    ]


def test_a_declared_law_is_told_where_the_measured_one_differs() -> None:
    slow = {"service_factor": 4.9, "service": LAW, "measured": True}
    assert told(decided(), {ENCODER: slow, ENCODER_GPU: {"service_factor": 1.04}}) == [
        "encoder on inferentia: measured 4.9 × the declared service time: 14 ms + 3 ms per item"
    ]
    assert told(decided(), {ENCODER_GPU: {"service_factor": 4.9, "measured": False}}) == [
        "encoder on gpu: not measured; planned with 4.9 × the declared service time, as on the stage's other pools"
    ]


def test_a_measured_start_up_time_is_told_where_none_is_declared() -> None:
    law = {"service": LAW, "relative_error": 0.03, "batch_times": TIMES, "known": True}
    learned = Learned(startups_s={ENCODER: 42.0, VAD: 3.0})
    assert "encoder on inferentia: replicas start in 42 s, measured; not declared" in told(
        decided("inferentia", learned=learned), {ENCODER: law}
    )
    assert not [line for line in told(decided("inferentia", learned=learned)) if line.startswith("vad")]


def test_a_replica_that_serves_less_than_its_service_time_says_which_one() -> None:
    def words(origin: str) -> str:
        return (
            f"encoder on inferentia: a replica served at most 12 items/s, less than its {origin} service time allows; "
            "correction applied"
        )

    short: dict[str, object] = {"saturation_rps": 12.0}
    law: dict[str, object] = {"service": LAW, "relative_error": 0.03, "batch_times": TIMES, "known": True}
    assert told(decided(), {ENCODER: short}) == [words("declared")]
    assert words("measured") in told(decided(), {ENCODER: {**short, "service_factor": 2.0}})
    assert words("measured") in told(decided("inferentia"), {ENCODER: {**short, **law}})


def test_packets_that_are_lost_or_nearly_lost_are_told() -> None:
    def words(pressure: float, losses_rps: float, learned: Learned | None = None) -> list[str]:
        decision = decided(learned=learned)
        vad, encoder = decision.profile.stages
        seen = replace(
            vad,
            readings={**vad.readings, Quantity.RX_QUEUE_PRESSURE: pressure},
            devices={DeviceQuantity.NODE_RX_LOSSES_RPS: losses_rps},
        )
        return list(measured_words(replace(decision, profile=replace(decision.profile, stages=(seen, encoder)))))

    assert words(0.3, 0.0) == []
    assert words(0.83, 12.0) == [
        "vad: receive pressure of the worst pod is 0.83 (datagrams are lost at 1)",
        "vad: a node of its pods loses 12 packets/s on reception",
    ]
    limit = ReceiveLimit(packets_per_s=4000.0, packets_per_item=8.0, lost_at_s=NOW_S - 60)
    (told_limit,) = words(0.0, 0.0, Learned(receive_limits={VAD: limit}))
    assert "a replica takes 4,000 packets/s, 8 per item" in told_limit


def test_the_time_outside_the_stages_is_told_with_what_it_leaves_them() -> None:
    def overhead(seconds: float) -> list[str]:
        decision = decided()
        return list(measured_words(replace(decision, profile=replace(decision.profile, overhead_s=seconds))))

    assert overhead(0.042) == ["overhead: 42 ms of p95 are outside the stages; they are left 457 ms of 500 ms"]
    all_of = "they are left all of 500 ms, because this is within the error of the measurement"
    assert overhead(0.004) == [f"overhead: 4 ms of p95 are outside the stages; {all_of}"]
    assert overhead(0.0) == []


def test_what_a_missed_sla_led_to_is_told() -> None:
    decision = decided()
    feedback = FeedbackMemory(
        floors={ENCODER[0]: FeedbackFloor(replicas=5.0, demand=10.0, planned=4.0)},
        step=FeedbackStep(stage=ENCODER[0], at_s=NOW_S - 60, before_s=0.61, demand=10.0, replicas=5),
        useless_until_s={VAD[0]: NOW_S + 1800},
    )
    missed = replace(decision, memory=replace(decision.memory, feedback=feedback), floors={ENCODER[0]: 5})
    assert told(missed) == [
        "vad: more replicas did not lower p95 and were taken back; no further step before 1970-01-01T03:16:40Z",
        "encoder: at least 5 replicas, because the measured latency exceeded the SLA",
        "encoder: the step to 5 replicas at 1970-01-01T02:45:40Z is kept only if it lowers p95, which was 610 ms",
    ]


def test_it_is_a_part_of_the_explanation() -> None:
    state = a_state(a_pipeline("gpu"), replicas={VAD: 2, ENCODER: 4})
    why = section(explain(decision_of(state), state.spec.key), "Why")
    assert "encoder on gpu: service time not declared and not measured yet" in why
