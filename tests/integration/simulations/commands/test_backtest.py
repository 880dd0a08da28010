"""`sluice backtest` on a real Prometheus, whose data is a backfill: counters that restart, a gap, and nothing older."""

import csv
import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result
from small_scenarios import PIPELINE, POOLS

from profiler.samples import Absence
from profiler.sources.prometheus_api import MOST_POINTS, Period, PrometheusApi
from simulations.commands.backtest import backtest
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import LOOPBACK, Processes, free_ports

pytestmark = pytest.mark.lab

READY_S = 30.0
STEP_S = 30
HOURS = 4
RATE_RPS = 8
REPLICAS = {"vad": 4, "asr-cpu": 6}
DEMAND = 'sum(rate(edge_requests_total{pipeline="captions"}[2m]))'
LATENCY = "histogram_quantile(0.95, sum by (le) (rate(edge_latency_seconds_bucket[2m])))"
MANIFESTS = re.sub(r"query: sum\(rate\(sluice.+", f"query: {DEMAND}", PIPELINE)
MANIFESTS = re.sub(r"query: >-\n.+\n.+\n", f"query: {LATENCY}\n", MANIFESTS) + f"---\n{POOLS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    url: str
    start_s: int
    end_s: int
    gap_s: tuple[int, int]


def open_metrics(start_s: int, end_s: int, gap_s: tuple[int, int]) -> str:
    """Four hours at 8 requests/s, 95 of 100 within 200 ms; the counters restart in the middle of each half."""
    times = [at_s for at_s in range(start_s, end_s + 1, STEP_S) if not gap_s[0] <= at_s < gap_s[1]]
    restarts = {times[len(times) // 4], times[3 * len(times) // 4]}
    count, counted = 0, []
    for at_s in times:
        count = 0 if at_s in restarts else count + RATE_RPS * STEP_S
        counted.append((at_s, count))
    lines = ["# TYPE edge_requests counter"]
    lines += [f'edge_requests_total{{pipeline="captions"}} {total} {at_s}' for at_s, total in counted]
    lines.append("# TYPE edge_latency_seconds histogram")
    for bound, share in (("0.1", 0.5), ("0.2", 0.95), ("0.5", 1.0), ("+Inf", 1.0)):
        lines += [f'edge_latency_seconds_bucket{{le="{bound}"}} {total * share} {at_s}' for at_s, total in counted]
    lines.append("# TYPE kube_deployment_status_replicas gauge")
    for name, replicas in REPLICAS.items():
        labels = f'namespace="speech",deployment="{name}"'
        lines += [f"kube_deployment_status_replicas{{{labels}}} {replicas} {at_s}" for at_s in times]
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture(scope="module")
def recorded(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("prometheus")
    end_s = int(time.time()) // 60 * 60
    start_s = end_s - HOURS * 3600
    gap_s = (start_s + 2 * 3600, start_s + 2 * 3600 + 1800)
    (folder / "metrics.txt").write_text(open_metrics(start_s, end_s, gap_s))
    (folder / "prometheus.yaml").write_text("{}\n")
    filled = subprocess.run(
        [binaries.promtool, "tsdb", "create-blocks-from", "openmetrics", "metrics.txt", "data"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert filled.returncode == 0, filled.stderr
    (port,) = free_ports(1)

    def ready() -> bool:
        try:
            return bool(urlopen(f"http://{LOOPBACK}:{port}/-/ready", timeout=5).status == 200)
        except URLError:
            return False

    with Processes(folder) as processes:
        child = processes.start(
            "prometheus",
            [
                binaries.prometheus,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={LOOPBACK}:{port}",
                "--log.level=warn",
            ],
        )
        child.wait_until(ready, READY_S)
        yield Recorded(url=f"http://{LOOPBACK}:{port}", start_s=start_s, end_s=end_s, gap_s=gap_s)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifests") / "speech.yaml"
    path.write_text(MANIFESTS)
    return path


def run(url: str, *arguments: object) -> Result:
    return CliRunner().invoke(backtest, [*map(str, arguments), "--prometheus-url", url])


def end_s(note: str) -> float:
    """Return when (epoch seconds) the period of a note ends."""
    (end,) = re.findall(r" to (\S+Z)", note)
    return datetime.fromisoformat(end).timestamp()


def test_a_real_record_is_replayed_without_its_gap(recorded: Recorded, manifests: Path, tmp_path: Path) -> None:
    result = run(recorded.url, manifests, "--since", "6h", "--out", tmp_path, "-o", "json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (one,) = found["pipelines"]
    hours = found["scored_s"] / 3600
    assert 2.8 < hours < 3.3  # four, without the gap of half an hour and two warm-ups
    assert one["recorded"]["cost"] == pytest.approx((4 * 0.25 + 6 * 0.5) * hours)
    assert one["recorded"]["latency_s"] == pytest.approx(0.2, rel=0.01)
    assert one["recorded_simulated"]["cost"] == pytest.approx(one["recorded"]["cost"], rel=0.01)
    assert 0 < one["sluice"]["cost"] < one["recorded"]["cost"]
    nothing_older, gap = (note for note in found["notes"] if note.startswith("no record"))
    assert "Prometheus has nothing older" in nothing_older
    # A rate has a value from the second sample in its window of two minutes on.
    assert 0 <= end_s(nothing_older) - recorded.start_s <= 120
    assert 0 <= end_s(gap) - recorded.gap_s[1] <= 120
    assert any("Deployment/asr-gpu" in note for note in found["notes"])
    for part in ("1", "2"):
        rows = list(csv.DictReader((tmp_path / part / "load-speech-captions.csv").read_text().splitlines()))
        rates = [float(row["rate_per_s"]) for row in rows]
        assert max(rates) < 1.1 * RATE_RPS  # no jump where the counter restarts
        assert min(rates) > 0.4 * RATE_RPS
    assert (tmp_path / "report.html").is_file()


def test_a_long_period_is_read_in_parts_that_a_real_server_answers(recorded: Recorded) -> None:
    api = PrometheusApi(recorded.url)
    period = Period(start_s=recorded.end_s - 14_000, step_s=1, count=14_000)
    (whole,) = api.ask_ranges(["vector(1)"], period, 60.0).values()
    refused = api.ask_ranges(["vector(1)[1s:]"], period, 60.0)["vector(1)[1s:]"]
    api.close()
    assert [len(series["values"]) for series in whole] == [MOST_POINTS, 14_000 - MOST_POINTS]
    assert isinstance(refused, Absence)


def test_a_prometheus_that_is_down_is_said(manifests: Path) -> None:
    (port,) = free_ports(1)
    result = run(f"http://{LOOPBACK}:{port}", manifests, "--since", "1h")
    assert result.exit_code == 1
    assert "speech/captions: demand.query: Prometheus: " in result.stderr
