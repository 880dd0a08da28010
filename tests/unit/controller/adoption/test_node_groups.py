from made_clusters import a_gpu_node, a_node, a_node_pool, a_workload, ready_pods

from controller.adoption.inventory import pod_template
from controller.adoption.node_groups import capacity_bound, group_of, node_groups


def test_nodes_of_one_type_are_a_group_by_their_type() -> None:
    (group,) = node_groups([a_node("c1"), a_node("c2")], ())
    assert group.name == "c7i-2xlarge"
    assert group.selector == {"node.kubernetes.io/instance-type": "c7i.2xlarge"}
    assert group.device == "CPU"


def test_a_node_pool_with_several_types_becomes_a_pool_per_type() -> None:
    label = {"karpenter.sh/nodepool": "gpu"}
    nodes = [a_gpu_node("g1", **label), a_node("g2", kind="g5.xlarge", labels=label)]
    groups = node_groups(nodes, [a_node_pool("gpu")])
    assert [group.name for group in groups] == ["gpu-g5-xlarge", "gpu-g6-xlarge"]
    assert groups[1].selector == {"karpenter.sh/nodepool": "gpu", "node.kubernetes.io/instance-type": "g6.xlarge"}
    assert [group.device for group in groups] == ["GPU", "GPU"]


def test_the_selectors_of_groups_never_match_each_others_nodes() -> None:
    nodes = [
        a_node("a", labels={"eks.amazonaws.com/nodegroup": "web"}),
        a_node("b", kind="m7i.large", labels={"eks.amazonaws.com/nodegroup": "web"}),
        a_node("c", labels={"eks.amazonaws.com/nodegroup": "speech"}),
        a_gpu_node("d", **{"sluice.dev/pool": "gpu"}),
    ]
    groups = node_groups(nodes, ())
    for node in nodes:
        labels = node["metadata"]["labels"].items()
        assert len([group for group in groups if group.selector.items() <= labels]) == 1


def test_accelerators_are_told_from_what_nodes_offer_or_their_type() -> None:
    neuron = a_node("i", kind="inf2.xlarge", allocatable={"aws.amazon.com/neuron": "1"})
    trainium = a_node("t", kind="trn1.2xlarge", allocatable={"aws.amazon.com/neuron": "1"})
    metal = a_node("m", kind=None, labels={"sluice.dev/pool": "rack"}, allocatable={"nvidia.com/gpu": "4"})
    devices = {group.name: group.device for group in node_groups([neuron, trainium, metal], ())}
    assert devices == {"inf2-xlarge": "Inferentia", "trn1-2xlarge": "Trainium", "rack": "GPU"}


def test_nodes_without_any_label_are_to_be_labelled() -> None:
    (group,) = node_groups([a_node("metal-1", kind=None)], ())
    assert group.selector == {"sluice.dev/pool": "todo"}
    assert group.because.startswith("TODO: ")
    assert "kubectl label node metal-1 sluice.dev/pool=todo" in group.because


def test_groups_whose_names_give_the_same_label_are_both_kept() -> None:
    labels = ({"sluice.dev/pool": "a.b"}, {"sluice.dev/pool": "a_b"})
    groups = node_groups([a_node(f"n{index}", labels=own) for index, own in enumerate(labels)], ())
    assert [group.name for group in groups] == ["a-b", "a-b-2"]


def test_limits_of_a_node_pool_become_instances() -> None:
    nodes = [a_gpu_node("g1", **{"karpenter.sh/nodepool": "gpu"})]
    (group,) = node_groups(nodes, [a_node_pool("gpu", {"nvidia.com/gpu": "8", "cpu": "100"})])
    limit = capacity_bound(group)
    assert limit.capacity == {"nodePool": "gpu", "instances": 8}
    assert limit.because == "NodePool gpu has the limit nvidia.com/gpu 8; a node has 1"


def test_without_limits_the_bound_is_stated_or_the_ready_nodes() -> None:
    (group,) = node_groups([a_gpu_node("g1", **{"karpenter.sh/nodepool": "gpu"})], [a_node_pool("gpu")])
    assert capacity_bound(group).capacity == {"nodePool": "gpu", "instances": 1}
    assert "TODO: NodePool gpu has no limits" in capacity_bound(group).because
    (group,) = node_groups([], [a_node_pool("gpu", {"cpu": "100"})])
    assert capacity_bound(group).capacity == {"nodePool": "gpu"}
    (group,) = node_groups([a_node("c1")], ())
    assert capacity_bound(group).capacity == {"readyNodes": True}


def test_a_workload_belongs_where_most_of_its_pods_run() -> None:
    groups = node_groups([a_node("c1"), a_node("c2"), a_gpu_node("g1")], ())
    vad = a_workload("vad")
    group, because = group_of(pod_template(vad)["spec"], ready_pods(vad, "c1", "c2", "g1"), groups)
    assert group is not None
    assert group.name == "c7i-2xlarge"
    assert "pods on c7i-2xlarge: 2 of 3, and 1 on g6-xlarge: add a nodeSelector" in because


def test_a_workload_at_zero_belongs_where_its_node_selector_points() -> None:
    groups = node_groups([a_node("c1")], [a_node_pool("inf2", types=["inf2.xlarge"])])
    asr = a_workload("asr", nodeSelector={"karpenter.sh/nodepool": "inf2"})
    group, _ = group_of(pod_template(asr)["spec"], (), groups)
    assert group is not None
    assert (group.name, group.device, group.instance_type) == ("inf2", "Inferentia", "inf2.xlarge")


def test_without_pods_and_selector_the_pool_is_not_known() -> None:
    assert group_of(pod_template(a_workload("asr"))["spec"], (), node_groups([a_node("c1")], ()))[0] is None
