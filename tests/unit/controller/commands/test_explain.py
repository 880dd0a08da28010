from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from controller.commands.explain import explain, rendered

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


def test_two_different_namespaces_are_wrong_usage() -> None:
    result = CliRunner().invoke(explain, ["speech/captions", "-n", "batch"])
    assert result.exit_code == 2
    assert "is not in namespace 'batch'" in result.output


def test_a_kubeconfig_that_is_not_there_is_wrong_usage(tmp_path: Any) -> None:
    result = CliRunner().invoke(explain, ["captions", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "no credentials" in result.output
