"""What the reader makes of a cluster that it cannot read whole: absence, and no failure of what it does not see."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from annotated_lease import LeaseLog
from builders import a_snapshot, a_spec, a_state
from typing_extensions import override

from controller.aws.account import NoAccount
from controller.aws.groups import Group, SeenGroup
from controller.core.cycle import decide
from controller.core.messages.conditions import pool_conditions
from controller.core.messages.phrases import timestamp
from controller.core.messages.reasons import ConditionReason
from controller.core.state.carry_over import FailureCause, PipelineMemory, PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, TargetMissing, TargetState
from controller.core.state.spec import Pause
from controller.kube import turns
from controller.kube.cluster import Cluster, View
from controller.kube.durable import kept_document, memory_document, planned_text
from controller.kube.gateway import (
    DEPLOYMENTS,
    NAMESPACES,
    NODE_CLAIMS,
    NODE_POOLS,
    STATEFUL_SETS,
    Failed,
    Forbidden,
    Gateway,
    KubeError,
    Listing,
    NotFound,
    Resource,
)
from controller.kube.kept_memory import KeptMemory
from controller.kube.matching import Pods, kept_node, kept_pod, kept_workload
from controller.kube.metrics_reader import _query_kind, metrics_target
from controller.kube.priorities import PriorityLimits
from controller.kube.reader import Reader, Resources
from controller.kube.store import Key, ResourceStore
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, Answer, PlacementSamples, SeriesLabels
from profiler.sources.base import QueryKind, ReadAnswer, ReadRequest

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
            placements={(each.pipeline, each.stage, each.placement): nothing for each in request.placements},
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
    ready: bool = False
    restarts: int = 0
    changed_s: float | None = None
    replicas: int = 1
    owner: str = "decode-audio-7d9f"
    others: dict[Resource, dict[Key, Any] | KubeError] = field(default_factory=dict)

    def view(self) -> View:
        labels = {"app": "decode-audio"}
        spec = {"replicas": self.replicas, "selector": {"matchLabels": labels}}
        workload = {"metadata": {"resourceVersion": "1"}, "spec": spec}
        changed = LONG_AGO if self.changed_s is None else timestamp(self.changed_s)
        pod = {
            "metadata": {
                "name": "pod-0",
                "namespace": "archive",
                "labels": labels | {"pod-template-hash": "7d9f"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": self.owner, "controller": True}],
                "creationTimestamp": LONG_AGO,
            },
            "spec": {"nodeName": "node-0"},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": str(self.ready), "lastTransitionTime": changed}],
                "containerStatuses": [{"name": "asr", "restartCount": self.restarts}],
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
            others=self.others,
        )


def a_node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def manifests(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / path).read_text()))


def a_store(*resources: dict[str, Any]) -> ResourceStore:
    store = ResourceStore()
    for resource in resources:
        metadata = {"uid": resource["metadata"]["name"], "generation": 1, "resourceVersion": "1"}
        store.put({**resource, "metadata": {**resource["metadata"], **metadata}})
    return store


def a_reader(*pipelines: dict[str, Any], nodes: list[dict[str, Any]] | KubeError | None = None) -> Reader:
    return Reader(
        cast("Gateway", NobodyElse()),
        Silent(),
        Resources(a_store(*pipelines), a_store(*manifests("pools.yaml")), a_store()),
        cluster=cast("Cluster", World(nodes=nodes or [a_node("node-0")])),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )


def seen(nodes: list[dict[str, Any]] | KubeError) -> tuple[TargetState, PoolMemory]:
    """Return the state of the workload, and the memory of its pool, after a first cycle with these nodes."""
    reader = a_reader(*manifests("batch-transcription.yaml"), nodes=nodes)
    snapshot = reader.observe().snapshot
    reader.close()
    (target,) = (found for found in snapshot.pipelines[0].targets.values() if isinstance(found, TargetState))
    return target, next(pool.memory for pool in decide(snapshot, Policy()).pools if pool.name == "c7i")


@pytest.mark.parametrize("error", [Forbidden("403 nodes is forbidden"), Failed("500 etcdserver: request timed out")])
def test_nodes_that_were_never_read_are_not_nodes_that_are_gone(error: KubeError) -> None:
    target, memory = seen(error)
    assert (len(target.stranded), len(target.starting)) == (0, 1)
    assert memory == PoolMemory()


def test_a_node_that_is_gone_takes_its_pod_with_it_and_its_pool_has_failed() -> None:
    target, memory = seen([a_node("node-1")])
    assert (len(target.stranded), len(target.starting)) == (1, 0)
    assert memory.reason == "pod-0: its node node-0 is not ready"


@pytest.mark.parametrize("basis", ["Instances", "Replicas"])
def test_nodes_are_known_by_type_and_pods_where_a_budget_counts_whole_nodes(basis: str) -> None:
    (pipeline,) = manifests("batch-transcription.yaml")
    pipeline["spec"]["budget"]["basis"] = basis
    pools = {pool["metadata"]["name"]: pool["spec"] for pool in manifests("pools.yaml")}
    nodes = [a_node("node-0"), a_node("idle")]
    for node in nodes:
        node["metadata"]["labels"] = {
            **pools["c7i"]["nodeSelector"],
            "node.kubernetes.io/instance-type": "c7i.2xlarge",
        }
    reader = a_reader(pipeline, nodes=nodes)
    snapshot = reader.observe().snapshot
    reader.close()
    (target,) = (found for found in snapshot.pipelines[0].targets.values() if isinstance(found, TargetState))
    whole = basis == "Instances"
    assert snapshot.pools[PoolName("c7i")].nodes == ({"node-0": "c7i.2xlarge"} if whole else {})
    assert target.nodes == ({"node-0": 1} if whole else {})


def test_a_priority_counts_up_to_the_limit_of_its_namespace() -> None:
    (manifest,) = manifests("batch-transcription.yaml")
    manifest["spec"]["priority"] = 500
    resources = Resources(
        a_store(manifest), a_store(), a_store(), priorities=PriorityLimits(namespaces={"archive": 20})
    )
    for _ in range(2):  # parsed, and then known
        ((spec, _resource),), _invalid = resources.pipelines()
        assert spec.priority == 20


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
        Resources(store, a_store(*manifests("pools.yaml")), a_store()),
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


def test_pods_on_nodes_that_share_devices_are_told_to_the_source_and_engines_that_are_known_too() -> None:
    (pipeline,) = manifests("batch-transcription.yaml")
    (stage, *_), pool = pipeline["spec"]["stages"], "c7i"
    pipeline["status"] = {
        "memory": {"version": 1, "time": "2026-01-01T00:00:00Z", "learned": {"engines": [[[stage["name"], pool], 2]]}}
    }
    sliced = a_node("node-0")
    sliced["metadata"]["labels"] = {"nvidia.com/gpu.sharing-strategy": "time-slicing"}
    source, now_s = Silent(), iter((NOW_S, NOW_S + 600.0))
    reader = Reader(
        cast("Gateway", NobodyElse()),
        source,
        Resources(a_store(pipeline), a_store(*manifests("pools.yaml")), a_store()),
        cluster=cast("Cluster", World(nodes=[sliced], ready=True)),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: next(now_s),
    )
    reader.observe()
    reader.observe()
    reader.close()
    first = next(
        each for each in source.requests[1].placements if (each.stage, each.placement) == (stage["name"], pool)
    )
    assert source.requests[1].sharing == {("archive", pod) for pod in first.pods} != set()
    assert first.concurrency == 2


def test_a_pod_of_a_kubelet_whose_clock_is_ahead_must_report_after_the_usual_time() -> None:
    source, now_s = Silent(), iter((NOW_S, NOW_S + 61.0))
    reader = Reader(
        cast("Gateway", NobodyElse()),
        source,
        Resources(a_store(*manifests("batch-transcription.yaml")), a_store(*manifests("pools.yaml")), a_store()),
        cluster=cast("Cluster", World(nodes=[a_node("node-0")], ready=True, changed_s=NOW_S + 3600.0)),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: next(now_s),
    )
    for _ in range(2):
        reader.observe()
    reader.close()
    assert [len(request.placements[0].pods) for request in source.requests] == [0, 1]


AUDIO: PlacementKey = (StageName("decode-audio"), PoolName("c7i"))


def a_pipeline(name: str, *, mode: str = "Auto", created: str = LONG_AGO, **status: object) -> dict[str, Any]:
    """Return the example pipeline under another name: all of them name the same workloads."""
    (resource,) = manifests("batch-transcription.yaml")
    metadata = {**resource["metadata"], "name": name, "creationTimestamp": created}
    return {**resource, "metadata": metadata, "spec": {**resource["spec"], "mode": mode}, "status": status}


def owning(**resources: dict[str, Any]) -> dict[str, TargetState | TargetMissing]:
    """Return the workload of the first placement as each pipeline sees it, by its name."""
    reader = a_reader(*resources.values())
    states = reader.observe().snapshot.pipelines
    reader.close()
    return {state.spec.name: state.targets[AUDIO] for state in states}


@pytest.mark.parametrize("mode", ["Recommend", "Paused"])
def test_a_pipeline_that_does_not_act_reads_the_workload_and_takes_it_from_no_other(mode: str) -> None:
    found = owning(a=a_pipeline("a-copy", mode=mode, created="2020-01-01T00:00:00Z"), b=a_pipeline("live"))
    live, copy = found["live"], found["a-copy"]
    assert isinstance(live, TargetState)
    assert live.owner is None
    assert copy == replace(live, owner=PipelineKey("archive/live"))


def test_of_pipelines_that_act_the_newcomer_is_told_which_owns_the_workload() -> None:
    found = owning(a=a_pipeline("a-newcomer", created="2026-01-02T00:00:00Z"), b=a_pipeline("live"))
    assert isinstance(found["live"], TargetState)
    newcomer = found["a-newcomer"]
    assert isinstance(newcomer, TargetMissing)
    assert newcomer.owner == "archive/live"
    assert "belongs to pipeline archive/live, stage decode-audio" in newcomer.reason


def decided(reader: Reader) -> Mapping[str, PipelineMemory]:
    observation = reader.observe()
    decision = decide(observation.snapshot, Policy())
    reader.remember(observation, decision)
    return {pipeline.spec.name: pipeline.memory for pipeline in decision.pipelines}


def test_the_owner_keeps_its_workload_over_a_restart_whatever_the_age_of_the_other() -> None:
    reader = a_reader(a_pipeline("live", created="2026-01-02T00:00:00Z"))
    memory = memory_document(decided(reader)["live"])
    reader.close()
    older = a_pipeline("a-older", created="2020-01-01T00:00:00Z")
    found = owning(a=older, b=a_pipeline("live", created="2026-01-02T00:00:00Z", memory=memory))
    assert isinstance(found["live"], TargetState)
    assert isinstance(found["a-older"], TargetMissing)
    # A pipeline that no longer acts gives its workloads up.
    found = owning(a=older, b=a_pipeline("live", mode="Paused", memory=memory))
    assert (found["a-older"].owner, found["live"].owner) == (None, "archive/a-older")


@pytest.mark.parametrize(("at_s", "demand"), [(NOW_S - 60, 7.0), (NOW_S - 120, 3.0)])
def test_a_new_leader_goes_on_with_the_newer_memory_of_status_and_lease(at_s: float, demand: float) -> None:
    in_status = kept_document(PipelineMemory(demand=3.0), None, NOW_S - 90)
    in_lease = kept_document(PipelineMemory(demand=7.0), None, at_s)
    lease = LeaseLog()
    kept = KeptMemory(cast("Gateway", lease), namespace="sluice-system", name="sluice", identity=LeaseLog.HOLDER)
    kept.keep({"live": in_lease})
    successor = KeptMemory(cast("Gateway", lease), namespace="sluice-system", name="sluice", identity="next")
    reader = a_reader(a_pipeline("live", memory=in_status))
    reader.resume_from(successor)
    (state,) = reader.observe().snapshot.pipelines
    reader.close()
    assert state.memory.demand == demand


def test_a_query_that_the_source_left_unanswered_is_not_an_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Silent().read
    monkeypatch.setattr(Silent, "read", lambda _, request: replace(whole(request), scalars={}))
    reader = a_reader(a_pipeline("live"))
    (state,) = reader.observe().snapshot.pipelines
    reader.close()
    assert isinstance(state.demand, Absence)
    assert state.demand.reason is AbsenceReason.UNAVAILABLE


def test_an_owner_whose_spec_became_invalid_keeps_its_workload() -> None:
    reader = a_reader(a_pipeline("live"))
    decided(reader)
    store = reader._resources._pipelines
    broken = a_pipeline("live", memory=memory_document(PipelineMemory()))
    broken["spec"] = {**broken["spec"], "stages": []}
    for version, resource in enumerate((broken, a_pipeline("a-newcomer", created="2026-01-02T00:00:00Z")), 2):
        metadata = {"uid": resource["metadata"]["name"], "generation": version, "resourceVersion": str(version)}
        store.put({**resource, "metadata": {**resource["metadata"], **metadata}})
    observation = reader.observe()
    reader.close()
    assert [found.resource.name for found in observation.invalid_pipelines] == ["live"]
    (newcomer,) = observation.snapshot.pipelines
    assert newcomer.targets[AUDIO].owner == "archive/live"


def waiting(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Return `pipeline` with a backlog in place of a demand."""
    spec = {name: part for name, part in pipeline["spec"].items() if name != "sla"}
    return {**pipeline, "spec": {**spec, "demand": {"unit": "Items", "backlog": {"query": "up", "within": "1h"}}}}


