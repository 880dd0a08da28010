"""Nodes of the lab's pools, and the share of a node that a replica requests."""

import pytest

from simulations.lab.cluster.nodes import (
    MAX_PER_INSTANCE,
    NODE_MILLICORES,
    PoolNodes,
    node_manifests,
    node_names,
    pod_resources,
)

GPU = PoolNodes(name="gpu", device="GPU", node_selector={"sluice.dev/pool": "gpu"}, instances=3, zones=("a", "b"))
CPU = PoolNodes(name="cpu", device="CPU", node_selector={"sluice.dev/pool": "cpu"}, instances=1)


def millicores(pool: PoolNodes, per_instance: int) -> int:
    return int(pod_resources(pool, per_instance)["cpu"].removesuffix("m"))


def test_exactly_as_many_replicas_fit_on_a_node_as_the_placement_says() -> None:
    for per_instance in range(1, MAX_PER_INSTANCE + 1):
        assert NODE_MILLICORES // millicores(CPU, per_instance) == per_instance


def test_shares_of_different_sizes_that_make_up_an_instance_fit_together() -> None:
    assert millicores(CPU, 2) + millicores(CPU, 3) + millicores(CPU, 6) <= NODE_MILLICORES
    assert millicores(CPU, 7) * 3 + millicores(CPU, 14) * 8 <= NODE_MILLICORES


def test_a_replica_that_has_the_whole_device_asks_for_it() -> None:
    assert pod_resources(GPU, 1) == {"cpu": "48000m", "nvidia.com/gpu": "1"}
    assert pod_resources(GPU, 2) == {"cpu": "24000m"}
    assert pod_resources(CPU, 8) == {"cpu": "6000m"}


@pytest.mark.parametrize("per_instance", [0, MAX_PER_INSTANCE + 1])
def test_a_share_that_cannot_be_kept_exact_is_refused(per_instance: int) -> None:
    with pytest.raises(ValueError, match=f"perInstance: {per_instance}, must be between 1 and 200"):
        pod_resources(CPU, per_instance)


def test_nodes_carry_the_labels_of_their_pool_zones_in_turn_and_their_devices() -> None:
    manifests = node_manifests(GPU)
    assert [node["metadata"]["name"] for node in manifests] == node_names(GPU) == ["gpu-0", "gpu-1", "gpu-2"]
    labels = [node["metadata"]["labels"] for node in manifests]
    assert [label["topology.kubernetes.io/zone"] for label in labels] == ["a", "b", "a"]
    assert {label["sluice.dev/pool"] for label in labels} == {"gpu"}
    assert {label["node.kubernetes.io/instance-type"] for label in labels} == {"lab.gpu"}
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in manifests} == {"1"}
    assert all(node["status"]["conditions"][0]["status"] == "True" for node in manifests)


@pytest.mark.parametrize(
    ("device", "resource"), [("Inferentia", "aws.amazon.com/neuron"), ("Trainium", "aws.amazon.com/neuron")]
)
def test_accelerators_are_advertised_by_the_names_of_their_device_plugins(device: str, resource: str) -> None:
    pool = PoolNodes(name="p", device=device, node_selector={}, instances=1, devices=4)  # type: ignore[arg-type]
    (node,) = node_manifests(pool)
    assert node["status"]["capacity"][resource] == "4"
    assert pod_resources(pool, 2)[resource] == "2"
