"""Replicas that are groups of pods: complete or not, on which nodes, and what keeps them from serving."""

from fractions import Fraction
from typing import Any

import pytest

from controller.core.state.snapshot import TargetState
from controller.core.state.spec import Target
from controller.kube.gateway import Scale
from controller.kube.groups import groups_of, selector
from controller.kube.workloads import NodeNames, target_state

SCALE = Scale(replicas=2, selector="unused", resource_version="17")
UP = NodeNames(up=frozenset({"n1", "n2", "n3", "n4"}), leaving=frozenset())
LABELS = "leaderworkerset.sigs.k8s.io"


def a_pod(
    group: int, worker: int, *, node: str | None = "n1", ready: bool = True, size: int = 2, **metadata: Any
) -> dict[str, Any]:
    """A pod as the controller of LeaderWorkerSets names and labels it; `worker` 0 leads its group."""
    name = f"vllm-{group}" + (f"-{worker}" if worker else "")
    since = f"2026-01-01T00:00:{10 * group + worker:02}Z"
    scheduled = {"type": "PodScheduled", "status": "False" if node is None else "True", "lastTransitionTime": since}
    if node is None:
        scheduled |= {"reason": "Unschedulable", "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."}
    state = {"type": "Ready", "status": str(ready), "lastTransitionTime": since, "message": "" if ready else "loading"}
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                f"{LABELS}/name": "vllm",
                f"{LABELS}/group-index": str(group),
                f"{LABELS}/worker-index": str(worker),
            },
            "annotations": {f"{LABELS}/size": str(size)},
            **metadata,
        },
        "spec": {} if node is None else {"nodeName": node},
        "status": {"phase": "Running" if ready else "Pending", "conditions": [scheduled, state]},
    }


def state_of(*pods: dict[str, Any]) -> TargetState:
    return target_state(SCALE, groups_of(pods).pods, UP)


def test_the_pods_of_all_groups_are_found_by_the_name_of_their_set() -> None:
    """The selector of the scale has only those that lead a group."""
    target = Target(api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name="vllm")
    assert selector(target) == f"{LABELS}/name=vllm"


def test_a_group_that_is_complete_and_ready_is_one_ready_replica() -> None:
    state = state_of(a_pod(0, 0), a_pod(0, 1, node="n2"), a_pod(1, 1, node="n4"), a_pod(1, 0, node="n3"))
    assert (state.existing, state.ready, state.terminating) == (2, 2, 0)
    assert [replica.name for replica in state.serving] == ["vllm-0", "vllm-1"], "those that lead have the metrics"


def test_a_group_that_lacks_a_pod_is_not_ready_and_says_so() -> None:
    state = state_of(a_pod(0, 0), a_pod(0, 1, node="n2"), a_pod(1, 0, node="n3"))
    assert (state.existing, state.ready) == (2, 1)
    (starting,) = state.starting
    assert starting.name == "vllm-1"
    assert "1 of the 2 pods of its group are there" in starting.reason


def test_a_group_with_a_pod_that_is_not_ready_names_it() -> None:
    state = state_of(a_pod(0, 0), a_pod(0, 1, node="n2", ready=False))
    (starting,) = state.starting
    assert "pod vllm-0-1 of its group is not ready: loading" in starting.reason


def test_a_group_with_a_pod_without_a_node_is_pending_with_the_words_of_the_scheduler() -> None:
    state = state_of(a_pod(0, 0), a_pod(0, 1, node=None, ready=False))
    assert (state.existing, state.ready, len(state.pending)) == (1, 0, 1)
    assert "Insufficient nvidia.com/gpu" in state.pending[0].reason


def test_a_group_whose_leader_goes_is_one_terminating_replica() -> None:
    leaving: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:01:00Z"}
    state = state_of(a_pod(0, 0, **leaving), a_pod(0, 1, node="n2", **leaving))
    assert (state.existing, state.terminating) == (0, 1)
    worker = state_of(a_pod(0, 0), a_pod(0, 1, node="n2", **leaving))
    assert (worker.existing, worker.ready, worker.terminating) == (1, 0, 0), "its controller makes the pod again"


def test_the_start_of_a_group_ends_when_its_last_pod_is_ready() -> None:
    state = state_of(a_pod(3, 0), a_pod(3, 9, node="n2"))
    assert state.serving[0].ready_s == 1767225600.0 + 39


@pytest.mark.parametrize(("nodes", "spans"), [(("n1", "n2"), 2), (("n1", "n1"), 1), (("n1", None), None)])
def test_what_a_group_takes_shows_one_that_is_complete(nodes: tuple[str, str | None], spans: int | None) -> None:
    groups = groups_of([a_pod(0, worker, node=node) for worker, node in enumerate(nodes)])
    assert groups.spans == spans


def test_each_node_of_a_group_has_its_part_of_the_replica() -> None:
    groups = groups_of([a_pod(0, 0), a_pod(0, 1, node="n2"), a_pod(1, 0, node="n2"), a_pod(1, 1, node="n2")])
    assert groups.nodes == {"n1": Fraction(1, 2), "n2": Fraction(3, 2)}


def test_a_pod_without_the_labels_of_a_group_is_a_group_of_its_own_kind() -> None:
    stray = a_pod(0, 0)
    stray["metadata"] |= {"labels": {}, "annotations": {}}
    assert len(groups_of([stray]).pods) == 1


def test_finished_pods_do_not_count() -> None:
    ended = a_pod(0, 1)
    ended["status"]["phase"] = "Failed"
    state = state_of(a_pod(0, 0), ended)
    assert (state.existing, state.ready) == (1, 0)
