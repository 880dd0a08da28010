import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from builders import a_snapshot, a_state

from controller.core import cycle
from controller.core.assess.backlog import pace_of
from controller.core.codec import InvalidRecord
from controller.core.cycle import decide
from controller.core.state.carry_over import (
    DemandSample,
    FeedbackFloor,
    FeedbackMemory,
    FeedbackStep,
    PipelineMemory,
    RuleMemory,
)
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Planned
from controller.core.state.spec import BacklogSpec, Target
from controller.kube.durable import (
    Recalled,
    memory_document,
    memory_from,
    pack,
    planned_at_s,
    planned_from,
    planned_text,
    resumed,
    unpacked,
)
from optimizer.model import PoolName, StageName
from profiler.batch_times import BatchTimes, SizeTimes
from profiler.stages import Correction, Learned, ReceiveLimit

VAD, CPU = StageName("vad"), PoolName("cpu")
FLOOR = FeedbackFloor(replicas=5.0, demand=60.0, planned=4.0)
STEP = FeedbackStep(stage=VAD, at_s=1010.0, before_s=0.31, demand=60.0, replicas=5, floor_before=FLOOR)
MEMORY = PipelineMemory(
    demand=420.0,
    floor=400.0,
    samples=(
        DemandSample(t_s=1000.0, observed=400.0, forecast=420.0),
        DemandSample(t_s=1015.0, observed=None, forecast=420.0),
    ),
    learned=Learned(
        service_factors={(VAD, CPU): 1.25},
        pass_ratios={VAD: 0.45},
        latency_corrections={VAD: Correction(factor=1.5, smoothed=1.5, learned_at_s=990.0)},
        throughput_corrections={(VAD, CPU): Correction(factor=0.75, smoothed=0.75, learned_at_s=995.0)},
        overhead_s=0.02,
        batch_times={
            (VAD, CPU): BatchTimes(
                weight=12.5,
                batch=3.5,
                time_s=0.031,
                variance=0.0009,
                sizes=(
                    SizeTimes(weight=8.0, batch=2.0, time_s=0.02),
                    SizeTimes(weight=4.5, batch=6.0, time_s=0.05),
                ),
            )
        },
        cvs={(VAD, CPU): 0.45},
        startups_s={(VAD, CPU): 42.5},
        session_slots={(VAD, CPU): 128},
        sessions_held={(VAD, CPU): 128},
        receive_limits={(VAD, CPU): ReceiveLimit(packets_per_s=2048.0, packets_per_item=16.5, lost_at_s=980.0)},
    ),
    rules={
        (VAD, "rx"): RuleMemory(floor=6, fired=True, clear_since_s=1010.0),
        (VAD, "p95"): RuleMemory(floor=4, fired=True, holds_since_s=1005.0),
    },
    idle_since_s=1002.0,
    owned=frozenset(Target(api_version="apps/v1", kind="Deployment", name=name) for name in ("vad", "asr")),
    batches={(VAD, CPU): 8},
    excess_excused_until_s=1100.0,
    admissible=380.5,
    stages_moved_at_s={VAD: 905.0},
    feedback=FeedbackMemory(
        floors={VAD: FLOOR},
        misses=2,
        step=STEP,
        kept={VAD: STEP},
        useless_until_s={StageName("encoder"): 2800.0},
        latency_s=0.33,
        lowest_s=0.31,
        room_since_s=None,
    ),
)


