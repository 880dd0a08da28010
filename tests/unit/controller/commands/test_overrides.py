"""`sluice pause`, `resume` and `pin`: what they write, what they say, and what they refuse."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from api_server import Answer, api_server
from click.testing import CliRunner, Result
from corpus import PIPELINE, POOL, changed

from controller.commands.overrides import pause, pin, resume
from controller.core.state.spec import PAUSE_ANNOTATION, PIN_ANNOTATION

Json = dict[str, Any]
PATH = "/apis/sluice.dev/v1alpha1/namespaces/speech/speechpipelines/captions"
POOLS = "/apis/sluice.dev/v1alpha1/computepools"
KEY = "speech/captions"
VAD = ["--stage", "vad", "--pool", "cpu"]
UNTIL = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def said(result: Result) -> str:
    """Return the output with its line breaks as spaces: lines are wrapped at 80 columns."""
    return " ".join(result.output.split())


class Cluster:
    """A pipeline and its pool on a server that keeps what is patched; each of `conflicts` refuses a write first."""

    def __init__(self, changes: Json | None = None, *, annotations: dict[str, str] | None = None) -> None:
        metadata = {"name": "captions", "namespace": "speech", "uid": "u", "resourceVersion": "7", "generation": 1}
        metadata |= {"annotations": {"team": "asr", **(annotations or {})}}
        self.pipeline = {**changed(PIPELINE, {"spec.mode": "Auto", **(changes or {})}), "metadata": metadata}
        price = {"metadata.name": "cpu", "spec.price": {"perHour": "2"}}
        self.answers: dict[str, Answer] = {PATH: self.pipeline, f"{POOLS}/cpu": changed(POOL, price)}
        self.conflicts: list[Callable[[], None]] = []
        self.patches: list[Json] = []

    @property
    def annotations(self) -> dict[str, str]:
        found = dict(self.pipeline["metadata"]["annotations"])
        assert found.pop("team") == "asr"
        return found

    def patch(self, path: str, body: Json) -> Answer:
        assert path == PATH
        self.patches.append(body)
        metadata = self.pipeline["metadata"]
        if self.conflicts:
            self.conflicts.pop()()
            metadata["resourceVersion"] += "0"
        if (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) != ("u", metadata["resourceVersion"]):
            return 409
        for name, value in body["metadata"]["annotations"].items():
            metadata["annotations"].pop(name, None)
            if value is not None:
                metadata["annotations"][name] = value
        return self.pipeline


@contextmanager
def running(cluster: Cluster, folder: Path) -> Iterator[Callable[..., Result]]:
    with api_server(folder, cluster.answers, patch=cluster.patch) as kubeconfig:

        def run(command: click.Command, *arguments: str) -> Result:
            return CliRunner().invoke(command, [KEY, *arguments, "--kubeconfig", str(kubeconfig)])

        yield run


def test_a_pause_is_written_with_its_end_and_says_how_to_end_it(tmp_path: Path) -> None:
    cluster = Cluster()
    with running(cluster, tmp_path) as run:
        result = run(pause, "--for", "1h")
        until = cluster.annotations[PAUSE_ANNOTATION]
        assert re.fullmatch(UNTIL, until)
        assert f"speech/captions: paused until {until}; replicas stay" in said(result)
        assert "end it with: sluice resume speech/captions" in said(result)
        assert "until it is resumed" in said(run(pause))
    assert cluster.annotations == {PAUSE_ANNOTATION: "true"}


def test_a_pin_is_written_beside_the_others_and_says_what_it_costs(tmp_path: Path) -> None:
    cluster = Cluster(annotations={PIN_ANNOTATION: "vad/cpu=1, encoder/gpu=0"})
    with running(cluster, tmp_path) as run:
        result = run(pin, *VAD, "--replicas", "2", "--for", "90m")
    assert re.fullmatch(rf"encoder/gpu=0, vad/cpu=2@{UNTIL}", cluster.annotations[PIN_ANNOTATION])
    assert re.search(rf"stage vad on cpu is pinned to 2 replicas until {UNTIL} 2 replicas cost \$\d", said(result))
    assert "end it with: sluice resume speech/captions --stage vad --pool cpu" in said(result)


def test_a_pin_above_the_budget_says_that_fewer_will_run(tmp_path: Path) -> None:
    with running(Cluster({"spec.budget.perHour": "0.1"}), tmp_path) as run:
        assert "above budget.perHour of $0.10/h: fewer will run" in said(run(pin, *VAD, "--replicas", "2"))


@pytest.mark.parametrize(
    ("changes", "node_pool", "cost"),
    [
        ({"spec.budget": {"perHour": "20", "basis": "Replicas"}}, False, "5 replicas cost $2.50/h end it with"),
        (
            {"spec.budget": {"perHour": "20", "basis": "Instances"}},
            False,
            "5 replicas cost $4.00/h; at most, because 2 whole instances may have replicas of other stages too end",
        ),
        ({"spec.budget": {"perHour": "20"}}, True, "5 replicas cost $4.00/h; at most"),
        ({"spec.budget": {"perHour": "3", "basis": "Instances"}}, False, "above budget.perHour of $3.00/h: fewer"),
    ],
)
def test_the_cost_of_a_pin_counts_whole_instances_where_the_budget_does(
    changes: Json, node_pool: bool, cost: str, tmp_path: Path
) -> None:
    cluster = Cluster({"spec.stages[0].placements[0].perInstance": 4, **changes})
    if node_pool:  # of another placement
        elastic = {"metadata.name": "gpu", "spec.capacity": {"nodePool": "gpu"}}
        cluster.answers[f"{POOLS}/gpu"] = changed(POOL, elastic)
    with running(cluster, tmp_path) as run:
        result = run(pin, *VAD, "--replicas", "5")
    assert cost in said(result), said(result)


def test_a_price_that_cannot_be_read_does_not_stop_a_pin(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.answers[f"{POOLS}/cpu"] = 403
    with running(cluster, tmp_path) as run:
        assert "its cost is not known: " in said(run(pin, *VAD, "--replicas", "1"))
        del cluster.answers[f"{POOLS}/cpu"]
        assert "ComputePool cpu does not exist" in said(run(pin, *VAD, "--replicas", "1"))
    assert cluster.annotations == {PIN_ANNOTATION: "vad/cpu=1"}


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--stage", "asr", "--pool", "cpu", "--replicas", "1"], "stage asr: must be one of vad, encoder"),
        (["--stage", "vad", "--pool", "tpu", "--replicas", "1"], "pool tpu: must be one of those of stage vad: cpu"),
        ([*VAD, "--replicas", "99999"], "must be at most replicas.max of stage vad on cpu"),
        (["--stage", "encoder", "--pool", "gpu", "--replicas", "1"], "above sla.maxWer"),
    ],
)
def test_a_pin_that_the_spec_does_not_allow_is_not_written(arguments: list[str], rule: str, tmp_path: Path) -> None:
    cluster = Cluster()
    with running(cluster, tmp_path) as run:
        result = run(pin, *arguments)
    assert (result.exit_code, cluster.patches) == (1, [])
    assert rule in said(result)


@pytest.mark.parametrize(
    ("command", "arguments", "rule"),
    [
        (pin, [*VAD, "--replicas", "-1"], "x>=0"),
        (pin, [*VAD, "--replicas", "1.5"], "not a valid integer"),
        (pin, ["--stage", "vad", "--replicas", "1"], "Missing option '--pool'"),
        (pause, ["--for", "tomorrow"], "must be a duration such as"),
        (pause, ["--for", "0s"], "must be longer than 0s and at most 720h"),
        (pause, ["--for", "721h"], "must be longer than 0s and at most 720h"),
        (resume, ["--stage", "vad"], "use both, or neither"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_read(
    command: click.Command, arguments: list[str], rule: str
) -> None:
    result = CliRunner().invoke(command, [KEY, *arguments])
    assert result.exit_code == 2
    assert rule in said(result)


def test_a_change_by_another_meanwhile_is_kept(tmp_path: Path) -> None:
    cluster = Cluster()
    annotations = cluster.pipeline["metadata"]["annotations"]
    cluster.conflicts = [lambda: annotations.update({PIN_ANNOTATION: "encoder/gpu=0"})]
    with running(cluster, tmp_path) as run:
        assert run(pin, *VAD, "--replicas", "1").exit_code == 0
    assert cluster.annotations == {PIN_ANNOTATION: "encoder/gpu=0, vad/cpu=1"}


def test_a_pipeline_that_others_change_all_the_time_is_given_up(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.conflicts = [lambda: None] * 20
    with running(cluster, tmp_path) as run:
        result = run(pause)
    assert (result.exit_code, cluster.annotations) == (1, {})
    assert "nothing is written, try again" in said(result)


def test_resume_removes_the_pause_and_all_pins_and_nothing_else(tmp_path: Path) -> None:
    cluster = Cluster(annotations={PAUSE_ANNOTATION: "true", PIN_ANNOTATION: "vad/cpu=1"})
    with running(cluster, tmp_path) as run:
        assert "pause and pins removed" in said(run(resume))
        assert cluster.annotations == {}
        result = run(resume)
    assert (result.exit_code, len(cluster.patches)) == (0, 1)
    assert "has no pause and no pin" in said(result)


def test_resume_of_one_pin_leaves_the_others_and_the_pause(tmp_path: Path) -> None:
    cluster = Cluster(annotations={PAUSE_ANNOTATION: "true", PIN_ANNOTATION: "vad/cpu=1, encoder/gpu=0"})
    with running(cluster, tmp_path) as run:
        assert run(resume, *VAD).exit_code == 0
        assert cluster.annotations == {PAUSE_ANNOTATION: "true", PIN_ANNOTATION: "encoder/gpu=0"}
        result = run(resume, *VAD)
    assert result.exit_code == 1
    assert "stage vad on pool cpu is not pinned; pins: encoder/gpu=0" in said(result)


def test_resume_does_not_change_a_mode_that_pauses_and_says_how(tmp_path: Path) -> None:
    cluster = Cluster({"spec.mode": "Paused"}, annotations={PAUSE_ANNOTATION: "true"})
    with running(cluster, tmp_path) as run:
        result = run(resume)
    assert (result.exit_code, cluster.annotations) == (1, {})
    assert "spec.mode is Paused. Set it to Auto in its manifest" in said(result)
    assert "kubectl -n speech patch speechpipeline captions --type merge" in said(result)
    assert all("spec" not in patch for patch in cluster.patches)


@pytest.mark.parametrize(
    ("changes", "annotations", "words"),
    [
        ({"spec.mode": "Recommend"}, {}, "the pin is planned, not applied"),
        ({"spec.mode": "Paused"}, {}, "is paused: the pin is applied when it is resumed"),
        ({"spec.mode": "Auto"}, {PAUSE_ANNOTATION: "true"}, "is paused: the pin is applied when it is resumed"),
    ],
)
def test_a_pin_that_has_no_effect_yet_says_why(
    changes: Json, annotations: dict[str, str], words: str, tmp_path: Path
) -> None:
    with running(Cluster(changes, annotations=annotations), tmp_path) as run:
        assert words in said(run(pin, *VAD, "--replicas", "1"))
    ended = {PAUSE_ANNOTATION: "2020-01-01T00:00:00Z"}
    with running(Cluster({"spec.mode": "Auto"}, annotations=ended), tmp_path) as run:
        assert "paused" not in said(run(pin, *VAD, "--replicas", "1"))


def test_a_stage_without_any_replica_is_warned_of(tmp_path: Path) -> None:
    with running(Cluster(), tmp_path) as run:
        assert "all placements of stage vad are pinned to 0: nothing is served" in said(
            run(pin, *VAD, "--replicas", "0")
        )


@pytest.mark.parametrize("command", [pause, resume])
def test_a_pipeline_that_does_not_exist_is_named(command: click.Command, tmp_path: Path) -> None:
    with api_server(tmp_path, {}) as kubeconfig:
        result = CliRunner().invoke(command, ["captions", "-n", "speech", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    assert "SpeechPipeline 'captions' does not exist in namespace 'speech'" in said(result)
