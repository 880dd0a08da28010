from pathlib import Path
from typing import Any

import pytest
import yaml
from made_clusters import (
    NAMESPACE,
    a_daemon,
    a_gpu_node,
    a_node,
    a_node_pool,
    a_scaled_object,
    a_service,
    a_workload,
    an_hpa,
    an_inventory,
    ready_pods,
)

from controller.adoption.exports import Exports, UserMetric
from controller.adoption.inventory import Inventory, Json, Unread
from controller.adoption.suggestion import Measured, find_stages, measured_targets, suggestion, user_queries
from controller.resources.manifests import parse_documents
from controller.resources.validation import validate_documents
from profiler.samples import Absence, AbsenceReason, Quantity

STREAMS = UserMetric(name="gateway_active_streams", in_namespace=True)
LATENCY = UserMetric(name="gateway_latency_seconds_bucket", in_namespace=True)
UNREAD = Exports(problem="Prometheus: --prometheus-url is not set")


def captions(**changes: Any) -> Inventory:
    """VAD on CPU nodes behind an HPA, an encoder on two pools (one at zero replicas), a language model with KEDA."""
    vad = a_workload("vad", requests={"cpu": "900m"}, env={"NEXT": "encoder:8001"})
    gpu = a_workload(
        "encoder-gpu", requests={"nvidia.com/gpu": "1"}, image="nvcr.io/tritonserver", env={"NEXT": "http://lm:8000/v1"}
    )
    neuron = a_workload(
        "encoder-inf2",
        replicas=0,
        requests={"aws.amazon.com/neuron": "1"},
        nodeSelector={"karpenter.sh/nodepool": "inf2"},
    )
    lm = a_workload("lm", requests={"nvidia.com/gpu": "1"}, image="vllm/vllm-openai", args=["--max-num-seqs=64"])
    for workload in (gpu, neuron):
        workload["spec"]["template"]["metadata"]["labels"]["tier"] = "encoder"
    encoder = {"metadata": {"name": "encoder"}, "spec": {"selector": {"tier": "encoder"}}}
    label = {"karpenter.sh/nodepool": "gpu"}
    inventory: dict[str, Any] = {
        "deployments": [vad, gpu, neuron, lm, a_workload("redis")],
        "pods": [*ready_pods(vad, "c1", "c1"), *ready_pods(gpu, "g1"), *ready_pods(lm, "g2")],
        "nodes": [a_node("c1"), a_gpu_node("g1", **label), a_gpu_node("g2", **label)],
        "node_pools": [a_node_pool("gpu", {"nvidia.com/gpu": "8"}), a_node_pool("inf2", types=["inf2.xlarge"])],
        "pods_of_node": {"c1": (a_daemon("c1"),), "g1": ()},
        "services": [a_service("vad"), a_service("lm"), encoder],
        "autoscalers": [an_hpa("vad", 2, 12)],
        "scaled_objects": [a_scaled_object("lm", maxReplicaCount=6)],
    }
    return an_inventory(**(inventory | changes))


OBSERVED = Exports(
    presets={
        **{f"vad-{index}": {"generic": frozenset[str]()} for index in range(2)},
        "encoder-gpu-0": {"triton": frozenset({"asr_ensemble", "preprocess"})},
        "lm-0": {"vllm": frozenset({"llama"})},
    },
    scrape_interval_s=30.0,
    loads=(STREAMS,),
    latencies=(LATENCY,),
)
MEASURED = Measured(
    quantities={
        "vad": {Quantity.ARRIVAL_RATE: 500.0},
        "encoder-gpu": {Quantity.ARRIVAL_RATE: 210.0},
        "lm": {Quantity.ARRIVAL_RATE: 210.0},
    },
    users={STREAMS: 80.0, LATENCY: 0.213},
)


def text_of(inventory: Inventory, exports: Exports = UNREAD, measured: Measured | None = None, **how: bool) -> str:
    findings = find_stages(inventory, NAMESPACE, exports, all_of_them=how.get("all_of_them", False))
    return suggestion(inventory, findings, exports, measured or Measured())


def parts(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pools by name and the only pipeline's spec; the text must be valid as `sluice validate` sees it."""
    found = validate_documents(parse_documents(text, Path("speech.yaml")))
    assert [str(finding) for finding in found.findings] == []
    documents = list(yaml.safe_load_all(text))
    pools = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "ComputePool"}
    (pipeline,) = [each["spec"] for each in documents if each["kind"] == "SpeechPipeline"]
    return pools, pipeline