@pytest.mark.parametrize(("backlog", "named"), [(False, {"c7i", "inf2", "g6"}), (True, set())])
@pytest.mark.parametrize("why", ["invalid", "scaled by another operator"])
def test_the_pools_of_live_pipelines_about_which_nothing_is_decided_are_known(
    monkeypatch: pytest.MonkeyPatch, why: str, backlog: bool, named: set[str]
) -> None:
    other = waiting(a_pipeline("other")) if backlog else a_pipeline("other")
    reader = a_reader(waiting(a_pipeline("own")), other)
    assert reader.observe().snapshot.named_by_others == frozenset()
    if why == "invalid":
        metadata = {**other["metadata"], "uid": "other", "generation": 2, "resourceVersion": "2"}
        reader._resources._pipelines.put({**other, "metadata": metadata, "spec": {**other["spec"], "stages": []}})
    else:
        monkeypatch.setattr(reader._resources, "elsewhere", lambda resource: resource.name == "other")
    snapshot = reader.observe().snapshot
    reader.close()
    assert [state.spec.name for state in snapshot.pipelines] == ["own"]
    assert snapshot.named_by_others == named


def test_a_pod_that_runs_out_of_memory_again_and_again_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready for a minute in every six: never unready for as long as its start-up and the deadline."""
    clock = {"now_s": NOW_S}
    world = World(nodes=[a_node("node-0")])
    reader = a_reader(*manifests("batch-transcription.yaml"))
    monkeypatch.setattr(reader, "_cluster", world)
    monkeypatch.setattr(reader, "_clock", lambda: clock["now_s"])
    causes = []
    for cycle in range(60):
        clock["now_s"] = NOW_S + 15 * cycle
        loop, phase_s = divmod(15 * cycle, 360)
        changed_s = clock["now_s"] - (phase_s if phase_s < 300 else phase_s - 300)
        world.ready, world.restarts, world.changed_s = phase_s >= 300, loop, changed_s
        failures = decided(reader)["batch-transcription"].failures
        causes.append(failures[AUDIO].cause if AUDIO in failures else None)
    reader.close()
    assert causes[0] is None
    assert FailureCause.CANNOT_START in causes


class Slow(Silent):
    """A metric source that knows the latency of pipelines (s) alone, of those in `latencies_s`."""

    def __init__(self, latencies_s: Mapping[str, float]) -> None:
        super().__init__()
        self.latencies_s = latencies_s

    @override
    def read(self, request: ReadRequest) -> ReadAnswer:
        answer = super().read(request)
        scalars = dict(answer.scalars)
        scalars.update({(PipelineKey(key), "sla"): latency_s for key, latency_s in self.latencies_s.items()})
        return replace(answer, scalars=scalars)


def test_of_a_large_fleet_that_another_has_planned_the_plans_have_their_age_and_latencies_are_compared_with_the_sla(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 1)
    monkeypatch.setattr(turns, "MOST", 1)
    monkeypatch.setattr("controller.core.cycle.AT_ONCE", 1)
    planned = decide(a_snapshot(a_state(), a_state(a_spec(name="other"))), Policy()).pipelines[0].planned
    assert planned is not None
    fleet = []
    for number in range(4):
        (pipeline,) = manifests("batch-transcription.yaml")
        pipeline["metadata"] |= {"name": f"p{number}", "namespace": f"team-{number}"}
        pipeline["spec"]["sla"] |= {"query": "latency"}
        text = planned_text(replace(planned, at_s=NOW_S - 60 * number))
        fleet.append({**pipeline, "status": {"memory": memory_document(PipelineMemory(), text)}})
    del fleet[3]["status"]
    reader = Reader(
        cast("Gateway", NobodyElse()),
        Slow({"team-0/p0": 21.0, "team-1/p1": 19.0, "team-3/p3": 19.0}),
        Resources(a_store(*fleet), a_store(*manifests("pools.yaml")), a_store()),
        cluster=cast("Cluster", World(nodes=[a_node("node-0")])),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )
    observation = reader.observe()
    reader.close()
    assert [state.spec.name for state in observation.snapshot.pipelines] == ["p3"], "it has no plan"
    assert [each.planned_at_s for each in observation.snapshot.standing] == [NOW_S, NOW_S - 60, NOW_S - 120]
    assert observation.late == {"team-0/p0": True, "team-1/p1": False}


def borrowing(stage: str = "decode-audio", to: str = "live") -> dict[str, Any]:
    """Return a pipeline whose only stage is shared from a stage of the pipeline `to`."""
    pipeline = a_pipeline("borrower", created="2026-01-02T00:00:00Z")
    own = {"name": "own", "sharedFrom": {"pipeline": to, "stage": stage}}
    return {**pipeline, "spec": {**pipeline["spec"], "stages": [own]}}


def test_a_shared_stage_has_the_workload_and_the_samples_of_its_owner_which_are_read_once() -> None:
    reader = a_reader(a_pipeline("live"), borrowing())
    observation = reader.observe()
    (request,) = cast("Silent", reader._metrics._source).requests
    reader.close()
    states = {state.spec.name: state for state in observation.snapshot.pipelines}
    shared = states["borrower"].targets[StageName("own"), AUDIO[1]]
    owned = states["live"].targets[AUDIO]
    assert isinstance(owned, TargetState)
    assert shared == replace(owned, owner=PipelineKey("archive/live"))
    assert {each.pipeline for each in request.placements} == {"archive/live"}
    assert states["borrower"].samples.keys() == {(StageName("own"), AUDIO[1])}


@pytest.mark.parametrize(
    ("borrower", "words"),
    [
        (borrowing(to="nobody"), "pipeline archive/nobody does not exist or is not valid"),
        (borrowing(stage="encode"), "pipeline archive/live has no stage encode"),
    ],
)
def test_a_pipeline_whose_shared_stage_is_missing_is_told_so_and_left_as_it_is(
    borrower: dict[str, Any], words: str
) -> None:
    reader = a_reader(a_pipeline("live"), borrower)
    observation = reader.observe()
    reader.close()
    (invalid,) = observation.invalid_pipelines
    assert (invalid.resource.name, invalid.reason) == ("borrower", ConditionReason.SHARED_STAGE_MISSING)
    assert words in invalid.problem
    assert [state.spec.name for state in observation.snapshot.pipelines] == ["live"]


class KarpenterWithoutCapacity:
    """An API server where launches fail; `asked` has the selectors of the Events that were listed."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def pages(self, _: Resource, namespace: str, **selectors: str) -> Iterator[Listing]:
        self.asked.append(f"{namespace}: {selectors['fieldSelector']}")
        claim = {"kind": "NodeClaim", "name": "c7i-x"}
        failed = {"metadata": {}, "involvedObject": claim, "message": "no c7i", "lastTimestamp": timestamp(NOW_S - 70)}
        yield Listing(items=(failed,) if "InsufficientCapacityError" in self.asked[-1] else (), resource_version="1")


