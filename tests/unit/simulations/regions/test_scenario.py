"""Files of regions: loads as curves of a day, and an error with field, value and rule for each mistake."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from corpus import ROOT
from region_files import EAST, PIPELINE, WEST, write_regions

from simulations.regions.scenario import load_regions
from simulations.scenario.scenario import InvalidScenario

BOTH = {"east": EAST, "west": WEST}
LIVE = PIPELINE[PIPELINE.index("unit:") : PIPELINE.index("  budget:")].format(at_least="[]")
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


def test_a_rate_is_of_the_recording_as_arrivals_are(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    (tmp_path / "arrivals.csv").write_text("t_s,arrivals\n0,720\n1800,1440\n")
    (tmp_path / "rate.csv").write_text("t_s,rate_per_s\n0,0.4\n1800,0.8\n")
    text = path.read_text().replace("column: streams", 'speed: "0.0416666667", column: streams')
    text = text.replace("trace: east.csv", "trace: arrivals.csv").replace("column: streams", "column: arrivals", 1)
    path.write_text(text.replace("trace: west.csv", "trace: rate.csv").replace("column: streams", "column: rate_per_s"))
    arrivals, rates = (cluster.loads for cluster in load_regions(path).clusters)
    assert arrivals == pytest.approx((10, 10, 20, 20), rel=1e-6)  # 0.4 a second, 24 times slower, for ten minutes
    assert rates == pytest.approx(arrivals, rel=1e-9)


def hourly(first: str, values: Sequence[float]) -> str:
    """Return a recording of hourly values with dates, from `first` on."""
    begin = datetime.fromisoformat(first)
    rows = [f"{(begin + timedelta(hours=hour)).isoformat()},{value}\n" for hour, value in enumerate(values)]
    return f"time,streams\n{''.join(rows)}"


@pytest.mark.parametrize("days", [0.5, 1, 1.5, 3])
def test_the_hours_of_a_recording_with_dates_are_those_of_the_day(tmp_path: Path, days: float) -> None:
    """Each value is its hour (UTC), and the recording begins at 10:00."""
    path = write_regions(tmp_path, BOTH)
    path.write_text(path.read_text().replace("step: 6h", "step: 1h"))
    (tmp_path / "east.csv").write_text(
        hourly("2026-03-02T10:00:00+00:00", [hour % 24 for hour in range(10, 10 + round(24 * days))])
    )
    loads = load_regions(path).clusters[0].loads
    recorded = range(24) if days >= 1 else range(10, 22)
    assert [loads[hour] for hour in recorded] == pytest.approx(list(recorded))


def test_a_recording_with_dates_begins_at_its_first_midnight_and_no_days_are_mixed(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    values = [100.0 * (hour // 24) + hour % 24 for hour in range(10, 10 + 72)]
    (tmp_path / "east.csv").write_text(hourly("2026-03-02T10:00:00+00:00", values))
    assert load_regions(path).clusters[0].loads == (102.5, 108.5, 114.5, 120.5)


def test_an_offset_that_is_given_counts_and_past_the_end_whole_days_are_left_out(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    values = [float(hour % 24) for hour in range(10, 10 + 30)]
    (tmp_path / "east.csv").write_text(hourly("2026-03-02T10:00:00+00:00", values))
    path.write_text(path.read_text().replace("trace: east.csv,", "trace: east.csv, offset: 20h,"))
    # From 06:00 on: ten hours until the end of the recording, then those of a day before.
    assert load_regions(path).clusters[0].loads == (8.5, 14.5, 20.5, 2.5)
    values = [float(hour) for hour in range(24)]
    (tmp_path / "east.csv").write_text(hourly("2026-03-02T00:00:00+00:00", values))
    path.write_text(path.read_text().replace("offset: 20h,", "offset: 24h,"))
    assert load_regions(path).clusters[0].loads == (2.5, 8.5, 14.5, 20.5)


def test_notes_say_what_was_made_of_a_trace(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    assert load_regions(path).notes == ()
    assert load_regions(EXAMPLE).notes == ()
    (tmp_path / "west.csv").write_text("t_s,streams\n0,4\n21600,\n43200,8\n")
    missing, short = load_regions(path).notes
    assert missing.startswith("west: west.csv: 1 of 3 values are missing")
    assert short == "west: west.csv: lasts 18 h of the day's 24 h: it is repeated"


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
        ("step: 6h", "step: 6h\nlatency: 0s", ["latency", '"0s"', "longer than 0"]),
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
        (
            LIVE,
            "unit: Items\n    backlog: {query: sum(items_left), deadline: 2026-12-24T18:00:00Z}\n",
            ["regions[1].manifests", "unit Streams or Requests, not Items"],
        ),
        (
            "atLeast: []",
            'atLeast: [{name: share-0600, demand: "3", from: "06:00", until: "12:00"}]',
            [
                "latency: (absent): required",
                "west (west.manifests.yaml)",
                "spec.demand.atLeast share-0600",
                "spec.sla.latency",
            ],
        ),
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


def test_a_region_with_another_unit_is_the_one_that_is_named(tmp_path: Path) -> None:
    path = write_regions(tmp_path, {"north": EAST, **BOTH}, fields="")
    (tmp_path / "north.csv").write_text("no numbers")
    manifest = tmp_path / "west.manifests.yaml"
    manifest.write_text(manifest.read_text().replace("unit: Streams\n    chunk: 320ms", "unit: Requests"))
    path.write_text(path.read_text().replace("trace: west.csv, column: streams", "trace: west.csv, column: rate_per_s"))
    (tmp_path / "west.csv").write_text("t_s,rate_per_s\n0,4\n43200,8\n")
    broken, unequal = refused(path)
    assert "regions[0].load.trace" in broken
    assert "regions[2].manifests" in unequal


def refused(path: Path) -> list[str]:
    with pytest.raises(InvalidScenario) as error:
        load_regions(path)
    found: Any = error.value.findings
    return [str(finding) for finding in found]
