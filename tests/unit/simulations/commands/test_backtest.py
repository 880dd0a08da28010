"""`sluice backtest` as a person calls it, on a record that Prometheus would return; the replay is real."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from recorded_series import DEPLOYMENTS, a_series, deployments
from small_scenarios import PIPELINE, POOLS

from profiler.samples import Absence, AbsenceReason
from profiler.sources.prometheus_api import Period, PrometheusApi
from simulations.commands.backtest import backtest

Answer = Callable[[str, Period], Any]
REPLICAS = {"vad": 4, "asr-gpu": 0, "asr-cpu": 6}


def recorded(query: str, period: Period) -> Any:
    """40 minutes at 8 requests/s, on more replicas than are needed; a gap of 5 minutes before them."""
    steps = [None if index < 5 else 8.0 for index in range(period.count)]
    if query == DEPLOYMENTS:
        return deployments(period, {name: [count] * period.count for name, count in REPLICAS.items()})
    if "requests_total" in query:
        return [a_series(period, steps)]
    if "latency_seconds_bucket" in query:
        return [a_series(period, [step and 0.2 for step in steps])]
    return []


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    path = tmp_path / "speech.yaml"
    path.write_text(f"{PIPELINE}---\n{POOLS}")
    return path


def run(monkeypatch: pytest.MonkeyPatch, answer: Answer, *arguments: object) -> Result:
    def ask_ranges(_: PrometheusApi, queries: Collection[str], period: Period, deadline_s: float) -> dict[str, Any]:
        return {query: answer(query, period) for query in queries}

    monkeypatch.setattr(PrometheusApi, "ask_ranges", ask_ranges)
    return CliRunner().invoke(backtest, [*map(str, arguments), "--prometheus-url", "http://localhost:1"])


def test_a_record_is_replayed_and_compared(monkeypatch: pytest.MonkeyPatch, manifests: Path, tmp_path: Path) -> None:
    result = run(monkeypatch, recorded, manifests, "--since", "45m", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "backtest.json").read_text())
    (one,) = found["pipelines"]
    assert found["scored_s"] == 1800  # without the gap and the warm-up
    assert one["recorded"]["cost"] == pytest.approx((4 * 0.25 + 6 * 0.5) * 0.5)
    assert one["recorded_simulated"]["cost"] == pytest.approx(one["recorded"]["cost"])
    assert 0 < one["sluice"]["cost"] < one["recorded"]["cost"]
    assert one["recorded"] | {"cost": None} == {
        "cost": None,
        "windows": 30,
        "sla_share": 1.0,
        "latency_s": 0.2,
        "unanswered": None,
    }
    assert "Sluice would have cost" in result.output
    assert "calibration: what ran was within the SLA" in result.output
    assert "note: no record from" in result.output
    assert result.output.splitlines()[-1] == f"report: {tmp_path}/out/report.html"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Sluice would have cost" in page
    assert 'href="1/report.html"' in page
    part = (tmp_path / "out" / "1" / "report.html").read_text()
    assert "recorded replicas" in part
    assert (tmp_path / "out" / "1" / "scenario.yaml").exists()


def refused(result: Result, status: int = 1) -> str:
    assert result.exit_code == status, result.output
    return result.stderr


def test_without_a_record_it_says_so(monkeypatch: pytest.MonkeyPatch, manifests: Path) -> None:
    assert "demand.query has no number" in refused(run(monkeypatch, lambda *_: [], manifests))
    dead = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: connection refused")
    assert "connection refused" in refused(run(monkeypatch, lambda *_: dead, manifests))


def test_a_record_that_is_too_short_names_its_gaps(monkeypatch: pytest.MonkeyPatch, manifests: Path) -> None:
    words = refused(run(monkeypatch, recorded, manifests, "--since", "30m"))
    assert "no part of the record is complete for 30 min: no record from" in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "soon"], "must be a time such as 90m"),
        (["--step", "20m"], "--step must be from 1s to 10m"),
        (["--cluster"], "not both"),
        (["--pipeline", "speech/caption"], "did you mean 'speech/captions'?"),
    ],
)
def test_wrong_usage_is_refused(
    monkeypatch: pytest.MonkeyPatch, manifests: Path, arguments: list[str], words: str
) -> None:
    assert words in refused(run(monkeypatch, recorded, manifests, *arguments), status=2)


def test_numbers_that_nothing_states_are_asked_for(monkeypatch: pytest.MonkeyPatch, manifests: Path) -> None:
    text = manifests.read_text()
    manifests.write_text(text.replace("  capacity: {instances: 4}\n", ""))
    assert "--instances: gpu" in refused(run(monkeypatch, recorded, manifests), status=2)
    manifests.write_text(text.replace('          serviceTime: {fixed: 40ms, cv: "0.3"}\n', ""))
    assert "serviceTime: (absent): not declared; give it, or --learned FILE" in refused(
        run(monkeypatch, recorded, manifests)
    )


def test_prometheus_is_required(manifests: Path) -> None:
    result = CliRunner().invoke(backtest, [str(manifests)])
    assert "--prometheus-url is required" in refused(result, status=2)
