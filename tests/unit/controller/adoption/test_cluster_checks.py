from dataclasses import replace
from typing import Any

import pytest
import yaml
from made_clusters import (
    NAMESPACE,
    a_daemon,
    a_gpu_node,
    a_node,
    a_node_pool,
    a_workload,
    an_hpa,
    an_inventory,
    ready_pods,
)

from controller.adoption.check import Check
from controller.adoption.cluster_checks import (
    FoundTarget,
    check_crd,
    check_pipeline,
    check_pools,
    find_targets,
)
from controller.adoption.inventory import Inventory, Json, Unread, Workspace
from controller.core.state.spec import PipelineSpec, PoolSpec
from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.schema import CRDS
from controller.resources.translate import pipeline_spec, pool_spec

POOL = """
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec:
  device: CPU
  nodeSelector: {node.kubernetes.io/instance-type: c7i.2xlarge}
  price: {perHour: "1"}
  capacity: {readyNodes: true}
"""
PIPELINE = """
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  mode: Auto
  demand: {unit: Requests, query: up}
  sla: {latency: 400ms}
  budget: {perHour: "9"}
  scaling: {scaleDown: {drain: 30s}}
  stages:
    - name: vad
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: vad}
          replicas: {max: 6}
          perInstance: 8
"""


def the_pool(text: str = POOL) -> PoolSpec:
    return pool_spec(parse(ComputePool, yaml.safe_load(text)))


def the_pipeline(text: str = PIPELINE) -> PipelineSpec:
    return pipeline_spec(parse(SpeechPipeline, yaml.safe_load(text)))


def a_cluster(vad: Json | None = None, *nodes: Json, **more: Any) -> Inventory:
    vad = vad or a_workload("vad")
    return an_inventory([vad], ready_pods(vad, "c1"), nodes or (a_node("c1"),), **({"pods_of_node": {"c1": ()}} | more))


def checked(inventory: Inventory, spec: PipelineSpec | None = None) -> dict[str, Check]:
    spec = spec or the_pipeline()
    pool = the_pool()
    found = check_pipeline(spec, {pool.name: pool}, inventory, find_targets([spec], inventory))
    return {check.name: check for check in found}


def test_a_cluster_in_order_has_nothing_to_fix() -> None:
    inventory = a_cluster()
    found = [*checked(inventory).values(), *check_pools([the_pool()], inventory)]
    assert {check.name for check in found} == {"target", "pool", "perInstance", "drain", "autoscaler", "nodes"}
    assert [check for check in found if check.ok is not True] == []


def test_a_target_that_does_not_exist_names_those_that_do() -> None:
    found = checked(a_cluster(a_workload("vad-2")))["target"]
    assert found.ok is False
    assert found.message == "Deployment/vad does not exist in namespace speech; Deployments there: vad-2"


def test_an_auto_scaling_group_is_not_taken_for_a_missing_object() -> None:
    group = "{apiVersion: sluice.dev/v1alpha1, kind: AutoScalingGroup, name: vad}"
    spec = the_pipeline(PIPELINE.replace("{apiVersion: apps/v1, kind: Deployment, name: vad}", group))
    found = checked(a_cluster(), spec)
    assert found["target"].ok is None
    assert "AutoScalingGroup/vad is at AWS, which is not asked here" in found["target"].message
    assert "pool" not in found


def test_pods_on_other_nodes_are_told_with_the_node_selector_to_set() -> None:
    vad = a_workload("vad")
    inventory = an_inventory([vad], ready_pods(vad, "c1", "g1"), [a_node("c1"), a_gpu_node("g1")])
    found = checked(inventory)["pool"]
    assert found.ok is False
    assert "1 of 2 pods run on other nodes (vad-1)" in found.message
    assert "nodeSelector {node.kubernetes.io/instance-type: c7i.2xlarge}" in found.message


def test_without_pods_on_nodes_the_pool_is_unknown() -> None:
    assert checked(an_inventory([a_workload("vad")], (), [a_node("c1")]))["pool"].ok is None


def test_a_pool_that_is_nowhere_is_to_be_added() -> None:
    spec = the_pipeline()
    inventory = a_cluster()
    found = {each.name: each for each in check_pipeline(spec, {}, inventory, find_targets([spec], inventory))}
    assert found["pool"].ok is False
    assert "ComputePool cpu is neither in the files nor in the cluster" in found["pool"].message


