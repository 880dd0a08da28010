"""The share of a region on the real API server: merged with the user's own entries, and planned for by the operator."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import a_pool, a_snapshot, a_state, pools
from kubernetes import client
from region_files import EAST, WEST, write_regions

from controller.core.cycle import decide
from controller.core.state.policy import Policy
from controller.kube.gateway import PIPELINES
from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec
from simulations.regions.scenario import load_regions
from simulations.regions.shares import fragment
from simulations.regions.study import Study, study

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("operator_kubeconfig")]

GROUP, VERSION = PIPELINES.api_version.split("/")
DAY_S = 86_400.0
MIDNIGHT_S = 20_000 * DAY_S
OWN = '[{name: launch, demand: "7", from: "09:00", until: "10:00"}]'
MANAGER = "sluice-regions"
Json = dict[str, Any]


def studied(folder: Path, loads: Mapping[str, tuple[float, ...]], east: str = "") -> tuple[Study, Json]:
    """Return a study in which streams of the east are cheaper in the west, and the share of the west.

    `east` is a further field of the region east.
    """
    folder.mkdir()
    loaded = load_regions(write_regions(folder, loads, prices={"east": "3.00"}, at_least=OWN, more={"east": east}))
    found = study(loaded, points=8)
    (west,) = (cluster for cluster in loaded.clusters if cluster.region.name == "west")
    return found, fragment(found, loaded, west)


def apply(admin: client.ApiClient, namespace: str, part: Json) -> Json:
    """Apply a share as `kubectl apply --server-side --force-conflicts --field-manager sluice-regions` does."""
    applied = copy.deepcopy(part)
    applied["metadata"]["namespace"] = namespace
    answer: Json = client.CustomObjectsApi(admin).patch_namespaced_custom_object(
        GROUP,
        VERSION,
        namespace,
        PIPELINES.plural,
        part["metadata"]["name"],
        applied,
        field_manager=MANAGER,
        force=True,
        _content_type="application/apply-patch+yaml",
    )
    return answer


def entries(pipeline: Json) -> dict[str, str]:
    return {entry["name"]: entry["demand"] for entry in pipeline["spec"]["demand"]["atLeast"]}


def test_a_share_merges_with_the_users_entries_and_the_operator_plans_for_it(
    admin: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    found, share = studied(tmp_path / "first", {"east": EAST, "west": WEST})
    pipeline, _ = yaml.safe_load_all((tmp_path / "first" / "west.manifests.yaml").read_text())
    pipeline["metadata"]["namespace"] = namespace
    client.CustomObjectsApi(admin).create_namespaced_custom_object(
        GROUP, VERSION, namespace, PIPELINES.plural, pipeline, field_manager="kubectl-client-side-apply"
    )

    merged = apply(admin, namespace, share)
    shares = {entry["name"]: entry["demand"] for entry in share["spec"]["demand"]["atLeast"]}
    assert len(shares) > 1
    assert entries(merged) == {"launch": "7", **shares}
    assert merged["spec"]["sla"]["latency"] == share["spec"]["sla"]["latency"] == "300ms"
    assert merged["spec"]["stages"][0]["placements"][0]["target"]["name"] == "encoder", "the rest stays"

    spec = pipeline_spec(parse(SpeechPipeline, merged))
    fleet = pools(a_pool("gpu", instances=30, ready=30))
    for hour in range(4):
        now_s = MIDNIGHT_S + (hour + 0.5) * DAY_S / 4
        (decided,) = decide(a_snapshot(a_state(spec, demand=0.5), fleet=fleet, now_s=now_s), Policy()).pipelines
        assert decided.demand.planned is not None
        assert decided.demand.planned >= found.shifted.served("west", hour) - 1e-3
        assert decided.plan is not None
        assert decided.plan.feasible

    equal = {"east": (20, 20, 20, 20), "west": (20, 20, 20, 20)}
    near, second = studied(tmp_path / "second", equal, east="servedBy: []")
    assert ("east", "west") not in near.shifted.flows
    replaced = apply(admin, namespace, second)
    only = {entry["name"]: entry["demand"] for entry in second["spec"]["demand"]["atLeast"]}
    assert set(shares) - set(only), "the first study has entries that the second one lacks"
    assert entries(replaced) == {"launch": "7", **only}
    assert replaced["spec"]["sla"]["latency"] == "400ms", "without far users the latency is the full one again"
