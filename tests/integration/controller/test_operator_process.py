"""`sluice operator` as a process, under its own ServiceAccount, on the real API server."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from operator_process import OperatorProcess
from waiting import until

from controller.kube.gateway import PIPELINES
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

GROUP, VERSION = PIPELINES.api_version.split("/")
SHORT_LEASE = ("--lease-duration", "2s")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    started: list[OperatorProcess] = []

    def start(kubeconfig: Path, *flags: str) -> OperatorProcess:
        started.append(OperatorProcess(kubeconfig, tmp_path / f"operator-{len(started)}.log", *flags))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def a_pipeline(name: str) -> dict[str, Any]:
    placement = {
        "pool": "nowhere",
        "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "replicas": {"max": 5},
        "serviceTime": {"fixed": "50ms"},
        "startup": "1s",
        "perInstance": 1,
    }
    return {
        "apiVersion": PIPELINES.api_version,
        "kind": "SpeechPipeline",
        "metadata": {"name": name},
        "spec": {
            "demand": {"unit": "Requests", "query": "offered"},
            "sla": {"latency": "500ms"},
            "budget": {"perHour": "10"},
            "stages": [{"name": "asr", "placements": [placement]}],
        },
    }


def test_it_serves_pipelines_as_they_come_and_go_even_without_prometheus(
    run: Callable[..., OperatorProcess], operator_kubeconfig: Path, admin: client.ApiClient, namespace: str
) -> None:
    operator = run(operator_kubeconfig, "--namespaces", namespace, *SHORT_LEASE)
    until(operator.leads)
    until(operator.ready)
    assert operator.get("/livez") == (200, "ok\n")
    objects = client.CustomObjectsApi(admin)
    captions = (GROUP, VERSION, namespace, "speechpipelines", "captions")

    objects.create_namespaced_custom_object(*captions[:-1], a_pipeline("captions"))

    until(lambda: "status" in objects.get_namespaced_custom_object(*captions))
    until(lambda: 'pipeline="captions"' in operator.get("/metrics")[1])
    conditions = objects.get_namespaced_custom_object(*captions)["status"]["conditions"]
    assert [condition["status"] for condition in conditions if condition["type"] == "Ready"] == ["False"]
    records = [line["record"] for line in operator.log() if "record" in line]
    assert records[-1]["schema"].startswith("sluice.dev/decision-record/")
    assert f"{namespace}/captions" in records[-1]["decision"]["pipelines"]

    objects.delete_namespaced_custom_object(*captions)

    until(lambda: 'pipeline="captions"' not in operator.get("/metrics")[1])
    assert operator.end() == 0


def test_it_waits_for_an_api_server_that_is_away_and_says_so(
    run: Callable[..., OperatorProcess], operator_kubeconfig: Path, tmp_path: Path
) -> None:
    away = yaml.safe_load(operator_kubeconfig.read_text())
    away["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    kubeconfig = tmp_path / "away.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(away))
    operator = run(kubeconfig, "--no-leader-elect")

    until(lambda: "refused" in operator.get("/readyz")[1])

    assert operator.get("/readyz")[0] == 503
    assert operator.get("/livez")[0] == 200
    until(lambda: 'sluice_cycles_total{outcome="failure"} 2' in operator.get("/metrics")[1])
    assert operator.end() == 0


def test_it_tells_that_the_crds_are_missing_and_that_the_server_has_gone(
    run: Callable[..., OperatorProcess], binaries: Binaries, tmp_path: Path
) -> None:
    with ControlPlane(tmp_path / "cluster", binaries) as cluster:
        operator = run(cluster.kubeconfig, "--no-leader-elect")
        until(lambda: "apply Sluice's CRDs first" in operator.get("/readyz")[1])
        subprocess.run(
            [binaries.kubectl, "--kubeconfig", cluster.kubeconfig, "apply", "-f", "crds"],
            cwd=Path(__file__).parents[3],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        until(operator.ready)
    until(lambda: not operator.ready())
    operator.kill()


def test_a_standby_is_ready_and_leads_as_soon_as_the_leader_ends(
    run: Callable[..., OperatorProcess], operator_kubeconfig: Path, namespace: str
) -> None:
    first, second = two_replicas(run, operator_kubeconfig, namespace)
    assert not second.leads()
    assert second.get("/livez") == (200, "ok\n")
    assert 'sluice_cycles_total{outcome="success"} 0.0' in second.get("/metrics")[1]

    assert first.end() == 0

    until(second.leads)
    until(lambda: second.get("/readyz") == (200, "ok\n"))
    assert second.end() == 0


def test_a_standby_takes_over_from_a_leader_that_was_killed(
    run: Callable[..., OperatorProcess], operator_kubeconfig: Path, namespace: str
) -> None:
    first, second = two_replicas(run, operator_kubeconfig, namespace)
    first.kill()
    until(second.leads)
    assert second.end() == 0


def test_a_leader_that_sees_another_holder_ends_as_a_failure_and_says_whom(
    run: Callable[..., OperatorProcess], operator_kubeconfig: Path, admin: client.ApiClient, namespace: str
) -> None:
    operator = run(operator_kubeconfig, "--namespaces", namespace, *SHORT_LEASE)
    until(operator.leads)
    leases = client.CoordinationV1Api(admin)
    leases.patch_namespaced_lease("sluice", "sluice-system", {"spec": {"holderIdentity": "sluice-9_5f3a"}})
    assert operator.ended() == 1
    assert operator.said("the lease sluice-system/sluice is now held by sluice-9_5f3a; this replica ends")
    leases.patch_namespaced_lease("sluice", "sluice-system", {"spec": {"holderIdentity": None}})


def test_without_a_lease_it_says_that_it_must_be_alone(
    run: Callable[..., OperatorProcess], operator_kubeconfig: Path, admin: client.ApiClient, namespace: str
) -> None:
    operator = run(operator_kubeconfig, "--namespaces", namespace, "--no-leader-elect")
    until(operator.ready)
    assert operator.said("leader election is disabled: this must be the only operator on the cluster")
    assert operator.leads()
    holder = client.CoordinationV1Api(admin).read_namespaced_lease("sluice", "sluice-system").spec.holder_identity
    assert not holder


def test_of_two_operators_for_one_namespace_one_leaves_it_to_the_other_until_that_is_gone(
    run: Callable[..., OperatorProcess], operator_kubeconfig: Path, admin: client.ApiClient, namespace: str
) -> None:
    """Both are for the namespace: Helm finds that out, but not where charts are rendered without a cluster."""
    objects, leases = client.CustomObjectsApi(admin), client.CoordinationV1Api(admin)
    captions = GROUP, VERSION, namespace, PIPELINES.plural, "captions"

    def status() -> dict[str, Any]:
        found: dict[str, Any] = objects.get_namespaced_custom_object(*captions).get("status", {})
        return found

    def told() -> list[str]:
        return [each["message"] for each in status()["conditions"] if each["type"] == "OneOperator"]

    with a_second_lease(admin):
        objects.create_namespaced_custom_object(*captions[:-1], a_pipeline("captions"))
        first = run(operator_kubeconfig, "--namespaces", namespace, *SHORT_LEASE)
        until(lambda: status().get("operator") == "sluice-system/sluice")
        second = run(operator_kubeconfig, "--namespaces", namespace, *SHORT_LEASE, "--lease-name", "second")
        until(second.leads)
        until(told)
        assert "sluice-system/second leaves this pipeline alone: status.operator is sluice-system/sluice" in told()[0]
        until(lambda: "sluice_foreign_pipelines 1.0" in second.get("/metrics")[1])
        assert second.get("/readyz")[0] == 200
        assert "sluice_foreign_pipelines 0.0" in first.get("/metrics")[1]
        objects.create_namespaced_custom_object(*captions[:-1], a_pipeline("other"))
        other = *captions[:-1], "other"
        until(
            lambda: (
                objects.get_namespaced_custom_object(*other).get("status", {}).get("operator") == "sluice-system/sluice"
            )
        )

        assert first.end() == 0
        leases.delete_namespaced_lease("sluice", "sluice-system")

        until(lambda: status()["operator"] == "sluice-system/second")
        assert second.end() == 0
    for pipeline in (captions, other):
        objects.delete_namespaced_custom_object(*pipeline)


@contextmanager
def a_second_lease(admin: client.ApiClient) -> Iterator[None]:
    """Give the operator the rights to a second Lease, as a second release has them, and take them away again."""
    rights = client.RbacAuthorizationV1Api(admin)
    binding = rights.read_namespaced_role_binding("sluice", "sluice-system")
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    role = {
        "metadata": {"name": "second"},
        "rules": [{**leases, "resourceNames": ["second"], "verbs": ["get", "patch"]}],
    }
    subjects = admin.sanitize_for_serialization(binding.subjects)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "second"}
    rights.create_namespaced_role("sluice-system", role)
    rights.create_namespaced_role_binding(
        "sluice-system", {"metadata": {"name": "second"}, "roleRef": reference, "subjects": subjects}
    )
    try:
        yield
    finally:
        rights.delete_namespaced_role_binding("second", "sluice-system")
        rights.delete_namespaced_role("second", "sluice-system")
        with suppress(client.ApiException):
            client.CoordinationV1Api(admin).delete_namespaced_lease("second", "sluice-system")


def two_replicas(
    run: Callable[..., OperatorProcess], kubeconfig: Path, namespace: str
) -> tuple[OperatorProcess, OperatorProcess]:
    """Return a leader and a standby of the same fleet."""
    flags = ("--namespaces", namespace, *SHORT_LEASE)
    first = run(kubeconfig, *flags, "--pod-name", "sluice-0")
    until(first.leads)
    second = run(kubeconfig, *flags, "--pod-name", "sluice-1")
    until(lambda: second.stands_by_for("sluice-0"))
    return first, second
