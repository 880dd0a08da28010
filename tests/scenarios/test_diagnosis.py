"""Every cause is produced by a fault in the simulator, and named; of a pipeline that is well nothing is said.

`tests/bench/bench_diagnosis.py` does the same over many seeds. On live servers: tests/e2e/test_diagnosis.py.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from diagnoses import CASES, MASKED, ONE_POOL, decisions, form, named, played, weights
from small_scenarios import a_scenario

from controller.core.messages.diagnosis import cause_words
from controller.core.messages.explain import explain_pipeline
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Because, Cause
from controller.kube.durable import memory_document, memory_from
from controller.kube.status import causes

NOT_SIMULATED = {
    Because.OTHER_TENANT,  # no run shares servers: see tests/unit/controller/core/diagnose/test_causes.py
    Because.CPU_QUOTA,  # its replicas do not compute
    Because.NETWORK,  # it has no kernel that loses packets
    Because.IMPLAUSIBLE,  # a correction is at its limit only where a model does not fit its server at all
}
"""The forms that no simulated fault produces."""
WITH_A_CAUSE = [name for name, case in CASES.items() if case.causes and name != MASKED]


def test_every_cause_has_a_case() -> None:
    assert frozenset().union(*(case.causes for case in CASES.values())) == frozenset(Cause)


def test_every_form_of_a_cause_has_a_case_or_a_reason() -> None:
    produced = {case.because for case in CASES.values()} - {None}
    assert produced | NOT_SIMULATED == set(Because)
    assert not produced & NOT_SIMULATED


@pytest.mark.parametrize("name", WITH_A_CAUSE)
def test_the_cause_is_named_with_evidence_and_a_remedy(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    made = played(case, tmp_path, seed=1)
    assert named(made, len(case.causes)) == case.causes, weights(made)
    if case.because is not None:
        (cause,) = case.causes
        assert form(made, cause) is case.because
    _, decision = max(made, key=lambda each: sum(finding.cause in case.causes for finding in each[1].diagnosis))
    assert case.causes <= {finding.cause for finding in decision.diagnosis}
    for finding in decision.diagnosis:
        words = cause_words(finding, decision)
        assert words.evidence
        assert words.remedy
        assert 0 < finding.confidence < 1
    assert [each["cause"] for each in causes(decision)] == [each.cause.value for each in decision.diagnosis]
    assert "Diagnosis" in explain_pipeline(decision, 0.0)
    kept = memory_from(memory_document(decision.memory))
    assert not kept.lost
    assert kept.memory.diagnosis == decision.memory.diagnosis


@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_said_of_a_pipeline_that_is_well(seed: int, tmp_path: Path) -> None:
    assert not weights(decisions(CASES["well"].make(tmp_path), seed))


def test_a_cause_that_hides_another_is_named_all_the_same(tmp_path: Path) -> None:
    made = decisions(CASES[MASKED].make(tmp_path), seed=1)
    assert named(made, 1) == {Cause.QUEUEING}


def test_a_new_version_is_told_from_a_stage_that_only_got_slower(tmp_path: Path) -> None:
    forms = {}
    for name in ("slower stage", "new version"):
        made = decisions(CASES[name].make(tmp_path / name), seed=1)
        forms[name] = {
            finding.because
            for _, decision in made
            for finding in decision.diagnosis
            if finding.cause is Cause.SLOWER_STAGE
        }
    assert forms["slower stage"] == {None}
    # Until the first pod of the new version is ready, the slowness is all that is seen.
    assert Because.NEW_VERSION in forms["new version"] <= {None, Because.NEW_VERSION}


def test_the_stuck_replica_is_named(tmp_path: Path) -> None:
    made = decisions(CASES["stuck replica"].make(tmp_path), seed=1)
    stuck = [
        finding.names
        for _, decision in made
        for finding in decision.diagnosis
        if finding.because is Because.STUCK_REPLICA
    ]
    assert stuck
    assert len(set(stuck)) == 1


ONLY = ONE_POOL.replace("replicas: {min: 0, max: 10}", "replicas: {min: 1, max: 1}")
"""One replica of recognition, and no more."""


def causes_in(made: Sequence[tuple[float, PipelineDecision]]) -> set[Cause]:
    return {finding.cause for _, decision in made for finding in decision.diagnosis}


def test_the_only_replica_that_completes_nothing_is_named(tmp_path: Path) -> None:
    stuck = a_scenario(
        tmp_path,
        pipeline=ONLY,
        load=((0.0, 15.0),),
        duration_s=300,
        faults="[{at: 180s, for: 120s, stuckReplica: asr}]",
    )
    made = decisions(stuck, seed=1)
    (form,) = {(each.cause, each.because) for each in made[-1][1].diagnosis}
    assert form == (Cause.QUEUEING, Because.STUCK_REPLICA)


@pytest.mark.extended
def test_the_queue_that_a_slower_stage_left_is_not_named_beside_it(tmp_path: Path) -> None:
    slow = a_scenario(
        tmp_path,
        pipeline=ONLY,
        load=((0.0, 42.0),),
        duration_s=420,
        faults="[{at: 180s, for: 40s, slowStage: {stage: asr, factor: 4}}]",
    )
    assert causes_in(decisions(slow, seed=1)) == {Cause.SLOWER_STAGE}


@pytest.mark.parametrize(
    ("query", "fault", "load", "cause"),
    [
        ("demand", "spike: {pipeline: speech/captions, factor: 4}", 15.0, Cause.DEMAND),
        ("sla", "slowStage: {stage: asr, factor: 4}", 40.0, Cause.SLOWER_STAGE),
    ],
)
def test_a_query_that_looks_further_back_than_the_stages_is_no_loss_between_them(
    query: str, fault: str, load: float, cause: Cause, tmp_path: Path
) -> None:
    before = {"demand": 'captions"}[10s]))\n  sla', "sla": 'captions"}[10s])))'}[query]
    pipeline = ONE_POOL.replace(before, before.replace("10s", "1m"))
    assert pipeline != ONE_POOL
    scenario = a_scenario(
        tmp_path, pipeline=pipeline, load=((0.0, load),), duration_s=330, faults=f"[{{at: 180s, for: 90s, {fault}}}]"
    )
    found = causes_in(decisions(scenario, seed=1))
    assert cause in found
    assert Cause.DATA_PLANE not in found
