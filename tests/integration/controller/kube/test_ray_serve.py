"""RayServices on the real API server, with the answers of Ray from tests/support/serve_answers.py."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from builders import a_placement, a_spec, a_stage
from corpus import ROOT
from kubernetes import client, utils
from serve_answers import ServeAnswers, a_replica, answering

from controller.core.state.decision import ChangeReason, ReplicaChange
from controller.core.state.snapshot import TargetState
from controller.core.state.spec import ServeDeployment, Target
from controller.kube.gateway import RAY_SERVICES, Conflict, Gateway, Json, Resource
from controller.kube.ray_serve import Hosts, RayServe, ServeActuator
from controller.kube.workloads import NodeNames
from controller.ray.client import ServeClient
from simulations.lab.cluster.cluster import wait_until_established
from simulations.lab.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.lab

CONFIG = """\
# what the team agreed on
applications:
  - name: captions
    deployments:
      - {name: PyannoteVAD, num_replicas: 1}
      - name: FasterWhisperASR   # GPUs
        num_replicas: 2
"""


@pytest.fixture
def gateway(control_plane: ControlPlane, admin: client.ApiClient) -> Iterator[Gateway]:
    crd = yaml.safe_load((ROOT / "tests" / "support" / "ray_service_crd.yaml").read_text())
    try:
        utils.create_from_dict(admin, crd)
    except utils.FailToCreateError as error:
        if any(problem.status != 409 for problem in error.api_exceptions):  # another test has been here
            raise
    wait_until_established(admin, [crd["metadata"]["name"]])
    with Gateway(control_plane.kubeconfig) as own:
        yield own


@pytest.fixture
def service(gateway: Gateway, namespace: str) -> str:
    body = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "captions"},
        "spec": {"serveConfigV2": CONFIG, "rayClusterConfig": {"workerGroupSpecs": [{"groupName": "gpu"}]}},
    }
    gateway.create(RAY_SERVICES, namespace, body)
    return namespace


def target(address: str) -> Target:
    serve = ServeDeployment(
        application="captions", deployment="FasterWhisperASR", address=address, service="captions", worker_group="gpu"
    )
    return Target(api_version="sluice.dev/v1alpha1", kind="RayServe", name="captions/FasterWhisperASR", serve=serve)


def change(of: Target, before: int, after: int) -> ReplicaChange:
    return ReplicaChange(
        stage=a_spec().stages[0].name,
        placement=a_placement("gpu").name,
        target=of,
        before=before,
        after=after,
        resource_version="1",
        reason=ChangeReason.DEMAND,
    )


def config_of(gateway: Gateway, namespace: str) -> str:
    text: str = gateway.get(RAY_SERVICES, namespace, "captions")["spec"]["serveConfigV2"]
    return text


def test_only_the_number_of_replicas_is_written(gateway: Gateway, service: str) -> None:
    ServeActuator(gateway, ServeClient(), Hosts()).scale(service, change(target(""), 2, 5))
    assert config_of(gateway, service) == CONFIG.replace("num_replicas: 2", "num_replicas: 5")
    spec = gateway.get(RAY_SERVICES, service, "captions")["spec"]
    assert spec["rayClusterConfig"] == {"workerGroupSpecs": [{"groupName": "gpu"}]}


def test_what_another_wrote_meanwhile_stays(gateway: Gateway, service: str) -> None:
    actuator = ServeActuator(gateway, ServeClient(), Hosts())
    with pytest.raises(Conflict, match="was set to 2 replicas by another client"):
        actuator.scale(service, change(target(""), 1, 5))

    class Racing(Gateway):
        """Another client writes between the read and the patch."""

        def patch_json(self, resource: Resource, namespace: str, name: str, operations: Any) -> Json:
            others = CONFIG.replace("num_replicas: 1", "num_replicas: 4")
            super().patch(resource, namespace, name, {"spec": {"serveConfigV2": others}})
            return super().patch_json(resource, namespace, name, operations)

    gateway.__class__ = Racing
    with pytest.raises(Conflict, match="serveConfigV2 was changed by another client"):
        actuator.scale(service, change(target(""), 2, 5))
    assert "num_replicas: 5" not in config_of(gateway, service)
    assert "num_replicas: 4" in config_of(gateway, service)


def test_pending_workers_say_why_replicas_wait(gateway: Gateway, service: str, admin: client.ApiClient) -> None:
    answers = ServeAnswers("captions", {"PyannoteVAD": 1, "FasterWhisperASR": 2})
    answers.replicas["FasterWhisperASR"][1] = a_replica("waits", "STARTING", address=None)
    labels = {"ray.io/cluster": "captions-x", "ray.io/group": "gpu", "ray.io/node-type": "worker"}
    pod = {
        "metadata": {"name": "worker-1", "labels": labels},
        "spec": {"nodeSelector": {"gpu": "none"}, "containers": [{"name": "ray", "image": "ray"}]},
    }
    client.CoreV1Api(admin).create_namespaced_pod(service, pod)
    status = {"activeServiceStatus": {"rayClusterName": "captions-x"}}
    gateway.patch_status(
        RAY_SERVICES, service, "captions", gateway.get(RAY_SERVICES, service, "captions")["metadata"]["uid"], status
    )
    with answering(answers) as address:
        own = target(address)
        stage = a_stage("asr", a_placement("gpu"))
        spec = a_spec(replace(stage, placements=(replace(stage.placements[0], target=own),)))
        spec = replace(spec, namespace=service)
        serve = RayServe(gateway, ServeClient(), Hosts(allowed=frozenset({address.removeprefix("http://")})))
        serve.refresh([spec])
        pods = [
            json.loads(json.dumps(client.ApiClient().sanitize_for_serialization(each)))
            for each in client.CoreV1Api(admin).list_namespaced_pod(service).items
        ]
        found = serve.workload(
            service,
            own,
            lambda selector: [each for each in pods if selector.matches(each["metadata"]["labels"])],
            NodeNames(),
            1000.0,
        )
        serve.close()
    assert isinstance(found.state, TargetState)
    assert (found.state.desired, found.state.ready) == (2, 1)
    (pending,) = found.state.pending
    assert pending.name == "worker-1"
