"""The readiness page from values: what is computed, what is named as not measured, what blocks."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_scenarios import PIPELINE

from controller.adoption.check import Check
from controller.core.codec import InvalidRecord
from controller.core.state.learned import LearnedPlacement
from controller.core.state.spec import Mode, PipelineSpec
from controller.readiness.points import Readiness, State
from controller.readiness.profiled import read_profile
from controller.readiness.sections import Live, Peak, Subject, readiness
from controller.resources.manifests import parse_documents
from controller.resources.translate import pipeline_spec
from controller.resources.validation import validate_documents
from optimizer.model import PoolName, StageName
from optimizer.plan import Advice, Limit, LimitKind, PipelinePlan, PlacementPlan, StagePlan


def a_spec(text: str = PIPELINE) -> PipelineSpec:
    (found,) = validate_documents(parse_documents(text, Path("x.yaml"))).pipelines
    return pipeline_spec(found)


SPEC = a_spec()
PLAN = PipelinePlan(
    key=SPEC.key,
    served_fraction=1.0,
    feasible=True,
    limited_by=None,
    latency_s=0.2,
    cost_per_hour=10.0,
    bottleneck=StageName("asr"),
    stages=(
        StagePlan(
            name=StageName("vad"),
            rate_rps=20.0,
            utilization=0.5,
            latency_s=0.02,
            mean_s=0.01,
            placements=(PlacementPlan(name=PoolName("cpu"), replicas=3, batch=1),),
        ),
    ),
    steps=(),
    next_step=None,
)
SHORT = replace(PLAN, feasible=False, served_fraction=0.5, limited_by=Limit(kind=LimitKind.BUDGET))
PEAK = Peak(
    demand=20.0,
    source="--demand",
    plan=PLAN,
    percentiles_s={50.0: 0.1, 95.0: 0.2},
    without={PoolName("cpu"): SHORT, PoolName("gpu"): replace(PLAN, cost_per_hour=12.0)},
)
SUBJECT = Subject(declared=SPEC, spec=SPEC, peak=PEAK)


def texts(page: Readiness, state: State, title: str = "") -> str:
    return "\n".join(text for section, text in page.points_in(state) if title in section)


def test_a_pipeline_that_meets_its_sla_is_not_blocked() -> None:
    page = readiness(SUBJECT)
    assert not page.blocked
    assert page.verdict.startswith("nothing blocks a launch")
    assert "20 requests/s (--demand): p95 200 ms for $10.00/h of $30.00/h" in texts(page, State.OK, "Capacity")
    (capacity,) = [section for section in page.sections if section.title.startswith("Capacity")]
    assert capacity.rows == (("vad", "20", "50%", "cpu × 3"),)


def test_each_lost_pool_has_its_own_answer() -> None:
    page = readiness(SUBJECT)
    assert "without gpu the peak is served within the SLA for $12.00/h" in texts(page, State.OK, "Loss")
    assert "without cpu nothing is served: vad has no other pool" in texts(page, State.RISK, "Loss")
    less = readiness(replace(SUBJECT, peak=replace(PEAK, without={PoolName("gpu"): SHORT})))
    assert "without gpu 50.0% of the peak is served" in texts(less, State.RISK, "Loss")


def test_a_peak_that_cannot_be_served_blocks_and_names_the_budget() -> None:
    plan = replace(SHORT, advice=Advice(required_budget_per_hour=44.0))
    page = readiness(replace(SUBJECT, peak=replace(PEAK, plan=plan)))
    assert "50.0% can be served" in texts(page, State.BLOCKS, "Capacity")
    assert "needs $44.00/h" in texts(page, State.NOTE, "Capacity")


def test_a_cost_near_the_budget_is_a_risk() -> None:
    page = readiness(replace(SUBJECT, peak=replace(PEAK, plan=replace(PLAN, cost_per_hour=29.0))))
    assert "takes 96.7% of the budget" in texts(page, State.RISK)


def test_without_a_plan_nothing_is_invented() -> None:
    page = readiness(replace(SUBJECT, peak=None, unplanned="the highest load is not stated"))
    assert texts(page, State.BLOCKS) == "not computed: the highest load is not stated"
    assert "not computed" in texts(page, State.UNKNOWN, "Loss")
    assert "predicted" not in texts(page, State.NOTE)


def test_numbers_that_are_missing_or_marked_block() -> None:
    page = readiness(replace(SUBJECT, missing=("spec.stages[0] is neither declared nor measured",), todo=("line 3",)))
    assert "neither declared nor measured" in texts(page, State.BLOCKS, "measured")
    assert "TODO: line 3" in texts(page, State.BLOCKS, "Contract")


@pytest.mark.parametrize(("mode", "state"), [(Mode.PAUSED, State.BLOCKS), (Mode.RECOMMEND, State.NOTE)])
def test_the_mode_is_shown_and_paused_blocks(mode: Mode, state: State) -> None:
    assert f"mode {mode.value}" in texts(readiness(replace(SUBJECT, spec=replace(SPEC, mode=mode))), state, "Contract")


def test_a_declared_number_is_not_a_measured_one() -> None:
    assert "vad on cpu, asr on gpu, asr on cpu" in texts(readiness(SUBJECT), State.UNKNOWN, "What was measured")
    assert "vad on cpu: 5 s (declared)" in texts(readiness(SUBJECT), State.NOTE, "Cold start")


def test_learned_numbers_are_named_as_measured_with_their_error() -> None:
    bare = a_spec(PIPELINE.replace('          serviceTime: {fixed: 10ms, cv: "0.3"}\n          startup: 5s\n', ""))
    learned = LearnedPlacement(
        fixed_s=0.011, per_item_s=0.0, cv=0.3, startup_s=7.0, session_slots=None, relative_error=0.05
    )
    page = readiness(replace(SUBJECT, declared=bare, learned={(StageName("vad"), PoolName("cpu")): learned}))
    (measured,) = [section for section in page.sections if section.title == "What was measured"]
    assert measured.rows[0][:5] == ("vad", "cpu", "measured", "11 ms", "± 5.0%")
    assert "vad" not in texts(page, State.UNKNOWN, "What was measured")
    assert "vad on cpu: 7 s (measured)" in texts(page, State.NOTE, "Cold start")
    unlearned = readiness(replace(SUBJECT, declared=bare))
    assert "vad on cpu: start-up time neither declared nor measured" in texts(unlearned, State.UNKNOWN, "Cold start")


def test_what_the_metrics_cannot_say_is_named() -> None:
    page = readiness(SUBJECT)
    assert "first answer of real load: no stage has metrics.answer First" in texts(page, State.UNKNOWN, "Latency")
    assert "no placement states one" in texts(page, State.UNKNOWN, "Quality")
    assert "--live reads them" in texts(page, State.UNKNOWN, "cluster")


CHECKS = (
    Check(name="crd", subject="cluster", ok=True, message="present"),
    Check(name="target", subject="speech/captions vad", ok=False, message="Deployment/vad does not exist"),
    Check(name="nodes", subject="gpu", ok=None, message="not read"),
)


def test_a_check_of_doctor_that_fails_blocks_and_an_unknown_one_is_named() -> None:
    page = readiness(replace(SUBJECT, live=Live(status=None, checks=CHECKS)))
    assert texts(page, State.BLOCKS) == "speech/captions vad: target: Deployment/vad does not exist"
    assert "gpu: nodes: not read" in texts(page, State.UNKNOWN, "cluster")
    assert "1 of 3 checks" in texts(page, State.OK, "cluster")
    assert "not applied" in texts(page, State.NOTE, "cluster")


@pytest.mark.parametrize("ready", ["True", "False"])
def test_a_problem_that_a_missed_sla_hides_in_the_health_counts(ready: str) -> None:
    conditions = [{"type": "SLAMet", "status": "False"}, {"type": "Ready", "status": ready}]
    status = {"summary": {"health": "SLAMissed"}, "conditions": conditions}
    page = readiness(replace(SUBJECT, live=Live(status=status, explanation=())))
    assert page.blocked is (ready == "False")


@pytest.mark.parametrize(("health", "blocked"), [("OK", False), ("TargetMissing", True), (None, True)])
def test_the_live_health_counts(health: str | None, blocked: bool) -> None:
    status = {"summary": {"health": health} if health else {}, "latency": {"seconds": "0.21", "source": "Measured"}}
    page = readiness(replace(SUBJECT, live=Live(status=status, explanation=("What: 3 replicas",))))
    assert page.blocked is blocked
    assert "now: p95 210 ms, measured end to end" in texts(page, State.NOTE, "Latency")
    assert "What: 3 replicas" in texts(page, State.NOTE, "cluster")


PROFILE = read_profile(
    {
        "fixed_s": 0.02,
        "per_item_s": 0.0,
        "cv": 0.3,
        "relative_error": 0.04,
        "startup_s": 30.0,
        "first_answer_s": 2.5,
        "warm_up_s": 4.0,
        "memory_per_session_bytes": 3 * 2**20,
        "points": [
            {"loop": "closed", "concurrency": 8, "rate_rps": 48.0, "p50_s": 0.15, "p95_s": 0.3, "failed": 0.0},
            {"loop": "closed", "concurrency": 1, "rate_rps": 45.0, "p50_s": 0.021, "p95_s": 0.03, "failed": 0.0},
            {"loop": "closed", "concurrency": 64, "rate_rps": 50.0, "p50_s": 1.1, "p95_s": 2.0, "failed": 0.2},
            {"loop": "open", "concurrency": None, "rate_rps": 40.0, "p50_s": None, "p95_s": None, "failed": 0.0},
        ],
    }
)
VAD = StageName("vad"), PoolName("cpu")


def test_what_a_profile_measured_is_told_apart_from_what_is_declared() -> None:
    page = readiness(replace(SUBJECT, profiles={VAD: PROFILE}))
    assert (
        "vad on cpu: warm: p50 21 ms, p95 30 ms with 1 inside (45 answers/s); p50 150 ms, p95 300 ms with 8"
        in texts(page, State.NOTE, "Latency")
    )
    assert "vad on cpu: first answer after 2.5 s, steady after 4 s of load" in texts(page, State.NOTE, "Cold start")
    assert "vad on cpu: a session takes 3 MiB" in texts(page, State.NOTE, "Memory")
    assert "vad on cpu: sluice profile measured 20 ms: the plan is made with less" in texts(page, State.RISK)
    (measured,) = (section for section in page.sections if section.title == "What was measured")
    rows = {row[0]: dict(zip(measured.columns, row, strict=True)) for row in measured.rows}
    assert rows["vad"]["start-up"] == rows["vad"]["first answer"] == rows["vad"]["memory of a session"] == "measured"
    assert rows["asr"]["first answer"] == "not measured"
    assert "vad on cpu" not in texts(page, State.UNKNOWN, "What was measured")


def test_a_start_that_took_longer_than_declared_is_a_risk() -> None:
    page = readiness(replace(SUBJECT, profiles={VAD: PROFILE}))
    assert "its pod took 30 s to start (sluice profile), 5 s is declared" in texts(page, State.RISK, "Cold start")
    undeclared = a_spec(PIPELINE.replace("          startup: 5s\n", ""))
    learned = readiness(replace(SUBJECT, declared=undeclared, profiles={VAD: PROFILE}))
    assert texts(learned, State.RISK, "Cold start") == ""


def test_a_cause_of_a_missed_sla_blocks_with_its_evidence_and_its_remedy() -> None:
    cause = {
        "cause": "MemoryGrowth",
        "stage": "asr",
        "confidence": "0.9",
        "evidence": ["2 replicas ended because of memory"],
        "remedy": "fewer slots",
    }
    status = {"summary": {"health": "SLAMissed"}, "conditions": [], "diagnosis": [cause]}
    page = readiness(replace(SUBJECT, live=Live(status=status)))
    assert texts(page, State.BLOCKS, "Why the SLA is missed") == (
        "asr: sessions outgrow the memory of a replica, 90% certain: 2 replicas ended because of memory; would help: "
        "fewer slots"
    )
    missed = {**status, "diagnosis": [], "conditions": [{"type": "SLAMet", "status": "False"}]}
    silent = readiness(replace(SUBJECT, live=Live(status=missed)))
    assert "the diagnosis found no cause" in texts(silent, State.UNKNOWN, "Why the SLA is missed")


def test_rolling_back_a_model_is_a_command() -> None:
    assert "kubectl rollout undo -n speech deployment/" in texts(readiness(SUBJECT), State.NOTE, "Rollback")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "must be what `sluice profile -o json` prints"),
        ({"fixed_s": "x"}, "must be float"),
        ({"fixed_s": -1.0, "per_item_s": 0.0, "cv": 0.3}, "fixed_s"),
        ({"fixed_s": 0.1, "per_item_s": 0.0, "cv": 0.3, "points": [{"loop": "closed"}]}, "rate_rps"),
        ({"fixed_s": 0.1, "per_item_s": 0.0, "cv": 0.3, "law_points": [7]}, "law_points"),
    ],
)
def test_what_is_no_profile_is_refused(document: object, said: str) -> None:
    with pytest.raises(InvalidRecord, match=said):
        read_profile(document)
