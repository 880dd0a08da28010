"""Annotations that pause a pipeline or pin replicas: what they mean, and what is wrong with those that are ignored."""

from typing import Any

import pytest
from corpus import PIPELINE, changed

from controller.core.state.spec import PAUSE_ANNOTATION, PIN_ANNOTATION, Overrides, Pause, Pin
from controller.resources.annotations import InvalidAnnotation, pause_of, with_pin
from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec

STAGES = PIPELINE["spec"]["stages"]
VAD, POOL = STAGES[0]["name"], STAGES[0]["placements"][0]["pool"]
NOON, NOON_S = "2026-11-25T12:00:00Z", 1795608000.0


def overrides(changes: dict[str, Any] | None = None, **annotations: str) -> Overrides:
    names = {"pause": PAUSE_ANNOTATION, "pin": PIN_ANNOTATION}
    data = {names[name]: text for name, text in annotations.items()}
    resource = changed(PIPELINE, {"metadata.annotations": data, **(changes or {})})
    return pipeline_spec(parse(SpeechPipeline, resource)).overrides


def problem(text: str, changes: dict[str, Any] | None = None) -> str:
    found = overrides(changes, pin=text)
    assert not found.pins
    (only,) = found.problems
    return only


def test_a_pipeline_without_annotations_has_no_overrides() -> None:
    assert overrides() == Overrides()


@pytest.mark.parametrize(
    ("text", "pause"),
    [("true", Pause()), (" true ", Pause()), ("false", None), (NOON, Pause(until_s=NOON_S))],
)
def test_a_pause_is_without_end_or_until_a_time(text: str, pause: Pause | None) -> None:
    assert overrides(pause=text) == Overrides(pause=pause)


@pytest.mark.parametrize("text", ["yes", "1h", "", "2026-02-30T12:00:00Z", "2026-11-25"])
def test_a_pause_that_cannot_be_read_is_named_with_the_rule(text: str) -> None:
    found = overrides(pause=text)
    assert found.pause is None
    (only,) = found.problems
    assert only.startswith(f'sluice.dev/pause: {text!r}: must be "true", or the RFC 3339 time')
    with pytest.raises(InvalidAnnotation):
        pause_of(text)


def test_pins_are_entries_with_or_without_an_end() -> None:
    found = overrides(pin=f" {VAD}/{POOL}=2@{NOON}, ")
    assert found == Overrides(pins={(VAD, POOL): Pin(replicas=2, until_s=NOON_S)})
    assert overrides(pin=f"{VAD}/{POOL}=0").pins == {(VAD, POOL): Pin(replicas=0)}


def test_the_valid_parts_count_beside_those_that_are_not() -> None:
    found = overrides(pause="maybe", pin=f"{VAD}/{POOL}=1, nonsense, {VAD}/{POOL}=2")
    assert found.pins == {(VAD, POOL): Pin(replicas=1)}
    assert len(found.problems) == 3
    assert "pinned twice; the first entry counts" in found.problems[2]


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        (f"{VAD}/{POOL}=x", "must be STAGE/POOL=REPLICAS"),
        (f"{VAD}/{POOL}=-1", "must be STAGE/POOL=REPLICAS"),
        (f"{VAD}/{POOL}=1.5", "must be STAGE/POOL=REPLICAS"),
        (f"{VAD}=1", "must be STAGE/POOL=REPLICAS"),
        (f"{VAD}/{POOL}=1@soon", "soon: must be an RFC 3339 time"),
        (f"nobody/{POOL}=1", f"stage nobody: must be one of {VAD}"),
        (f"{VAD}/nowhere=1", f"pool nowhere: must be one of those of stage {VAD}: {POOL}"),
        (f"{VAD}/{POOL}=99999", "99999 replicas: must be at most replicas.max"),
    ],
)
def test_an_entry_that_is_not_valid_is_named_with_the_rule(entry: str, rule: str) -> None:
    text = problem(entry)
    assert text.startswith(f"sluice.dev/pin: {entry!r}: ")
    assert rule in text


def test_a_placement_that_the_word_error_rate_excludes_gets_no_replica_by_a_pin() -> None:
    assert "its word error rate 0.2 is above sla.maxWer, 0.09" in problem("encoder/gpu=1")
    assert overrides(pin="encoder/gpu=0").pins


def test_a_shared_stage_is_pinned_where_it_is_declared() -> None:
    shared = {"spec.stages[2]": {"name": "diarizer", "sharedFrom": {"pipeline": "team", "stage": "diarizer"}}}
    assert "is shared from pipeline team; pin it there" in problem("diarizer/cpu=1", shared)


def test_a_long_value_is_cut_and_few_problems_are_reported() -> None:
    found = overrides(pin=",".join(["x" * 5000] * 50))
    assert len(found.problems) == 5
    assert max(map(len, found.problems)) < 300


def test_an_entry_is_added_replaced_and_removed_without_touching_the_others() -> None:
    text = with_pin(None, "vad", "cpu", "2")
    assert text == "vad/cpu=2"
    text = with_pin(text, "encoder", "gpu", f"3@{NOON}")
    assert text == f"vad/cpu=2, encoder/gpu=3@{NOON}"
    assert with_pin(text, "vad", "cpu", "4") == f"encoder/gpu=3@{NOON}, vad/cpu=4"
    assert with_pin(text, "encoder", "gpu", None) == "vad/cpu=2"
    assert with_pin("vad/cpu=2", "vad", "cpu", None) is None
