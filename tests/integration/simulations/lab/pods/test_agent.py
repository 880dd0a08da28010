"""The node agent on a real control plane: pods become workers, and end without losing an item."""

import asyncio
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kubernetes import client

from optimizer.model import ServiceLaw
from simulations.lab.cluster import nodes
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.cluster.nodes import PoolNodes
from simulations.lab.host.processes import Processes
from simulations.lab.net.wire import ITEM_PORT, METRICS_PORT, NO_SESSION, Client, Status
from simulations.lab.pods.agent import WORKER_ANNOTATION
from simulations.lab.pods.process import IMAGE
from simulations.lab.pods.worker import WorkerSpec

pytestmark = pytest.mark.lab

T = TypeVar("T")
SPEC = WorkerSpec(pipeline="captions", stage="encoder", service=ServiceLaw(fixed_s=0.02), session_slots=4)


class Agent:
    """A running agent and its log."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.processes = Processes(folder)
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "simulations.lab.pods.agent",
            "--kubeconfig",
            control_plane.kubeconfig,
        ]
        self.child = self.processes.start("agent", command)

    def said(self, event: str, **fields: object) -> list[dict[str, Any]]:
        self.child.check()
        lines = [json.loads(line) for line in self.child.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event and fields.items() <= line.items()]


@pytest.fixture
def agent(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Agent]:
    running = Agent(control_plane, tmp_path)
    eventually(lambda: running.said("listening"))
    yield running
    running.processes.stop()


@pytest.fixture
def pool(core: client.CoreV1Api, namespace: str) -> Iterator[PoolNodes]:
    pool = PoolNodes(name=namespace, device="GPU", node_selector={"pool": namespace}, instances=2, zones=("a", "b"))
    nodes.create(core, [pool])
    yield pool
    nodes.remove(core, nodes.node_names(pool))


@pytest.fixture
def core(admin: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(admin)


def eventually(look: Callable[[], T], timeout_s: float = 20) -> T:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.02)
    return found


def pod(name: str, pool: PoolNodes, spec: WorkerSpec | str = SPEC, grace_s: int = 20) -> dict[str, Any]:
    resources = nodes.pod_resources(pool, 2)
    annotation = spec if isinstance(spec, str) else spec.to_json()
    return {
        "metadata": {"name": name, "annotations": {WORKER_ANNOTATION: annotation}},
        "spec": {
            "nodeSelector": dict(pool.node_selector),
            "terminationGracePeriodSeconds": grace_s,
            "containers": [
                {"name": "worker", "image": "lab", "resources": {"requests": resources, "limits": resources}}
            ],
        },
    }


def condition(status: Any, kind: str) -> str | None:
    return next((entry.status for entry in status.conditions or () if entry.type == kind), None)


def ready_address(core: client.CoreV1Api, namespace: str, name: str) -> str:
    def look() -> str:
        status = core.read_namespaced_pod_status(name, namespace).status
        return str(status.pod_ip) if condition(status, "Ready") == "True" else ""

    return eventually(look)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    connection = await Client.connect(address, ITEM_PORT)
    try:
        yield connection
    finally:
        connection.close()
        await asyncio.sleep(0)


def gone(core: client.CoreV1Api, namespace: str, name: str) -> bool:
    try:
        core.read_namespaced_pod(name, namespace)
    except client.ApiException as error:
        return bool(error.status == 404)
    return False


def test_a_bound_pod_becomes_a_worker_that_serves_items_and_metrics(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    core.create_namespaced_pod(namespace, pod("one", pool))
    address = ready_address(core, namespace, "one")

    async def talk() -> Status:
        async with connected(address) as connection:
            return (await connection.send(1, NO_SESSION)).status

    assert address.startswith("127.")
    assert asyncio.run(talk()) is Status.OK
    with urllib.request.urlopen(f"http://{address}:{METRICS_PORT}/metrics") as answer:
        assert b'speech_stage_items_total{pipeline="captions",stage="encoder"} 1\n' in answer.read()
    status = core.read_namespaced_pod_status("one", namespace).status
    assert (status.phase, status.pod_ips[0].ip, status.container_statuses[0].ready) == ("Running", address, True)
    assert condition(status, "PodScheduled") == "True"


def test_a_pod_is_not_ready_before_its_start_up_time_and_can_leave_meanwhile(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    slow = WorkerSpec(pipeline="captions", stage="encoder", service=ServiceLaw(fixed_s=0.02), startup_s=3600)
    core.create_namespaced_pod(namespace, pod("slow", pool, slow))
    status = eventually(
        lambda: (seen := core.read_namespaced_pod_status("slow", namespace).status).phase == "Running" and seen
    )
    assert condition(status, "Ready") == "False"
    core.delete_namespaced_pod("slow", namespace)
    eventually(lambda: gone(core, namespace, "slow"))


def test_a_deleted_pod_finishes_what_it_has_accepted_before_it_goes(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    spec = WorkerSpec(pipeline="captions", stage="encoder", service=ServiceLaw(fixed_s=0.05))
    core.create_namespaced_pod(namespace, pod("leaving", pool, spec))
    address = ready_address(core, namespace, "leaving")

    async def talk() -> list[Status]:
        async with connected(address) as connection:
            answers = [connection.send(item, NO_SESSION) for item in range(40)]
            await answers[0]
            await asyncio.to_thread(core.delete_namespaced_pod, "leaving", namespace)
            return [answer.status for answer in await asyncio.gather(*answers)]

    assert asyncio.run(talk()) == [Status.OK] * 40
    eventually(lambda: gone(core, namespace, "leaving"))
    stopped = eventually(lambda: agent.said("stopped", pod="leaving", namespace=namespace))
    assert [(line["served"], line["lost"], line["sessions_cut"]) for line in stopped] == [(40, 0, 0)]


def test_sessions_left_at_the_end_of_the_grace_period_are_cut_and_counted(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    core.create_namespaced_pod(namespace, pod("sticky", pool, grace_s=1))
    address = ready_address(core, namespace, "sticky")

    async def talk() -> Status:
        async with connected(address) as connection:
            return (await connection.open_session(1)).status

    assert asyncio.run(talk()) is Status.OK
    core.delete_namespaced_pod("sticky", namespace)
    stopped = eventually(lambda: agent.said("stopped", pod="sticky", namespace=namespace))
    assert [line["sessions_cut"] for line in stopped] == [1]
    eventually(lambda: gone(core, namespace, "sticky"))


def test_no_more_replicas_fit_on_a_node_than_the_pool_says(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    for index in range(5):
        core.create_namespaced_pod(namespace, pod(f"p{index}", pool))

    def pending() -> list[str]:
        pods = core.list_namespaced_pod(namespace).items
        unscheduled = [entry.metadata.name for entry in pods if condition(entry.status, "PodScheduled") == "False"]
        ready = [entry for entry in pods if condition(entry.status, "Ready") == "True"]
        return unscheduled if len(ready) == 4 else []

    assert len(eventually(pending)) == 1
    addresses = [entry.status.pod_ip for entry in core.list_namespaced_pod(namespace).items if entry.status.pod_ip]
    assert len(set(addresses)) == 4


def test_pods_of_a_node_that_vanishes_vanish_with_it(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    core.create_namespaced_pod(namespace, pod("lost", pool))
    address = ready_address(core, namespace, "lost")

    async def serve_for_ever(connection: Client) -> None:
        while True:
            await connection.send(1, 1)

    async def talk() -> None:
        async with connected(address) as connection:
            assert (await connection.open_session(1)).status is Status.OK
            await asyncio.to_thread(nodes.remove, core, nodes.node_names(pool))
            with pytest.raises(ConnectionError):
                await serve_for_ever(connection)

    asyncio.run(talk())
    eventually(lambda: gone(core, namespace, "lost"))


def test_a_stage_can_be_slowed_while_it_runs(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    core.create_namespaced_pod(namespace, pod("slowed", pool))
    address = ready_address(core, namespace, "slowed")
    control = f"{agent.said('listening')[0]['control']}/slow-factors/{namespace}/captions/encoder"
    with urllib.request.urlopen(urllib.request.Request(control, b"1e6", method="PUT")) as answer:
        assert answer.status == 204
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(control, b"-1", method="PUT"))

    async def talk() -> None:
        async with connected(address) as connection:
            waiting = connection.send(1, NO_SESSION)
            assert (await connection.open_session(1)).status is Status.OK
            assert not waiting.done()

    asyncio.run(talk())
    core.delete_namespaced_pod("slowed", namespace, grace_period_seconds=0)
    stopped = eventually(lambda: agent.said("stopped", pod="slowed", namespace=namespace))
    assert [line["lost"] for line in stopped] == [1]


def test_a_busy_worker_slows_those_on_its_node(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    lm = WorkerSpec(pipeline="captions", stage="lm", service=ServiceLaw(fixed_s=3600.0))
    one, two = nodes.node_names(pool)
    for name, spec, node in (("busy", lm, one), ("slowed", SPEC, one), ("apart", SPEC, two)):
        manifest = pod(name, pool, spec)
        manifest["spec"]["nodeName"] = node
        core.create_namespaced_pod(namespace, manifest)
    busy, slowed, apart = (ready_address(core, namespace, name) for name in ("busy", "slowed", "apart"))
    control = f"{agent.said('listening')[0]['control']}/interference"
    with urllib.request.urlopen(urllib.request.Request(control, b'{"encoder,lm": 1e6}', method="PUT")) as answer:
        assert answer.status == 204

    async def talk() -> None:
        async with connected(slowed) as own, connected(busy) as neighbour, connected(apart) as other:
            assert (await own.send(1, NO_SESSION)).status is Status.OK  # its neighbour is idle
            neighbour.send(1, NO_SESSION)
            assert (await neighbour.open_session(1)).status is Status.OK  # after the item before it has begun
            waiting = own.send(2, NO_SESSION)
            for number in range(10):  # as long as ten items take elsewhere
                assert (await other.send(number, NO_SESSION)).status is Status.OK
            assert not waiting.done()

    asyncio.run(talk())


SERVES = f"""
import json, os, signal, socket, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (print(json.dumps({{"served": 7}}), flush=True), sys.exit(0)))
listening = socket.create_server((os.environ["POD_IP"], {ITEM_PORT}))
while not Path(os.environ["END"]).exists():
    listening.accept()[0].close()
