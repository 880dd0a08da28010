import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from corpus import PIPELINE, changed

from controller.commands.explain import document, explain, rendered
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.learned import LearnedPlacement, read_learned
from controller.core.state.spec import PlacementKey
from controller.kube.durable import memory_document
from optimizer.model import PoolName, StageName
from profiler.stages import Learned

NOW = datetime(2026, 1, 1, 12, 0, 35, tzinfo=UTC)


def a_resource(generation: int = 3, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "speech", "name": "captions", "generation": generation},
        "status": {"observedGeneration": 3, "summary": {"health": "OK"}, **status},
    }


EXPLAINED = {"explanation": {"time": "2026-01-01T12:00:00Z", "lines": ["What", "  vad 1→2 on cpu (demand)"]}}


def test_the_explanation_comes_with_its_age() -> None:
    assert rendered(a_resource(memory=EXPLAINED), NOW) == [
        "speech/captions: OK, as of 2026-01-01T12:00:00Z (35 s ago)",
        "What",
        "  vad 1→2 on cpu (demand)",
    ]


def test_a_change_that_the_operator_has_not_seen_is_pointed_out() -> None:
    lines = rendered(a_resource(generation=4, memory=EXPLAINED), NOW)
    assert lines is not None
    assert "has not processed the change" in lines[1]


@pytest.mark.parametrize("reason", ["InvalidSpec", "InternalError"])
def test_a_resource_that_cannot_be_used_says_why_instead_of_an_old_explanation(reason: str) -> None:
    invalid = {"type": "Ready", "status": "False", "reason": reason, "message": "spec.stages: required"}
    lines = rendered(a_resource(memory=EXPLAINED, conditions=[invalid]), NOW)
    assert lines == [f"speech/captions: {reason}; replicas left unchanged:", "  spec.stages: required"]


def test_without_a_decision_there_is_nothing_to_explain() -> None:
    assert rendered(a_resource(), NOW) is None


def a_pipeline(changes: dict[str, Any], **status: Any) -> dict[str, Any]:
    resource = changed(PIPELINE, {"metadata.generation": 3, **changes})
    memory = memory_document(
        PipelineMemory(learned=Learned(service_factors={(StageName("vad"), PoolName("cpu")): 1.5}))
    )
    return {**resource, "status": {"observedGeneration": 3, "summary": {"health": "OK"}, "memory": memory, **status}}


def learned_of(resource: dict[str, Any]) -> dict[PlacementKey, LearnedPlacement]:
    key, learned = read_learned(json.loads(json.dumps(document(resource, ["What"]))))
    assert key == f"{resource['metadata']['namespace']}/{resource['metadata']['name']}"
    return learned


def test_the_json_has_what_was_learned_as_plan_reads_it() -> None:
    answer = document(a_pipeline({}), ["What"])
    assert (answer["health"], answer["explanation"]) == ("OK", ["What"])
    assert [stage["name"] for stage in answer["stages"]] == [stage["name"] for stage in PIPELINE["spec"]["stages"]]
    learned = learned_of(a_pipeline({}))
    # Only vad declares a cv. Its law of 2 ms + 1.5 ms per item was measured to take 1.5 times as long.
    assert learned == {
        ("vad", "cpu"): LearnedPlacement(
            fixed_s=0.003,
            per_item_s=0.0015 * 1.5,
            cv=1.3,
            startup_s=5.0,
            session_slots=None,
            relative_error=None,
        )
    }


def test_nothing_counts_as_learned_for_a_spec_that_the_operator_has_not_seen() -> None:
    assert learned_of(a_pipeline({}, observedGeneration=2)) == {}
    assert learned_of(a_pipeline({}, memory={"version": 99})) == {}


def test_the_json_of_a_resource_that_cannot_be_used_has_no_stages() -> None:
    assert document(a_pipeline({"spec.stages[0].name": 5}), ["why"])["stages"] == []


def test_records_are_not_explained_as_json(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_text("{}")
    result = CliRunner().invoke(explain, ["--from-record", str(record), "-o", "json"])
    assert result.exit_code == 2
    assert "-o json: needs a pipeline of a cluster" in result.output


def test_two_different_namespaces_are_wrong_usage() -> None:
    result = CliRunner().invoke(explain, ["speech/captions", "-n", "batch"])
    assert result.exit_code == 2
    assert "is not in namespace 'batch'" in result.output


def test_a_kubeconfig_that_is_not_there_is_wrong_usage(tmp_path: Any) -> None:
    result = CliRunner().invoke(explain, ["captions", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "no credentials" in result.output
