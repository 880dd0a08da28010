"""`sluice regions` as a person calls it."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from region_files import EAST, WEST, write_regions

from simulations.commands.regions import regions
from simulations.regions import study as studies

BOTH = {"east": EAST, "west": WEST}


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    found = studies.study
    monkeypatch.setattr(studies, "study", lambda loaded: found(loaded, points=8))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(regions, [str(argument) for argument in arguments])


def test_the_table_has_every_hour_the_cost_and_each_loss(tmp_path: Path) -> None:
    result = call(write_regions(tmp_path, BOTH))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "captions: streams by time of day (UTC)"
    assert [line.split()[0] for line in lines[2:6]] == ["00:00", "06:00", "12:00", "18:00"]
    assert "east → west" in lines[2]
    assert any(line.startswith("alone $") and "less for the day" in line for line in lines)
    assert any(line.startswith("no assignment costs less than $") for line in lines)
    lost = lines[lines.index("If a region is lost") + 2 :]
    assert [line.split()[0] for line in lost[:2]] == ["east", "west"]


def test_json_adds_up(tmp_path: Path) -> None:
    result = call(write_regions(tmp_path, BOTH), "-o", "json")
    found = json.loads(result.stdout)
    assert found["saving"] == pytest.approx(found["alone"]["cost"] - found["shifted"]["cost"])
    costs = [sum(of) for of in found["shifted"]["costs"].values()]
    assert found["shifted"]["cost"] == pytest.approx(sum(costs) + sum(found["shifted"]["transfer"]))
    for hour in range(4):
        served = sum(flow["loads"][hour] for flow in found["shifted"]["flows"])
        assert served == pytest.approx(EAST[hour] + WEST[hour], abs=0.01)
    for name, loss in found["lost"].items():
        costs = [sum(of) for of in loss["costs"].values()]
        assert loss["cost"] == pytest.approx(sum(costs) + sum(loss["transfer"]) + loss["reserved"])
        assert loss["more"] == pytest.approx(loss["cost"] - found["shifted"]["cost"])
        assert loss["reserved"] == pytest.approx(sum(found["shifted"]["costs"][name]))
        assert all(room <= gone + 0.01 for room, gone in zip(loss["at_once"], loss["displaced"], strict=True))


def test_a_loss_costs_what_is_reserved_too_in_the_table(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    losses = json.loads(call(path, "-o", "json").stdout)["lost"]
    lines = call(path).output.splitlines()
    for line in lines[lines.index("If a region is lost") + 2 :][:2]:
        name, cost, more, *_ = line.split()
        assert cost == f"${losses[name]['cost']:,.2f}"
        assert more == f"+${losses[name]['more']:,.2f}"
    assert any("reserved for the day is paid in a loss too" in line for line in lines)


@pytest.mark.parametrize(
    ("instances", "noon", "than_alone", "first"), [(6, 30, "less", "good"), (6, 4, "more", "good"), (3, 30, "", "bad")]
)
def test_where_more_is_served_than_alone_no_saving_is_stated(
    tmp_path: Path, instances: int, noon: int, than_alone: str, first: str
) -> None:
    """Alone, the east has no place for all of its streams; the west has its peak at noon, which the east may serve."""
    loads = {"east": (100, 20, 4, 20), "west": (4, 4, noon, 4)}
    path = write_regions(tmp_path, loads, instances=instances, prices={"west": "9"})
    page = tmp_path / "report.html"
    found = json.loads(call(path, "-o", "json", "--report", page).stdout)
    assert found["saving"] is None
    alone, shifted = (sum(map(sum, found[key]["unserved"].values())) for key in ("alone", "shifted"))
    more = found["shifted"]["cost"] - found["alone"]["cost"]
    assert (more > 0) is (than_alone == "more")
    assert (shifted > 0) is (first == "bad")
    (verdict,) = (line for line in call(path).output.splitlines() if line.startswith("alone $"))
    words = verdict.partition(": ")[2]
    served, cost = words.removeprefix("serves ").split(" stream-hours that have no place alone, ")
    assert float(served.replace(",", "")) == pytest.approx(6 * (alone - shifted), abs=0.5)
    assert cost == (f"for ${abs(more):,.2f} {than_alone} a day" if than_alone else "at the same cost")
    assert f'<p class="first {first}">Serving streams across regions {words}.</p>' in page.read_text()


def of_requests(folder: Path, east: float) -> Path:
    """Write a file of regions of which the east has one replica; `east` is its load in requests per second."""
    path = write_regions(folder, {"east": (east, 1, 1, 1), "west": (1, 1, 1, 1)}, instances=1, fields="")
    path.write_text(path.read_text().replace("column: streams", "column: rate_per_s"))
    for name in BOTH:
        manifest, trace = folder / f"{name}.manifests.yaml", folder / f"{name}.csv"
        manifest.write_text(manifest.read_text().replace("unit: Streams\n    chunk: 320ms", "unit: Requests"))
        trace.write_text(trace.read_text().replace("streams", "rate_per_s"))
    return path


def test_of_requests_a_tenth_per_second_is_shown(tmp_path: Path) -> None:
    (left,) = json.loads(call(of_requests(tmp_path, 90), "-o", "json").stdout)["alone"]["unserved"].values()
    result = call(of_requests(tmp_path, round(90 - left[0] + 0.2, 2)))
    assert "east → west 0.2" in result.output.splitlines()[2]
    (verdict,) = (line for line in result.output.splitlines() if line.startswith("alone $"))
    assert "requests that have no place alone" in verdict


def test_out_has_a_share_for_each_cluster(tmp_path: Path) -> None:
    out = tmp_path / "shares"
    result = call(write_regions(tmp_path, BOTH), "--out", out, "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)
    for name in BOTH:
        text = (out / f"{name}.yaml").read_text()
        assert 'from: "00:00"' in text
        part = yaml.safe_load(text)
        assert part["metadata"] == {"name": "captions", "namespace": "speech"}
        assert part["spec"]["demand"]["atLeast"][0]["name"] == "share-0000"


def test_the_report_is_one_page_with_the_saving_first(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "report.html"
    result = call(write_regions(tmp_path, BOTH), "--report", page, "-o", "json")
    assert result.exit_code == 0, result.output
    saving = json.loads(result.stdout)["saving"]
    text = page.read_text()
    assert f"Serving streams across regions saves ${saving:,.2f}" in text
    assert text.count("<figure") == 2
    assert "http" not in text.replace("http-equiv", "")


def test_notes_on_a_trace_are_in_the_table_the_page_and_json(tmp_path: Path) -> None:
    path, page = write_regions(tmp_path, BOTH), tmp_path / "report.html"
    (tmp_path / "west.csv").write_text("t_s,streams\n0,4\n21600,20\n43200,40\n")
    note = "west: west.csv: lasts 18 h of the day's 24 h: it is repeated"
    assert f"note: {note}" in call(path).output.splitlines()
    assert json.loads(call(path, "-o", "json", "--report", page).stdout)["notes"] == [note]
    assert f"<li>{note}.</li>" in page.read_text()


def test_a_report_that_cannot_be_written_is_refused_before_the_study(tmp_path: Path) -> None:
    result = call(write_regions(tmp_path, BOTH), "--report", "/proc/none/report.html")
    assert result.exit_code == 2
    assert "--report" in result.stderr


def test_a_typing_error_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    path.write_text(path.read_text().replace("roundTrip", "roundtrip"))
    result = call(path, "--out", tmp_path / "shares")
    assert result.exit_code == 1
    assert "links[0].roundtrip" in result.stderr
    assert "did you mean roundTrip?" in result.stderr
    assert not list((tmp_path / "shares").iterdir())


def test_a_day_that_no_clock_repeats_has_no_shares(tmp_path: Path) -> None:
    path = write_regions(tmp_path, BOTH)
    path.write_text(path.read_text().replace("step: 6h", "step: 6h\nday: 12h"))
    assert call(path).exit_code == 0
    result = call(path, "--out", tmp_path / "shares")
    assert result.exit_code == 1
    assert "--out: east: needs a day of 24h" in result.stderr


def test_load_without_a_place_ends_with_status_1(tmp_path: Path) -> None:
    result = call(write_regions(tmp_path, {"east": (900, 20, 4, 20), "west": WEST}, instances=10))
    assert result.exit_code == 1
    assert "shifted: " in result.stdout
    assert "has no place" in result.stdout


def test_usage(tmp_path: Path) -> None:
    assert call(tmp_path / "missing.yaml").exit_code == 2
    path = write_regions(tmp_path, BOTH)
    assert call(path, "--out", path).exit_code == 2
