"""The whole lab against theory: generator, ingress, endpoints from the API server, and a worker on a scheduled pod."""

import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from optimizer.model import PipelineKey
from simulations.lab.host.binaries import Binaries
from simulations.lab.session.run import Options, run
from simulations.lab.session.view import LineView
from simulations.lab.traffic.records import read_records
from simulations.results.scoring import Outcome
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.scenario import Scenario, load_scenario

pytestmark = pytest.mark.lab

SERVICE_S = 0.010
SEED = 1
PERCENT = (50, 95)


def theory_s(arrivals_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sojourn times of a single server with a constant service time (Lindley's recursion)."""
    sojourn_s, free_s = [], 0.0
    for arrival_s in arrivals_s:
        free_s = max(free_s, arrival_s) + SERVICE_S
        sojourn_s.append(free_s - arrival_s)
    return np.array(sojourn_s)


def live(scenario: Scenario, folder: Path, binaries: Binaries) -> tuple[NDArray[np.float64], float]:
    """Latencies in the order of arrival after the warm-up, and the generator's p99 lag."""
    folder.mkdir()
    view = LineView(Console(file=io.StringIO()))
    with run(scenario, Options(seed=SEED, operator=False), folder, binaries, view) as (left, _):
        items = read_records(folder / "records.bin", 0)
    items = items.select(items.arrival_s >= scenario.file.clock.warmup_s)
    assert set(items.outcome.tolist()) == {Outcome.SERVED}
    return items.latency_s, left.generator_lag_p99_s


def test_median_and_p95_of_one_stage_are_within_3_percent_and_2_ms(
    scenarios: Path, binaries: Binaries, tmp_path: Path
) -> None:
    """Other load on the machine only adds to the latency, while an error of the lab occurs in every attempt: one good
    attempt of three is enough."""
    scenario = load_scenario(scenarios / "single.yaml")
    arrivals_s = pipeline_schedules(scenario, seed=SEED)[PipelineKey("speech/single")].start_s
    scored = arrivals_s >= scenario.file.clock.warmup_s
    ideal_s = np.percentile(theory_s(arrivals_s)[scored], PERCENT)
    attempts = []
    for attempt in range(3):
        latency_s, lag_s = live(scenario, tmp_path / str(attempt), binaries)
        assert abs(len(latency_s) - np.count_nonzero(scored)) <= 2
        measured_s = np.percentile(latency_s, PERCENT)
        if np.all(np.abs(measured_s - ideal_s) <= 0.03 * ideal_s + 0.002):
            return
        attempts.append((measured_s.tolist(), lag_s))
    pytest.fail(f"p50 and p95 in s: {ideal_s.tolist()} in theory, live with the generator's lag: {attempts}")