@dataclass
class Pending(World):
    """The pod has had no node for two minutes."""

    def view(self) -> View:
        waits = {"type": "PodScheduled", "status": "False", "lastTransitionTime": timestamp(NOW_S - 120)}
        labels = {"app": "decode-audio"}
        metadata = {
            "name": "pod-0",
            "namespace": "archive",
            "labels": labels | {"pod-template-hash": "7d9f"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "decode-audio-7d9f", "controller": True}],
            "creationTimestamp": LONG_AGO,
        }
        pod = {"metadata": metadata, "status": {"phase": "Pending", "conditions": [waits]}}
        known = super().view()
        return View(workloads=known._workloads, pods=Pods([kept_pod(pod)]), nodes=known._nodes, others=self.others)


def test_an_elastic_pool_fails_by_the_events_of_its_claims_and_they_are_read_only_while_pods_are_pending() -> None:
    cpu, *others = manifests("pools.yaml")
    elastic = {**cpu, "spec": {**cpu["spec"], "capacity": {"nodePool": "c7i"}}}
    pool = {"metadata": {"name": "c7i"}, "spec": {"limits": {"nodes": "7"}}}
    karpenter: dict[Resource, dict[Key, Any] | KubeError] = {NODE_POOLS: {("", "c7i"): pool}, NODE_CLAIMS: {}}
    for kind, read in ((Pending, True), (World, False)):
        world = kind(nodes=[a_node("node-0")], others=karpenter)
        server = KarpenterWithoutCapacity()
        reader = Reader(
            cast("Gateway", server),
            Silent(),
            Resources(a_store(*manifests("batch-transcription.yaml")), a_store(elastic, *others), a_store()),
            cluster=cast("Cluster", world),
            interval_s=10.0,
            reporting_grace_s=60.0,
            clock=lambda: NOW_S,
        )
        snapshot = reader.observe().snapshot
        reader.close()
        assert snapshot.pools[PoolName("c7i")].limit == 7
        memory = next(pool.memory for pool in decide(snapshot, Policy()).pools if pool.name == "c7i")
        assert memory.reason == ("pod-0: no c7i" if read else "")
        assert server.asked == (
            [
                "archive: involvedObject.kind=Pod,reason=Nominated",
                "archive: involvedObject.kind=Pod,reason=TriggeredScaleUp",
                "default: involvedObject.kind=NodeClaim,reason=InsufficientCapacityError",
            ]
            if read
            else []
        )


