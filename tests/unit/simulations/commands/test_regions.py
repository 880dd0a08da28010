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
    for loss in found["lost"].values():
        assert all(room <= gone + 0.01 for room, gone in zip(loss["at_once"], loss["displaced"], strict=True))


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
