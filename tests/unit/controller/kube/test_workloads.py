from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.state.snapshot import PendingReplica, ServingReplica
from controller.core.state.spec import Target
from controller.kube.gateway import Scale
from controller.kube.matching import kept_pod
from controller.kube.workloads import (
    NodeNames,
    PoolNodes,
    instance_types,
    is_leaving,
    metrics_endpoints,
    owned_pods,
    placed_pods,
    ready_nodes,
    reporting_pods,
    shared_nodes,
    sharing_nodes,
    target_state,
    zones,
)
from optimizer.model import PoolName
from profiler.samples import PodEndpoint

UP = NodeNames(up=frozenset({"n"}), leaving=frozenset())
SCALE = Scale(replicas=4, selector="app=vad", resource_version="17")


SINCE_S = 1767225600.0  # 2026-01-01T00:00:00Z, as of all conditions


def a_pod(name: str, *, phase: str = "Running", terminating: bool = False, **conditions: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return {
        "metadata": metadata,
        "status": {
            "phase": phase,
            "conditions": [
                {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "why"}
                for kind, status in conditions.items()
            ],
        },
    }


@pytest.mark.parametrize(("reason", "killed"), [("OOMKilled", 1_767_226_500.0), ("Error", None), ("Completed", None)])
def test_a_pod_that_ran_out_of_memory_says_when(reason: str, killed: float | None) -> None:
    pod = a_pod("a", Ready="True")
    ended = {
        "reason": reason,
        "exitCode": 137,
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:15:00Z",
    }
    pod["status"]["containerStatuses"] = [
        {
            "restartCount": 1,
            "state": {"running": {"startedAt": ended["finishedAt"]}},
            "lastState": {"terminated": ended},
        },
        {"restartCount": 0, "state": {"running": {}}},
    ]
    (serving,) = target_state(SCALE, [kept_pod(pod).packed.document()], UP).serving
    assert serving.out_of_memory_s == killed
    pod["status"]["conditions"][0]["status"] = "False"
    pod["spec"] = {"nodeName": "n"}
    (starting,) = target_state(SCALE, [kept_pod(pod).packed.document()], UP).starting
    assert starting.out_of_memory_s == killed


def a_node(ready: str = "True", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "n", "labels": {key.replace("_", "/"): value for key, value in labels.items()}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def test_a_terminating_pod_neither_exists_nor_serves_but_is_counted_for_what_it_costs() -> None:
    state = target_state(SCALE, [a_pod("a", Ready="True"), a_pod("b", terminating=True, Ready="True")], UP)
    assert (state.desired, state.existing, state.ready, state.terminating) == (4, 1, 1, 1)


def test_a_finished_pod_is_not_there_any_more() -> None:
    state = target_state(SCALE, [a_pod("a", phase="Failed"), a_pod("b", phase="Succeeded", terminating=True)], UP)
    assert (state.existing, state.terminating) == (0, 0)


def test_a_pod_without_a_node_is_pending_since_the_scheduler_said_so() -> None:
    pods = [a_pod("b", phase="Pending", PodScheduled="False"), on("n", a_pod("a", PodScheduled="True"))]
    state = target_state(SCALE, pods, UP)
    assert state.pending == (PendingReplica(name="b", since_s=1767225600.0, reason="why"),)
    assert state.ready == 0


def test_a_pod_that_no_scheduler_looks_at_is_pending_since_its_creation() -> None:
    """Its scheduler is absent or down, so that it has no condition at all."""
    metadata = {"name": "new", "creationTimestamp": "2026-01-01T00:00:00Z"}
    for pod in ({"metadata": metadata}, {"metadata": metadata, "status": {"phase": "Pending", "conditions": None}}):
        state = target_state(SCALE, [pod], UP)
        assert (state.existing, state.ready, len(state.pending)) == (1, 0, 1)
        assert (state.pending[0].name, state.pending[0].since_s) == ("new", 1767225600.0)
        assert "schedulerName" in state.pending[0].reason


def test_a_pod_with_scheduling_gates_is_pending() -> None:
    pod = a_pod("gated", phase="Pending", PodScheduled="False")
    pod["status"]["conditions"][0] |= {"reason": "SchedulingGated", "message": "Scheduling is blocked"}
    assert [each.reason for each in target_state(SCALE, [pod], UP).pending] == ["Scheduling is blocked"]


_STATUSES = st.none() | st.sampled_from(["True", "False", "Unknown"])
_PODS = st.fixed_dictionaries(
    {
        "phase": st.sampled_from([None, "Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        "node": st.sampled_from([None, "n", "down"]),
        "ready": _STATUSES,
        "scheduled": _STATUSES,
        "deleted": st.booleans(),
        "status": st.booleans(),
        "time": st.sampled_from([None, "2026-01-01T00:00:09Z"]),
        "restarts": st.integers(0, 2),
        "loops": st.booleans(),
    }
)


@given(drawn=st.lists(_PODS, max_size=6), unread=st.booleans())
def test_every_pod_that_exists_is_ready_pending_stranded_or_starting(drawn: list[dict[str, Any]], unread: bool) -> None:
    pods = []
    for i, each in enumerate(drawn):
        pod: dict[str, Any] = {
            "metadata": {"name": f"p{i}", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {} if each["node"] is None else {"nodeName": each["node"]},
        }
        if each["deleted"]:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        if each["status"]:
            pod["status"] = {} if each["phase"] is None else {"phase": each["phase"]}
            pod["status"]["conditions"] = [
                {"type": kind, "status": status, "lastTransitionTime": each["time"]}
                for kind, status in (("Ready", each["ready"]), ("PodScheduled", each["scheduled"]))
                if status is not None
            ]
            pod["status"]["containerStatuses"] = [{"name": "asr", "restartCount": each["restarts"]}]
        pods.append(pod)
    loops = {f"p{i}": 1767225600.0 for i, each in enumerate(drawn) if each["loops"]}
    state = target_state(SCALE, pods, replace(UP, unread=unread), loops)
    names = [each.name for each in state.serving]
    names += [each.name for each in (*state.pending, *state.stranded, *state.starting)]
    assert len(names) == len(set(names)) == state.existing
    assert state.ready == len(state.serving)
    finished = sum(each["status"] and each["phase"] in ("Succeeded", "Failed") for each in drawn)
    assert state.existing + state.terminating + finished == len(drawn)


def owned(name: str, kind: str, owner: str, *, revision: str | None = None, controller: bool = True) -> dict[str, Any]:
    pod = a_pod(name, Ready="True")
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner, "controller": controller}]
    pod["metadata"]["labels"] = {} if revision is None else {"pod-template-hash": revision}
    return pod


@pytest.mark.parametrize(
    ("api_version", "kind", "mine"),
    [
        ("apps/v1", "Deployment", ["own", "own before"]),
        ("apps/v1", "StatefulSet", ["set"]),
        ("argoproj.io/v1alpha1", "Rollout", ["own", "own before", "canary", "set", "other set", "job"]),
        ("example.com/v1", "Job", ["own", "own before", "canary", "set", "other set"]),
    ],
)
def test_pods_of_other_workloads_with_the_same_labels_are_not_of_the_target(
    api_version: str, kind: str, mine: list[str]
) -> None:
    bare = a_pod("bare", Ready="True")
    pods = [
        owned("own", "ReplicaSet", "asr-7d9f", revision="7d9f"),
        owned("own before", "ReplicaSet", "asr-66bc", revision="66bc"),
        owned("canary", "ReplicaSet", "asr-canary-55aa", revision="55aa"),
        owned("set", "StatefulSet", "asr"),
        owned("other set", "StatefulSet", "asr-b"),
        owned("job", "Job", "warm-up"),
        owned("not controlled", "ReplicaSet", "asr-7d9f", revision="7d9f", controller=False),
        bare,
    ]
    target = Target(api_version=api_version, kind=kind, name="asr")
    assert [pod["metadata"]["name"] for pod in owned_pods(target, pods)] == mine


def test_a_canary_beside_the_target_is_no_roll_out_of_it() -> None:
    pods = [
        owned("own", "ReplicaSet", "asr-7d9f", revision="7d9f"),
        owned("canary", "ReplicaSet", "asr-canary-55aa", revision="55aa"),
    ]
    target = Target(api_version="apps/v1", kind="Deployment", name="asr")
    state = target_state(SCALE, owned_pods(target, pods), UP)
    assert (state.existing, state.rolling) == (1, False)


def test_only_pods_that_have_served_for_a_while_are_expected_to_report() -> None:
    pods = [
        a_pod("serving", Ready="True"),
        a_pod("starting", Ready="False"),
        a_pod("leaving", terminating=True, Ready="True"),
    ]
    assert reporting_pods(pods, ready_before_s=1767225600.0) == {"serving"}
    assert reporting_pods(pods, ready_before_s=1767225599.0) == frozenset()


def annotated(name: str, **annotations: str) -> dict[str, Any]:
    pod = a_pod(name, Ready="False")
    pod["metadata"]["annotations"] = {f"prometheus.io/{key}": value for key, value in annotations.items()}
    pod["status"]["podIP"] = "10.0.0.7"
    return pod


def test_pods_that_run_say_by_the_usual_annotations_where_their_metrics_are() -> None:
    leaving = annotated("leaving", port="9100")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    starting = a_pod("without an address")
    pods = [
        annotated("usual", scrape="true", port="9100"),
        annotated("elsewhere", port="80", path="/stats/metrics"),
        annotated("silent about it"),
        annotated("not to be read", scrape="false", port="9100"),
        *(annotated(f"port {port}", port=port) for port in ("0", "65536", "-1", "http", "99999999999", "٣")),
        annotated("path", port="80", path="metrics"),
        leaving,
        starting,
    ]
    assert metrics_endpoints(pods) == {
        "usual": PodEndpoint(host="10.0.0.7", port=9100),
        "elsewhere": PodEndpoint(host="10.0.0.7", port=80, path="/stats/metrics"),
        "silent about it": PodEndpoint(host="10.0.0.7"),
    }


def test_a_pool_is_its_ready_nodes_that_carry_all_its_labels() -> None:
    nodes = [
        a_node(pool="gpu", zone="a"),
        a_node("False", pool="gpu"),
        a_node(pool="cpu"),
        a_node("Unknown", pool="gpu"),
    ]
    assert ready_nodes(nodes, {"pool": "gpu"}) == (nodes[0],)


def test_the_type_of_a_node_is_that_of_its_label_and_known_of_nodes_in_use_alone() -> None:
    labels = {"node.kubernetes.io/instance-type": "g5.2xlarge", "pool": "gpu"}
    nodes = [
        {"metadata": {"name": "typed", "labels": labels}, "status": {}},
        {"metadata": {"name": "plain", "labels": {"pool": "gpu"}}, "status": {}},
        {"metadata": {"name": "other", "labels": {"pool": "cpu"}}, "status": {}},
        {"metadata": {"name": "empty", "labels": labels}, "status": {}},
    ]
    in_use = {"typed", "plain", "other"}
    assert instance_types(nodes, {"pool": "gpu"}, in_use) == {"typed": "g5.2xlarge", "plain": ""}


def test_pods_are_counted_by_node_where_nodes_are_paid_for() -> None:
    pods = [a_pod("a", Ready="True"), a_pod("b", Ready="False"), a_pod("c", terminating=True)]
    pods.append(a_pod("d", PodScheduled="False"))
    for pod in pods[:3]:
        pod["spec"] = {"nodeName": "n"}
    assert target_state(SCALE, pods, replace(UP, billed=True)).nodes == {"n": 3}, "the terminating one is on it, too"
    assert target_state(SCALE, pods, UP).nodes == {}


def test_zones_are_distinct_and_at_least_one() -> None:
    label = {"topology.kubernetes.io_zone": "a"}
    other = {"topology.kubernetes.io_zone": "b"}
    assert zones([a_node(**label), a_node(**label), a_node(**other)]) == 2
    assert zones([a_node(pool="cpu")]) == 1
    assert zones([]) == 1


def test_a_condition_without_a_time_holds_since_the_pod_was_created() -> None:
    pods = [a_pod("served", Ready="True"), a_pod("waits", PodScheduled="False")]
    for pod in pods:
        pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        pod["status"]["conditions"][0]["lastTransitionTime"] = None
    assert reporting_pods(pods, ready_before_s=1767225600.0) == {"served"}
    assert target_state(SCALE, pods, UP).pending == (PendingReplica(name="waits", since_s=1767225600.0, reason="why"),)


NODES = NodeNames(up=frozenset({"up", "leaving"}), leaving=frozenset({"leaving"}))


def on(node: str, pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "spec": {"nodeName": node}}


def test_a_pod_with_a_node_that_is_not_up_is_stranded_and_one_with_another_is_starting() -> None:
    waiting = a_pod("b", PodScheduled="True", Ready="False")
    waiting["status"]["containerStatuses"] = [
        {"name": "asr", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}}
    ]
    pods = [on("gone", a_pod("a", PodScheduled="True", Ready="False")), on("up", waiting)]
    state = target_state(SCALE, pods, NODES)
    assert [(one.name, one.reason) for one in state.stranded] == [("a", "its node gone is not ready")]
    assert [(one.name, one.reason) for one in state.starting] == [("b", "CrashLoopBackOff: back-off 5m0s")]
    assert (state.pending, state.ready, state.existing) == ((), 0, 2)


def test_a_pod_is_unready_since_its_crash_loop_began() -> None:
    pods = [on(node, a_pod(node, PodScheduled="True", Ready="False")) for node in ("gone", "up")]
    state = target_state(SCALE, pods, NODES, {"gone": 100.0, "up": 200.0, "other": 300.0})
    assert [one.since_s for one in (*state.stranded, *state.starting)] == [100.0, 200.0]
    assert target_state(SCALE, pods, NODES, {"up": 9e9}).starting[0].since_s == 1767225600.0


def test_while_the_nodes_are_unread_no_pod_is_stranded() -> None:
    pods = [on(node, a_pod(node, PodScheduled="True", Ready="False")) for node in ("new", "up")]
    for nodes in (NodeNames(unread=True), NodeNames(up=NODES.up, leaving=NODES.leaving, unread=True)):
        state = target_state(SCALE, pods, nodes)
        assert (state.stranded, [one.name for one in state.starting]) == ((), ["new", "up"])


def test_pods_that_serve_say_whether_they_are_to_go_and_what_their_deletion_costs() -> None:
    marked = on("leaving", a_pod("b", Ready="True"))
    marked["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "-7"}
    odd = on("up", a_pod("c", Ready="True"))
    odd["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "cheap"}
    state = target_state(SCALE, [on("up", a_pod("a", Ready="True")), marked, odd], NODES)
    assert state.serving == (
        ServingReplica(name="a", node="up", ready_s=SINCE_S),
        ServingReplica(name="b", leaving=True, deletion_cost=-7, node="leaving", ready_s=SINCE_S),
        ServingReplica(name="c", node="up", ready_s=SINCE_S),
    )
    assert state.leaving == 1


def test_a_label_says_which_pods_get_new_sessions() -> None:
    labels = {"a": "open", "b": "closed", "c": "maybe", "d": None}
    pods = [on("up", a_pod(name, Ready="True")) for name in labels]
    for pod, value in zip(pods, labels.values(), strict=True):
        pod["metadata"]["labels"] = {} if value is None else {"sluice.dev/sessions": value}
    state = target_state(SCALE, pods, NODES)
    assert [replica.takes_sessions for replica in state.serving] == [True, False, None, None]


def started(name: str, *, ready: str, scheduled: str | None = "12:00:00", restarts: int = 0) -> dict[str, Any]:
    """A pod that got its node and became ready at these times of a day."""
    pod = a_pod(name, Ready="True") if scheduled is None else a_pod(name, Ready="True", PodScheduled="True")
    times = {"Ready": ready, "PodScheduled": scheduled}
    for condition in pod["status"]["conditions"]:
        condition["lastTransitionTime"] = f"2026-01-01T{times[condition['type']]}Z"
    pod["status"]["containerStatuses"] = [{"name": "asr", "restartCount": restarts}]
    return pod


@pytest.mark.parametrize(
    ("pod", "startup_s"),
    [
        (started("a", ready="12:01:30"), 90.0),
        (started("restarted, so that it is ready for another reason", ready="18:00:00", restarts=1), None),
        (started("without a known time of its node", ready="12:01:30", scheduled=None), None),
        (started("on a node whose clock is ahead", ready="11:59:58"), 0.0),
    ],
)
def test_the_start_up_time_of_a_pod_is_from_its_node_until_it_is_ready(
    pod: dict[str, Any], startup_s: float | None
) -> None:
    (replica,) = target_state(SCALE, [pod], UP).serving
    assert replica.startup_s == startup_s


def test_the_start_up_time_of_a_workload_is_the_median_of_its_ready_pods() -> None:
    pods = [started("a", ready="12:00:40"), started("b", ready="17:00:00"), started("c", ready="12:00:50")]
    assert target_state(SCALE, pods, UP).startup_s(None) == 40.0, "the lower of two: one of hours is not believed"
    assert target_state(SCALE, pods, UP).startup_s(2000.0) == 50.0
    starting = a_pod("d", PodScheduled="True", Ready="False")
    assert target_state(SCALE, [*pods, on("n", starting)], UP).startup_s(2000.0) == 50.0
    assert target_state(SCALE, [on("n", starting)], UP).startup_s(None) is None


@pytest.mark.parametrize(
    ("spec", "leaving"),
    [
        ({}, False),
        ({"unschedulable": True}, True),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, False),
    ],
)
def test_a_node_is_to_go_when_it_is_cordoned_or_its_provider_says_so(spec: dict[str, Any], leaving: bool) -> None:
    assert is_leaving({**a_node(), "spec": spec}) is leaving


def of_revision(name: str, revision: str, created: str, kind: str, status: str) -> dict[str, Any]:
    pod = a_pod(name)
    pod["status"]["conditions"] = [{"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    pod["metadata"] |= {"labels": {"pod-template-hash": revision}, "creationTimestamp": f"2026-01-01T00:0{created}:00Z"}
    return pod


def test_a_roll_out_is_known_by_pods_of_two_revisions_and_the_later_one_is_new() -> None:
    pods = [
        of_revision("a", "old", "1", "Ready", "True"),
        of_revision("b", "new", "2", "PodScheduled", "False"),
        of_revision("c", "old", "3", "PodScheduled", "False"),
    ]
    state = target_state(SCALE, pods, UP)
    assert (state.rolling, state.updated) == (True, 1)
    assert [(replica.name, replica.updated) for replica in state.pending] == [("b", True), ("c", False)]
    done = target_state(SCALE, pods[1:2], UP)
    assert (done.rolling, done.updated, done.pending[0].updated) == (False, 0, False)


@pytest.mark.parametrize("joint", [" preemption: ", " no new claims to deallocate, preemption: "])
def test_the_schedulers_reasons_are_kept_and_what_it_says_of_preemption_is_not(joint: str) -> None:
    pod = a_pod("a", phase="Pending", PodScheduled="False")
    reasons = "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."
    more = f"{joint}0/6 nodes are available: 6 Preemption is not helpful for scheduling."
    pod["status"]["conditions"][0]["message"] = reasons + more
    (pending,) = target_state(SCALE, [pod], UP).pending
    assert pending.reason == reasons


def test_surge_does_not_wait_for_a_node_as_far_as_it_is_beyond_the_desired_replicas() -> None:
    old = [of_revision(f"old-{index}", "old", "1", "Ready", "True") for index in range(3)]
    new = [of_revision(f"new-{index}", "new", "2", "PodScheduled", "False") for index in range(2)]
    state = target_state(SCALE, [*old, *new], UP)
    assert (state.desired, state.existing) == (4, 5)
    assert [replica.name for replica in state.waiting] == ["new-0"]
    assert state.unscheduled == state.waiting


def test_a_pod_in_a_crash_loop_is_not_ready_while_it_is_ready_for_a_moment() -> None:
    pod = a_pod("a", Ready="True", PodScheduled="True")
    pod["spec"] = {"nodeName": "n"}
    ended = {"reason": "OOMKilled", "exitCode": 137}
    pod["status"]["containerStatuses"] = [{"restartCount": 7, "lastState": {"terminated": ended}}]
    state = target_state(SCALE, [pod], UP, {"a": 1767225000.0})
    assert (state.ready, state.serving) == (0, ())
    words = "7 restarts, the last after OOMKilled (exit code 137)"
    assert state.starting == (PendingReplica(name="a", since_s=1767225000.0, reason=words),)


def test_pools_that_match_the_same_node_share_it() -> None:
    nodes = [a_node(pool="gpu", zone="a"), {**a_node(pool="gpu"), "metadata": {"name": "m", "labels": {"pool": "gpu"}}}]
    gpu, zone = PoolName("gpu"), PoolName("zone")
    shared = shared_nodes({gpu: {"pool": "gpu"}, zone: {"zone": "a"}, PoolName("cpu"): {"pool": "cpu"}}, nodes)
    assert shared == {gpu: {zone: ("n",)}, zone: {gpu: ("n",)}, PoolName("cpu"): {}}


def test_nodes_that_give_a_device_to_several_pods_say_so() -> None:
    strategies = {"sliced": "time-slicing", "mps": "mps", "whole": "none", "unlabelled": None}
    nodes = [
        {"metadata": {"name": name, "labels": {} if how is None else {"nvidia.com/gpu.sharing-strategy": how}}}
        for name, how in strategies.items()
    ]
    assert sharing_nodes([*nodes, {"metadata": {"name": "bare"}}]) == {"sliced", "mps"}


def test_pods_on_nodes_of_other_pools_are_outside_and_those_on_unknown_nodes_are_not() -> None:
    nodes = [a_node(pool="gpu"), {"metadata": {"name": "c", "labels": {"pool": "cpu"}}, "status": {}}]
    found = PoolNodes.of(nodes, {"pool": "gpu"})
    assert found.outside({"a": "n", "b": "c", "d": "unknown"}) == {"b": "c"}


def test_a_pool_holds_what_its_smallest_ready_node_has_allocatable() -> None:
    small, large, down = a_node(pool="gpu"), a_node(pool="gpu"), a_node("False", pool="gpu")
    for node, cpu in ((small, "3900m"), (large, "8"), (down, "1")):
        node["status"]["allocatable"] = {"cpu": cpu, "memory": "16Gi"}
    found = PoolNodes.of([small, large, down], {"pool": "gpu"})
    assert found.holds({"cpu": 1.0, "memory": 2**30}) == 3
    assert found.holds({"cpu": 1.3, "memory": 8 * 2**30}) == 2
    assert found.holds({"cpu": 0.0}) is None
    assert PoolNodes.of([down], {"pool": "gpu"}).holds({"cpu": 1.0}) is None


def test_a_new_node_whose_devices_are_not_registered_yet_says_nothing_of_what_the_pool_holds() -> None:
    old, new = a_node(pool="gpu"), a_node(pool="gpu")
    old["status"]["allocatable"] = {"cpu": "8", "nvidia.com/gpu": "4"}
    new["status"]["allocatable"] = {"cpu": "8", "nvidia.com/gpu": "0"}
    assert PoolNodes.of([old, new], {"pool": "gpu"}).holds({"cpu": 1.0, "nvidia.com/gpu": 1.0}) == 4
    assert PoolNodes.of([new], {"pool": "gpu"}).holds({"cpu": 1.0, "nvidia.com/gpu": 1.0}) is None


def test_the_nodes_of_pods_are_those_of_pods_that_are_not_finished() -> None:
    pods = [a_pod("a"), a_pod("b", phase="Failed"), a_pod("c")]
    for pod in pods[:2]:
        pod["spec"] = {"nodeName": "n"}
    assert placed_pods(pods) == {"a": "n"}
