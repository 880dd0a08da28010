import threading
import time
from pathlib import Path
from typing import cast

from api_server import Answer, api_server

from controller.kube.gateway import Gateway
from controller.kube.node_pods import NodePods
from profiler.nic.readings import PodName

VAD: Answer = [{"metadata": {"uid": "u1", "namespace": "speech", "name": "vad-1"}}]
NAME = PodName(namespace="speech", name="vad-1")


def test_pods_are_named_by_their_uid(tmp_path: Path) -> None:
    with api_server(tmp_path, {"/api/v1/pods": VAD}) as kubeconfig, Gateway(kubeconfig) as gateway:
        pods = NodePods(gateway, "node-a")
        assert pods.names(frozenset({"u1"})) == {}
        pods.list()
        assert pods.names(frozenset({"u1", "u2"})) == {"u1": NAME}


def test_after_a_refusal_the_names_stay(tmp_path: Path) -> None:
    answers: dict[str, Answer] = {"/api/v1/pods": VAD}
    with api_server(tmp_path, answers) as kubeconfig, Gateway(kubeconfig) as gateway:
        pods = NodePods(gateway, "node-a")
        pods.list()
        answers["/api/v1/pods"] = 403
        pods.list()
        assert pods.names(frozenset({"u1"})) == {"u1": NAME}


def test_a_pod_that_is_not_known_is_asked_for_at_once(tmp_path: Path) -> None:
    answers: dict[str, Answer] = {"/api/v1/pods": []}
    with api_server(tmp_path, answers) as kubeconfig, Gateway(kubeconfig) as gateway:
        with NodePods(gateway, "node-a", refresh_s=600, retry_s=0) as pods:
            answers["/api/v1/pods"] = VAD
            while not pods.names(frozenset({"u1"})):
                pass
        assert not pods._thread.is_alive()


def test_only_the_pods_of_the_node_are_listed(tmp_path: Path) -> None:
    class Recording(Gateway):
        asked: dict[str, str]

        def pages(self, resource, namespace=None, **selectors):  # type: ignore[no-untyped-def]
            self.asked = selectors
            return super().pages(resource, namespace, **selectors)

    with api_server(tmp_path, {"/api/v1/pods": VAD}) as kubeconfig, Recording(kubeconfig) as gateway:
        NodePods(gateway, "node-a").list()
        assert gateway.asked == {"fieldSelector": "spec.nodeName=node-a", "resourceVersion": "0"}


def test_a_pod_that_stays_unknown_is_not_asked_for_again_and_again(tmp_path: Path) -> None:
    with api_server(tmp_path, {"/api/v1/pods": VAD}) as kubeconfig, Gateway(kubeconfig) as gateway:
        pods = NodePods(gateway, "node-a")
        pods.names(frozenset({"gone"}))
        assert pods._unknown.is_set()
        pods.list()
        pods._unknown.clear()
        pods.names(frozenset({"gone", "u1"}))
        assert not pods._unknown.is_set()
        pods.names(frozenset({"gone", "u1", "new"}))
        assert pods._unknown.is_set()


def test_an_api_server_that_does_not_answer_holds_up_neither_start_nor_end() -> None:
    release = threading.Event()

    class Silent:
        def pages(self, *_: object, **__: object) -> list[object]:
            assert release.wait(60)
            return []

    pods = NodePods(cast(Gateway, Silent()), "node-a")
    began_s = time.monotonic()
    with pods:
        assert pods.names(frozenset({"u1"})) == {}
    assert time.monotonic() - began_s < 20
    release.set()
    pods._thread.join(20)
    assert not pods._thread.is_alive()
