from typing import Any

import pytest
from made_clusters import (
    NAMESPACE,
    a_gpu_node,
    a_node,
    a_scaled_object,
    a_service,
    a_workload,
    an_hpa,
    an_inventory,
    ready_pods,
)

from controller.adoption.candidates import Candidate, LeftOut, candidates
from controller.adoption.exports import Exports
from controller.adoption.inventory import Json, known
from controller.adoption.node_groups import node_groups

NODES = (a_node("c1"), a_gpu_node("g1"))


def found(
    *workloads: Json, exports: Exports | None = None, all_of_them: bool = False, **more: Any
) -> tuple[tuple[Candidate, ...], tuple[LeftOut, ...]]:
    pods = [pod for workload in workloads for pod in ready_pods(workload, "c1", "g1")]
    inventory = an_inventory(workloads, pods, NODES, **more)
    groups = node_groups(known(inventory.nodes), ())
    workspace = inventory.workspaces[NAMESPACE]
    return candidates(workspace, exports or Exports(), groups, all_of_them=all_of_them)


def the_one(*workloads: Json, **more: Any) -> Candidate:
    (candidate,), _ = found(*workloads, **more)
    return candidate


def test_a_workload_without_any_evidence_is_left_out_unless_it_was_selected() -> None:
    stages, left_out = found(a_workload("redis"))
    assert stages == ()
    assert [str(each.target) for each in left_out] == ["Deployment/redis"]
    assert [each.name for each in found(a_workload("redis"), all_of_them=True)[0]] == ["redis"]


def test_an_accelerator_an_autoscaler_and_metrics_are_each_evidence() -> None:
    exports = Exports(presets={"vad-0": {"generic": frozenset()}})
    workloads = (
        a_workload("asr", requests={"nvidia.com/gpu": "1"}),
        a_workload("itn"),
        a_workload("vad"),
        a_workload("web"),
    )
    stages, _ = found(*workloads, exports=exports, autoscalers=[an_hpa("itn", 1, 3)])
    assert [each.name for each in stages] == ["asr", "itn", "vad"]


def test_the_preset_follows_from_what_the_pods_export() -> None:
    exports = Exports(presets={"asr-0": {"triton": frozenset({"asr"}), "generic": frozenset()}})
    candidate = the_one(a_workload("asr", image="vllm/vllm-openai"), exports=exports)
    assert candidate.preset.value == "triton"
    assert candidate.preset.because == "Prometheus has its metrics of 1 of 2 pods"


@pytest.mark.parametrize(
    ("workload", "preset"),
    [
        (a_workload("llm", image="vllm/vllm-openai:v0.10.0"), "vllm"),
        (a_workload("llm", image="registry/llm", args=["python", "-m", "vllm.entrypoints.openai.api_server"]), "vllm"),
        (a_workload("asr", image="nvcr.io/nvidia/tritonserver:25.01-py3"), "triton"),
        (a_workload("asr", image="nvcr.io/nvidia/riva/riva-speech:2.19"), "triton"),
    ],
)
def test_without_prometheus_the_preset_is_guessed_from_image_and_arguments(workload: Json, preset: str) -> None:
    candidate = the_one(workload, exports=Exports(problem="gone"))
    assert candidate.preset.value == preset
    assert candidate.preset.because.startswith("guess: ")


def test_bounds_are_those_of_the_autoscaler() -> None:
    hpa = the_one(a_workload("vad"), autoscalers=[an_hpa("vad", 2, 12)]).bounds
    assert (hpa.least, hpa.most, hpa.autoscaler) == (2, 12, "HorizontalPodAutoscaler/vad")
    keda = the_one(
        a_workload("vad"), autoscalers=[an_hpa("vad", 1, 6)], scaled_objects=[a_scaled_object("vad", maxReplicaCount=6)]
    ).bounds
    assert (keda.least, keda.most, keda.autoscaler) == (0, 6, "ScaledObject/vad")


def test_without_an_autoscaler_bounds_are_a_guess_from_the_replicas_of_now() -> None:
    bounds = the_one(a_workload("vad", replicas=5), all_of_them=True).bounds
    assert (bounds.least, bounds.most) == (1, 10)
    assert bounds.because == "guess: no autoscaler scales it; it has 5 replicas now"
    assert the_one(a_workload("vad", replicas=0), all_of_them=True).bounds.least == 0


def test_services_in_front_and_services_that_are_called() -> None:
    services = [a_service("vad"), a_service("asr"), a_service("as")]
    vad = a_workload("vad", env={"NEXT": "http://asr.speech.svc:8000/v1", "MODE": "asr"})
    candidate = the_one(vad, all_of_them=True, services=services)
    assert candidate.services == {"vad"}
    assert set(candidate.mentions) == {"asr"}
    assert candidate.mentions["asr"] == "environment variable NEXT"


def test_labels_of_metrics_name_stage_and_pipeline() -> None:
    exports = Exports(presets={"w-0": {"generic": frozenset()}}, stages={"w-0": ("Live_Captions", "vad")})
    candidate = the_one(a_workload("w"), exports=exports)
    assert (candidate.pipeline.value, candidate.stage.value) == ("live-captions", "vad")


def test_the_label_part_of_names_the_pipeline() -> None:
    workload = a_workload("w", labels={"app.kubernetes.io/part-of": "captions"})
    assert the_one(workload, all_of_them=True).pipeline.value == "captions"
    assert the_one(a_workload("w"), all_of_them=True).pipeline.value == NAMESPACE


def test_the_batch_limit_of_vllm_is_in_its_arguments() -> None:
    assert the_one(a_workload("llm", image="vllm", args=["--max-num-seqs=64"])).batch_max() == 64
    assert the_one(a_workload("llm", image="vllm", args=["--max-num-seqs", "32"])).batch_max() == 32
    assert the_one(a_workload("llm", image="vllm")).batch_max() is None


def test_pods_that_end_or_have_ended_are_not_counted() -> None:
    workload = a_workload("vad")
    pods = ready_pods(workload, "c1", "c1", "c1")
    pods[0]["metadata"]["deletionTimestamp"] = "2026-11-23T10:00:00Z"
    pods[1]["status"]["phase"] = "Failed"
    workspace = an_inventory([workload], pods).workspaces[NAMESPACE]
    (candidate,), _ = candidates(workspace, Exports(), (), all_of_them=True)
    assert [pod["metadata"]["name"] for pod in candidate.pods] == ["vad-2"]
