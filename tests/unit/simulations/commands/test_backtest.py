"""`sluice backtest` as a person calls it, on a record that Prometheus would return; the replay is real."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from backtest_document import MANIFESTS, invoked, printed, quoted, recorded
from click.testing import CliRunner, Result
from corpus import CONTRACT, ROOT

from profiler.samples import Absence, AbsenceReason
from simulations.commands.backtest import backtest


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    path = tmp_path / "speech.yaml"
    path.write_text(MANIFESTS)
    return path


def test_a_record_is_replayed_and_compared(manifests: Path, tmp_path: Path) -> None:
    result = invoked(recorded, manifests, "--since", "45m", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "backtest.json").read_text())
    (one,) = found["pipelines"]
    assert found["scored_s"] == 1800  # without the gap and the warm-up
    assert one["recorded"]["cost"] == pytest.approx((4 * 0.25 + 6 * 0.5) * 0.5)
    assert one["recorded_simulated"]["cost"] == pytest.approx(one["recorded"]["cost"])
    assert 0 < one["sluice"]["cost"] < one["recorded"]["cost"]
    assert (one["recorded"]["windows"], one["recorded"]["sla_share"]) == (30, 1.0)
    assert one["recorded"]["latency_s"] == pytest.approx(0.1 + 0.0128, rel=0.1)
    assert one["recorded"]["unanswered"] is None
    assert "note: no record from" in result.output
    assert result.output.splitlines()[-1] == f"report: {tmp_path}/out/report.html"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Sluice would have cost" in page
    assert 'href="1/report.html"' in page
    part = (tmp_path / "out" / "1" / "report.html").read_text()
    assert "recorded replicas" in part
    assert (tmp_path / "out" / "1" / "scenario.yaml").exists()


def test_the_document_quotes_what_it_prints() -> None:
    assert quoted((ROOT / "docs" / "adoption.md").read_text()) == printed(), "make docs-renew"


def refused(result: Result, status: int = 1) -> str:
    assert result.exit_code == status, result.output
    return result.stderr


def test_without_a_record_it_says_so(manifests: Path) -> None:
    assert "demand.query has no number" in refused(invoked(lambda *_: [], manifests))
    dead = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: connection refused")
    assert "connection refused" in refused(invoked(lambda *_: dead, manifests))


def test_a_record_that_is_too_short_names_its_gaps(manifests: Path) -> None:
    words = refused(invoked(recorded, manifests, "--since", "30m"))
    assert "no part of the record is complete for 30 min: no record from" in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "soon"], "must be a time such as 90m"),
        (["--step", "20m"], "--step must be from 1s to 10m"),
        (["--since", "9999999w"], "--since must be at most 366d"),
        (["--cluster"], "not both"),
        (["--pipeline", "speech/caption"], "did you mean 'speech/captions'?"),
    ],
)
def test_wrong_usage_is_refused(manifests: Path, arguments: list[str], words: str) -> None:
    assert words in refused(invoked(recorded, manifests, *arguments), status=2)


def test_numbers_that_nothing_states_are_asked_for(manifests: Path) -> None:
    text = manifests.read_text()
    manifests.write_text(text.replace("capacity: {instances: 4}", "capacity: {nodePool: gpu}"))
    assert "--instances: gpu" in refused(invoked(recorded, manifests), status=2)
    manifests.write_text(text.replace('          serviceTime: {fixed: 40ms, cv: "0.3"}\n', ""))
    assert "not declared; give it, or --learned FILE" in refused(invoked(recorded, manifests))


def test_what_cannot_be_simulated_is_named_without_the_path_of_a_file_of_ours(manifests: Path) -> None:
    manifests.write_text(manifests.read_text().replace('passRatio: "0.5"', 'passRatio: "2"'))
    words = refused(invoked(recorded, manifests, "--since", "1h"))
    assert "cannot be replayed:\nspec.stages[0].passRatio" in words


def test_sticky_streams_need_a_session_length() -> None:
    words = refused(invoked(recorded, *CONTRACT), status=2)
    assert "--session: speech/live-captions: streams stay on a replica as long as they last" in words
    assert "must be above 0" in refused(invoked(recorded, *CONTRACT, "--session", "0s"), status=2)


def test_prometheus_is_required(manifests: Path) -> None:
    result = CliRunner().invoke(backtest, [str(manifests)])
    assert "--prometheus-url is required" in refused(result, status=2)


def test_an_image_without_scipy_lacks_the_command_and_says_so() -> None:
    program = "import sys; sys.modules['scipy'] = None; import simulations.commands.backtest"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stderr.strip().endswith("ModuleNotFoundError: scipy")