class ClusterAutoscaler(NobodyElse):
    """An API server with the Event of a cluster autoscaler that may not scale the group `c7i`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def pages(self, _: Resource, namespace: str, **selectors: str) -> Iterator[Listing]:
        self.asked.append(f"{namespace}: {selectors['fieldSelector']}")
        words = "Scale-up failed for group c7i: AccessDenied: not authorized to perform: autoscaling:SetDesiredCapacity"
        event = {"metadata": {"name": "status.1"}, "message": words, "lastTimestamp": timestamp(NOW_S - 70)}
        yield Listing(items=(event,) if "FailedToScaleUpGroup" in self.asked[-1] else (), resource_version="1")


class OneGroup(NoAccount):
    """An account with a group of two zones that has no instance."""

    @override
    def group(self, name: str) -> SeenGroup:
        group = Group(name=name, min_size=0, max_size=6, desired=0, zones=("a", "b"), instances=(), as_of_s=NOW_S)
        return SeenGroup(group=group, since_s={}, short_since_s=None)


def test_an_autoscaler_that_may_not_scale_the_group_of_a_pool_is_a_condition() -> None:
    cpu, *others = manifests("pools.yaml")
    elastic = {**cpu, "spec": {**cpu["spec"], "capacity": {"autoScalingGroup": "c7i"}}}
    server = ClusterAutoscaler()
    pools = a_store(elastic, *others)
    reader = Reader(
        cast("Gateway", server),
        Silent(),
        Resources(a_store(*manifests("batch-transcription.yaml")), pools, a_store(), account=OneGroup()),
        cluster=cast("Cluster", Pending(nodes=[])),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )
    snapshot = reader.observe().snapshot
    reader.close()
    pool = snapshot.pools[PoolName("c7i")]
    assert (pool.limit, pool.zones) == (6, 2)
    (permits,) = (each for each in pool_conditions(pool, PoolMemory(), NOW_S) if each.type == "ProviderPermits")
    assert (permits.status, permits.reason) == ("False", "NotPermitted")
    assert "autoscaling:SetDesiredCapacity" in permits.message
    assert "kube-system: reason=FailedToScaleUpGroup" in server.asked


def test_a_pod_outside_its_pool_and_nodes_of_two_pools_are_in_the_snapshot() -> None:
    cpu, second, third, *_ = manifests("pools.yaml")
    labels = {"node.kubernetes.io/instance-type": "inf2.xlarge"}
    node = a_node("node-0")
    node["metadata"]["labels"] = labels
    third["spec"]["nodeSelector"] = labels
    reader = Reader(
        cast("Gateway", NobodyElse()),
        Silent(),
        Resources(a_store(*manifests("batch-transcription.yaml")), a_store(cpu, second, third), a_store()),
        cluster=cast("Cluster", World(nodes=[node])),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )
    snapshot = reader.observe().snapshot
    reader.close()
    (target,) = (found for found in snapshot.pipelines[0].targets.values() if isinstance(found, TargetState))
    assert target.match.outside == {"pod-0": "node-0"}
    assert snapshot.pools[PoolName("g6")].shared_nodes == {PoolName("inf2"): ("node-0",)}
    assert snapshot.pools[PoolName("c7i")].shared_nodes == {}


class Quota(NobodyElse):
    """An API server with Events about pods that a quota refuses."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def pages(self, _: Resource, namespace: str, **selectors: str) -> Iterator[Listing]:
        self.asked.append(f"{namespace}: {selectors['fieldSelector']}")
        owner = {"kind": "ReplicaSet", "name": "decode-audio-7d9f"}
        event = {"metadata": {}, "involvedObject": owner, "message": "over quota", "lastTimestamp": timestamp(NOW_S)}
        yield Listing(items=(event,), resource_version="1")


