"""The real API server and `sluice validate` say the same about every resource of the corpus."""

import json
import random
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from corpus import BAD, PIPELINE, ROOT, document, good, mutations
from kubernetes import client
from waiting import DEADLINE_S, until

from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.schema import CRDS, GROUP, VERSION
from controller.resources.validation import Finding, validate_documents
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

BEYOND_CEL = ("inside a branch that joins", "must be an IANA time zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the API server said: the fields it blames, and its message."""

    fields: tuple[str, ...]
    message: str


Admit = Callable[[dict[str, Any]], Refusal | None]


@pytest.fixture(scope="module")
def admit(admin: client.ApiClient) -> Admit:
    """Asks the API server, which has our CRDs, for its verdict on a resource; None: it would accept it."""
    extensions = client.ApiextensionsV1Api(admin)
    for crd in CRDS:
        manifest = yaml.safe_load((ROOT / "crds" / f"{GROUP}_{crd.plural}.yaml").read_text())
        try:
            extensions.create_custom_resource_definition(manifest)
        except client.ApiException as error:
            if error.status != 409:  # another test has been here
                raise
    objects = client.CustomObjectsApi(admin)

    def served(plural: str) -> bool:
        try:
            objects.list_cluster_custom_object(GROUP, VERSION, plural)
        except client.ApiException:
            return False
        return True

    kinds = {crd.kind: crd for crd in CRDS}
    until(lambda: all(served(crd.plural) for crd in CRDS))

    def ask(data: dict[str, Any]) -> Refusal | None:
        arguments = {"body": data, "field_validation": "Strict", "dry_run": "All"}
        kind = kinds[data["kind"]]
        try:
            if kind.namespaced:
                objects.create_namespaced_custom_object(GROUP, VERSION, "default", kind.plural, **arguments)
            else:
                objects.create_cluster_custom_object(GROUP, VERSION, kind.plural, **arguments)
        except client.ApiException as error:
            status = json.loads(error.body)
            causes = status.get("details", {}).get("causes", [])
            return Refusal(fields=tuple(cause.get("field", "") for cause in causes), message=status["message"])
        return None

    return ask


@pytest.fixture
def kubectl(admit: Admit, control_plane: ControlPlane, binaries: Binaries) -> Callable[..., str]:
    def run(*arguments: str, given: str = "") -> str:
        command = [str(binaries.kubectl), "--kubeconfig", str(control_plane.kubeconfig), *arguments]
        result = subprocess.run(command, input=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def in_default(data: dict[str, Any]) -> dict[str, Any]:
    return (
        {**data, "metadata": {**data["metadata"], "namespace": "default"}} if "namespace" in data["metadata"] else data
    )


def findings(data: dict[str, Any]) -> list[Finding]:
    return list(validate_documents([document(data)]).findings)


@pytest.mark.parametrize("data", [pytest.param(in_default(data), id=name) for name, data in good()])
def test_a_good_resource_is_admitted(admit: Admit, data: dict[str, Any]) -> None:
    assert admit(data) is None


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.on_server is not None], ids=lambda bad: bad.name)
def test_a_mistake_is_refused_with_its_path(admit: Admit, bad: Any) -> None:
    refusal = admit(bad.data)
    assert refusal is not None
    expected = bad.on_server or bad.field
    blamed = [field for field in refusal.fields if field and expected.startswith(field)]
    assert blamed or expected in refusal.message, refusal
    assert not blamed or max(blamed, key=len) not in {"spec", "metadata"} or expected in {"spec", "metadata"}


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.on_server is None], ids=lambda bad: bad.name)
def test_what_is_beyond_cel_is_admitted_and_left_to_the_operator(admit: Admit, bad: Any) -> None:
    assert admit(bad.data) is None


@pytest.mark.extended
def test_both_give_the_same_verdict_on_every_generated_mutation(admit: Admit) -> None:
    everything = [(name, data) for name, data in mutations() if "metadata.namespace" not in name]
    asked = random.Random(1).sample(everything, 1000)
    with ThreadPoolExecutor(8) as threads:
        refusals = list(threads.map(lambda item: admit(item[1]), asked))
    differing = []
    for (name, data), refusal in zip(asked, refusals, strict=True):
        found = findings(data)
        beyond_cel = all(any(rule in finding.rule for rule in BEYOND_CEL) for finding in found)
        if not (beyond_cel if refusal is None else found):
            differing.append(f"{name}: server: {refusal and refusal.message}; validate: {list(map(str, found))}")
    assert not differing, "\n".join(differing)


def test_kubectl_explains_every_field_with_its_rules(kubectl: Callable[..., str]) -> None:
    told = kubectl("explain", "speechpipeline.spec.stages.placements.serviceTime")
    assert "Mean time to serve one batch" in told
    assert "Coefficient of variation" in told


def test_columns_say_whether_it_is_fine_what_limits_it_and_what_it_costs(
    kubectl: Callable[..., str], namespace: str
) -> None:
    manifest = {**PIPELINE, "metadata": {"name": "captions", "namespace": namespace}}
    kubectl("apply", "-f", "-", given=json.dumps(manifest))
    summary = {"health": "OK", "demand": "310 streams", "latency": "0.21s/0.25s", "limitedBy": "-", "cost": "9.1/20"}
    memory = {"version": 1, "samples": [[1.5, 2.5]], "stages": {"vad": {"passRatio": 0.45}}}
    status = json.dumps({"status": {"summary": summary, "memory": memory}})
    kubectl("patch", "sp", "captions", "-n", namespace, "--subresource=status", "--type=merge", "-p", status)

    header, row = kubectl("get", "sluice", "-n", namespace).splitlines()[:2]

    columns = ["NAME", "HEALTH", "MODE", "DEMAND", "P95/SLA", "BOTTLENECK", "LIMITED-BY", "COST/BUDGET", "AGE"]
    assert header.split() == columns
    for text in ("OK", "Paused", "310 streams", "0.21s/0.25s", "9.1/20"):
        assert text in row
    stored = json.loads(kubectl("get", "sp", "captions", "-n", namespace, "-o", "json"))
    assert stored["status"]["memory"] == memory


def test_the_defaults_that_the_server_fills_in_are_those_of_the_models(
    kubectl: Callable[..., str], namespace: str
) -> None:
    required = {key: PIPELINE["spec"][key] for key in ("demand", "sla", "budget", "stages")}
    manifest = {**PIPELINE, "metadata": {"name": "captions", "namespace": namespace}, "spec": required}
    kubectl("apply", "-f", "-", given=json.dumps(manifest))
    stored = parse(SpeechPipeline, json.loads(kubectl("get", "sp", "captions", "-n", namespace, "-o", "json")))
    assert stored.spec == parse(SpeechPipeline, manifest).spec
    assert stored.spec.model_fields_set >= {"mode", "priority", "scaling"}
