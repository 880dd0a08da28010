"""A speech application on real Ray Serve under the operator: `make test-ray-serve`, in namespaces of its own.

One Ray cluster for all tests: each leaves the application with one replica for recognition. At most 12 streams.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from controller.ray.applications import RUNNING, ServeRefusal, ServeState
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import ensure
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.live.load import heard
from simulations.speech.ray_serve.head import DASHBOARD, RayHead
from simulations.speech.ray_serve.race import (
    APPLICATION,
    AUTOSCALERS,
    MANIFESTS,
    NAMESPACE,
    operated,
    serve_config,
    speak,
    streams_of,
)

ASR = "FasterWhisperASR"
_SOON_S = 60.0


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    with RayHead(tmp_path_factory.mktemp("ray"), cpus=8) as running:
        running.deploy(serve_config(None))
        yield running


def deployment(head: RayHead) -> ServeState:
    return head.api.read(DASHBOARD).deployment(APPLICATION, ASR)


def running(head: RayHead) -> int:
    return sum(each.state in RUNNING for each in deployment(head).replicas)


def wait_until(holds: Callable[[], bool], within_s: float = _SOON_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_replicas_are_set_started_and_stopped(head: RayHead) -> None:
    head.api.scale(DASHBOARD, APPLICATION, ASR, 3)
    wait_until(lambda: running(head) == 3)
    assert deployment(head).target == 3
    head.api.scale(DASHBOARD, APPLICATION, ASR, 1)
    wait_until(lambda: len(deployment(head).replicas) == 1)


def test_replicas_without_room_have_no_node(head: RayHead) -> None:
    head.api.scale(DASHBOARD, APPLICATION, ASR, 9)
    wait_until(lambda: running(head) >= 5)
    wait_until(lambda: sum(each.address is None for each in deployment(head).replicas) >= 2)
    head.api.scale(DASHBOARD, APPLICATION, ASR, 1)
    wait_until(lambda: len(deployment(head).replicas) == 1)


def test_a_redeployment_sets_the_replicas_of_its_configuration(head: RayHead) -> None:
    head.api.scale(DASHBOARD, APPLICATION, ASR, 2)
    wait_until(lambda: running(head) == 2)
    config = serve_config(None)
    (own,) = (each for each in config["applications"][0]["deployments"] if each["name"] == ASR)
    own["max_ongoing_requests"] += 1
    head.deploy(config)
    wait_until(lambda: deployment(head).target == 1)
    head.deploy(serve_config(None))


def test_what_is_not_there_is_refused(head: RayHead) -> None:
    with pytest.raises(ServeRefusal) as refusal:
        head.api.scale(DASHBOARD, APPLICATION, "Nothing", 1)
    assert refusal.value.status == 404


def test_the_operator_scales_the_application_and_users_hear_their_words(head: RayHead, tmp_path: Path) -> None:
    wait_until(lambda: running(head) == 1)
    spoken = list(conversations([Request(seed=number, duration_s=30, snr_db=60) for number in range(1, 4)]))
    speeches = streams_of(((0.0, 4), (30.0, 12), (75.0, 12)), 1, spoken)
    with operated(tmp_path, ensure(print), head, MANIFESTS.read_text()) as cluster:
        results = asyncio.run(speak(speeches))
        assert deployment(head).target > 1
        conditions = {each["type"]: each for each in status(cluster)["conditions"]}
        assert conditions["TargetsFound"]["status"] == "True"
        assert conditions["ScalesAccepted"]["status"] == "True"
    found = heard(results, 1.0)
    assert found.streams_lost == 0
    assert found.total.rate is not None
    assert found.total.rate < 0.2
    head.api.scale(DASHBOARD, APPLICATION, ASR, 1)
    wait_until(lambda: len(deployment(head).replicas) == 1)


def test_rays_own_autoscaler_is_a_conflict_and_a_missing_right_is_named(head: RayHead, tmp_path: Path) -> None:
    head.deploy(serve_config(AUTOSCALERS["ray, default"]))
    manifests = MANIFESTS.read_text()
    with operated(tmp_path, ensure(print), head, manifests) as cluster:

        def conflicts() -> bool:
            found = {each["type"]: each for each in status(cluster).get("conditions", [])}.get("Conflict")
            return found is not None and found["status"] == "True" and "autoscaling_config" in found["message"]

        wait_until(conflicts)
    with pytest.raises(ServeRefusal) as refusal:
        head.api.scale(DASHBOARD, APPLICATION, ASR, 2)
    assert refusal.value.status == 412


def status(cluster: LabCluster) -> dict[str, Any]:
    with cluster.admin() as api:
        found = client.CustomObjectsApi(api).get_namespaced_custom_object(
            "sluice.dev", "v1alpha1", NAMESPACE, "speechpipelines", "captions"
        )
    answer: dict[str, Any] = found.get("status") or {}
    return answer
