from typing import Any

import pytest

from controller.kube.constraints import constraint, kept_constraints

POOL = {"pool": "gpu"}
COMMON = {"pool": "gpu", "team": "speech", "topology.kubernetes.io/zone": "a"}


def words(**spec: Any) -> str:
    return constraint(kept_constraints(spec), POOL, COMMON)


def required(kind: str, terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def node_affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    return required("nodeAffinity", {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]})


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"schedulerName": "default-scheduler"},
        {"nodeSelector": {"pool": "gpu"}},
        {"nodeSelector": {"pool": "gpu", "team": "speech"}},
        node_affinity({"key": "pool", "operator": "In", "values": ["gpu", "gpu-large"]}),
        {"volumes": [{"name": "cache", "emptyDir": {}}]},
        {
            "topologySpreadConstraints": [
                {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        },
        {
            "topologySpreadConstraints": [
                {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        },
        required("podAntiAffinity", [{"topologyKey": "kubernetes.io/hostname"}]),
    ],
)
def test_a_pod_that_any_empty_node_of_the_pool_would_take_has_none(spec: dict[str, Any]) -> None:
    assert words(**spec) == ""


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"nodeSelector": {"pool": "gpo"}}, "node label pool"),
        ({"nodeSelector": {"disk": "ssd"}}, "node label disk"),
        ({"nodeSelector": {"topology.kubernetes.io/zone": "a"}}, "node label topology.kubernetes.io/zone"),
        (node_affinity({"key": "pool", "operator": "In", "values": ["cpu"]}), "node label pool"),
        (node_affinity({"key": "pool", "operator": "NotIn", "values": ["cpu"]}), "node affinity"),
        ({"schedulerName": "volcano"}, "schedulerName volcano"),
        ({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, "scheduling gate kueue.x-k8s.io/admission"),
        ({"resourceClaims": [{"name": "card"}]}, "resource claim card"),
        ({"volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": "m"}}]}, "volume model"),
        ({"volumes": [{"name": "tmp", "ephemeral": {}}]}, "volume tmp"),
        (
            {"topologySpreadConstraints": [{"topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]},
            "topology spread over rack",
        ),
        (required("podAffinity", [{"topologyKey": "kubernetes.io/hostname"}]), "pod affinity"),
        (required("podAntiAffinity", [{"topologyKey": "rack"}]), "pod anti-affinity"),
    ],
)
def test_what_keeps_a_pod_from_nodes_of_its_pool_is_named(spec: dict[str, Any], named: str) -> None:
    assert words(**spec) == named


@pytest.mark.parametrize("odd", [None, 7, "text", ["text"], {"name": None}, [{"name": "x" * 9999}]])
def test_no_shape_of_a_spec_raises_or_is_kept_at_length(odd: Any) -> None:
    fields = ("nodeSelector", "schedulingGates", "resourceClaims", "volumes", "topologySpreadConstraints", "affinity")
    for field in fields:
        assert len(words(**{field: odd})) <= 100
