"""Invalid resources beside the pipelines, created past the schema, as an older schema would have accepted them."""

import contextlib
import copy
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from corpus import PIPELINE, mutations
from kubernetes import client
from world import GROUP, VERSION, World, until

from controller.kube.reporter import INVALID_SHARE

PLACE = (GROUP, VERSION, "hostile", "speechpipelines")
_CRD = f"speechpipelines.{GROUP}"
_WRITES_PER_S = 20.0
_PAGE = 100
_OPEN = {
    "type": "object",
    "properties": {
        name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True} for name in ("spec", "status")
    },
}
DEEP = "nested deeply"
"""A placeholder for 8,000 levels, too many for the JSON encoder; the API server accepts 10,000."""
_LEVELS = 4_000
_NESTED = '{"deeper": [' * _LEVELS + '"end"' + "]}" * _LEVELS
sys.setrecursionlimit(20 * _LEVELS)  # to decode what the server returns
_STRANGE: tuple[Any, ...] = (
    None,
    -1,
    0,
    10**30,
    1e308,
    "",
    "NaN",
    "-Inf",
    "1e999",
    "\u0000\u202e\U0001f399 Spracherkennung",
    "٣",
    [],
    [[]],
    {},
    {"": ""},
    True,
    "x" * 10_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The created resources: their count, a look-up of those without a condition, and the longest time for all."""

    count: int
    without_condition: Callable[[], list[str]]
    longest_s: float


@contextlib.contextmanager
def beside(world: World) -> Iterator[Made]:
    """Open the schema and create the resources; undo both at the end."""
    extensions = client.ApiextensionsV1Api(world.core.api_client)
    crd = client.ApiClient().sanitize_for_serialization(extensions.read_custom_resource_definition(_CRD))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    _set_schema(extensions, _OPEN)
    _set_policies(world, "Audit")  # it could not evaluate them, and would refuse them
    with contextlib.suppress(client.ApiException):
        world.core.create_namespace({"metadata": {"name": PLACE[2]}})
    try:
        until(lambda: _accepted(world, _named("probe", {"spec": {}})), what="the schema to be open")
        bodies = list(generated(world.pace.hostile))
        with ThreadPoolExecutor(4) as threads:
            made = sum(threads.map(lambda body: _accepted(world, body), bodies))
        assert made > 0.9 * len(bodies), f"the API server accepted {made} of {len(bodies)}"
        yield Made(
            count=made,
            without_condition=lambda: _without_condition(world),
            longest_s=made / (_WRITES_PER_S * INVALID_SHARE),
        )
    finally:
        world.objects.delete_collection_namespaced_custom_object(*PLACE)
        until(
            lambda: not world.objects.list_namespaced_custom_object(*PLACE, limit=1)["items"], 120.0, "their deletion"
        )
        _set_policies(world, "Deny")
        _set_schema(extensions, schema)
        until(lambda: not _accepted(world, _named("probe", {"spec": {}}), dry_run=True), what="the schema to be back")


def generated(count: int) -> Iterator[dict[str, Any]]:
    """Yield `count` resources: huge ones, deep ones, and mutations of a good one with strange values."""
    rng = random.Random(6)
    yield _named("annotated", copy.deepcopy(PIPELINE), annotations={"note": "x" * 250_000})
    yield _named("huge", {"spec": {**PIPELINE["spec"], "note": "x" * 1_000_000}})
    yield _named("deep", {"spec": {**PIPELINE["spec"], "stages": DEEP}})
    yield _named("wide", {"spec": {**PIPELINE["spec"], "stages": [{"name": f"s{n}"} for n in range(5_000)]}})
    known = [
        data
        for name, data in mutations()
        if "metadata" not in name and data.get("kind") == "SpeechPipeline" and isinstance(data.get("spec"), dict)
    ]
    for number in range(count - 4):
        body = copy.deepcopy(rng.choice(known))
        for _ in range(rng.randint(1, 4)):
            _spoil(body["spec"], rng)
        yield _named(f"generated-{number}", body)


def _spoil(node: Any, rng: random.Random) -> None:
    """Replace a random value inside `node` by a strange one."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        node[key] = copy.deepcopy(rng.choice(_STRANGE))
        return


def _named(name: str, body: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = {"name": name, "namespace": PLACE[2], "annotations": annotations or {}}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "SpeechPipeline",
        "spec": body.get("spec"),
        "metadata": metadata,
    }


def _accepted(world: World, body: dict[str, Any], *, dry_run: bool = False) -> bool:
    api = world.core.api_client
    headers = {"Content-Type": "application/json"}
    api.update_params_for_auth(headers, [], ["BearerToken"])
    group, version, namespace, plural = PLACE
    answer = api.rest_client.pool_manager.request(
        "POST",
        f"{api.configuration.host}/apis/{group}/{version}/namespaces/{namespace}/{plural}"
        + ("?dryRun=All" if dry_run else ""),
        body=json.dumps(body).replace(json.dumps(DEEP), _NESTED).encode(),
        headers=headers,
    )
    return bool(answer.status < 300 or answer.status == 409)


def _without_condition(world: World) -> list[str]:
    """Return the first resources without a condition; some mutations are harmless, and are served as usual.

    The following pages are not read: reading megabytes again and again would be a fault of its own.
    """
    after = ""
    while True:
        answer = world.objects.list_namespaced_custom_object(
            *PLACE, limit=_PAGE, _continue=after, _preload_content=False
        )
        page = json.loads((answer[0] if isinstance(answer, tuple) else answer).data)
        without_condition = [
            each["metadata"]["name"] for each in page["items"] if not each.get("status", {}).get("conditions")
        ]
        after = page["metadata"].get("continue", "")
        if without_condition or not after:
            return without_condition


def _set_policies(world: World, action: str) -> None:
    """Set the policies about the specs of pipelines to deny, or only to audit."""
    policies = client.AdmissionregistrationV1Api(world.core.api_client)
    for name in ("sluice-own-targets", "sluice-priorities"):
        policies.patch_validating_admission_policy_binding(name, {"spec": {"validationActions": [action]}})


def _set_schema(extensions: client.ApiextensionsV1Api, schema: dict[str, Any]) -> None:
    patch = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": schema}]
    extensions.patch_custom_resource_definition(_CRD, patch)
    time.sleep(0.2)
