import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from api_server import api_server
from click.testing import CliRunner, Result
from corpus import PIPELINE, changed

from controller.commands.explain import document, explain, rendered
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.learned import LearnedPlacement, read_learned
from controller.kube.durable import memory_document
from optimizer.model import PlacementKey, PoolName, StageName
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


PATH = "/apis/sluice.dev/v1alpha1/namespaces/speech/speechpipelines/captions"
EVENTS = "/api/v1/namespaces/speech/events"
LONG = (
    "planned for the last known demand of 240 streams plus a safety margin of 12%; no replica is removed, because " * 2
)
NAME = "a-workload-with-a-name-of-more-than-eighty-characters-that-no-line-of-a-terminal-can-hold-at-all"


def served(*lines: str, health: str = "OK", replicas: str = "vad:2") -> dict[str, Any]:
    resource = a_pipeline({"metadata.namespace": "speech", "metadata.name": "captions", "metadata.uid": "u"})
    explanation = {"time": "2026-01-01T12:00:00Z", "lines": ["What", *(f"  {line}" for line in lines)]}
    status = resource["status"]
    summary = {"health": health, "replicas": replicas}
    return {
        **resource,
        "status": {**status, "summary": summary, "memory": {**status["memory"], "explanation": explanation}},
    }


def scaled(message: str, at: datetime) -> dict[str, Any]:
    stamp = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"name": "e", "creationTimestamp": stamp},
        "involvedObject": {"uid": "u"},
        "reason": "Scaled",
        "message": message,
        "type": "Normal",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


@contextmanager
def asking(folder: Path, resource: dict[str, Any], *events: dict[str, Any]) -> Iterator[Callable[..., Result]]:
    with api_server(folder, {PATH: resource, EVENTS: list(events)}) as kubeconfig:
        yield lambda *more: CliRunner().invoke(explain, ["speech/captions", "--kubeconfig", str(kubeconfig), *more])


def test_no_line_is_wider_than_80_columns_and_no_name_is_cut(tmp_path: Path) -> None:
    with asking(tmp_path, served(LONG, NAME), scaled(f"{LONG}: demand 1", datetime.now(UTC))) as ask:
        for arguments in ([], ["--changes"], ["--since", "1h"]):
            lines = ask(*arguments).output.splitlines()
            assert max(len(line) for line in lines if NAME not in line) <= 80
        assert any(line.strip() == NAME for line in ask().output.splitlines())


def test_a_wider_terminal_has_wider_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "140"}.items():
        monkeypatch.setenv(name, value)
    with asking(tmp_path, served(LONG)) as ask:
        assert 80 < max(map(len, ask().output.splitlines())) <= 140


def test_changes_are_shown_instead_of_the_explanation_or_beside_it(tmp_path: Path) -> None:
    with asking(tmp_path, served("no change"), scaled("vad 1→2 on cpu (demand): p95 1 s", datetime.now(UTC))) as ask:
        alone = ask("--changes").output.splitlines()
        assert alone[:2] == ["speech/captions:", "Changes: 1 event, times in UTC"]
        assert alone[-2].endswith("  vad 1→2 on cpu (demand)")
        assert alone[-1].endswith("  now OK; vad:2")
        both = ask("--since", "10m").output
    assert both.index("no change") < both.index("vad 1→2 on cpu (demand)")
    assert "Changes since 20" in both


def test_the_json_has_the_changes_when_they_are_asked_for(tmp_path: Path) -> None:
    with asking(tmp_path, served("no change"), scaled("vad 1→2 on cpu (demand): p95", datetime.now(UTC))) as ask:
        assert "changes" not in json.loads(ask("-o", "json").output)
        answer = json.loads(ask("-o", "json", "--changes").output)
    (change,) = answer["changes"]
    assert (change["reason"], change["message"]) == ("Scaled", "vad 1→2 on cpu (demand): p95")
    assert answer["explanation"][-1] == "  no change"


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["speech/captions", "--watch", "-o", "json"], "--watch: not available with -o json"),
        (["speech/captions", "--since", "soon"], "must be a duration such as"),
        (["speech/captions", "--since", "0s"], "must be longer than 0s"),
        (["--from-record", "-", "--changes"], "PIPELINE: is missing"),
        (["--from-record", "-", "speech/captions", "--since", "1h"], "use a file"),
    ],
)
def test_what_cannot_be_combined_is_wrong_usage(arguments: list[str], rule: str) -> None:
    result = CliRunner().invoke(explain, arguments, input="{}")
    assert result.exit_code == 2
    assert rule in result.output


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, *resources: Any, options: tuple[str, ...] = ()) -> Result:
    def versions(*_: object) -> Iterator[dict[str, Any]]:
        for resource in resources:
            if isinstance(resource, BaseException):
                raise resource
            yield resource

    monkeypatch.setattr("controller.commands.explain.versions", versions)
    with asking(folder, served()) as ask:
        return ask("--watch", *options)


def test_a_watch_prints_again_only_what_has_changed_until_the_pipeline_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = served("one")
    later["status"]["memory"]["explanation"]["time"] = "2026-01-01T12:01:00Z"
    result = watched(tmp_path, monkeypatch, served("one"), later, served("two"))
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line for line in lines if line in {"  one", "  two", "-" * 80}] == ["  one", "-" * 80, "  two"]
    assert lines[-1] == "speech/captions: deleted"


def test_a_watch_waits_for_the_first_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undecided = {**served(), "status": {}}
    output = watched(tmp_path, monkeypatch, undecided, served("one")).output
    assert output.index("no decision yet") < output.index("  one")


def test_ctrl_c_ends_a_watch_with_the_status_of_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = watched(tmp_path, monkeypatch, served("one"), KeyboardInterrupt())
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert "deleted" not in result.output


def test_a_watch_of_changes_does_not_repeat_them_as_time_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = watched(tmp_path, monkeypatch, served("one"), served("one"), options=("--since", "1h"))
    assert result.output.count("Changes since") == 1
