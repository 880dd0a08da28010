from typing import Any

import pytest
from builders import ENCODER, ENCODER_GPU, VAD, a_spec

from controller.kube.followers import METRIC, Followed, followed
from controller.telemetry import FAMILIES

SPEC = a_spec()
NAMES = {"pipeline": "captions", "stage": "encoder", "pool": "gpu"}
GPU = Followed(pipeline="captions", stage="encoder", placement="gpu")
SELECTOR = 'namespace="speech",pipeline="captions",stage="encoder",pool="gpu"'


def external(**metadata: str) -> dict[str, Any]:
    return {"type": "external-push", "metadata": {"scalerAddress": "sluice:9090", **metadata}}


def prometheus(query: str, threshold: str = "1") -> dict[str, Any]:
    return {"type": "prometheus", "metadata": {"query": query, "threshold": threshold}}


def scaled_object(*triggers: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"triggers": list(triggers)}}


def metric(name: str = METRIC, labels: dict[str, str] | None = None, **target: str) -> dict[str, Any]:
    selector = {"matchLabels": NAMES if labels is None else labels}
    source = {"name": name, "selector": selector}
    return {"type": "External", "external": {"metric": source, "target": target or {"averageValue": "1"}}}


def test_the_metric_is_one_that_the_operator_exports() -> None:
    assert METRIC in {f"sluice_{name}" for name, _, _ in FAMILIES}


@pytest.mark.parametrize(
    "autoscaler",
    [
        scaled_object(external(**NAMES)),
        scaled_object({**external(**NAMES), "type": "external", "metricType": "AverageValue"}),
        scaled_object(prometheus(f"{METRIC}{{{SELECTOR}}}")),
        scaled_object(prometheus(f"max( {METRIC}{{{SELECTOR}}} )")),
        scaled_object(prometheus(f"max({METRIC}{{ pool='gpu', stage='encoder', pipeline='captions' }})")),
        scaled_object(external(**NAMES), prometheus(f"{METRIC}{{{SELECTOR}}}")),
        {"spec": {"metrics": [metric()]}},
        {"spec": {"metrics": [metric(averageValue="1000m")]}},
    ],
)
def test_an_autoscaler_on_the_recommended_replicas_alone_follows(autoscaler: dict[str, Any]) -> None:
    assert followed(autoscaler) == GPU


@pytest.mark.parametrize(
    "autoscaler",
    [
        {},
        scaled_object(),
        scaled_object(external(address="queue:80")),
        scaled_object(external(**NAMES), {"type": "cpu", "metadata": {"value": "60"}}),
        scaled_object(external(**NAMES), external(**{**NAMES, "stage": "vad"})),
        scaled_object({**external(**NAMES), "metricType": "Value"}),
        scaled_object(prometheus(f"{METRIC}{{{SELECTOR}}}", threshold="2")),
        scaled_object(prometheus(f"2 * {METRIC}{{{SELECTOR}}}")),
        scaled_object(prometheus(f"sum({METRIC}{{{SELECTOR}}})")),
        scaled_object(prometheus(f'{METRIC}{{pipeline=~"capt.*",stage="encoder"}}')),
        scaled_object(prometheus("sluice_stage_replicas_desired")),
        {"spec": {"metrics": [metric(name="s0-sluice-replicas")]}},
        {"spec": {"metrics": [metric(value="1")]}},
        {"spec": {"metrics": [metric(), {"type": "Resource", "resource": {"name": "cpu"}}]}},
    ],
)
def test_an_autoscaler_that_reads_anything_else_does_not(autoscaler: dict[str, Any]) -> None:
    assert followed(autoscaler) is None


def test_a_follower_is_one_of_its_pipeline_stage_and_pool() -> None:
    assert GPU.is_of(SPEC, ENCODER_GPU)
    assert not GPU.is_of(SPEC, ENCODER)
    assert not GPU.is_of(a_spec(name="notes"), ENCODER_GPU)
    assert Followed(pipeline="captions", stage="vad", placement=None).is_of(SPEC, VAD)


@pytest.mark.parametrize(
    "query",
    [
        f"{METRIC}{{}}" + " " * 10**6 + "x",
        " " * 10**6,
        f"max({METRIC}{{{'a=' * 10**5}}}",
        f"{METRIC}{{" + ",".join(f"a{i}='x'" for i in range(10**4)) + "}",
    ],
)
def test_a_long_text_of_another_s_object_is_not_read(query: str) -> None:
    assert followed(scaled_object(prometheus(query))) is None
