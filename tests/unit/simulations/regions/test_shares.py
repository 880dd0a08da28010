"""The shares of a cluster: valid entries that the operator's own code plans for, in the hours that they are for."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import a_state
from click.testing import CliRunner
from region_files import EAST, WEST, write_regions

from controller.commands.validate import validate
from controller.core.assess.demand import horizon_s, planning_demand
from controller.core.assess.schedule import highest_floor
from controller.resources.fields import DURATION_PATTERN, duration_s
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec
from controller.resources.validation import validate_files
from simulations.regions.scenario import Regions, load_regions
from simulations.regions.shares import NoSchedule, Share, fragment, shares
from simulations.regions.study import Study, study
from simulations.regions.tables import costs
from simulations.scenario.scenario import InvalidScenario

DAY_S = 86_400.0
MIDNIGHT_S = 20_000 * DAY_S
OWN = (
    '[{name: launch, demand: "7", from: "09:00", until: "10:00"},'
    ' {name: share-0000, demand: "999", from: "00:00", until: "24:00"}]'
)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Regions]:
    folder = tmp_path_factory.mktemp("regions")
    return studied(folder, at_least=OWN)


def studied(folder: Path, **changes: Any) -> tuple[Study, Regions]:
    changes = {"prices": {"east": "2.00"}, "fields": "session: 10m\nlatency: 400ms"} | changes
    loaded = load_regions(write_regions(folder, {"east": EAST, "west": WEST}, **changes))
    return study(loaded, points=8), loaded


def merged(manifest: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest after a server-side apply of `part` by the field manager of an earlier share.

    Entries of atLeast are merged by their names. What the manager has applied before and leaves out now is deleted:
    entries of an earlier study, and the latency.
    """
    demand = manifest["spec"]["demand"]
    kept = [entry for entry in demand["atLeast"] if not entry["name"].startswith("share-")]
    demand["atLeast"] = [*kept, *part["spec"]["demand"]["atLeast"]]
    del manifest["spec"]["sla"]["latency"]
    manifest["spec"]["sla"] |= part["spec"].get("sla", {})
    return manifest


def applied(planned: tuple[Study, Regions], name: str, folder: Path) -> tuple[Path, SpeechPipeline]:
    found, loaded = planned
    (cluster,) = (each for each in loaded.clusters if each.region.name == name)
    (source,) = (loaded.path.parent / file for file in cluster.region.manifests)
    pipeline, pool = yaml.safe_load_all(source.read_text())
    path = folder / "merged.yaml"
    path.write_text(yaml.safe_dump_all([merged(pipeline, fragment(found, loaded, cluster)), pool]))
    checked = validate_files([path])
    assert checked.findings == ()
    return path, checked.pipelines[0]


@pytest.mark.parametrize("name", ["east", "west"])
def test_a_manifest_with_its_share_is_valid_and_planned_for_in_its_hours(
    planned: tuple[Study, Regions], tmp_path: Path, name: str
) -> None:
    path, pipeline = applied(planned, name, tmp_path)
    result = CliRunner().invoke(validate, [str(path)])
    assert result.exit_code == 0, result.output
    found, _ = planned
    spec = pipeline_spec(pipeline)
    for hour in range(4):
        share = found.shifted.served(name, hour)
        middle_s = MIDNIGHT_S + (hour + 0.5) * DAY_S / 4
        floor = highest_floor(spec.at_least, middle_s, middle_s)
        if floor is not None and floor.name == "launch":  # the user's own entry counts where it is more
            assert floor.demand >= share
        else:
            assert (0.0 if floor is None else floor.demand) == pytest.approx(share, abs=1)
        demand = planning_demand(a_state(spec, demand=0.5), middle_s, 15.0).demand
        assert demand is not None
        assert demand >= share - 1e-3
        # The share of the next hour is planned for one start-up before it begins.
        before_s = middle_s + DAY_S / 8 - horizon_s(spec, 15.0) / 2
        ahead = planning_demand(a_state(spec, demand=0.5), before_s, 15.0).demand
        assert ahead is not None
        assert ahead >= found.shifted.served(name, (hour + 1) % 4) - 1e-3


def test_the_users_entries_stay_and_shares_of_before_are_replaced(
    planned: tuple[Study, Regions], tmp_path: Path
) -> None:
    _, pipeline = applied(planned, "west", tmp_path)
    entries = {entry.name: entry.demand for entry in pipeline.spec.demand.at_least}
    assert entries["launch"] == "7"
    assert entries["share-0000"] != "999"


