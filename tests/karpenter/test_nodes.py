"""A pod that is pending gets a node from Karpenter, and is a worker there until the node goes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from karpenter_lab import NODE_POOL_LABEL, KarpenterOnLab
from kubernetes import client
from waiting import until

from optimizer.model import ServiceLaw
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.cluster.nodes import PoolNodes, pod_resources
from simulations.lab.host.binaries import Binaries, Karpenter
from simulations.lab.net.wire import ITEM_PORT, NO_SESSION, Client, Status
from simulations.lab.pods.agent import WORKER_ANNOTATION
from simulations.lab.pods.worker import WorkerSpec

pytestmark = pytest.mark.lab

GPU = PoolNodes(name="gpu", device="GPU", node_selector={NODE_POOL_LABEL: "gpu"}, instances=0)
LAUNCHED_S, CONSOLIDATED_S = 60.0, 90.0
POD: dict[str, Any] = {
    "metadata": {
        "name": "encoder",
        "annotations": {
            WORKER_ANNOTATION: WorkerSpec(
                pipeline="captions", stage="encoder", service=ServiceLaw(fixed_s=0.02)
            ).to_json()
        },
    },
    "spec": {
        "nodeSelector": dict(GPU.node_selector),
        "terminationGracePeriodSeconds": 2,
        "containers": [
            {
                "name": "worker",
                "image": "lab",
                "resources": {"requests": pod_resources(GPU, 1), "limits": pod_resources(GPU, 1)},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def karpenter(
    programs: tuple[Binaries, Karpenter], node_pool: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KarpenterOnLab]:
    binaries, program = programs
    folder = tmp_path_factory.mktemp("karpenter")
    with (
        LabCluster(folder / "lab", binaries) as cluster,
        KarpenterOnLab(folder / "karpenter", program, cluster.kubeconfig) as karpenter,
    ):
        karpenter.add_node_class("kwok", registration_delay_s=1)
        karpenter.add_node_pool(node_pool, node_class="kwok")
        yield karpenter


def test_a_pending_pod_gets_a_node_and_works_there_until_karpenter_removes_the_empty_node(
    karpenter: KarpenterOnLab,
) -> None:
    core = client.CoreV1Api(karpenter.api)
    assert karpenter.nodes() == []
    core.create_namespaced_pod("default", POD)
    until(lambda: is_ready(core.read_namespaced_pod("encoder", "default")), within_s=LAUNCHED_S)
    pod = core.read_namespaced_pod("encoder", "default")
    (node,) = karpenter.nodes()
    assert pod.spec.node_name == node.metadata.name
    assert node.status.capacity == node.status.allocatable, "which the agent reports"
    assert {"cpu": "48", "nvidia.com/gpu": "1"}.items() <= node.status.allocatable.items()
    assert asyncio.run(answered(pod.status.pod_ip)) is Status.OK

    core.delete_namespaced_pod("encoder", "default")
    until(lambda: karpenter.nodes() == [], within_s=CONSOLIDATED_S)
    assert karpenter.node_claims() == []


def is_ready(pod: client.V1Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())


async def answered(address: str) -> Status:
    connection = await Client.connect(address, ITEM_PORT)
    try:
        return (await connection.send(1, NO_SESSION)).status
    finally:
        connection.close()
        await asyncio.sleep(0)
