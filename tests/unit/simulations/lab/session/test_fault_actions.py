"""The actions of a scenario's faults; their patches are tested on the lab."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from builders import a_placement, a_rule, a_spec, a_stage
from kubernetes import client

from controller.resources.translate import pipeline_spec
from optimizer.model import PoolName
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.cluster.nodes import FaultyPool, PoolNodes
from simulations.lab.faults.metric_faults import NoisyMetrics, PartialMetrics, StaleMetrics
from simulations.lab.faults.metrics_proxy import Loss, TotalLoss
from simulations.lab.session import fault_actions
from simulations.scenario.scenario import InvalidScenario, PastLoad, Scenario, load_scenario

CONTRACT = Path(__file__).parents[4] / "contract"
SCENARIO = """\
name: test
manifests: [pools.yaml, live-captions.yaml]
duration: 4m
load:
  - pipeline: speech/live-captions
    trace: azure_llm_2023_code_1s.csv.gz
    column: arrivals
    session: {mean: 60s, cv: "1.3"}
"""


SPEECH = Path(__file__).parents[5] / "simulations" / "scenarios" / "speech"


def scenario(folder: Path, *lines: str) -> Scenario:
    for name in ("pools.yaml", "live-captions.yaml"):
        (folder / name).write_text((CONTRACT / name).read_text())
    (folder / "scenario.yaml").write_text(SCENARIO + "\n".join(["faults:", *(f"  - {line}" for line in lines)]) + "\n")
    return load_scenario(folder / "scenario.yaml")


class Custom:
    """One custom resource; `patches` are the received ones."""

    def __init__(self, resource: dict[str, Any]) -> None:
        self.resource = resource
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.refusal: str | None = None

    def get_cluster_custom_object(self, **_: object) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(json.dumps(self.resource)))

    def patch_cluster_custom_object(self, *, name: str, body: dict[str, Any], **_: object) -> None:
        if self.refusal is not None:
            error = client.ApiException(status=422)
            error.body = json.dumps({"message": self.refusal})
            raise error
        self.patches.append((name, body))
        self.resource = merged(self.resource, body)

    def get_namespaced_custom_object(self, *, namespace: str, **at: object) -> dict[str, Any]:
        del namespace
        return self.get_cluster_custom_object(**at)

    def patch_namespaced_custom_object(self, *, namespace: str, name: str, body: dict[str, Any], **_: object) -> None:
        self.patch_cluster_custom_object(name=f"{namespace}/{name}", body=body)


class Lab:
    """The parts of a cluster that faults use."""

    def __init__(self) -> None:
        self.metrics = self
        self.losses: tuple[object, ...] = ()
        self.faults: tuple[object, ...] = ()
        self.settled: list[str] = []
        self.slowed: list[tuple[str, float]] = []
        self.limited: list[tuple[str, bool]] = []
        self.told: list[tuple[str, float]] = []
        gpu = PoolNodes(name="gpu", device="GPU", node_selector={}, instances=4)
        self.pools = {PoolName("gpu"): FaultyPool(gpu)}

    def settle_nodes(self, pool: PoolName) -> None:
        self.settled.append(pool)

    def limit_by_quota(self, path: str, *, on: bool) -> None:
        self.limited.append((path, on))

    def tell_ingress(self, path: str, value: float) -> None:
        self.told.append((path, value))

    def slow_down(self, path: str, factor: float) -> None:
        self.slowed.append((path, factor))

    def admin(self) -> "Lab":
        return self

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Custom:
    custom = Custom({"spec": {"price": {"perHour": "1"}, "budget": {"perHour": "5"}}})
    monkeypatch.setattr(client, "CustomObjectsApi", lambda _: custom)
    return custom


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch by the pseudo-code of RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def actions(scenario: Scenario, lab: Lab) -> list[fault_actions.FaultAction]:
    pipelines = tuple(pipeline_spec(resource) for resource in scenario.pipelines)
    return fault_actions.actions(scenario.file, cast("LabCluster", lab), pipelines, seed=1)


def test_of_several_pipelines_one_cannot_have_its_metrics_stand_still(tmp_path: Path) -> None:
    file = scenario(tmp_path, "{at: 1m, metricsStale: '*'}", "{at: 1m, metricsStale: speech/live-captions}").file
    assert list(fault_actions.unsupported(file)) == []
    other = file.load[0].model_copy(update={"pipeline": "speech/notes"})
    (breach,) = fault_actions.unsupported(file.model_copy(update={"load": [*file.load, other]}))
    assert breach.path == ("faults", 1, "metricsStale")
    assert breach.rule.startswith('must be "*" in the lab')


@pytest.mark.parametrize("kind", ["Unavailable", "Lost"])
def test_a_pool_that_fails_twice_at_once_is_back_when_both_have_ended(tmp_path: Path, kind: str) -> None:
    lab = Lab()
    lines = (f"{{at: 1m, for: 2m, pool{kind}: gpu}}", f"{{at: 2m, for: 30s, pool{kind}: gpu}}")
    counts = []
    for action in actions(scenario(tmp_path, *lines), lab):
        action.do()
        pool = lab.pools[PoolName("gpu")]
        counts.append(pool.outages if kind == "Unavailable" else pool.absences)
    assert counts == [1, 2, 1, 0]
    assert lab.settled == ["gpu"] * 4


@pytest.mark.parametrize(
    ("fault", "path", "factors"),
    [
        ("slowStart: {pool: gpu, factor: 4}", "start-factors/gpu", [4, 0.25]),
        ("slowStage: {stage: vad, factor: 4}", "slow-factors/speech/live-captions/vad", [4, 0.25]),
        ("slowStage: {stage: speech/live-captions/vad, factor: 4}", "slow-factors/speech/live-captions/vad", [4, 0.25]),
    ],
)
def test_what_is_slow_is_told_to_the_agent_and_taken_back(
    tmp_path: Path, fault: str, path: str, factors: list[float]
) -> None:
    lab = Lab()
    for action in actions(scenario(tmp_path, f"{{at: 1m, for: 10s, {fault}}}"), lab):
        action.do()
    assert lab.slowed == [(path, factor) for factor in factors]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("slowTransit: {pipeline: speech/live-captions, by: 200ms}", [("overheads/speech/live-captions", 0.2), 0.0]),
        ('retries: {pipeline: speech/live-captions, factor: "1.5"}', [("sends/speech/live-captions", 1.5), 1.0]),
    ],
)
def test_the_ingress_is_told_what_happens_to_items_and_it_is_taken_back(
    tmp_path: Path, fault: str, told: list[Any]
) -> None:
    lab = Lab()
    for action in actions(scenario(tmp_path, f"{{at: 1m, for: 10s, {fault}}}"), lab):
        action.do()
    (path, _), after = told
    assert lab.told == [told[0], (path, after)]


def test_cold_caches_are_only_simulated(tmp_path: Path) -> None:
    file = scenario(tmp_path, "{at: 1m, coldCaches: {stage: vad, factor: 2, lasts: 30s}}").file
    (breach,) = fault_actions.unsupported(file)
    assert breach.path == ("faults", 0, "coldCaches")


def test_a_load_before_the_run_is_refused(tmp_path: Path) -> None:
    file = scenario(tmp_path).file
    past = PastLoad(trace="azure_llm_2023_code_1s.csv.gz", column="arrivals")
    (breach,) = fault_actions.unsupported(
        file.model_copy(update={"load": [file.load[0].model_copy(update={"history": past})]})
    )
    assert breach.path == ("load", 0, "history")
    assert "must be absent in the lab" in breach.rule


class TestReclaim:
    def counts(self, lab: Lab) -> tuple[int, int]:
        pool = lab.pools[PoolName("gpu")]
        return sum(pool.leaving.values()), sum(pool.gone.values())

    def test_nodes_are_announced_to_go_and_taken_when_the_notice_is_over(self, tmp_path: Path) -> None:
        lab = Lab()
        made = actions(
            scenario(tmp_path, '{at: 1m, for: 1m, spotReclaim: {pool: gpu, share: "0.5", notice: 20s}}'), lab
        )
        assert [action.at_s for action in made] == [60, 80, 120]
        seen = []
        for action in made:
            action.do()
            seen.append(self.counts(lab))
        assert seen == [(2, 0), (2, 2), (0, 0)]

    def test_each_is_replaced_by_a_provisioner_where_the_fault_has_no_end(self, tmp_path: Path) -> None:
        lab = Lab()
        made = actions(scenario(tmp_path, '{at: 1m, spotReclaim: {pool: gpu, share: "0.5"}}'), lab)
        assert [action.at_s for action in made[:2]] == [60, 60]
        assert all(60 + 60 <= action.at_s <= 60 + 180 for action in made[2:])
        for action in made:
            action.do()
        assert self.counts(lab) == (0, 0)

    def test_one_that_ends_within_its_notice_takes_nothing(self, tmp_path: Path) -> None:
        lab = Lab()
        line = "{at: 1m, for: 10s, spotReclaim: {pool: gpu, share: 1, notice: 20s}}"
        for action in actions(scenario(tmp_path, line), lab):
            action.do()
            assert self.counts(lab)[1] == 0
        assert self.counts(lab) == (0, 0)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("metricsStale: '*'", StaleMetrics),
        ('metricsPartial: {share: "0.5"}', PartialMetrics),
        ('metricsNoisy: {cv: "0.3", pipeline: speech/live-captions}', NoisyMetrics),
    ],
)
def test_a_disturbance_of_metrics_begins_and_ends(tmp_path: Path, fault: str, kind: type) -> None:
    lab = Lab()
    begin, end = actions(scenario(tmp_path, f"{{at: 1m, for: 10s, {fault}}}"), lab)
    begin.do()
    assert [type(one) for one in lab.faults] == [kind]
    end.do()
    assert lab.faults == ()


def test_metrics_are_lost_and_come_back(tmp_path: Path) -> None:
    lab = Lab()
    begin, end = actions(scenario(tmp_path, "{at: 1m, for: 10s, metricsLost: '*'}"), lab)
    assert (begin.at_s, begin.words, end.at_s, end.words) == (60, "metrics lost: *", 70, "metrics back: *")

    begin.do()
    assert [type(loss) for loss in lab.losses] == [TotalLoss]
    end.do()
    assert lab.losses == ()


def test_a_pipeline_loses_its_own_queries_and_deployments(tmp_path: Path) -> None:
    lab = Lab()
    loaded = scenario(tmp_path, "{at: 1m, metricsLost: speech/live-captions}")
    actions(loaded, lab)[0].do()
    (loss,) = cast("tuple[Loss]", lab.losses)
    spec = pipeline_spec(loaded.pipelines[0])

    assert loss.namespace == "speech"
    assert set(loss.deployments) == {placement.target.name for stage in spec.stages for placement in stage.placements}
    assert spec.queries.demand in loss.queries


def test_the_queries_of_a_pipeline_are_demand_latency_and_those_of_its_rules() -> None:
    spec = a_spec(a_stage("asr", a_placement("cpu"), rules=[a_rule(metric=None), a_rule("other")]))
    (loss,) = fault_actions._losses(spec.key, (spec, a_spec(name="notes")))
    assert cast("Loss", loss).queries == {"offered", "a_query"}


def test_a_roll_out_changes_the_pod_template_of_every_deployment_of_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched: list[tuple[str, str, dict[str, Any]]] = []

    class Apps:
        def __init__(self, _: object) -> None: ...

        def patch_namespaced_deployment(self, name: str, namespace: str, body: dict[str, Any], **_: object) -> None:
            patched.append((namespace, name, body["spec"]))

    monkeypatch.setattr("kubernetes.client.AppsV1Api", Apps)
    loaded = scenario(tmp_path, "{at: 1m, rollOut: decoder}")
    (begin,) = actions(loaded, Lab())
    begin.do()

    (decoder,) = (stage for stage in pipeline_spec(loaded.pipelines[0]).stages if stage.name == "decoder")
    assert begin.at_s == 60
    assert {(namespace, name) for namespace, name, _ in patched} == {
        ("speech", placement.target.name) for placement in decoder.placements
    }
    for _, _, spec in patched:
        assert spec["template"] == {"metadata": {"annotations": {"lab.sluice.dev/rolled-out": "60"}}}
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_set_patches_the_resource_and_with_for_brings_back_what_was(tmp_path: Path, custom: Custom) -> None:
    line = '{at: 1m, for: 30s, set: {"ComputePool/gpu": {spec: {price: {perHour: "1.6"}, capacity: {instances: 2}}}}}'
    begin, end = actions(scenario(tmp_path, line), Lab())
    before = custom.resource
    assert (begin.at_s, end.at_s) == (60, 90)
    assert begin.words == 'set ComputePool/gpu: {"spec": {"price": {"perHour": "1.6"}, "capacity": {"instances": 2}}}'

    begin.do()
    assert custom.resource["spec"]["price"] == {"perHour": "1.6"}
    end.do()
    assert custom.resource == before
    assert custom.patches[1] == ("gpu", {"spec": {"price": {"perHour": "1"}, "capacity": None}})


def test_set_declares_service_times_with_the_error_of_the_scenario_and_restores_what_was_declared(
    tmp_path: Path, custom: Custom
) -> None:
    stage = "{name: asr, placements: [{pool: gpu, serviceTime: {fixed: 10ms}}]}"
    name = "SpeechPipeline/speech/live-captions"
    loaded = scenario(tmp_path, '{at: 1m, for: 30s, set: {ComputePool/gpu: {spec: {price: {perHour: "1.6"}}}}}')
    (fault,) = loaded.file.faults
    patch = {name: {"spec": yaml.safe_load(f"stages: [{stage}]")}}
    faults = [fault.model_copy(update={"set_": patch})]
    file = loaded.file.model_copy(update={"faults": faults, "profile_error": {"asr": 0.2}})
    declared = {"spec": {"stages": [{"name": "asr", "placements": [{"serviceTime": {"fixed": "9us"}}]}]}}
    custom.resource = declared

    begin, end = actions(replace(loaded, file=file), Lab())
    begin.do()
    end.do()

    times = [patch["spec"]["stages"][0]["placements"][0]["serviceTime"] for _, patch in custom.patches]
    assert times == [{"fixed": "2000us"}, {"fixed": "9us"}]


def test_set_without_for_stays(tmp_path: Path, custom: Custom) -> None:
    line = '{at: 1m, set: {"SpeechPipeline/speech/live-captions": {spec: {budget: {perHour: "4"}}}}}'
    (begin,) = actions(scenario(tmp_path, line), Lab())
    begin.do()
    assert custom.patches == [("speech/live-captions", {"spec": {"budget": {"perHour": "4"}}})]


def test_what_the_api_server_refuses_is_told_with_its_reason(tmp_path: Path, custom: Custom) -> None:
    custom.refusal = "spec.budget.perHour: must not be negative"
    line = '{at: 1m, set: {"SpeechPipeline/speech/live-captions": {spec: {budget: {perHour: "1"}}}}}'
    with pytest.raises(
        fault_actions.FaultRefused, match=r"set SpeechPipeline/speech/live-captions: spec\.budget\.perHour: must"
    ):
        actions(scenario(tmp_path, line), Lab())[0].do()


def test_actions_come_in_order_of_time(tmp_path: Path) -> None:
    made = actions(
        scenario(tmp_path, "{at: 2m, for: 1m, metricsLost: '*'}", "{at: 1m, for: 90s, metricsLost: '*'}"), Lab()
    )
    assert [action.at_s for action in made] == [60, 120, 150, 180]


def test_an_overlapping_loss_of_the_same_ends_by_itself_only(tmp_path: Path) -> None:
    lab = Lab()
    made = actions(
        scenario(tmp_path, "{at: 1m, for: 2m, metricsLost: '*'}", "{at: 2m, for: 30s, metricsLost: '*'}"), lab
    )
    for action in made[:3]:
        action.do()
    assert [type(loss) for loss in lab.losses] == [TotalLoss]
    made[3].do()
    assert lab.losses == ()


def test_a_quota_limits_the_replicas_of_a_stage_for_as_long_as_the_fault_lasts(tmp_path: Path) -> None:
    for path in SPEECH.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "scenario.yaml"
    file.write_text(file.read_text().replace("faults:\n", "faults:\n  - {at: 5s, for: 10s, cpuQuota: asr}\n"))
    found = load_scenario(file, live=True)
    lab, pipelines = Lab(), tuple(map(pipeline_spec, found.pipelines))
    begins, ends, *_ = fault_actions.actions(found.file, cast("LabCluster", lab), pipelines, seed=1)
    assert (begins.at_s, ends.at_s) == (5.0, 15.0)
    begins.do()
    ends.do()
    assert lab.limited == [("speech/captions/asr", True), ("speech/captions/asr", False)]


def test_a_quota_needs_replicas_that_compute(tmp_path: Path) -> None:
    with pytest.raises(InvalidScenario, match=r"faults\[0\]\.cpuQuota: .*needs speech"):
        scenario(tmp_path, "{at: 5s, cpuQuota: vad}")