def test_a_cluster_with_everything_is_described_by_valid_manifests() -> None:
    pools, spec = parts(text_of(captions(), OBSERVED, MEASURED))
    assert {name: pool["device"] for name, pool in pools.items()} == {
        "c7i-2xlarge": "CPU",
        "gpu": "GPU",
        "inf2": "Inferentia",
    }
    assert pools["gpu"]["capacity"] == {"nodePool": "gpu", "instances": 8}
    assert pools["c7i-2xlarge"]["capacity"] == {"readyNodes": True}
    assert spec["mode"] == "Recommend"
    assert [stage["name"] for stage in spec["stages"]] == ["vad", "encoder-gpu", "lm"]
    vad, encoder, lm = spec["stages"]
    assert [each["pool"] for each in encoder["placements"]] == ["gpu", "inf2"]
    assert vad["placements"][0]["replicas"] == {"min": 2, "max": 12}
    assert vad["placements"][0]["perInstance"] == 8
    assert vad["passRatio"] == "0.42"
    assert "passRatio" not in encoder
    assert encoder["metrics"] == {"preset": "triton", "model": "asr_ensemble", "window": "2m"}
    assert lm["placements"][0]["batching"] == {"max": 64}
    assert vad["placements"][0]["startup"] == "42s"


def test_demand_and_sla_follow_from_the_users_metrics() -> None:
    _, spec = parts(text_of(captions(), OBSERVED, MEASURED))
    assert spec["demand"] == {
        "unit": "Streams",
        "chunk": "160ms",
        "query": 'sum(gateway_active_streams{namespace="speech"})',
    }
    assert spec["sla"]["latency"] == "320ms"
    assert "gateway_latency_seconds_bucket" in spec["sla"]["query"]


def test_without_prometheus_the_manifests_are_valid_and_say_what_to_set() -> None:
    text = text_of(captions())
    _, spec = parts(text)
    assert spec["demand"] == {"unit": "Requests", "query": "todo_offered_requests_per_second"}
    assert "# Not read: Prometheus: --prometheus-url is not set" in text
    assert "TODO: PromQL for the offered load" in text
    assert [stage["metrics"]["preset"] for stage in spec["stages"]] == ["generic", "triton", "vllm"]


def test_every_comment_fits_80_columns() -> None:
    for text in (text_of(captions()), text_of(captions(), OBSERVED, MEASURED)):
        assert max(len(line) for line in text.splitlines() if line.lstrip().startswith("#")) <= 80


def test_what_was_left_out_and_not_read_is_at_the_top() -> None:
    text = text_of(captions(scaled_objects=()))
    assert "# Left out: Deployment/redis: no metrics that a preset reads" in text
    inventory = captions()
    workspace = inventory.workspaces[NAMESPACE]
    partly = Inventory(
        nodes=inventory.nodes,
        workspaces={
            NAMESPACE: type(workspace)(
                namespace=NAMESPACE,
                deployments=workspace.deployments,
                pods=workspace.pods,
                autoscalers=Unread(reason="403 forbidden"),
            )
        },
    )
    assert "# Not read: 403 forbidden" in text_of(partly)


def test_a_latency_in_milliseconds_is_divided() -> None:
    metric = UserMetric(name="gateway_latency_milliseconds_bucket", in_namespace=False)
    exports = Exports(latencies=(metric,))
    findings = find_stages(captions(), NAMESPACE, exports, all_of_them=False)
    assert user_queries(findings, exports)[metric].endswith("[300s]))) / 1000")


def test_without_an_end_to_end_latency_the_stages_are_added_up() -> None:
    tails = {name: {Quantity.LATENCY_P95: tail} for name, tail in (("vad", 0.01), ("encoder-gpu", 0.1), ("lm", 0.09))}
    _, spec = parts(text_of(captions(), Exports(), Measured(quantities=tails)))
    assert spec["sla"] == {"latency": "300ms", "percentile": 95}


def test_a_price_that_the_cluster_exports_beats_the_list() -> None:
    pools, _ = parts(text_of(captions(), Exports(node_prices={"g1": 0.25, "g2": 0.35})))
    assert pools["gpu"]["price"] == {"perHour": "0.300000"}
    assert pools["c7i-2xlarge"]["price"] == {"perHour": "0.357"}


def test_an_unknown_price_is_marked_and_so_is_the_budget() -> None:
    node = a_node("c1", kind="x9.huge")
    vad = a_workload("vad")
    text = text_of(an_inventory([vad], ready_pods(vad, "c1"), [node]), all_of_them=True)
    pools, spec = parts(text)
    assert pools["x9-huge"]["price"] == {"perHour": "1"}
    assert "TODO: USD per hour of x9.huge is not known" in text
    assert "TODO: follows from the price of x9-huge" in text
    assert spec["budget"] == {"perHour": "0.50"}  # four replicas, eight of which fit on an instance


def test_a_list_price_of_another_region_or_of_spot_nodes_says_so() -> None:
    node = a_node("c1", labels={"topology.kubernetes.io/region": "eu-west-1", "karpenter.sh/capacity-type": "spot"})
    vad = a_workload("vad")
    text = " ".join(
        text_of(an_inventory([vad], ready_pods(vad, "c1"), [node]), all_of_them=True).replace("#", "").split()
    )
    assert "the nodes are in eu-west-1; spot nodes cost less; set what you pay" in text