@pytest.mark.parametrize("ready", [True, False], ids=["others are ready", "another one starts"])
def test_why_pods_are_not_created_is_read_for_those_that_were_missing_before(ready: bool) -> None:
    key = (StageName("decode-audio"), PoolName("c7i"))
    long = memory_document(PipelineMemory(uncreated_since_s={key: NOW_S - 400}))
    states: tuple[tuple[dict[str, Any], str], ...] = (({}, ""), ({"memory": long}, "over quota"))
    for status, words in states:
        server = Quota()
        reader = Reader(
            cast("Gateway", server),
            Silent(),
            Resources(
                a_store(a_pipeline("batch-transcription") | {"status": status}),
                a_store(*manifests("pools.yaml")),
                a_store(),
            ),
            cluster=cast("Cluster", World(nodes=[a_node("node-0")], ready=ready, replicas=3)),
            interval_s=10.0,
            reporting_grace_s=60.0,
            clock=lambda: NOW_S,
        )
        snapshot = reader.observe().snapshot
        reader.close()
        (target,) = (found for found in snapshot.pipelines[0].targets.values() if isinstance(found, TargetState))
        assert (target.uncreated, target.refusal) == (2, words)
        assert server.asked == (["archive: reason=FailedCreate"] if words else [])
        failures = decide(snapshot, Policy()).pipelines[0].memory.failures
        assert (FailureCause.NOT_CREATED in [each.cause for each in failures.values()]) is bool(words)


