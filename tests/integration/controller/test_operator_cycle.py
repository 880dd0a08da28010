"""The operator's loop, as its own ServiceAccount, on the real API server, with metrics that the test dictates."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from kubernetes import client, utils
from kubernetes.utils import FailToCreateError
from waiting import until

from controller.commands.overrides import pause, pin, resume
from controller.core.state.decision import Decision, Outcome
from controller.core.state.policy import Policy
from controller.health import Health
from controller.kube.actuator import Actuator, Write, WriteOutcome
from controller.kube.cluster import Cluster
from controller.kube.events import EventRecorder
from controller.kube.gateway import PIPELINES, POOLS, Gateway
from controller.kube.reader import Reader, Resources
from controller.kube.reporter import Reporter
from controller.kube.store import ResourceStore
from controller.loop import ControlLoop
from controller.telemetry import Telemetry
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity, Reading
from profiler.sources.base import ReadAnswer, ReadRequest
from simulations.lab.cluster import nodes
from simulations.lab.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[3]
GROUP, VERSION = PIPELINES.api_version.split("/")


@dataclass
class DictatedMetrics:
    """A `MetricSource` that answers what the test says: offered load by query, and stages that carry it."""

    offered: dict[str, Reading] = field(default_factory=dict)
    throughput: Reading = 1.0

    def read(self, request: ReadRequest) -> ReadAnswer:
        seen = {Quantity.ARRIVAL_RATE: self.throughput, Quantity.COMPLETION_RATE: self.throughput}
        missing = Absence(reason=AbsenceReason.MISSING)
        return ReadAnswer(
            placements={
                (target.pipeline, target.stage, target.placement): PlacementSamples(
                    readings=seen if target.pods else {}
                )
                for target in request.placements
            },
            scalars={key: self.offered.get(query, missing) for key, query in request.scalars.items()},
            problems=(),
        )


class World:
    """A namespace with pipelines, and the operator that serves it, cycle by cycle."""

    def __init__(self, admin: client.ApiClient, gateway: Gateway, namespace: str) -> None:
        self.namespace = namespace
        self.pool = f"cpu-{namespace}"
        self.metrics = DictatedMetrics()
        self._gateway = gateway
        self._core, self._apps = client.CoreV1Api(admin), client.AppsV1Api(admin)
        self._objects = client.CustomObjectsApi(admin)
        self._readers: list[Reader] = []
        self.loop = self.a_loop()

    def a_loop(self) -> ControlLoop:
        """Return an operator that has just been started."""
        pipelines, pools = ResourceStore(), ResourceStore()
        cluster = Cluster(self._gateway, namespaces=(self.namespace,))

        def resync() -> None:
            pipelines.resync(self._gateway.pages(PIPELINES))
            pools.resync(self._gateway.pages(POOLS))
            cluster.resync()

        self.resync = resync
        reader = Reader(
            self._gateway,
            self.metrics,
            Resources(pipelines, pools, ResourceStore(), namespaces=(self.namespace,)),
            cluster=cluster,
            interval_s=15.0,
            reporting_grace_s=0.0,
        )
        self._readers.append(reader)
        return ControlLoop(
            reader=reader,
            actuator=Actuator(self._gateway, written=cluster.written),
            reporter=Reporter(
                self._gateway,
                EventRecorder(self._gateway),
                pipelines=pipelines,
                pools=pools,
                budgets=ResourceStore(),
                interval_s=15.0,
            ),
            resync=resync,
            policy=Policy(interval_s=15.0),
            telemetry=Telemetry(),
            health=Health(),
        )

    def restart(self) -> None:
        self.loop = self.a_loop()

    def cycle(self) -> tuple[Decision, tuple[Write, ...]]:
        self.resync()
        return self.loop.cycle()

    def settle(self, name: str) -> None:
        """Run cycles, and what they ask for, until one changes nothing."""
        while self.cycle()[0].pipelines[0].outcome is Outcome.SCALE:
            self.serve(name, self.replicas(name))
        self.cycle()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._objects.delete_collection_namespaced_custom_object(GROUP, VERSION, self.namespace, "speechpipelines")
        self._objects.delete_cluster_custom_object(GROUP, VERSION, "computepools", self.pool)
        nodes.remove(self._core, nodes.node_names(self._nodes))

    def add_pool(self) -> None:
        selector = {"sluice.dev/pool": self.pool}
        self._nodes = nodes.PoolNodes(name=self.pool, device="CPU", node_selector=selector, instances=10)
        nodes.create(self._core, [self._nodes])
        self._objects.create_cluster_custom_object(
            GROUP,
            VERSION,
            "computepools",
            {
                "apiVersion": PIPELINES.api_version,
                "kind": "ComputePool",
                "metadata": {"name": self.pool},
                "spec": {
                    "device": "CPU",
                    "nodeSelector": selector,
                    "price": {"perHour": "0.4"},
                    "capacity": {"readyNodes": True},
                },
            },
        )

    def node(self, number: int) -> str:
        return nodes.node_names(self._nodes)[number]

    def add_pipeline(self, name: str, **spec: Any) -> None:
        """A pipeline of one stage, whose replicas serve 20 requests/s each; its demand is the query `name`."""
        self._objects.create_namespaced_custom_object(
            GROUP,
            VERSION,
            self.namespace,
            "speechpipelines",
            {
                "apiVersion": PIPELINES.api_version,
                "kind": "SpeechPipeline",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "demand": {"unit": "Requests", "query": name},
                    "sla": {"latency": "500ms"},
                    "budget": {"perHour": "10"},
                    "stages": [self.a_stage("asr", target=name)],
                    **spec,
                },
            },
        )

    def a_stage(self, name: str, *, target: str, **fields: Any) -> dict[str, Any]:
        return {
            "name": name,
            "placements": [
                {
                    "pool": self.pool,
                    "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
                    "replicas": {"min": 1, "max": 20},
                    "perInstance": 4,
                    "serviceTime": {"fixed": "50ms", "cv": "0.3"},
                    "startup": "1s",
                }
            ],
            **fields,
        }

    def add_workload(self, name: str, replicas: int = 1) -> None:
        labels = {"app": name}
        self._apps.create_namespaced_deployment(
            self.namespace,
            {
                "metadata": {"name": name},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {
                            "nodeSelector": {"sluice.dev/pool": self.pool},
                            "tolerations": [{"operator": "Exists"}],
                            "containers": [{"name": "asr", "image": "none"}],
                        },
                    },
                },
            },
        )
        self.serve(name, replicas)

    def serve(self, name: str, replicas: int) -> None:
        """Play kubelet: let all pods of the workload become ready, and those that leave be gone."""

        def served() -> bool:
            pods = self._core.list_namespaced_pod(self.namespace, label_selector=f"app={name}").items
            for pod in pods:
                if pod.metadata.deletion_timestamp:
                    self._core.delete_namespaced_pod(pod.metadata.name, self.namespace, grace_period_seconds=0)
                elif pod.spec.node_name and pod.status.phase == "Pending":
                    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                    status = {"status": {"phase": "Running", "conditions": [ready]}}
                    self._core.patch_namespaced_pod_status(pod.metadata.name, self.namespace, status)
            running = [pod for pod in pods if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp]
            return len(running) == len(pods) == replicas

        until(served)

    def replicas(self, name: str) -> int:
        replicas: int = self._apps.read_namespaced_deployment(name, self.namespace).spec.replicas
        return replicas

    def set_replicas(self, name: str, replicas: int) -> None:
        self._apps.patch_namespaced_deployment_scale(name, self.namespace, {"spec": {"replicas": replicas}})

    def remove_workload(self, name: str) -> None:
        self._apps.delete_namespaced_deployment(name, self.namespace)
        self.serve(name, 0)

    def pipeline(self, name: str) -> dict[str, Any]:
        resource: dict[str, Any] = self._objects.get_namespaced_custom_object(
            GROUP, VERSION, self.namespace, "speechpipelines", name
        )
        return resource

    def patch_pipeline(self, name: str, patch: dict[str, Any]) -> None:
        self._objects.patch_namespaced_custom_object(GROUP, VERSION, self.namespace, "speechpipelines", name, patch)

    def remove_pipeline(self, name: str) -> None:
        self._objects.delete_namespaced_custom_object(GROUP, VERSION, self.namespace, "speechpipelines", name)

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions: list[dict[str, Any]] = self.pipeline(name)["status"]["conditions"]
        return next(condition for condition in conditions if condition["type"] == kind)

    def versions(self) -> dict[str, str]:
        """The versions of everything the operator could have written."""
        found = {
            f"{kind.plural}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for kind in (PIPELINES, POOLS)
            for item in self._gateway.list_all(kind).items
            if item["metadata"].get("namespace", self.namespace) == self.namespace
        }
        for deployment in self._apps.list_namespaced_deployment(self.namespace).items:
            found[deployment.metadata.name] = f"{deployment.spec.replicas}"
        found["events"] = str(len(self.events()))
        return found

    def events(self) -> list[tuple[str, str, str]]:
        events = self._core.list_namespaced_event(self.namespace).items
        return [
            (event.involved_object.name, event.type, event.reason)
            for event in events
            if event.source.component == "sluice"
        ]


@pytest.fixture
def world(admin: client.ApiClient, gateway: Gateway, namespace: str) -> Iterator[World]:
    world = World(admin, gateway, namespace)
    world.add_pool()
    yield world
    world.close()


def test_more_demand_scales_the_workload_up_and_the_status_tells_why(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}

    _, writes = world.cycle()

    assert [write.outcome for write in writes] == [WriteOutcome.APPLIED]
    assert world.replicas("captions") > 1
    resource = world.pipeline("captions")
    status = resource["status"]
    assert status["observedGeneration"] == resource["metadata"]["generation"]
    assert status["demand"] == "100"
    assert status["stages"][0]["placements"][0]["desired"] == world.replicas("captions")
    assert "asr 1→" in status["lastDecision"]["message"]
    assert ("captions", "Normal", "Scaled") in world.events()
    assert status["memory"]["explanation"]["lines"][0] == "What"


def test_the_write_is_by_name_of_the_operator(world: World, admin: client.ApiClient) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}
    world.cycle()
    managers = client.AppsV1Api(admin).read_namespaced_deployment("captions", world.namespace).metadata.managed_fields
    assert ("sluice", "scale") in [(entry.manager, entry.subresource) for entry in managers]


def test_a_person_pauses_pins_and_resumes_by_command(world: World, control_plane: ControlPlane) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}
    key = f"{world.namespace}/captions"

    def sluice(command: click.Command, *arguments: str) -> str:
        done = CliRunner().invoke(command, [key, *arguments, "--kubeconfig", str(control_plane.kubeconfig)])
        assert done.exit_code == 0, done.output
        return done.output

    assert "replicas stay as they are" in sluice(pause)
    world.cycle()
    assert world.replicas("captions") == 1
    assert world.pipeline("captions")["status"]["summary"]["health"] == "Paused"

    sluice(pin, "--stage", "asr", "--pool", world.pool, "--replicas", "3", "--for", "1h")
    sluice(resume)
    world.cycle()
    planned = world.replicas("captions")
    assert planned > 3, "resume ends the pause and all pins"

    sluice(pin, "--stage", "asr", "--pool", world.pool, "--replicas", str(planned + 2))
    world.cycle()
    assert world.replicas("captions") == planned + 2


def test_cycles_and_restarts_with_nothing_changed_write_nothing(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}
    world.settle("captions")
    before = world.versions()

    for _ in range(3):
        world.cycle()
    assert world.versions() == before

    world.restart()
    for _ in range(3):
        world.cycle()
    assert world.versions() == before


def test_a_restart_does_not_forget_what_demand_the_window_still_holds(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}
    world.settle("captions")
    replicas = world.replicas("captions")

    world.metrics.offered = {"captions": 1.0}
    world.restart()
    decision, _ = world.cycle()

    assert decision.pipelines[0].demand.planned == 100.0
    assert world.replicas("captions") == replicas


def test_a_restart_after_a_gap_in_the_metrics_does_not_forget_it_either(world: World) -> None:
    """What was not observed is remembered as such: the server drops nulls, and the memory must be readable without."""
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}
    world.settle("captions")
    replicas = world.replicas("captions")
    world.metrics.offered = {}
    world.cycle()

    world.metrics.offered = {"captions": 1.0}
    world.restart()
    decision, _ = world.cycle()

    assert decision.pipelines[0].demand.planned == 100.0
    assert world.replicas("captions") == replicas


def test_replicas_that_somebody_else_keeps_setting_are_left_to_them(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}
    for _ in range(4):  # what is removed the third time is restored once more, then later and later
        # The controllers write the status of the workload meanwhile, which makes some versions outdated.
        until(lambda: [write.outcome for write in world.cycle()[1]] == [WriteOutcome.APPLIED])
        world.set_replicas("captions", 1)

    for _ in range(2):
        assert world.cycle()[1] == ()
    assert world.replicas("captions") == 1
    conflict = world.condition("captions", "Conflict")
    assert conflict["status"] == "True"
    assert "1 found after" in conflict["message"]
    assert ("captions", "Warning", "Conflict") in world.events()


def test_an_unusable_resource_and_a_missing_workload_do_not_stop_the_others(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.add_pipeline("gone")
    # The schema cannot know that a branch which joins may not drop items.
    world.add_pipeline(
        "broken",
        stages=[
            world.a_stage("vad", target="a"),
            world.a_stage("left", target="b", after=["vad"], passRatio="0.5"),
            world.a_stage("right", target="c", after=["vad"]),
            world.a_stage("join", target="d", after=["left", "right"]),
        ],
    )
    world.metrics.offered = dict.fromkeys(["captions", "gone", "broken"], 100.0)

    world.cycle()

    assert world.replicas("captions") > 1
    assert world.condition("gone", "TargetsFound")["status"] == "False"
    assert "Deployment/gone" in world.condition("gone", "TargetsFound")["message"]
    broken = world.condition("broken", "Ready")
    assert (broken["status"], broken["reason"]) == ("False", "InvalidSpec")
    assert "passRatio" in broken["message"]


def test_two_pipelines_that_name_one_workload_do_not_fight_over_it(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 100.0, "thief": 5.0}
    world.cycle()
    world.add_pipeline("thief", stages=[world.a_stage("asr", target="captions")])
    world.cycle()
    assert world.condition("captions", "TargetsFound")["status"] == "True"
    assert "belongs to pipeline" in world.condition("thief", "TargetsFound")["message"]


def test_a_copy_that_recommends_and_a_newcomer_leave_the_workload_to_the_pipeline_that_scales_it(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("a-copy", mode="Recommend", stages=[world.a_stage("asr", target="captions")])
    world.add_pipeline("captions")
    world.metrics.offered = dict.fromkeys(["captions", "a-copy", "a-newcomer"], 100.0)
    decision, _ = world.cycle()
    assert world.replicas("captions") > 1
    copy, live = decision.pipelines
    assert copy.unconstrained == live.unconstrained
    assert world.condition("a-copy", "TargetsFound")["status"] == "True"
    assert copy.spend_per_hour == 0 < live.spend_per_hour

    world.add_pipeline("a-newcomer", stages=[world.a_stage("asr", target="captions")])
    world.restart()
    world.cycle()
    assert world.condition("captions", "TargetsFound")["status"] == "True"
    told = world.condition("a-newcomer", "TargetsFound")
    assert (told["status"], told["reason"]) == ("False", "TargetMissing")
    assert f"belongs to pipeline {world.namespace}/captions, stage asr" in told["message"]
    assert ("a-newcomer", "Warning", "TargetMissing") in world.events()


def test_without_metrics_nothing_scales_down_and_a_condition_says_so_once(world: World) -> None:
    world.add_workload("captions", replicas=5)
    world.add_pipeline("captions", scaling={"scaleDown": {"stabilization": "0s"}})
    world.metrics.offered = {"captions": 100.0}
    world.cycle()
    world.metrics.offered = {}
    world.metrics.throughput = Absence(reason=AbsenceReason.UNAVAILABLE)

    for _ in range(3):
        _, writes = world.cycle()
        assert not [write for write in writes if write.change.after < write.change.before]

    condition = world.condition("captions", "MetricsAvailable")
    assert (condition["status"], condition["reason"]) == ("False", "MetricsMissing")
    assert len([event for event in world.events() if event == ("captions", "Warning", "MetricsMissing")]) == 1


def test_a_paused_pipeline_is_left_as_it_is(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions", mode="Paused")
    world.metrics.offered = {"captions": 100.0}
    _, writes = world.cycle()
    assert writes == ()
    assert world.replicas("captions") == 1


def test_a_recommendation_is_reported_and_not_applied(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions", mode="Recommend")
    world.metrics.offered = {"captions": 100.0}
    _, writes = world.cycle()
    assert writes == ()
    placement = world.pipeline("captions")["status"]["stages"][0]["placements"][0]
    assert placement["unconstrained"] > placement["current"] == placement["desired"] == 1


def test_a_deleted_pipeline_leaves_its_replicas_even_when_the_operator_has_not_seen_it_go(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 1.0}
    world.cycle()
    world.remove_pipeline("captions")
    world.metrics.offered = {"captions": 100.0}

    _, writes = world.loop.cycle()  # without a resync: the watch has missed the deletion

    assert writes == ()
    assert world.replicas("captions") == 1
    assert world.loop.cycle()[0].pipelines == ()


def test_memory_that_somebody_has_damaged_is_started_anew(world: World) -> None:
    world.add_workload("captions")
    world.add_pipeline("captions")
    world.metrics.offered = {"captions": 1.0}
    world.cycle()
    world._objects.patch_namespaced_custom_object_status(
        GROUP, VERSION, world.namespace, "speechpipelines", "captions", {"status": {"memory": {"samples": "many"}}}
    )
    world.restart()
    world.cycle()
    assert isinstance(world.pipeline("captions")["status"]["memory"]["samples"], list)


class Groups:
    """A LeaderWorkerSet with groups of two pods; the test is its controller, which makes pods as the real one does."""

    API = ("leaderworkerset.x-k8s.io", "v1")
    LABELS = "leaderworkerset.sigs.k8s.io"

    def __init__(self, world: World, admin: client.ApiClient) -> None:
        self._world, self._admin = world, admin
        self._core, self._objects = client.CoreV1Api(admin), client.CustomObjectsApi(admin)
        with suppress(FailToCreateError):  # another test has made them
            utils.create_from_dict(admin, self._kind())
        with suppress(FailToCreateError):
            utils.create_from_dict(admin, self._role())
            utils.create_from_dict(admin, self._binding())
        body = {
            "apiVersion": "/".join(self.API),
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "vllm", "namespace": world.namespace},
            "spec": {"replicas": 1},
        }

        def created() -> bool:
            try:
                made = self._objects.create_namespaced_custom_object(
                    *self.API, world.namespace, "leaderworkersets", body
                )
            except client.ApiException as error:
                if error.status != 404:  # the kind is served a moment after it is made
                    raise
                return False
            self._uid = made["metadata"]["uid"]
            return True

        until(created)
        leads = f"{self.LABELS}/name=vllm,{self.LABELS}/worker-index=0"
        self._objects.patch_namespaced_custom_object_status(
            *self.API, world.namespace, "leaderworkersets", "vllm", {"status": {"replicas": 1, "hpaPodSelector": leads}}
        )

    def _kind(self) -> dict[str, Any]:
        free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        scale = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.hpaPodSelector",
        }
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
            "subresources": {"status": {}, "scale": scale},
        }
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "leaderworkersets.leaderworkerset.x-k8s.io",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
            },
            "spec": {
                "group": self.API[0],
                "scope": "Namespaced",
                "names": {"plural": "leaderworkersets", "singular": "leaderworkerset", "kind": "LeaderWorkerSet"},
                "versions": [version],
            },
        }

    def _role(self) -> dict[str, Any]:
        """The further right that the documentation names."""
        rule = {"apiGroups": [self.API[0]], "resources": ["leaderworkersets/scale"], "verbs": ["get", "patch"]}
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "sluice-groups"},
            "rules": [rule],
        }

    def _binding(self) -> dict[str, Any]:
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "sluice-groups"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sluice-groups"},
            "subjects": [{"kind": "ServiceAccount", "name": "sluice", "namespace": "sluice-system"}],
        }

    def serve_a_pipeline(self) -> None:
        """Add a pipeline whose stage the groups serve, on two nodes each by its manifest, with 50 requests/s."""
        stage = self._world.a_stage("asr", target="vllm")
        (placement,) = stage["placements"]
        del placement["perInstance"]
        target = {"apiVersion": "/".join(self.API), "kind": "LeaderWorkerSet", "name": "vllm"}
        placement |= {"target": target, "instancesPerReplica": 2}
        self._world.add_pipeline("captions", stages=[stage])
        self._world.metrics.offered = {"captions": 50.0}

    def add_pod(self, group: int, worker: int, node: int) -> None:
        """Add a ready pod of a group on a node of the pool."""
        name = f"vllm-{group}" + (f"-{worker}" if worker else "")
        labels = {"name": "vllm", "group-index": str(group), "worker-index": str(worker)}
        owner = {
            "apiVersion": "/".join(self.API),
            "kind": "LeaderWorkerSet",
            "name": "vllm",
            "uid": self._uid,
            "controller": True,
        }
        self._core.create_namespaced_pod(
            self._world.namespace,
            {
                "metadata": {
                    "name": name,
                    "labels": {f"{self.LABELS}/{key}": value for key, value in labels.items()},
                    "annotations": {f"{self.LABELS}/size": "2"},
                    "ownerReferences": [owner],
                },
                "spec": {
                    "nodeName": self._world.node(node),
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "vllm", "image": "none"}],
                },
            },
        )
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in ("PodScheduled", "Ready")
        ]
        self._core.patch_namespaced_pod_status(
            name, self._world.namespace, {"status": {"phase": "Running", "conditions": conditions}}
        )

    @property
    def replicas(self) -> int:
        found = self._objects.get_namespaced_custom_object(*self.API, self._world.namespace, "leaderworkersets", "vllm")
        replicas: int = found["spec"]["replicas"]
        return replicas


def test_groups_of_pods_are_scaled_priced_and_counted_as_the_nodes_that_they_take(
    world: World, admin: client.ApiClient
) -> None:
    groups = Groups(world, admin)
    groups.add_pod(0, 0, node=0)
    groups.add_pod(0, 1, node=1)
    groups.serve_a_pipeline()

    def own() -> dict[str, Any]:
        found: dict[str, Any] = world.pipeline("captions")["status"]["stages"][0]["placements"][0]
        return found

    until(lambda: world.cycle() is not None and own().get("ready") == 1)  # the new right counts after a moment
    status = world.pipeline("captions")["status"]
    assert groups.replicas == own()["desired"] > 1
    assert float(status["costPerHour"]) == pytest.approx(groups.replicas * 2 * 0.4), "two nodes for each"
    assert groups.replicas <= 5, "the pool has ten nodes"

    groups.add_pod(1, 0, node=2)
    world.cycle()
    assert own()["ready"] == 1, "the second group lacks a pod"
    groups.add_pod(1, 1, node=3)
    world.cycle()
    assert own()["ready"] == 2
    assert world.condition("captions", "PlacementsMatch")["status"] == "True"


def test_groups_on_another_number_of_nodes_than_declared_are_counted_as_they_are(
    world: World, admin: client.ApiClient
) -> None:
    groups = Groups(world, admin)
    groups.add_pod(0, 0, node=0)
    groups.add_pod(0, 1, node=0)
    groups.serve_a_pipeline()
    until(lambda: world.cycle() is not None and world.condition("captions", "PlacementsMatch")["status"] == "False")
    message = world.condition("captions", "PlacementsMatch")["message"]
    assert "instancesPerReplica is 2, but its pods are on 1 node" in message
    assert float(world.pipeline("captions")["status"]["costPerHour"]) == pytest.approx(groups.replicas * 0.4)