def test_the_sla_leaves_time_for_the_way(planned: tuple[Study, Regions], tmp_path: Path) -> None:
    found, _ = planned
    for name, other in (("east", "west"), ("west", "east")):
        _, pipeline = applied(planned, name, tmp_path)
        assert pipeline.spec.sla is not None
        assert pipeline.spec.sla.latency == ("300ms" if (other, name) in found.shifted.flows else "400ms")
    assert ("east", "west") in found.shifted.flows


def test_a_study_of_manifests_with_shares_has_the_same_shares_and_sla(tmp_path: Path) -> None:
    """The way is subtracted from the latency that users are promised, not from that of the share."""
    first, loaded = studied(tmp_path)
    for cluster in loaded.clusters:
        source = tmp_path / cluster.region.manifests[0]
        pipeline, pool = yaml.safe_load_all(source.read_text())
        source.write_text(yaml.safe_dump_all([merged(pipeline, fragment(first, loaded, cluster)), pool]))
    again = load_regions(loaded.path)
    second = study(again, points=8)
    assert again.clusters[1].pipeline.spec.sla is not None
    assert again.clusters[1].pipeline.spec.sla.latency == "300ms"
    for before, after in zip(loaded.clusters, again.clusters, strict=True):
        assert fragment(second, again, after) == fragment(first, loaded, before)
    assert second.shifted.cost == first.shifted.cost
    assert [row[6:] for row in costs(second, again)] == [row[6:] for row in costs(first, loaded)]
    assert "400 ms" in next(costs(second, again))

    loaded.path.write_text(loaded.path.read_text().replace("latency: 400ms\n", ""))
    with pytest.raises(InvalidScenario) as error:
        load_regions(loaded.path)
    assert len(error.value.findings) == 2
    assert all(": latency: (absent): required" in str(finding) for finding in error.value.findings), (
        error.value.findings
    )


@pytest.mark.parametrize(
    ("latency", "left"), [("20m", "1199900ms"), ("0.4001s", "300100us"), ("400ms", "300ms"), ("24h", "86399900ms")]
)
def test_the_latency_of_a_share_is_a_duration_of_the_resource(tmp_path: Path, latency: str, left: str) -> None:
    found, loaded = studied(tmp_path, prices={"east": "9.00"}, fields=f"session: 10m\nlatency: {latency}")
    assert ("east", "west") in found.shifted.flows
    east, west = (fragment(found, loaded, each)["spec"]["sla"]["latency"] for each in loaded.clusters)
    assert west == left
    for text in (east, west):
        assert re.fullmatch(DURATION_PATTERN, text)
    assert duration_s(east) == duration_s(latency)


@pytest.mark.parametrize("seed", range(20))
def test_joined_steps_are_never_below_a_load_and_within_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    loads = [float(rng.choice([0, rng.randint(1, 50)])) for _ in range(24)]
    most = rng.randint(1, 24)
    found = shares(loads, 3600.0, most=most)
    assert len(found) <= most
    for hour, load in enumerate(loads):
        assert demand_at(found, hour * 3600.0) >= load
    levels = sum(1 for before, after in zip([-1.0, *loads], loads, strict=False) if before != after)
    if most >= levels:
        assert [demand_at(found, hour * 3600.0) for hour in range(24)] == loads


def demand_at(found: Sequence[Share], time_s: float) -> float:
    return sum(share.demand for share in found if share.from_s <= time_s < share.until_s)


def test_the_least_load_is_added() -> None:
    assert shares([10, 11, 50, 10], 21_600.0, most=3) == (
        Share(from_s=0, until_s=43_200, demand=11),
        Share(from_s=43_200, until_s=64_800, demand=50),
        Share(from_s=64_800, until_s=86_400, demand=10),
    )


@pytest.mark.parametrize(
    ("loads", "step_s", "most", "rule"),
    [
        ([1.0] * 12, 3600.0, 16, "24h"),
        ([1.0] * 7, DAY_S / 7, 16, "whole minutes"),
        ([1.0] * 24, 3600.0, 0, "no room"),
    ],
)
def test_shares_that_no_clock_can_state_are_refused(loads: list[float], step_s: float, most: int, rule: str) -> None:
    with pytest.raises(NoSchedule, match=rule):
        shares(loads, step_s, most=most)
