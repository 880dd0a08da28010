from made_clusters import a_daemon, a_gpu_node, a_node, a_workload

from controller.adoption.fit import replicas_per_node
from controller.adoption.inventory import Unread, pod_template


def test_the_scarcest_resource_decides() -> None:
    found = replicas_per_node(
        pod_template(a_workload("asr", requests={"cpu": "500m", "nvidia.com/gpu": "1"}))["spec"], a_gpu_node("g"), ()
    )
    assert found.count == 1
    assert found.because == "a replica requests nvidia.com/gpu 1; a node has 1"


def test_daemon_sets_take_their_share_first() -> None:
    spec = pod_template(a_workload("vad", requests={"cpu": "2"}))["spec"]
    assert replicas_per_node(spec, a_node("c"), ()).count == 4
    found = replicas_per_node(spec, a_node("c"), (a_daemon("c"),))
    assert found.count == 3
    assert "a node has 7.5 after DaemonSets, of 8" in found.because


def test_pods_of_other_workloads_do_not_count() -> None:
    other = {**a_daemon("c", "6")}
    other["metadata"] = {"name": "web", "ownerReferences": [{"kind": "ReplicaSet"}]}
    spec = pod_template(a_workload("vad", requests={"cpu": "2"}))["spec"]
    assert replicas_per_node(spec, a_node("c"), (other,)).count == 4


def test_a_resource_that_no_node_has_fits_nowhere() -> None:
    spec = pod_template(a_workload("asr", requests={"hugepages-2Mi": "512Mi"}))["spec"]
    found = replicas_per_node(spec, a_node("c"), ())
    assert found.count == 0
    assert found.because == "a replica requests hugepages-2Mi 0.5 GiB; a node has 0 GiB"


def test_rounding_does_not_lose_a_replica() -> None:
    spec = pod_template(a_workload("vad", requests={"cpu": "100m"}))["spec"]
    assert replicas_per_node(spec, a_node("c", allocatable={"cpu": "300m"}), ()).count == 3


def test_without_requests_it_cannot_be_told() -> None:
    assert replicas_per_node(pod_template(a_workload("vad", requests={}))["spec"], a_node("c"), ()).count is None


def test_anti_affinity_on_the_host_allows_one() -> None:
    rule = {"topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    assert replicas_per_node(pod_template(a_workload("vad", affinity=affinity))["spec"], a_node("c"), ()).count == 1


def test_unread_daemon_sets_are_mentioned() -> None:
    spec = pod_template(a_workload("vad"))["spec"]
    assert "DaemonSets not read: 403" in replicas_per_node(spec, a_node("c"), Unread(reason="403")).because
