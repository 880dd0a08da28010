"""What the reader makes of a cluster that it cannot read whole: absence, and no failure of what it does not see."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from controller.core.cycle import decide
from controller.core.state.carry_over import PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import TargetState
from controller.kube.cluster import Cluster, View
from controller.kube.gateway import DEPLOYMENTS, STATEFUL_SETS, Forbidden, Gateway, KubeError, NotFound
from controller.kube.matching import Pods, kept_node, kept_pod, kept_workload
from controller.kube.reader import Reader
from controller.kube.store import ResourceStore
from profiler.samples import Absence, AbsenceReason, Answer, PlacementSamples
from profiler.sources.base import ReadAnswer, ReadRequest

EXAMPLES = Path(__file__).parents[4] / "crds" / "examples"
LONG_AGO, NOW_S = "2026-01-01T00:00:00Z", 1767312000.0


class Silent:
    """A metric source that knows nothing, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[ReadRequest] = []

    def read(self, request: ReadRequest) -> ReadAnswer:
        self.requests.append(request)
        absent = Absence(reason=AbsenceReason.UNAVAILABLE, detail="")
        nothing = PlacementSamples(readings={})
        return ReadAnswer(
            placements={(each.pipeline, each.stage, each.pool): nothing for each in request.placements},
            scalars=dict.fromkeys(request.scalars, absent),
            problems=(),
        )


class NobodyElse:
    """An API server on which no other autoscaler is known."""

    def list_all(self, *_: object) -> None:
        raise NotFound("no such kind")


@dataclass
class World:
    """A Deployment with one pod, which has been on node `node-0` for a day and does not serve."""

    nodes: list[dict[str, Any]] | KubeError

    def view(self) -> View:
        labels = {"app": "decode-audio"}
        workload = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels}}}
        pod = {
            "metadata": {"name": "pod-0", "namespace": "archive", "labels": labels, "creationTimestamp": LONG_AGO},
            "spec": {"nodeName": "node-0"},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": LONG_AGO}],
            },
        }
        nodes = self.nodes
        return View(
            workloads={
                DEPLOYMENTS: {("archive", "decode-audio"): kept_workload(workload)},
                STATEFUL_SETS: NotFound("none"),
            },
            pods=Pods([kept_pod(pod)]),
            nodes=nodes if isinstance(nodes, KubeError) else {("", str(i)): kept_node(n) for i, n in enumerate(nodes)},
        )


def a_node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def a_store(*paths: str) -> ResourceStore:
    store = ResourceStore()
    for path in paths:
        for resource in yaml.safe_load_all((EXAMPLES / path).read_text()):
            metadata = {"uid": resource["metadata"]["name"], "generation": 1, "resourceVersion": "1"}
            store.put({**resource, "metadata": {**resource["metadata"], **metadata}})
    return store


def seen(nodes: list[dict[str, Any]] | KubeError) -> tuple[TargetState, PoolMemory]:
    """Return the state of the workload, and the memory of its pool, after a first cycle with these nodes."""
    reader = Reader(
        cast("Gateway", NobodyElse()),
        Silent(),
        pipelines=a_store("batch-transcription.yaml"),
        pools=a_store("pools.yaml"),
        cluster=cast("Cluster", World(nodes=nodes)),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )
    snapshot = reader.observe().snapshot
    reader.close()
    (target,) = (found for found in snapshot.pipelines[0].targets.values() if isinstance(found, TargetState))
    return target, next(pool.memory for pool in decide(snapshot, Policy()).pools if pool.name == "c7i")


def test_nodes_that_were_never_read_are_not_nodes_that_are_gone() -> None:
    target, memory = seen(Forbidden("403 nodes is forbidden"))
    assert (len(target.stranded), len(target.starting)) == (0, 1)
    assert memory == PoolMemory()


def test_a_node_that_is_gone_takes_its_pod_with_it_and_its_pool_has_failed() -> None:
    target, memory = seen([a_node("node-1")])
    assert (len(target.stranded), len(target.starting)) == (1, 0)
    assert memory.reason == "pod-0: its node node-0 is not ready"


def test_metrics_are_asked_for_of_the_model_and_the_answer_that_the_stage_selects() -> None:
    store = ResourceStore()
    for resource in yaml.safe_load_all((EXAMPLES / "batch-transcription.yaml").read_text()):
        resource["metadata"] |= {"uid": "uid", "generation": 1, "resourceVersion": "1"}
        resource["spec"]["stages"][0]["metrics"] = {"preset": "vllm", "model": "a/b", "answer": "First"}
        store.put(resource)
    source = Silent()
    reader = Reader(
        cast("Gateway", NobodyElse()),
        source,
        pipelines=store,
        pools=a_store("pools.yaml"),
        cluster=cast("Cluster", World(nodes=[])),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )
    reader.observe()
    reader.close()
    first, *others = source.requests[0].placements
    assert (first.preset, first.model, first.answer) == ("vllm", "a/b", Answer.FIRST)
    assert {(other.model, other.answer) for other in others if other.stage != first.stage} == {(None, Answer.WHOLE)}
