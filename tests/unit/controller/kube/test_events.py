from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from controller.kube.events import EventRecorder
from controller.kube.gateway import EVENTS, Forbidden, Gateway, Hung, KubeError, Resource, Silent


@dataclass
class EventLog:
    """Takes Events as the gateway does."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    error: KubeError | None = None

    def create(self, resource: Resource, namespace: str, event: dict[str, Any]) -> None:
        assert resource is EVENTS
        if self.error:
            raise self.error
        self.events.append((namespace, event))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def a_recorder() -> tuple[EventRecorder, EventLog, Clock]:
    log, clock = EventLog(), Clock()
    return EventRecorder(cast(Gateway, log), clock), log, clock


def an_object(name: str = "captions", **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "SpeechPipeline",
        "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
    }


def test_the_same_words_are_said_once_in_two_minutes() -> None:
    recorder, log, clock = a_recorder()
    for now_s in (0, 60, 119):
        clock.now_s = now_s
        recorder.record(an_object(), "Warning", "MetricsMissing", "no demand")
    assert len(log.events) == 1
    clock.now_s = 121
    recorder.record(an_object(), "Warning", "MetricsMissing", "no demand")
    assert len(log.events) == 2


def test_an_object_that_flaps_for_an_hour_gets_a_bounded_number_of_events() -> None:
    recorder, log, clock = a_recorder()
    for second in range(0, 3600, 15):
        clock.now_s = second
        recorder.record(an_object(), "Warning", "Flapping", f"for the {second}th time")
    assert len(log.events) == 25 + 3600 // 300 - 1


def test_one_object_that_talks_does_not_silence_another() -> None:
    recorder, log, _ = a_recorder()
    for index in range(100):
        recorder.record(an_object(), "Normal", "Scaled", str(index))
    recorder.record(an_object("batch"), "Normal", "Scaled", "1")
    assert log.events[-1][1]["involvedObject"]["name"] == "batch"


def test_an_event_is_where_its_object_is_and_that_of_a_cluster_scoped_one_in_default() -> None:
    recorder, log, _ = a_recorder()
    recorder.record(an_object(namespace="speech"), "Normal", "Scaled", "x" * 5000)
    recorder.record(an_object("gpu"), "Warning", "CannotDeliver", "no nodes")
    assert [namespace for namespace, _ in log.events] == ["speech", "default"]
    assert "namespace" not in log.events[1][1]["involvedObject"]
    assert len(log.events[0][1]["message"]) == 250


def test_an_event_that_cannot_be_written_is_no_failure_of_the_cycle() -> None:
    recorder, log, _ = a_recorder()
    log.error = Forbidden("no")
    recorder.record(an_object(), "Normal", "Scaled", "1")
    log.error = None
    recorder.record(an_object("batch"), "Normal", "Scaled", "2")
    assert [event["message"] for _, event in log.events] == ["2"]


def test_what_befalls_thousands_at_once_is_told_of_some_and_of_others_later() -> None:
    recorder, log, clock = a_recorder()
    for minute in range(60):
        clock.now_s = 60.0 * minute
        for number in range(2000):
            recorder.record(an_object(f"p{number}"), "Warning", "MetricsMissing", "no demand")
    assert len([event for _, event in log.events if event["firstTimestamp"].startswith("1970-01-01T00:00:0")]) >= 500
    assert len(log.events) <= 500 + 100 * 60


@pytest.mark.parametrize("error", [Silent("timed out"), Hung("timed out")])
def test_a_namespace_whose_webhook_hangs_delays_a_cycle_once_a_minute(error: KubeError) -> None:
    recorder, log, clock = a_recorder()
    log.error = error
    for reason in ("Scaled", "NotReady"):
        recorder.record(an_object(namespace="speech"), "Normal", reason, "")
    log.error = None
    recorder.record(an_object(namespace="speech"), "Normal", "Ready", "")
    recorder.record(an_object("other", namespace="archive"), "Normal", "Ready", "")
    assert [namespace for namespace, _ in log.events] == ["archive"]
    clock.now_s = 61.0
    recorder.record(an_object(namespace="speech"), "Normal", "Ready", "")
    assert [namespace for namespace, _ in log.events] == ["archive", "speech"]