def through_the_api_server(document: dict[str, Any]) -> dict[str, Any]:
    """JSON has one kind of number: 420.0 comes back as 420. A merge patch leaves no nulls, not even in lists."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: whole(inner) for key, inner in value.items() if inner is not None}
        if isinstance(value, list):
            return [whole(inner) for inner in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    read: dict[str, Any] = whole(json.loads(json.dumps(document)))
    return read


@pytest.mark.parametrize(
    "memory", [MEMORY, PipelineMemory(), replace(MEMORY, rules={(VAD, "rx"): RuleMemory(fired=True)})]
)
def test_what_is_remembered_survives_the_way_through_the_status(memory: PipelineMemory) -> None:
    assert memory_from(through_the_api_server(memory_document(memory))) == Recalled(memory=memory)


def test_without_a_document_nothing_is_remembered() -> None:
    assert memory_from(None) == Recalled()


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"version": 2}, "version"),
        ({"demand": 3}, "version"),
        ({**memory_document(MEMORY), "demand": "many"}, "demand"),
        ({**memory_document(MEMORY), "samples": [[1, 2]]}, "samples"),
        ({**memory_document(MEMORY), "learned": {"service_factors": [1]}}, "service_factors"),
    ],
)
def test_what_is_of_another_kind_is_lost_by_the_name_of_its_field(document: dict[str, Any], field: str) -> None:
    (lost,) = memory_from(document).lost
    assert field in lost


def test_a_rollback_loses_only_what_the_later_release_added() -> None:
    document = through_the_api_server(memory_document(MEMORY))
    document["feedback"]["rests_until_s"], document["a_later_part"] = 5.0, {"x": 1}
    document["samples"][0]["weight"] = 2.0
    assert memory_from(document) == Recalled(memory=MEMORY)


def test_what_is_damaged_takes_no_other_part_with_it() -> None:
    document = {**through_the_api_server(memory_document(MEMORY)), "feedback": "damaged"}
    read = memory_from(document)
    assert read.memory == replace(MEMORY, feedback=FeedbackMemory())
    assert len(read.lost) == 1


def of_the_last_release(memory: PipelineMemory) -> dict[str, Any]:
    """The document of a release that had what was learned among the other fields, and nothing of later ones."""
    document = memory_document(memory)
    document.update(document.pop("learned"))
    del document["overhead_s"], document["feedback"], document["stages_moved_at_s"]
    del document["cvs"], document["session_slots"], document["sessions_held"]
    del document["batch_times"], document["startups_s"], document["receive_limits"]
    return {**document, "moved_at_s": 900.0}


def test_a_document_of_the_last_release_is_read_with_all_that_was_learned() -> None:
    read = memory_from(through_the_api_server(of_the_last_release(MEMORY))).memory
    assert read == replace(
        MEMORY,
        learned=replace(
            MEMORY.learned,
            overhead_s=None,
            batch_times={},
            cvs={},
            startups_s={},
            session_slots={},
            sessions_held={},
            receive_limits={},
        ),
        feedback=FeedbackMemory(),
        stages_moved_at_s={},
    )


def test_a_document_of_before_the_model_was_corrected_is_read() -> None:
    document = of_the_last_release(MEMORY)
    del document["latency_corrections"], document["throughput_corrections"]
    assert memory_from(document).memory.learned == Learned(
        service_factors=MEMORY.learned.service_factors, pass_ratios=MEMORY.learned.pass_ratios
    )


def test_a_restart_keeps_what_was_learned_whenever_it_was_last_written() -> None:
    after = resumed(MEMORY, now_s=90_000.0, window_s=300.0, interval_s=15.0)
    assert after.learned.latency_corrections == {VAD: Correction(factor=1.5, smoothed=1.5, learned_at_s=90_000.0)}
    assert after.learned.throughput_corrections == {
        (VAD, CPU): Correction(factor=0.75, smoothed=0.75, learned_at_s=90_000.0)
    }


def test_a_restart_within_the_window_goes_on_from_the_last_sample() -> None:
    after = resumed(MEMORY, now_s=1200.0, window_s=300.0, interval_s=15.0)
    assert after.samples == (*MEMORY.samples, DemandSample(t_s=1185.0, observed=None, forecast=420.0))


def test_room_to_rise_outlasts_a_restart_as_such() -> None:
    roomy = replace(MEMORY, samples=(DemandSample(t_s=1000.0, observed=400.0, forecast=410.0, peak=450.0),))
    assert resumed(roomy, now_s=1200.0, window_s=300.0, interval_s=15.0).samples[-1].peak == 450.0
    late = resumed(roomy, now_s=9000.0, window_s=300.0, interval_s=15.0).samples[-1]
    assert (late.forecast, late.peak) == (410.0, MEMORY.demand), "what was forecast is kept for longer than room"


def test_a_restart_after_a_long_steady_time_keeps_the_demand_planned_for_in_the_window() -> None:
    low_at_the_end = replace(MEMORY, samples=(DemandSample(t_s=1000.0, observed=400.0, forecast=390.0),))
    after = resumed(low_at_the_end, now_s=9000.0, window_s=300.0, interval_s=15.0)
    assert after.samples[-1] == DemandSample(t_s=8985.0, observed=None, forecast=390.0, peak=420.0)


def test_a_restart_before_the_first_decision_has_nothing_to_go_on_from() -> None:
    assert resumed(PipelineMemory(), now_s=9000.0, window_s=300.0, interval_s=15.0) == PipelineMemory()


def test_the_time_of_a_backlog_that_was_empty_begins_with_the_restart() -> None:
    """The status says since when it was empty at the last write, which may be days ago."""
    within = BacklogSpec(within_s=3600.0)

    def due_s(stored: PipelineMemory) -> float | None:
        memory = resumed(stored, now_s=90_000.0, window_s=300.0, interval_s=15.0)
        return pace_of(within, 50.0, memory, ready_rps=0.0, most_rps=9.0, startup_s=0.0, now_s=90_000.0).due_s

    assert due_s(PipelineMemory(begun_s=1000.0, items_left=0.0)) == 89_985.0 + 3600
    assert due_s(PipelineMemory(begun_s=1000.0, items_left=7.0)) == 1000.0 + 3600
    assert due_s(PipelineMemory(begun_s=1000.0)) == 1000.0 + 3600


@pytest.mark.parametrize(
    "edited",
    [
        {"demand": -5},
        {"demand": 1e25},
        {"samples": [{"t_s": 1.0, "observed": 1e200, "forecast": 1.0}]},
        {"samples": [{"t_s": 1.0, "forecast": 1e200}]},
        {"samples": [{"t_s": 1e18, "forecast": 1.0}]},
        {"metrics_lost": {"since_s": 1e18, "growth_per_minute": 0.1}},
        {"metrics_lost": {"since_s": -7e10, "growth_per_minute": 0.1}},
        {"metrics_lost": {"since_s": 1.0, "demand": 1e200, "growth_per_minute": 0.1}},
        {"metrics_lost": {"since_s": 1.0, "growth_per_minute": -0.1}},
        {"stages_moved_at_s": {"vad": 1e18}},
        {"feedback": {"floors": {"vad": {"replicas": 0.0, "demand": 60.0, "planned": 4.0}}}},
        {"feedback": {"floors": {"vad": {"replicas": 5.0, "demand": 60.0, "planned": 1e30}}}},
        {"feedback": {"misses": -1}},
        {"feedback": {"room_since_s": 1e18}},
        {"feedback": {"useless_until_s": {"vad": 1e18}}},
        {"feedback": {"step": {**asdict(STEP), "at_s": 1e18}}},
        {"feedback": {"step": {**asdict(STEP), "before_s": -0.3}}},
        {"feedback": {"step": {**asdict(STEP), "replicas": 0}}},
        {"excess_excused_until_s": 1e18},
        {"rules": [[["vad", "rx"], {"clear_since_s": 1e18}]]},
        {"conflicts": [[["vad", "cpu"], {"changes": 1, "changed_at_s": 1e18, "written": 1, "found": 2}]]},
        {"failures": [[["vad", "cpu"], {"cause": "CannotStart", "outage": {"unavailable_until_s": 1e18}}]]},
        {"failures": [[["vad", "cpu"], {"cause": "CannotStart", "outage": {"backoff_s": 1e300}}]]},
        {"batches": [[["vad", "cpu"], 0]]},
        {"batches": [[["vad", "cpu"], 9_000_000_000]]},
        {"service_factors": [[["vad", "cpu"], 0]]},
        {"service_factors": [[["vad", "cpu"], 1e300]]},
        {"pass_ratios": {"vad": 300}},
        {"latency_corrections": {"vad": {"factor": 51.0, "smoothed": 1.0, "learned_at_s": 1.0}}},
        {"latency_corrections": {"vad": {"factor": 1.0, "smoothed": 1.0, "learned_at_s": 1e18}}},
        {"throughput_corrections": [[["vad", "cpu"], {"factor": 1.0, "smoothed": 1.5, "learned_at_s": 1.0}]]},
        {"overhead_s": -0.1},
        {"startups_s": [[["vad", "cpu"], -1.0]]},
        {"batch_times": [[["vad", "cpu"], {"weight": 0.0, "batch": 1.0, "time_s": 0.1}]]},
    ],
)
def test_a_part_that_no_cycle_leaves_is_lost(edited: dict[str, Any]) -> None:
    document = through_the_api_server(memory_document(MEMORY))
    (field,) = edited
    if field in document["learned"]:
        edited = {"learned": {**document["learned"], **edited}}
    assert any(field in part for part in memory_from({**document, **edited}).lost)


def a_plan(monkeypatch: pytest.MonkeyPatch) -> Planned:
    monkeypatch.setattr(cycle, "AT_ONCE", 0)
    (pipeline,) = decide(a_snapshot(a_state(demand=50.0)), Policy()).pipelines
    assert pipeline.planned is not None
    return pipeline.planned


def test_the_plan_of_a_large_fleet_survives_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = a_plan(monkeypatch)
    text = planned_text(planned)
    document = memory_document(MEMORY, text)
    assert planned_from(json.loads(json.dumps(document))) == planned
    assert memory_from(document).memory == MEMORY
    assert planned_text(replace(planned, at_s=1.0)) != text
    restored = planned_from(document)
    assert restored is not None
    assert planned_text(restored) == text, "a new leader with nothing changed writes nothing"
    assert text is not None
    assert len(text) < 4000


@pytest.mark.parametrize("at_s", [0.0, 1.0, 1_790_000_000.123456])
def test_the_time_of_a_plan_is_known_without_reading_the_plan(monkeypatch: pytest.MonkeyPatch, at_s: float) -> None:
    document = memory_document(MEMORY, planned_text(replace(a_plan(monkeypatch), at_s=at_s)))
    assert planned_at_s(document) == at_s


@pytest.mark.parametrize("text", ["", "é", 5, "AAAA", pack({}), pack({"at_s": None}), pack({"at_s": 1e999, "plan": 1})])
def test_a_text_that_is_no_plan_has_no_time(text: object) -> None:
    assert planned_at_s({"planned": text}) is None
    assert planned_at_s(memory_document(MEMORY)) is None


def test_a_memory_without_a_plan_has_none() -> None:
    assert planned_from(None) is None
    assert planned_from(memory_document(MEMORY)) is None


@pytest.mark.parametrize(
    "text", ["", "!", 5, pack({}), pack([]), pack({"pipeline": 1, "plan": 2, "terms": {}, "at_s": 0}), "QUJD"]
)
def test_a_plan_that_was_edited_is_refused(text: object) -> None:
    with pytest.raises(InvalidRecord, match=r"status\.memory\.planned"):
        planned_from({"planned": text})


def test_a_plan_of_other_placements_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = a_plan(monkeypatch)
    fewer = replace(planned, plan=replace(planned.plan, stages=planned.plan.stages[1:]))
    with pytest.raises(InvalidRecord, match="placements of its pipeline"):
        planned_from(memory_document(MEMORY, planned_text(fewer)))


def test_a_packed_document_cannot_fill_the_memory() -> None:
    with pytest.raises(InvalidRecord, match="at most 4194304 bytes"):
        unpacked(pack({"noise": "0" * 5_000_000}), "here")
