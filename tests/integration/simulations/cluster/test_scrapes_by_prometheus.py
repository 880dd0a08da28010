"""Simulated scrapes against Prometheus' own evaluation of the same samples: rates, means, slopes, ages."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from simulations.cluster.scrapes import Floats, ScrapeHistory, ScrapeWindow
from simulations.lab.host.binaries import Binaries

PODS = ("steady", "bursty", "idle", "late", "first seen just now")
FOUND_S = (0, 0, 0, 33, 75)
WINDOWS_S = (5, 20, 60)
MICRO = 1_000_000
INSTANTS_S = (30.5, 75.5, 100.25)

EXPRESSIONS: dict[str, Callable[[ScrapeWindow], Floats]] = {
    "rate(c[{window}s])": lambda window: window.rates[:, 0],
    "avg_over_time(g[{window}s])": lambda window: window.means[:, 0],
    "deriv(g[{window}s])": lambda window: window.slopes[:, 0],
    "avg_over_time((g > bool 0)[{window}s:1s])": lambda window: window.busy_shares[:, 0],
    "avg_over_time((g ^ 2)[{window}s:1s])": lambda window: window.mean_squares[:, 0],
    "sum by (pod) (g)": lambda window: window.last[:, 0],
    "time() - timestamp(g)": lambda window: np.where(np.isinf(window.ages_s), np.nan, window.ages_s),
}


def samples() -> tuple[Floats, Floats]:
    """Counters and levels of every pod at whole seconds, shape (seconds, pods)."""
    rng = np.random.default_rng(7)
    seconds = int(max(INSTANTS_S)) + 1
    increments = rng.poisson([10.0, 3.0, 0.0, 25.0, 8.0], (seconds, len(PODS)))
    increments[:, 1] *= rng.random(seconds) < 0.2
    levels = np.maximum(0, rng.integers(-3, 9, (seconds, len(PODS))))
    levels[:, 2] = 0
    return np.cumsum(increments, axis=0).astype(np.float64), levels.astype(np.float64)


def written(column: Floats, found_s: int) -> str:
    """Samples as promtool reads them: `_` where there is none."""
    return " ".join("_" if t_s < found_s else f"{value:g}" for t_s, value in enumerate(column.tolist()))


def simulated(counters: Floats, levels: Floats, now_s: float, window_s: float) -> ScrapeWindow:
    history = ScrapeHistory(keep_s=max(WINDOWS_S), counters=1, levels=1)
    for t_s in range(math.floor(now_s) + 1):
        history.record(
            t_s,
            counters[t_s].reshape(-1, 1),
            levels[t_s].reshape(-1, 1),
            lambda pod, t_s=t_s: FOUND_S[pod] <= t_s,  # type: ignore[misc]
        )
    return history.view().window(range(len(PODS)), now_s, window_s)


def document(off_by: float = 1.0) -> str:
    """What promtool is to evaluate, and what the simulation gives for it."""
    counters, levels = samples()
    tests = []
    for now_s in INSTANTS_S:
        for window_s in WINDOWS_S:
            window = simulated(counters, levels, now_s, window_s)
            for text, value in EXPRESSIONS.items():
                expected = [
                    {"labels": f'{{pod="{pod}"}}', "value": math.floor(number * off_by * MICRO + 0.5)}
                    for pod, number in zip(PODS, value(window).tolist(), strict=True)
                    if not math.isnan(number)
                ]
                tests.append(
                    {
                        "expr": text.format(window=window_s),
                        "eval_time": f"{round(now_s * 1000)}ms",
                        "exp_samples": expected,
                    }
                )
    series = [
        {"series": f'{name}{{pod="{pod}"}}', "values": written(values[:, index], FOUND_S[index])}
        for name, values in (("c", counters), ("g", levels))
        for index, pod in enumerate(PODS)
    ]
    for entry in tests:  # compared as whole millionths: the last digits of a float depend on the order of sums
        entry["expr"] = f"round({MICRO} * ({entry['expr']}))"
    return yaml.safe_dump(
        {
            "evaluation_interval": "1s",
            "tests": [{"interval": "1s", "input_series": series, "promql_expr_test": tests}],
        }
    )


def judged(binaries: Binaries, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = folder / "scrapes.yaml"
    path.write_text(text)
    return subprocess.run(
        [binaries.promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.lab
def test_prometheus_gives_what_the_simulation_gives_for_the_same_samples(binaries: Binaries, tmp_path: Path) -> None:
    result = judged(binaries, tmp_path, document())

    assert result.returncode == 0, result.stdout + result.stderr
    assert judged(binaries, tmp_path, document(off_by=1.0001)).returncode != 0, "it would have told a difference"
