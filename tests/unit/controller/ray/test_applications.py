"""The answers were recorded from Ray 2.60: six replicas wanted of which three have room, then one wanted."""

from pathlib import Path

import pytest

from controller.ray.applications import ServeFailure, ServeRefusal, read_applications

RECORDED = Path(__file__).parent / "recorded"


def test_replicas_count_by_their_state_whatever_the_status_says() -> None:
    found = read_applications((RECORDED / "no-room.json").read_bytes()).deployment("cap", "ASR")
    assert found.target == 6
    assert [(each.state, each.address) for each in found.replicas] == [("RUNNING", "127.77.7.7")] * 3 + [
        ("STARTING", None)
    ] * 3
    assert not found.autoscaled
    assert found.grace_s == 5.0


def test_replicas_that_stop_are_still_there() -> None:
    found = read_applications((RECORDED / "stopping.json").read_bytes()).deployment("cap", "ASR")
    assert found.target == 1
    assert [each.state for each in found.replicas].count("STOPPING") == 5


def test_what_is_not_deployed_is_named_with_what_is() -> None:
    found = read_applications((RECORDED / "no-room.json").read_bytes())
    with pytest.raises(ServeRefusal, match="application captions: not deployed; there are: cap") as refusal:
        found.deployment("captions", "ASR")
    assert refusal.value.status == 404
    with pytest.raises(ServeRefusal, match="application cap has no deployment VAD; it has: ASR, Front"):
        found.deployment("cap", "VAD")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"<html>", "not an answer of Ray Serve: the answer: Invalid JSON"),
        (b"{}", "not an answer of Ray Serve: applications: Field required"),
        (
            b'{"applications": {"a": {"deployments": {"d": {"target_num_replicas": -1}}}}}',
            "applications.a.deployments.d.target_num_replicas: Input should be greater than or equal to 0",
        ),
    ],
)
def test_what_is_no_answer_is_named_by_its_field(text: bytes, words: str) -> None:
    with pytest.raises(ServeFailure) as failure:
        read_applications(text)
    assert words in str(failure.value)


def test_an_autoscaler_of_ray_is_seen() -> None:
    text = b"""{"applications": {"a": {"deployments": {"d": {"target_num_replicas": 2,
      "deployment_config": {"autoscaling_config": {"min_replicas": 1}}}}}}}"""
    assert read_applications(text).deployment("a", "d").autoscaled