def test_a_stage_whose_pods_have_no_node_gets_a_pool_to_fill_in() -> None:
    asr = a_workload("asr", requests={"nvidia.com/gpu": "1"})
    pools, spec = parts(text_of(an_inventory([asr], (), [a_node("c1")])))
    assert set(pools) == {"todo"}
    assert spec["stages"][0]["placements"][0]["pool"] == "todo"


def test_workloads_without_requests_use_what_is_seen_on_one_node() -> None:
    vad = a_workload("vad", requests={})
    text = text_of(
        an_inventory([vad], ready_pods(vad, "c1", "c1", "c2"), [a_node("c1"), a_node("c2")]), all_of_them=True
    )
    _, spec = parts(text)
    assert spec["stages"][0]["placements"][0]["perInstance"] == 2
    assert "TODO: its containers request nothing" in text


def test_workloads_of_different_pipelines_become_different_pipelines() -> None:
    workloads = [a_workload(name, labels={"app.kubernetes.io/part-of": name}) for name in ("captions", "notes")]
    pods = [pod for workload in workloads for pod in ready_pods(workload, "c1")]
    text = text_of(an_inventory(workloads, pods, [a_node("c1")]), all_of_them=True)
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(text) if each["kind"] == "SpeechPipeline"]
    assert names == ["captions", "notes"]


def test_two_workloads_of_one_stage_on_one_pool_stay_two_stages() -> None:
    workloads = [a_workload(name) for name in ("asr-a", "asr-b")]
    pods = [pod for workload in workloads for pod in ready_pods(workload, "c1")]
    exports = Exports(stages={"asr-a-0": ("", "asr"), "asr-b-0": ("", "asr")})
    _, spec = parts(text_of(an_inventory(workloads, pods, [a_node("c1")]), exports, all_of_them=True))
    assert [stage["name"] for stage in spec["stages"]] == ["asr", "asr-b"]


def test_a_fan_out_that_joins_is_valid() -> None:
    def calling(name: str, *services: str) -> Json:
        return a_workload(name, env={f"TO_{each.upper()}": f"http://{each}:80" for each in services})

    workloads = [calling("vad", "asr", "diar"), calling("asr", "notes"), calling("diar", "notes"), calling("notes")]
    pods = [pod for workload in workloads for pod in ready_pods(workload, "c1")]
    services = [a_service(name) for name in ("vad", "asr", "diar", "notes")]
    rates = {
        name: {Quantity.ARRIVAL_RATE: rate}
        for name, rate in (("vad", 9.0), ("asr", 4.0), ("diar", 4.0), ("notes", 4.0))
    }
    inventory = an_inventory(workloads, pods, [a_node("c1")], services=services)
    _, spec = parts(text_of(inventory, Exports(), Measured(quantities=rates), all_of_them=True))
    after = {stage["name"]: stage.get("after") for stage in spec["stages"]}
    assert sorted(after["notes"] or []) == ["asr", "diar"]
    assert {name for name in ("asr", "diar") if after[name] == ["vad"]} == {spec["stages"][2]["name"]}


def test_a_load_without_a_number_is_no_demand() -> None:
    gone = Measured(users={STREAMS: Absence(reason=AbsenceReason.MISSING)})
    _, spec = parts(text_of(captions(), OBSERVED, gone))
    assert spec["demand"]["query"].startswith("todo_")


def test_requests_of_ingress_nginx_are_the_demand_if_no_streams_are_counted() -> None:
    _, spec = parts(text_of(captions(), Exports(nginx_rps=12.0)))
    assert spec["demand"]["unit"] == "Requests"
    assert 'exported_namespace="speech"' in spec["demand"]["query"]


@pytest.mark.parametrize(("grace_s", "drain"), [(20, "20s"), (30, "30s"), (600, None)])
def test_drain_never_exceeds_what_the_pods_are_given(grace_s: int, drain: str | None) -> None:
    vad = a_workload("vad", terminationGracePeriodSeconds=grace_s)
    _, spec = parts(text_of(an_inventory([vad], ready_pods(vad, "c1"), [a_node("c1")]), all_of_them=True))
    assert spec.get("scaling", {}).get("scaleDown", {}).get("drain") == drain


def test_more_than_twenty_stages_are_cut_with_a_mark() -> None:
    workloads = [a_workload(f"s{index:02}") for index in range(22)]
    pods = [pod for workload in workloads for pod in ready_pods(workload, "c1")]
    text = text_of(an_inventory(workloads, pods, [a_node("c1")]), all_of_them=True)
    _, spec = parts(text)
    assert len(spec["stages"]) == 20
    assert "left out: s20, s21" in text


def test_what_is_measured_is_asked_by_the_name_of_the_workload() -> None:
    findings = find_stages(captions(), NAMESPACE, OBSERVED, all_of_them=False)
    targets = {str(target.stage): target for target in measured_targets(findings)}
    assert set(targets) == {"vad", "encoder-gpu", "lm"}
    assert targets["encoder-gpu"].model == "asr_ensemble"
    assert targets["vad"].pods == {"vad-0", "vad-1"}
