"""Counts of replicas and spend from the lists of the API server."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import a_placement, a_spec, a_stage
from kubernetes import client, config

from optimizer.model import PipelineKey, PoolName, StageName
from simulations.lab.session.observer import Observer
from simulations.results.spending import Replicas

CAPTIONS = PipelineKey("speech/captions")
SPEC = a_spec(a_stage("asr", a_placement("cpu", per_instance=4), a_placement("gpu")))
ON_CPU = (CAPTIONS, StageName("asr"), PoolName("cpu"))
ON_GPU = (CAPTIONS, StageName("asr"), PoolName("gpu"))


def pod(app: str, *, node: str | None = "n", ready: bool = True, leaving: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"labels": {"app": app}}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {
        "metadata": metadata,
        "spec": {} if node is None else {"nodeName": node},
        "status": {} if node is None else {"conditions": conditions},
    }


class World:
    """The objects of the API server; the next list of pods raises `failure`."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.replicas = {"asr-cpu": 0, "asr-gpu": 0, "unrelated": 9}
        self.prices = {"cpu": "2.0", "gpu": "3"}
        self.failure: Exception | None = None
        self.status: dict[str, Any] = {}
        self.asked = threading.Semaphore(0)

    def list_namespaced_pod(self, namespace: str, **_: object) -> SimpleNamespace:
        assert namespace == "speech"
        self.asked.release()
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(data=json.dumps({"items": self.pods}))

    def list_namespaced_deployment(self, namespace: str, **_: object) -> SimpleNamespace:
        assert namespace == "speech"
        items = [{"metadata": {"name": name}, "spec": {"replicas": n}} for name, n in self.replicas.items()]
        return SimpleNamespace(data=json.dumps({"items": items}))

    def list_cluster_custom_object(self, _: str, __: str, plural: str, **___: object) -> dict[str, Any]:
        items = {
            "computepools": [
                {"metadata": {"name": name}, "spec": {"price": {"perHour": price}}}
                for name, price in self.prices.items()
            ],
            "speechpipelines": [
                {
                    "metadata": {"namespace": "speech", "name": "captions"},
                    "spec": {"budget": {"perHour": "12.5"}},
                    "status": self.status,
                }
            ],
        }
        return {"items": items[plural]}

    def close(self) -> None:
        pass


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(config, "new_client_from_config", lambda _: world)
    for api in ("CoreV1Api", "AppsV1Api", "CustomObjectsApi"):
        monkeypatch.setattr(client, api, lambda _: world)
    return world


@pytest.fixture
def observer(world: World) -> Iterator[Observer]:
    with Observer(Path("kubeconfig"), (SPEC,)) as observer:
        yield observer


def test_replicas_are_counted_from_pods_by_what_they_are_good_for(world: World, observer: Observer) -> None:
    world.replicas["asr-cpu"] = 3
    world.pods = [
        pod("asr-cpu"),
        pod("asr-cpu", ready=False),
        pod("asr-cpu", node=None),
        pod("asr-cpu", leaving=True),
        pod("unrelated"),
    ]
    seen = observer.observe()

    assert seen.placements == {
        ON_CPU: Replicas(desired=3, existing=4, terminating=1, ready=1, scheduled=3),
        ON_GPU: Replicas(desired=0, existing=0, terminating=0, ready=0, scheduled=0),
    }
    assert seen.budget_per_hour == {CAPTIONS: 12.5}
    assert seen.price_per_hour == {"cpu": 2.0, "gpu": 3.0}


@pytest.mark.parametrize(
    ("desired", "pods", "spend", "cost"),
    [
        (2, [pod("asr-cpu")], 1.0, 0.5),
        (1, [pod("asr-cpu"), pod("asr-cpu", leaving=True)], 1.0, 1.0),
        (2, [pod("asr-cpu"), pod("asr-cpu", node=None)], 1.0, 0.5),
        (0, [], 0.0, 0.0),
    ],
    ids=["desired but not there yet", "draining", "unscheduled", "nothing"],
)
def test_spend_is_of_what_is_desired_or_exists_and_cost_of_what_has_a_node(
    world: World, observer: Observer, desired: int, pods: list[dict[str, Any]], spend: float, cost: float
) -> None:
    world.replicas["asr-cpu"] = desired
    world.pods = pods
    seen = observer.observe()
    assert (seen.spend_per_hour[CAPTIONS], seen.cost_per_hour) == (spend, cost)


def test_a_change_of_price_is_seen(world: World, observer: Observer) -> None:
    world.replicas["asr-gpu"] = 2
    before = observer.observe()
    world.prices["gpu"] = "4.5"
    after = observer.observe()
    assert (before.spend_per_hour[CAPTIONS], after.spend_per_hour[CAPTIONS]) == (6.0, 9.0)


def wait_until(holds: Callable[[], bool], world: World) -> None:
    """Poll as often as the observer."""
    while not holds():
        assert world.asked.acquire(timeout=5)


def test_from_the_beginning_on_it_observes_by_itself_in_time_of_the_run(world: World, observer: Observer) -> None:
    observer.begin(observer._start_s)
    wait_until(lambda: len(observer.observations) >= 3, world)

    times_s = [seen.t_s for seen in tuple(observer.observations)]
    assert times_s == sorted(times_s)
    assert times_s[0] >= 0
    observer.check()


def test_an_observer_that_could_not_go_on_says_why(world: World, observer: Observer) -> None:
    observer.begin(0.0)
    world.failure = client.ApiException(status=500, reason="etcd has gone")
    observer._thread.join(5)
    with pytest.raises(client.ApiException, match="etcd has gone"):
        observer.check()


def test_one_that_never_began_can_be_closed(world: World) -> None:
    with Observer(Path("kubeconfig"), (SPEC,)) as observer:
        assert observer.observe().placements.keys() == {ON_CPU, ON_GPU}
    assert world.pods == []


@pytest.mark.parametrize(
    ("status", "seen"),
    [({}, set()), ({"backlog": {"deadline": "2026-01-01T00:00:00Z"}}, set()), ({"backlog": {"left": "0"}}, {CAPTIONS})],
)
def test_a_backlog_is_seen_once_its_status_says_how_many_items_are_left(
    world: World, observer: Observer, status: dict[str, Any], seen: set[PipelineKey]
) -> None:
    world.status = status
    assert observer.backlogs() == seen