def test_pods_of_another_owner_with_the_labels_of_the_target_are_not_counted() -> None:
    reader = Reader(
        cast("Gateway", Quota()),
        Silent(),
        Resources(a_store(a_pipeline("batch-transcription")), a_store(*manifests("pools.yaml")), a_store()),
        cluster=cast("Cluster", World(nodes=[a_node("node-0")], ready=True, owner="decode-audio-canary-7d9f")),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )
    snapshot = reader.observe().snapshot
    reader.close()
    (target,) = (found for found in snapshot.pipelines[0].targets.values() if isinstance(found, TargetState))
    assert (target.desired, target.existing, target.ready) == (1, 0, 0)


def test_the_labels_of_a_stage_are_those_of_its_metrics() -> None:
    spec = a_spec()
    stage = replace(spec.stages[0], metrics_labels=SeriesLabels(pod="exported_pod"))
    pods = frozenset({"a", "b"})
    target = metrics_target(spec, stage, stage.placements[0], pods=pods, endpoints={}, long_ready=frozenset({"a"}))
    assert (target.labels, target.long_ready) == (stage.metrics_labels, frozenset({"a"}))


def test_every_query_of_a_user_has_its_kind() -> None:
    kinds = [_query_kind(name) for name in (("a", "demand"), ("a", "sla"), ("a", "vad", "queue"))]
    assert kinds == [QueryKind.DEMAND, QueryKind.LATENCY, QueryKind.RULES]


