"""Files of regions: loads as curves of a day, and an error with field, value and rule for each mistake."""

from pathlib import Path
from typing import Any

import pytest
from corpus import ROOT
from region_files import EAST, WEST, write_regions

from simulations.regions.scenario import load_regions
from simulations.scenario.scenario import InvalidScenario

BOTH = {"east": EAST, "west": WEST}
EXAMPLE = ROOT / "simulations" / "scenarios" / "regions" / "scenario.yaml"


def test_the_published_example_has_the_same_day_at_other_hours() -> None:
    loads = {cluster.region.name: cluster.loads for cluster in load_regions(EXAMPLE).clusters}
    for name, earlier_h in (("frankfurt", 6), ("tokyo", 14)):
        turned = [*loads["virginia"][earlier_h:], *loads["virginia"][:earlier_h]]
        assert turned == pytest.approx(loads[name], rel=1e-3)


def test_loads_are_the_means_of_the_steps_and_offsets_turn_the_day(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    path.write_text(
        path.read_text().replace("trace: west.csv, column", "trace: east.csv, offset: 12h, scale: 2, column")
    )
    loaded = load_regions(path)
    assert [cluster.loads for cluster in loaded.clusters] == [EAST, (8.0, 40.0, 80.0, 40.0)]
    assert loaded.step_s == 21_600


def test_arrivals_are_streams_that_are_open(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    (tmp_path / "arrivals.csv").write_text("t_s,arrivals\n0,3600\n3600,3600\n")
    path.write_text(
        path.read_text().replace("trace: west.csv, column: streams", "trace: arrivals.csv, column: arrivals")
    )
    assert load_regions(path).clusters[1].loads == (600.0,) * 4  # one a second, for ten minutes


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("paid: ForDay", "payed: ForDay", ["payed", "did you mean paid?"]),
        ("paid: ForDay", "paid: Daily", ["regions[0].paid", '"Daily"', "ByHour"]),
        ("[east, west]", "[east, wets]", ["links[0].between[1]", '"wets"', "did you mean west?"]),
        ("step: 6h", "step: 5h", ["step", '"5h"', "whole steps"]),
        ("step: 6h", "step: 10m", ["step", '"10m"', "at most 48 steps"]),
        ("trace: east.csv", "trace: eats.csv", ["regions[0].load.trace", '"eats.csv"', "no such file"]),
        ("roundTrip: 100ms", "roundTrip: 0s", ["links[0].roundTrip", '"0s"', "longer than 0"]),
        ("paid: ForDay", "servedBy: [east]", ["regions[0].servedBy[0]", '"east"', "another region"]),
        ("paid: ForDay", 'shiftable: "1.5"', ["regions[0].shiftable", '"1.5"']),
    ],
)
def test_a_mistake_names_field_value_and_rule(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    path = write_regions(tmp_path, BOTH)
    path.write_text(path.read_text().replace(old, new, 1))
    (finding,) = refused(path)
    assert all(word in finding for word in words), finding
    assert finding.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("pool: gpu\n          target", "pool: gpus\n          target", ["gpus"]),
        ("capacity: {instances: 30}", "capacity: {readyNodes: true}", ["gpu", "spec.capacity.instances"]),
        ("latency: 400ms", "latency: 400", ["spec.sla.latency"]),
        ("serviceTime: {fixed: 20ms, cv", "serviceTime: {cv", ["serviceTime"]),
    ],
)
def test_a_manifest_that_cannot_be_planned_says_what_it_lacks(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    path = write_regions(tmp_path, BOTH)
    manifest = tmp_path / "west.manifests.yaml"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))
    found = refused(path)
    assert any(all(word in finding for word in words) for finding in found), found


def test_one_product_has_one_unit(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    path.write_text(path.read_text().replace("session: 10m\n", ""))
    manifest = tmp_path / "west.manifests.yaml"
    manifest.write_text(manifest.read_text().replace("unit: Streams\n    chunk: 320ms", "unit: Requests"))
    (tmp_path / "west.csv").write_text("t_s,rate_per_s\n0,4\n43200,8\n")
    path.write_text(path.read_text().replace("trace: west.csv, column: streams", "trace: west.csv, column: rate_per_s"))
    (finding,) = refused(path)
    assert "regions[1].manifests" in finding
    assert "unit Requests" in finding


def refused(path: Path) -> list[str]:
    with pytest.raises(InvalidScenario) as error:
        load_regions(path)
    found: Any = error.value.findings
    return [str(finding) for finding in found]