def test_daemon_sets_make_per_instance_too_large() -> None:
    found = checked(a_cluster(pods_of_node={"c1": (a_daemon("c1"),)}))["perInstance"]
    assert found.ok is False
    assert found.message.startswith("is 8, but 7 fit: a replica requests cpu 1; a node has 7.5 after DaemonSets, of 8.")
    assert "Set perInstance: 7" in found.message


def test_room_for_more_replicas_is_no_mistake() -> None:
    found = checked(a_cluster(a_workload("vad", requests={"cpu": "500m"})))["perInstance"]
    assert found.ok is True
    assert "even for 16" in found.message


def test_without_requests_or_nodes_per_instance_is_unknown() -> None:
    assert checked(a_cluster(a_workload("vad", requests={})))["perInstance"].ok is None
    assert checked(a_cluster(None, a_node("c1", ready=False)))["perInstance"].ok is None


def test_a_drain_beyond_the_grace_period_is_told_with_the_number_to_set() -> None:
    found = checked(a_cluster(a_workload("vad", terminationGracePeriodSeconds=20)))["drain"]
    assert found.ok is False
    assert "set terminationGracePeriodSeconds to at least 30 in vad" in found.message


def test_another_autoscaler_is_a_mistake_in_mode_auto_only() -> None:
    inventory = a_cluster(autoscalers=[an_hpa("vad", 1, 3)])
    found = checked(inventory)["autoscaler"]
    assert found.ok is False
    assert "delete HorizontalPodAutoscaler/vad" in found.message
    recommending = checked(inventory, the_pipeline(PIPELINE.replace("Auto", "Recommend")))["autoscaler"]
    assert recommending.ok is True
    assert "delete it before mode Auto" in recommending.message


@pytest.mark.parametrize(
    ("hard", "used", "ok"),
    [
        ({"requests.cpu": "6"}, {"requests.cpu": "1"}, True),
        ({"requests.cpu": "5"}, {"requests.cpu": "1"}, False),
        ({"pods": "5"}, {"pods": "1"}, False),
        ({"services": "5"}, {"services": "5"}, True),
    ],
)
def test_quotas_must_leave_room_for_the_maximum(hard: dict[str, str], used: dict[str, str], ok: bool) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {}, "status": {"hard": hard, "used": used}}
    assert checked(a_cluster(quotas=[quota]))["quota"].ok is ok