Path(os.environ["END"]).unlink()
sys.exit("out of memory")
"""


def test_a_container_is_a_process_that_is_started_again_when_it_ends(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes, tmp_path: Path
) -> None:
    manifest = pod("process", pool)
    del manifest["metadata"]["annotations"]
    (container,) = manifest["spec"]["containers"]
    end = tmp_path / "end"
    container |= {"image": IMAGE, "command": ["python", "-c", SERVES], "env": [{"name": "END", "value": str(end)}]}
    core.create_namespaced_pod(namespace, manifest)
    address = ready_address(core, namespace, "process")
    end.touch()
    with socket.create_connection((address, ITEM_PORT)):
        pass
    (crashed,) = eventually(lambda: agent.said("crashed", pod="process", namespace=namespace))
    assert crashed["reason"] == "exit code 1: out of memory"
    eventually(lambda: len(agent.said("started", pod="process", namespace=namespace)) == 2)
    assert ready_address(core, namespace, "process") == address
    core.delete_namespaced_pod("process", namespace)
    (stopped,) = eventually(lambda: agent.said("stopped", pod="process", namespace=namespace))
    assert (stopped["served"], stopped["lost"]) == (7, 0)
    eventually(lambda: gone(core, namespace, "process"))


def test_a_container_without_a_command_says_so(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    manifest = pod("idle", pool)
    del manifest["metadata"]["annotations"]
    manifest["spec"]["containers"][0]["image"] = IMAGE
    core.create_namespaced_pod(namespace, manifest)
    status = eventually(
        lambda: (seen := core.read_namespaced_pod_status("idle", namespace).status).container_statuses and seen
    )
    assert status.container_statuses[0].state.waiting.message == "command: missing; the lab runs it as a process"


def test_a_pod_whose_specification_is_wrong_says_so_and_can_be_deleted(
    agent: Agent, core: client.CoreV1Api, namespace: str, pool: PoolNodes
) -> None:
    core.create_namespaced_pod(namespace, pod("wrong", pool, '{"pipeline":"p","stage":"s","service":{"fixed_s":-1}}'))
    status = eventually(
        lambda: (seen := core.read_namespaced_pod_status("wrong", namespace).status).container_statuses and seen
    )
    waiting = status.container_statuses[0].state.waiting
    assert waiting.message == "fixed_s: -1: must be finite and ≥ 0"
    core.delete_namespaced_pod("wrong", namespace)
    eventually(lambda: gone(core, namespace, "wrong"))


def test_an_agent_that_starts_again_takes_over_the_pods_with_new_workers(
    control_plane: ControlPlane, core: client.CoreV1Api, namespace: str, pool: PoolNodes, tmp_path: Path
) -> None:
    first = Agent(control_plane, tmp_path / "first")
    core.create_namespaced_pod(namespace, pod("kept", pool))
    before = ready_address(core, namespace, "kept")
    first.processes.stop()
    second = Agent(control_plane, tmp_path / "second")
    try:
        eventually(lambda: second.said("started", pod="kept", namespace=namespace))
        after = eventually(lambda: (seen := ready_address(core, namespace, "kept")) != before and seen)
        status = core.read_namespaced_pod_status("kept", namespace).status
        assert [entry.ip for entry in status.pod_ips] == [after]
    finally:
        second.processes.stop()
