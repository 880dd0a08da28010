"""All policies by name: the names of scenario files, settings from JSON, and what every one of them keeps to."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from baselines import CAPTIONS, a_detailed, a_reading, at
from builders import ENCODER, ENCODER_GPU, VAD, a_placement, a_spec, a_stage, a_state, a_target

from controller.core.state.policy import Policy
from controller.core.state.snapshot import TargetMissing
from controller.core.state.spec import PipelineSpec
from optimizer.model import PipelineKey
from simulations.policies import catalogue
from simulations.policies.autoscaler import Briefing, DetailedSnapshot
from simulations.policies.catalogue import POLICIES, InvalidPolicySettings
from simulations.scenario.schedule import Schedule

NAMES = [
    "sluice",
    "static-peak",
    "hpa",
    "keda",
    "kpa",
    "ray-serve",
    "flink",
    "wva",
    "inferno",
    "dynamo",
    "inferline",
    "plus-one",
]


def bounded() -> PipelineSpec:
    return a_spec(
        a_stage("vad", a_placement("cpu", service_s=0.01, bounds=(1, 4))),
        a_stage("encoder", a_placement("inferentia", bounds=(0, 3)), a_placement("gpu", bounds=(0, 2)), after=["vad"]),
    )


def briefing() -> Briefing:
    start_s = np.arange(0.0, 3600.0, 0.05)
    return Briefing(
        pipelines=(bounded(),),
        pools=tuple(pool.spec for pool in a_detailed().pools.values()),
        changes=(),
        loads={PipelineKey(CAPTIONS): Schedule(start_s=start_s, end_s=start_s)},
        duration_s=3600.0,
    )


def overloaded() -> DetailedSnapshot:
    busy = a_reading(utilization=1.0, queued=500.0, in_service=1.0, arrival_rps=500.0, completion_rps=20.0, p95_s=9.0)
    return a_detailed(
        a_state(bounded(), demand=500.0, replicas={VAD: 2, ENCODER: 2, ENCODER_GPU: 1}),
        replicas={VAD: [busy] * 2, ENCODER: [busy] * 2, ENCODER_GPU: [busy]},
        offered_rps=500.0,
        p95_s=9.0,
    )


def idle() -> DetailedSnapshot:
    calm = a_reading(utilization=0.0, arrival_rps=0.0, p95_s=None)
    return a_detailed(
        a_state(bounded(), demand=0.0, replicas={VAD: 2, ENCODER: 2, ENCODER_GPU: 1}),
        replicas={VAD: [calm] * 2, ENCODER: [calm] * 2, ENCODER_GPU: [calm]},
        offered_rps=0.0,
    )


def silent() -> DetailedSnapshot:
    return a_detailed(a_state(bounded(), replicas={VAD: 2, ENCODER: a_target(2, ready=0), ENCODER_GPU: 1}))


def gone() -> DetailedSnapshot:
    return a_detailed(a_state(bounded(), replicas={VAD: 2, ENCODER: TargetMissing(reason="gone"), ENCODER_GPU: 1}))


def test_the_names_are_those_of_scenario_files() -> None:
    assert list(POLICIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", [overloaded, idle, silent, gone])
def test_every_policy_stays_within_bounds_whatever_it_sees(name: str, world: Any) -> None:
    family = POLICIES[name]
    autoscaler = family.make(family.default, briefing())
    assert autoscaler.interval_s >= 1
    assert autoscaler.metrics_window_s > 0
    snapshot = world()
    for tick in range(120):
        decision = autoscaler(at(snapshot, tick * autoscaler.interval_s), Policy(interval_s=autoscaler.interval_s))
        own = decision.pipelines[0]
        for stage in own.spec.stages:
            for placement in stage.placements:
                count = own.desired[(stage.name, placement.name)]
                assert 0 <= count <= placement.prior.max_replicas
        assert all(change.after == own.desired[(change.stage, change.placement)] for change in own.changes)


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_made_anew_has_forgotten_everything(name: str) -> None:
    family = POLICIES[name]

    def answers() -> list[Mapping[Any, int]]:
        autoscaler = family.make(family.default, briefing())
        return [
            dict(autoscaler(at(world(), tick * autoscaler.interval_s), Policy()).pipelines[0].desired)
            for world in (overloaded, idle)
            for tick in range(60)
        ]

    assert answers() == answers()


@pytest.mark.parametrize("name", NAMES)
def test_settings_survive_json(name: str) -> None:
    family = POLICIES[name]
    values = json.loads(json.dumps(family.values_of(family.default)))
    assert family.settings_of(values) == family.default


def test_settings_from_json_replace_some() -> None:
    assert POLICIES["dynamo"].settings_of({"predictor": "constant", "load_scaling": True}).load_scaling
    assert POLICIES["hpa"].settings_of({"target_utilization": 1}).target_utilization == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": 0.5}, "hpa.target: 0.5: must be one of down_window_s, "),
        ({"tolerance": "much"}, "hpa.tolerance: 'much': must be of the same type as 0.1"),
        ({"tolerance": True}, "hpa.tolerance: True: must be of the same type as 0.1"),
    ],
)
def test_settings_that_a_policy_does_not_have(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPolicySettings) as error:
        POLICIES["hpa"].settings_of(values)
    assert str(error.value).startswith(message)


def test_trained_settings_come_from_the_data_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_trained", lambda: {"hpa": {"target_utilization": 0.4}})
    assert POLICIES["hpa"].trained == POLICIES["hpa"].settings_of({"target_utilization": 0.4})
    assert POLICIES["keda"].trained is None