def test_a_limit_range_that_refuses_pods_is_told() -> None:
    def limits(**item: Any) -> Json:
        return {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", **item}]}}

    found = checked(a_cluster(limit_ranges=[limits(max={"cpu": "800m"})]))["limits"]
    assert found.ok is False
    assert "container server has cpu 1, above max 800m" in found.message
    assert checked(a_cluster(limit_ranges=[limits(min={"cpu": "2"})]))["limits"].ok is False
    assert checked(a_cluster(limit_ranges=[limits(max={"cpu": "4"})]))["limits"].ok is True


def test_what_was_not_read_is_unknown_not_ok() -> None:
    vad, gone = a_workload("vad"), Unread(reason="403 forbidden")
    workspace = Workspace(
        namespace=NAMESPACE,
        deployments=(vad,),
        pods=tuple(ready_pods(vad, "c1")),
        autoscalers=gone,
        quotas=gone,
        limit_ranges=gone,
    )
    inventory = Inventory(nodes=gone, workspaces={NAMESPACE: workspace})
    found = checked(inventory)
    assert {name: check.ok for name, check in found.items() if name not in {"target", "drain"}} == {
        **dict.fromkeys(("pool", "perInstance", "autoscaler", "quota", "limits"), None)
    }
    assert all("403 forbidden" in found[name].message for name in ("pool", "autoscaler", "quota", "limits"))
    (nodes,) = check_pools([the_pool()], inventory)
    assert nodes.ok is None
    lost = Workspace(namespace=NAMESPACE, deployments=gone)
    assert checked(Inventory(workspaces={NAMESPACE: lost}))["target"].ok is None


def test_a_target_of_another_kind_is_checked_as_far_as_it_is_known() -> None:
    spec = the_pipeline(PIPELINE.replace("apps/v1, kind: Deployment", "x.dev/v1, kind: Engine"))
    (placement,) = spec.placements().values()
    targets = {(NAMESPACE, placement.target): FoundTarget(pods=tuple(ready_pods(a_workload("vad"), "c1")))}
    found = {each.name: each.ok for each in check_pipeline(spec, {the_pool().name: the_pool()}, a_cluster(), targets)}
    assert found == {"target": True, "pool": True, "autoscaler": True}


def test_nodes_that_are_not_ready_and_pools_without_nodes() -> None:
    pool = the_pool()
    (down,) = check_pools([pool], a_cluster(None, a_node("c1"), a_node("c2", ready=False)))
    assert (down.ok, down.message) == (False, "1 of 2 nodes are ready; see kubectl describe node c2")
    (none,) = check_pools([pool], a_cluster(None, a_gpu_node("g1")))
    assert none.ok is False
    elastic = the_pool(POOL.replace("readyNodes: true", "instances: 4"))
    (on_demand,) = check_pools([elastic], a_cluster(None, a_gpu_node("g1")))
    assert on_demand.ok is None


@pytest.mark.parametrize(
    ("limits", "bound", "ok", "words"),
    [
        ({"cpu": "64"}, "nodePool: cpu", True, "NodePool cpu allows 8 instances"),
        ({}, "nodePool: cpu", False, "NodePool cpu has no limits that convert to instances: set capacity.instances"),
        ({}, "nodePool: cpu, instances: 4", True, "no limits that convert to instances; capacity.instances is 4"),
        ({"cpu": "64"}, "nodePool: c7", False, "there is no NodePool c7; NodePools there: cpu"),
    ],
)
def test_the_node_pool_of_an_elastic_pool_says_how_many_instances_there_may_be(
    limits: dict[str, str], bound: str, ok: bool, words: str
) -> None:
    pool = the_pool(POOL.replace("readyNodes: true", bound))
    node = a_node("c1", labels={"karpenter.sh/nodepool": "cpu"})
    cluster = replace(a_cluster(None, node), node_pools=(a_node_pool("cpu", limits),))
    (found,) = [check for check in check_pools([pool], cluster) if check.name == "nodePool"]
    assert (found.ok, words in found.message) == (ok, True), found.message


def test_a_node_pool_that_cannot_be_read_or_has_no_node_yet_is_neither_right_nor_wrong() -> None:
    pool = the_pool(POOL.replace("readyNodes: true", "nodePool: cpu"))
    unread = replace(a_cluster(), node_pools=Unread(reason="403"))
    empty = replace(a_cluster(None, a_gpu_node("g1")), node_pools=(a_node_pool("cpu", {"cpu": "64"}),))
    for cluster, words in ((unread, "NodePools not read: 403"), (empty, "has no node yet")):
        (found,) = [check for check in check_pools([pool], cluster) if check.name == "nodePool"]
        assert (found.ok, words in found.message) == (None, True), found.message


def test_nodes_without_the_device_of_their_pool_are_told() -> None:
    pool = the_pool(POOL.replace("device: CPU", "device: GPU"))
    checks = check_pools([pool], a_cluster(None, a_node("c1")))
    assert [(check.name, check.ok) for check in checks] == [("nodes", True), ("device", False)]
    assert "check its device plugin" in checks[1].message


def test_pools_that_match_the_same_node_are_told() -> None:
    other = the_pool(
        POOL.replace("name: cpu", "name: more").replace("node.kubernetes.io/instance-type: c7i.2xlarge", "a: b")
    )
    checks = check_pools([the_pool(), other], a_cluster(None, a_node("c1", labels={"a": "b"})))
    overlap = next(check for check in checks if check.name == "overlap")
    assert overlap.message == "pools cpu, more all match node c1: make their nodeSelectors exclusive"


def own_crd() -> Json:
    return CRDS[0].manifest()


def test_the_crd_of_this_version_is_in_order() -> None:
    assert check_crd("x", own_crd(), own_crd()).ok is True


def test_a_crd_that_is_missing_old_or_not_served_is_told() -> None:
    assert check_crd("x", None, own_crd()).ok is False
    assert check_crd("x", Unread(reason="403"), own_crd()).ok is None
    old = own_crd()
    old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop("mode")
    found = check_crd("x", old, own_crd())
    assert found.ok is False
    assert "lacks spec.mode" in found.message
    gone = own_crd()
    gone["spec"]["versions"][0]["name"] = "v1"
    assert check_crd("x", gone, own_crd()).message.startswith("serves v1, not v1alpha1")


def test_a_newer_crd_is_in_order_and_mentioned() -> None:
    newer = own_crd()
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["later"] = {}
    found = check_crd("x", newer, own_crd())
    assert found.ok is True
    assert "also has spec.later" in found.message