def test_an_annotation_counts_although_it_leaves_the_generation_as_it_is() -> None:
    resource = a_pipeline("live")
    store = a_store(resource)
    resources = Resources(store, a_store(), a_store())
    metadata = {**resource["metadata"], "uid": "live", "generation": 1, "resourceVersion": "2"}
    for version, annotations in (("2", {"sluice.dev/pause": "true"}), ("3", {})):
        metadata |= {"resourceVersion": version, "annotations": annotations}
        store.put({**resource, "metadata": dict(metadata)})
        ((spec, _),), invalid = resources.pipelines()
        assert not invalid
        assert spec.overrides.pause == (Pause() if annotations else None)


def a_budget(
    name: str = "team", *, zone: str = "Europe/Berlin", status: dict[str, Any] | None = None
) -> dict[str, Any]:
    period = {"schedule": "0 20 * * *", "timeZone": zone, "for": "10h", "perHour": "1"}
    spec = {"namespaceSelector": {}, "perHour": "5", "periods": [period]}
    document = {"apiVersion": "sluice.dev/v1alpha1", "kind": "ComputeBudget", "metadata": {"name": name}, "spec": spec}
    return document if status is None else {**document, "status": status}


def test_of_a_budget_with_a_mistake_the_last_valid_spec_holds() -> None:
    store = a_store(a_budget())
    resources = Resources(a_store(), a_store(), store)
    ((valid, _, problem),), _ = resources.budgets()
    assert problem == ""
    broken = a_budget(zone="Europe/Berln")
    store.put({**broken, "metadata": {"name": "team", "uid": "team", "generation": 2, "resourceVersion": "2"}})
    for _ in range(2):
        ((found, _, problem),), invalid = resources.budgets()
        assert (found, invalid) == (replace(valid, generation=2), ())
        assert "Berln" in problem or "IANA" in problem
        assert problem.endswith("the last valid spec holds")


