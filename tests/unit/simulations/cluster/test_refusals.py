"""What is not simulated is told before anything runs, with file and line."""

from collections.abc import Collection
from pathlib import Path

import pytest
from small_scenarios import PIPELINE, POOLS, a_scenario

from simulations.cluster.refusals import check_simulated, refusals
from simulations.scenario.scenario import InvalidScenario, Scenario

QUERY = 'sum(rate(sluice_ingress_requests_total{namespace="speech", pipeline="captions"}[10s]))'
CAPTIONS = "SpeechPipeline/speech/captions"
SUM_UP = f"{{{CAPTIONS}: {{spec: {{demand: {{query: sum(up)}}}}}}}}"


def told(scenario: Scenario, *, what_ifs: Collection[str] = ()) -> list[str]:
    with pytest.raises(InvalidScenario) as caught:
        check_simulated(scenario, what_ifs=what_ifs, seeds=[1])
    return [str(finding).removeprefix(f"{scenario.path.parent}/") for finding in caught.value.findings]


def test_what_is_simulated_passes(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path)
    check_simulated(scenario, what_ifs=[], seeds=[1])
    assert list(refusals(scenario)) == []


ASR = "metrics: {window: 10s}\n      placements:\n        - pool: gpu"
OVERRIDES = "metrics: {window: 10s, overrides: [{quantity: latencyP95, query: max(a)}]}"

MANIFESTS = [
    (QUERY, "sum(up)", 'pipeline.yaml:7: spec.demand.query: "sum(up)": must be one that the simulated'),
    (QUERY, "sum((up)", 'pipeline.yaml:7: spec.demand.query: "sum((up)": must have matching parentheses'),
    (
        ASR,
        ASR.replace("metrics: {window: 10s}", OVERRIDES),
        'pipeline.yaml:30: spec.stages[1].metrics.overrides: [{"quantity": "latencyP95", "query": "max(a)"}]: must',
    ),
    (
        ASR,
        ASR.replace("metrics: {window: 10s}", "rules: [{name: a, query: sum(up), above: '1', addReplicas: 1}]"),
        'pipeline.yaml:30: spec.stages[1].rules[0].query: "sum(up)": must be one that the simulated ingress',
    ),
    (
        QUERY,
        f"{QUERY}\n    atLeast: [{{name: late, demand: '9', from: '22:00', until: '06:00'}}]",
        'pipeline.yaml:8: spec.demand.atLeast: [{"name": "late", "demand": "9", "from": "22:00", "until": …: must',
    ),
    (
        "kind: Deployment, name: asr-gpu",
        "kind: StatefulSet, name: asr-gpu",
        "pipeline.yaml:33: spec.stages[1].placements[0].target: {",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), MANIFESTS, ids=[message for _, _, message in MANIFESTS])
def test_a_manifest_that_asks_for_more_is_told_where_it_does(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in PIPELINE
    found = told(a_scenario(tmp_path, pipeline=PIPELINE.replace(old, new, 1)))

    assert len(found) == 1
    assert found[0].startswith(message)


def test_a_pool_without_a_number_of_instances_is_told(tmp_path: Path) -> None:
    found = told(a_scenario(tmp_path, pools=POOLS.replace("capacity: {instances: 4}", "capacity: {readyNodes: true}")))

    assert found == [
        (
            "pools.yaml:17: spec.capacity.instances: (absent): a pool without spec.capacity.instances needs it "
            "(--instances gpu=N)"
        )
    ]


def test_what_a_fault_will_ask_for_is_told(tmp_path: Path) -> None:
    (found,) = told(a_scenario(tmp_path, faults=f"[{{at: 40s, set: {SUM_UP}}}]"))

    assert found.startswith(
        f'scenario.yaml:9: faults[0].set[{CAPTIONS}].spec.demand.query: "sum(up)": must be one that'
    )


def test_every_what_if_that_is_to_run_is_told_and_no_other(tmp_path: Path) -> None:
    no_limit = "{ComputePool/gpu: {spec: {capacity: {instances: null, nodePool: gpu}}}}"
    crowd = "{copies: 10000, speed: 1}"
    scenario = a_scenario(
        tmp_path,
        load=((0.0, 900.0),),
        what_if=f"\n- {{name: up, set: {SUM_UP}}}\n- {{name: gpu, set: {no_limit}}}\n- {{name: crowd, load: {crowd}}}",
    )

    check_simulated(scenario, what_ifs=[], seeds=[1])
    up, gpu, crowd = told(scenario, what_ifs=["crowd", "gpu", "up"])
    assert up.startswith(f'scenario.yaml:11: whatIf[0].set[{CAPTIONS}].spec.demand.query: "sum(up)": must be one that')
    assert gpu.startswith(
        "scenario.yaml:12: whatIf[1].set[ComputePool/gpu].spec.capacity.instances: null: a pool without"
    )
    assert crowd.startswith(
        'scenario.yaml:13: whatIf[2].load: {"copies": 10000, "speed": 1}: 1.1e+09 sessions: must be'
    )
    assert told(scenario, what_ifs=["gpu"]) == [gpu]


def test_what_the_scenario_asks_for_anyway_is_told_once(tmp_path: Path) -> None:
    cheaper = "{ComputePool/gpu: {spec: {price: {perHour: '1'}}}}"
    richer = f"{{{CAPTIONS}: {{spec: {{budget: {{perHour: '40'}}}}}}}}"
    scenario = a_scenario(
        tmp_path,
        pipeline=PIPELINE.replace(QUERY, "sum(up)"),
        faults=f"[{{at: 40s, set: {richer}}}]",
        what_if=f"[{{name: cheaper, set: {cheaper}}}]",
    )

    assert len(told(scenario, what_ifs=["cheaper"])) == 1


def test_a_load_that_nobody_can_carry_is_told_with_the_entry_or_the_spike_that_makes_it(tmp_path: Path) -> None:
    crowd = told(a_scenario(tmp_path, load=((0.0, 1_000_000.0),)))
    spike = told(a_scenario(tmp_path, faults="[{at: 1s, spike: {pipeline: speech/captions, factor: 1000000}}]"))

    assert len(crowd) == len(spike) == 1
    assert crowd[0].startswith('scenario.yaml:8: load[0]: {"pipeline": "speech/captions", ')
    assert spike[0].startswith('scenario.yaml:9: faults[0].spike: {"pipeline": "speech/captions", ')


def test_a_copy_that_recommends_for_the_same_workloads_is_told(tmp_path: Path) -> None:
    copy = PIPELINE.replace("name: captions,", "name: copy,", 1).replace("spec:", "spec:\n  mode: Recommend", 1)
    found = told(a_scenario(tmp_path, pipeline=f"{PIPELINE}---\n{copy}"))
    assert len(found) == 3
    assert all(f"must not be a target of {CAPTIONS} too: shared workloads are not simulated" in one for one in found)
