"""Every form of every cause has evidence with its numbers, and a remedy. Which causes are found: tests/scenarios."""

from dataclasses import replace

import pytest
from builders import a_snapshot, a_state

from controller.core.cycle import decide
from controller.core.messages.diagnosis import briefly, cause_words, diagnosis_lines
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Because, Cause, Finding
from controller.core.state.policy import Policy
from optimizer.model import PoolName, StageName

A_TIME = {"now_s": 0.32, "before_s": 0.08, "batch": 4.0, "times": 4.0}
A_QUEUE = {"waits_s": 2.5, "waiting": 40.0, "utilization": 0.97}
FORMS = [
    (Cause.DEMAND, None, {"before": 10, "now": 40, "ready_for": 18}, (), "from 10 requests/s to 40 requests/s"),
    (Cause.POOL, None, {}, ("PoolUnavailable", "no capacity"), "gpu is left out: PoolUnavailable: no capacity"),
    (Cause.POOL, None, {"waiting": 2, "waits_s": 90}, ("0/3 nodes",), "2 replicas without a node on gpu"),
    (Cause.POOL, Because.LIMIT, {"served": 0.5}, ("gpu",), "gpu has room for 50% of the demand"),
    (
        Cause.COLD_START,
        Because.FROM_ZERO,
        {"starting": 1, "for_s": 40, "expected_s": 20},
        (),
        "no replica of the stage",
    ),
    (Cause.COLD_START, Because.LATE_START, {"starting": 2, "for_s": 90, "expected_s": 20}, ("pulls",), "for 90 s"),
    (Cause.SLOWER_STAGE, None, A_TIME, (), "batches of 4 on gpu take 320 ms; 80 ms while all was well: 4 ×"),
    (Cause.SLOWER_STAGE, Because.DECLARED, A_TIME, (), "80 ms declared"),
    (Cause.SLOWER_STAGE, Because.CPU_QUOTA, {"throttled": 0.4}, (), "stops the worst replica in 40.0% of its periods"),
    (Cause.SLOWER_STAGE, Because.NEW_VERSION, A_TIME, ("v1", "v2"), "of revision v2; v1 while all was well"),
    (Cause.SLOWER_STAGE, Because.NEIGHBOURS, {**A_TIME, "by_neighbours": 1.6}, ("a/b/vad",), "because vad on the same"),
    (Cause.SLOWER_STAGE, Because.COLD_CACHES, {**A_TIME, "warming": 0.5}, (), "50.0% of its replicas"),
    (Cause.PASS_RATIO, None, {"before": 0.2, "now": 0.9}, (), "90.0% of the items go on, 20.0% while all was well"),
    (
        Cause.UNEVEN_SESSIONS,
        None,
        {"sessions": 60, "replicas": 4, "most": 45, "utilization": 1.3, "move": 30},
        ("asr-0",),
        "asr-0 holds 45 of 60 sessions; its share is 15",
    ),
    (Cause.QUEUEING, Because.STUCK_REPLICA, {**A_QUEUE, "stuck": 1, "before_them": 40}, ("asr-0",), "asr-0 completes"),
    (
        Cause.QUEUEING,
        Because.OTHER_TENANT,
        {**A_QUEUE, "others_before": 10, "others_now": 50},
        (),
        "brought 10 items/s",
    ),
    (Cause.QUEUEING, Because.BATCH_WAIT, {**A_QUEUE, "batch_wait_s": 0.4}, (), "a batch waits up to 400 ms"),
    (Cause.QUEUEING, Because.LAG, {**A_QUEUE, "load": 1.4}, (), "loads the ready replicas to 140%"),
    (Cause.QUEUEING, Because.LIMIT, {"waiting": 40.0}, ("Budget",), "and none is completed"),
    (Cause.DATA_PLANE, Because.OVERHEAD, {"now_s": 0.4, "before_s": 0.02}, (), "400 ms of p95 are outside the stages"),
    (Cause.DATA_PLANE, Because.NETWORK, {"pressure": 0.9, "lost_per_s": 12}, (), "pressure of the worst pod is 90%"),
    (Cause.DATA_PLANE, Because.REFUSED, {"per_s": 3}, (), "3 sessions/s find no free slot"),
    (Cause.DATA_PLANE, Because.RETRIES, {"offered": 20, "arrives": 50}, (), "50 items/s arrive, and the demand is 20"),
    (Cause.MEMORY_GROWTH, None, {"ended": 2, "slots": 20, "most": 11}, ("a", "b"), "2 replicas of gpu ended"),
    (Cause.QUALITY_DROP, None, {"before": 0.05, "now": 0.16, "since_s": 60}, ("entities", "a", "b"), "slice entities"),
    (Cause.QUALITY_DROP, None, {"before": 0.05, "now": 0.16, "since_s": 60}, ("", "a", "b"), "of all audio"),
    (Cause.METRICS, Because.MISSING, {}, ("throughput", "no series"), "no throughput of gpu: no series"),
    (Cause.METRICS, Because.LOST, {"for_s": 120}, (), "the demand has been unknown for 120 s"),
    (Cause.METRICS, Because.CONTRADICTED, {"for_s": 120}, (), "more has arrived than the demand query says"),
    (Cause.METRICS, Because.IMPLAUSIBLE, {"times": 0.1}, ("p95",), "the measured p95 is 0.1 × what the model says"),
]


@pytest.fixture(scope="module")
def decision() -> PipelineDecision:
    return decide(a_snapshot(a_state()), Policy()).pipelines[0]


@pytest.mark.parametrize(("cause", "because", "numbers", "names", "words"), FORMS)
def test_each_form_says_what_it_saw_and_what_would_help(
    decision: PipelineDecision,
    cause: Cause,
    because: Because | None,
    numbers: dict[str, float],
    names: tuple[str, ...],
    words: str,
) -> None:
    finding = Finding(
        cause=cause,
        because=because,
        confidence=0.9,
        stage=StageName("asr"),
        placement=PoolName("gpu"),
        numbers=numbers,
        names=names,
        cost_per_hour=1.5,
    )
    found = cause_words(finding, decision)
    assert words in "; ".join(found.evidence)
    assert found.remedy
    lines = list(diagnosis_lines(replace(decision, diagnosis=(finding,))))
    assert lines[0].endswith(f"({cause.value}), 90% certain")
    assert lines[-1].endswith("; costs $1.50/h more")
    assert briefly(replace(decision, diagnosis=(finding,))).startswith("asr: ")


def test_every_cause_and_every_form_is_here() -> None:
    assert {cause for cause, *_ in FORMS} == set(Cause)
    assert {because for _, because, *_ in FORMS} == {None, *Because}
