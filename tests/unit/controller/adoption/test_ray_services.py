"""What `sluice init` and `sluice doctor` find in RayServices."""

from pathlib import Path
from typing import Any

import pytest
from made_clusters import NAMESPACE, a_gpu_node, a_node, an_inventory

from controller.adoption.cluster_checks import find_targets
from controller.adoption.exports import Exports
from controller.adoption.inventory import Inventory, Json
from controller.adoption.suggestion import Measured, find_stages, measured_targets, suggestion
from controller.core.state.spec import PipelineSpec
from controller.resources.manifests import parse_documents
from controller.resources.translate import pipeline_spec
from controller.resources.validation import validate_documents

CONFIG = """\
applications:
  - name: captions
    import_path: app:captions
    deployments:
      - {name: TranscriptionServer, num_replicas: 1, ray_actor_options: {num_cpus: 0.5}}
      - {name: PyannoteVAD, num_replicas: 3, ray_actor_options: {num_cpus: 2}}
      - name: FasterWhisperASR
        ray_actor_options: {num_cpus: 1, num_gpus: 0.5}
        autoscaling_config: {min_replicas: 1, max_replicas: 6}
  - {name: admin, import_path: app:admin}
"""


def workers(name: str, **resources: str) -> Json:
    container = {"name": "ray", "image": "rayproject/ray:2.60.0", "resources": {"limits": resources}}
    return {"groupName": name, "template": {"spec": {"containers": [container]}}}


def a_ray_service(config: str = CONFIG, *groups: Json) -> Json:
    own = groups or (workers("cpu", cpu="4"), workers("gpu", cpu="4", **{"nvidia.com/gpu": "1"}))
    return {
        "metadata": {"name": "captions-ray", "namespace": NAMESPACE},
        "spec": {"serveConfigV2": config, "rayClusterConfig": {"workerGroupSpecs": list(own)}},
        "status": {"activeServiceStatus": {"rayClusterName": "captions-x1"}},
    }


def a_worker(name: str, group: str, node: str) -> Json:
    labels = {"ray.io/cluster": "captions-x1", "ray.io/group": group, "ray.io/node-type": "worker"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def cluster(service: Json) -> Inventory:
    pods = [a_worker("w-1", "cpu", "c1"), a_worker("w-2", "gpu", "g1")]
    nodes = [a_node("c1"), a_gpu_node("g1")]
    return an_inventory((), pods, nodes, ray_services=[service], pods_of_node={"c1": (), "g1": ()})


def suggested(service: Json) -> tuple[str, PipelineSpec]:
    inventory = cluster(service)
    findings = find_stages(inventory, NAMESPACE, Exports(problem="not set"), all_of_them=False)
    assert measured_targets(findings) == ()
    text = suggestion(inventory, findings, Exports(problem="not set"), Measured())
    checked = validate_documents(parse_documents(text, Path("suggested.yaml")))
    assert checked.findings == ()
    (found,) = checked.pipelines
    return text, pipeline_spec(found)


def test_a_ray_service_becomes_a_pipeline_with_a_stage_for_each_deployment() -> None:
    text, spec = suggested(a_ray_service())
    assert spec.key == f"{NAMESPACE}/captions"
    own = {str(stage.name): stage.placements[0] for stage in spec.stages}
    assert set(own) == {"transcription-server", "pyannote-vad", "faster-whisper-asr"}
    asr, vad = own["faster-whisper-asr"], own["pyannote-vad"]
    assert asr.target.serve is not None
    assert (asr.target.serve.service, asr.target.serve.deployment) == ("captions-ray", "FasterWhisperASR")
    assert (asr.target.serve.worker_group, asr.pool) == ("gpu", "g6-xlarge")
    assert (asr.prior.min_replicas, asr.prior.max_replicas, asr.prior.per_instance) == (1, 6, 2)  # half a GPU each
    assert (vad.target.serve.worker_group, vad.prior.per_instance) == ("cpu", 4)  # type: ignore[union-attr]
    assert {stage.preset for stage in spec.stages} == {"ray-serve"}
    assert "autoscaling_config has 1 to 6. Replace it by num_replicas" in " ".join(text.replace("#", "").split())
    assert "RayService/captions-ray/admin: serveConfigV2 lists none of its deployments" in " ".join(
        text.replace("#", "").split()
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("applications: [", "not YAML"),
        ("[1, 2]", ""),
        ("applications: {name: x}", ""),
        ("applications: [{name: x, deployments: [{num_replicas: 1}]}]", "lists none of its deployments"),
    ],
)
def test_a_configuration_that_says_nothing_is_left_out(config: str, said: str) -> None:
    findings = find_stages(cluster(a_ray_service(config)), NAMESPACE, Exports(), all_of_them=False)
    assert findings.stages == ()
    assert said in " ".join(each.because for each in findings.left_out)


@pytest.mark.parametrize(
    ("options", "per_instance"),
    [
        ({"rayStartParams": {"num-gpus": "2"}}, 4),
        ({"rayStartParams": {"num-cpus": "0", "num-gpus": "1"}}, 1),
        ({}, 2),
    ],
)
def test_what_a_ray_worker_offers_says_how_many_replicas_it_has(options: dict[str, Any], per_instance: int) -> None:
    group = {**workers("gpu", cpu="4", **{"nvidia.com/gpu": "1"}), **options}
    _, spec = suggested(a_ray_service(CONFIG, workers("cpu", cpu="4"), group))
    own = {str(stage.name): stage.placements[0] for stage in spec.stages}
    assert own["faster-whisper-asr"].prior.per_instance == per_instance


def test_doctor_says_why_a_deployment_cannot_be_scaled() -> None:
    _, spec = suggested(a_ray_service())
    by_stage = {str(stage.name): stage.placements[0].target for stage in spec.stages}

    def problems(service: Json) -> dict[str, str]:
        found = find_targets([spec], cluster(service))
        return {stage: found[NAMESPACE, target].problem for stage, target in by_stage.items()}

    now = problems(a_ray_service())
    assert now["pyannote-vad"] == ""
    assert "Ray's own autoscaler sets its replicas" in now["faster-whisper-asr"]
    assert (
        "lists no deployment PyannoteVAD"
        in problems(a_ray_service(CONFIG.replace("PyannoteVAD", "SileroVAD")))["pyannote-vad"]
    )
    gone = find_targets([spec], an_inventory(ray_services=[]))
    assert "does not exist in namespace" in gone[NAMESPACE, by_stage["pyannote-vad"]].problem