def test_of_a_budget_with_a_mistake_a_restart_takes_the_spec_of_the_status_or_else_the_least_amount() -> None:
    status = {"validSpec": json.dumps({**a_budget()["spec"], "perHour": "4"})}
    stores = a_store(
        a_budget("known", zone="Berlin", status=status),
        a_budget("new", zone="Berlin"),
        a_budget("odd", zone="Berlin", status={"validSpec": "{"}),
    )
    found, invalid = Resources(a_store(), a_store(), stores).budgets()
    assert {spec.name: (spec.per_hour, len(spec.periods)) for spec, *_ in found} == {
        "known": (4.0, 1),
        "new": (1.0, 0),
        "odd": (1.0, 0),
    }
    assert invalid == ()


def namespaces(*names: str) -> World:
    """Return a cluster with Namespaces, each with a label of its name; without any, they cannot be listed."""
    found: dict[Key, Any] = {("", name): {"name": name, "labels": {"team": name}} for name in names}
    return World(nodes=[], others={NAMESPACES: found or Forbidden("403 namespaces is forbidden")})


def budgets_seen(world: World, *budgets: dict[str, Any]) -> tuple[BudgetState, ...]:
    reader = Reader(
        cast("Gateway", None),
        Silent(),
        Resources(a_store(), a_store(), a_store(*budgets)),
        cluster=cast("Cluster", world),
        interval_s=10.0,
        reporting_grace_s=60.0,
        clock=lambda: NOW_S,
    )
    try:
        return reader.observe().snapshot.budgets
    finally:
        reader.close()


def test_a_budget_has_the_namespaces_that_its_selector_matches() -> None:
    everything, archive = a_budget("one"), a_budget("two")
    archive["spec"]["namespaceSelector"] = {"matchLabels": {"team": "archive"}}
    states = budgets_seen(namespaces("archive", "speech"), everything, archive)
    assert [sorted(state.namespaces) for state in states] == [["archive", "speech"], ["archive"]]


def test_after_a_restart_namespaces_that_cannot_be_listed_are_those_of_the_status() -> None:
    (state,) = budgets_seen(namespaces(), a_budget(status={"namespaces": ["archive"]}))
    assert state.namespaces == {"archive"}
    assert "forbidden" in state.unread
