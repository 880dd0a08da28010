"""The node agent and the events it gets; the integration tests run it on a real API server."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from optimizer.model import ServiceLaw
from simulations.lab.net.kube_api import ObjectEvent
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT, NO_SESSION, Client, Status
from simulations.lab.pods.agent import GIVES_BACK_ANNOTATION, NODE_READY, WORKER_ANNOTATION, Agent
from simulations.lab.pods.worker import WorkerSpec

POD: dict[str, Any] = {
    "metadata": {
        "uid": "1",
        "name": "leaving",
        "namespace": "speech",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {
            WORKER_ANNOTATION: WorkerSpec(
                pipeline="captions", stage="encoder", service=ServiceLaw(fixed_s=0.05)
            ).to_json(),
        },
    },
    "spec": {"nodeName": "node", "containers": [{"name": "worker", "image": "lab"}]},
}


class LateWords:
    """Sends one more event for a pod that the agent has deleted, as an API server may."""

    def __init__(self) -> None:
        self.deletions = 0
        self._deleted = asyncio.Event()
        self.told = asyncio.Event()

    async def watch(self, path: str, params: Mapping[str, str] | None = None) -> AsyncGenerator[ObjectEvent, None]:
        if path.endswith("nodes"):
            return
        yield ObjectEvent("ADDED", POD)
        await self._deleted.wait()
        await _others_go_on()  # the task that deleted the pod ends
        yield ObjectEvent("MODIFIED", POD)
        await _others_go_on()  # a second worker would end as fast as the first
        yield ObjectEvent("DELETED", POD)
        self.told.set()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return {}

    async def delete(self, path: str, options: Mapping[str, Any]) -> None:
        self.deletions += 1
        self._deleted.set()


async def _others_go_on() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_pod_that_is_told_of_after_it_has_ended_does_not_live_again(capsys: pytest.CaptureFixture[str]) -> None:
    async def live() -> LateWords:
        api, timers = LateWords(), Timers()
        agent = asyncio.create_task(Agent(api, timers).run())  # type: ignore[arg-type]
        await api.told.wait()
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        timers.close()
        return api

    assert asyncio.run(live()).deletions == 1
    assert capsys.readouterr().out.count('"stopped"') == 1


class Selected:
    """Notes which pods are watched."""

    def __init__(self) -> None:
        self.pods = ""
        self.asked = asyncio.Event()

    async def watch(self, path: str, params: Mapping[str, str] | None = None) -> AsyncGenerator[ObjectEvent, None]:
        if path.endswith("pods"):
            self.pods = (params or {})["fieldSelector"]
            self.asked.set()
        nothing: tuple[ObjectEvent, ...] = ()
        for event in nothing:
            yield event


def test_pods_on_the_node_of_another_agent_are_left_to_it() -> None:
    async def live() -> str:
        api, timers = Selected(), Timers()
        agent = asyncio.create_task(Agent(api, timers, other_nodes=["host-1"]).run())  # type: ignore[arg-type]
        await api.asked.wait()
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        timers.close()
        return api.pods

    assert asyncio.run(live()) == "spec.nodeName!=,spec.nodeName!=host-1"


class NewNodes:
    """Has nodes, and notes the statuses that are reported for them."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self._nodes = nodes
        self.reported: dict[str, dict[str, Any]] = {}
        self.told = asyncio.Event()

    async def watch(self, path: str, params: Mapping[str, str] | None = None) -> AsyncGenerator[ObjectEvent, None]:
        if path.endswith("nodes"):
            for node in self._nodes:
                yield ObjectEvent("ADDED", node)
            self.told.set()

    async def patch(self, path: str, body: Mapping[str, Any]) -> None:
        self.reported[path] = body["status"]


def a_node(name: str, *conditions: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "48"}, "conditions": list(conditions)}}


def test_only_a_node_that_nobody_has_reported_is_reported_as_ready_with_its_capacity() -> None:
    async def live() -> dict[str, dict[str, Any]]:
        timers = Timers()
        api = NewNodes(
            a_node("launched", {"type": "DiskPressure", "status": "False"}),
            a_node("not-ready", {"type": "Ready", "status": "False"}),
            a_node("host-1"),
        )
        agent = asyncio.create_task(Agent(api, timers, other_nodes=["host-1"]).run())  # type: ignore[arg-type]
        await api.told.wait()
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        timers.close()
        return api.reported

    assert asyncio.run(live()) == {
        "/api/v1/nodes/launched/status": {"conditions": [dict(NODE_READY)], "capacity": {"cpu": "48"}}
    }


class Leaving:
    """Has a pod that is deleted once its worker, ready at `address`, has an item in service."""

    def __init__(self, annotations: dict[str, str]) -> None:
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.deleted = asyncio.Event()
        self._manifest = {**POD, "metadata": {**POD["metadata"]}}
        self._manifest["metadata"]["annotations"] = {**POD["metadata"]["annotations"], **annotations}

    async def watch(self, path: str, params: Mapping[str, str] | None = None) -> AsyncGenerator[ObjectEvent, None]:
        if path.endswith("pods"):
            staying = {key: value for key, value in self._manifest["metadata"].items() if key != "deletionTimestamp"}
            yield ObjectEvent("ADDED", {**self._manifest, "metadata": staying})
            await self.deleted.wait()
            yield ObjectEvent("MODIFIED", self._manifest)

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return {}

    async def patch(self, path: str, body: Mapping[str, Any]) -> None:
        if body["status"]["containerStatuses"][0]["ready"]:
            self.address.set_result(body["status"]["podIP"])

    async def delete(self, path: str, options: Mapping[str, Any]) -> None: ...


@pytest.mark.parametrize(("annotations", "status"), [({GIVES_BACK_ANNOTATION: ""}, Status.DRAINING), ({}, Status.OK)])
def test_an_item_in_service_when_its_pod_is_deleted_is_given_back_where_the_pod_says_so(
    annotations: dict[str, str], status: Status
) -> None:
    async def live() -> Status:
        api, timers = Leaving(annotations), Timers()
        agent = asyncio.create_task(Agent(api, timers).run())  # type: ignore[arg-type]
        client = await Client.connect(await api.address, ITEM_PORT)
        answer = client.send(1, NO_SESSION)
        api.deleted.set()
        found = (await answer).status
        client.close()
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        timers.close()
        return found

    assert asyncio.run(live()) is status
