"""The output of `sluice backtest` that docs/adoption.md quotes, from a record that is made here and replayed for real.

`PYTHONPATH=tests/support python -m backtest_document docs/adoption.md` writes it.
"""

import math
import re
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner, Result
from recorded_series import DEPLOYMENTS, a_series, deployments
from small_scenarios import PIPELINE, POOLS

from profiler.sources.prometheus_api import Period, PrometheusApi
from simulations.commands.backtest import backtest

NOW_S = 1_793_620_800  # 2026-11-02T12:00:00Z
SINCE = "3h"
REPLICAS = {"vad": 4, "asr-gpu": 0, "asr-cpu": 6}
MANIFESTS = f"{PIPELINE}---\n{POOLS}"
_BLOCK = re.compile(r"(?<=\n```text\n)Sluice served (?:.*\n)*?(?=```)")


def recorded(query: str, period: Period) -> Any:
    """Load that rises and falls, on replicas for its peak; nothing in the first five steps."""
    demand = [
        None if index < 5 else 8.0 + 6.0 * math.sin(math.pi * (index - 5) / (period.count - 5))
        for index in range(period.count)
    ]
    if query == DEPLOYMENTS:
        return deployments(period, {name: [count] * period.count for name, count in REPLICAS.items()})
    if "requests_total" in query:
        return [a_series(period, demand)]
    if "latency_seconds_bucket" in query:
        return [a_series(period, [step and 0.1 + step / 1000 for step in demand])]
    return []


def invoked(answer: Callable[[str, Period], Any], *arguments: object) -> Result:
    """Run `sluice backtest` at NOW_S with a Prometheus that answers each query over a period so."""

    def ask_ranges(_: PrometheusApi, queries: Collection[str], period: Period, deadline_s: float) -> dict[str, Any]:
        return {query: answer(query, period) for query in queries}

    with patch.object(PrometheusApi, "ask_ranges", ask_ranges), patch("time.time", lambda: NOW_S):
        return CliRunner().invoke(backtest, [*map(str, arguments), "--prometheus-url", "http://localhost:1"])


def printed() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.yaml"
        path.write_text(MANIFESTS)
        return invoked(recorded, path, "--since", SINCE).output


def quoted(text: str) -> str:
    found = _BLOCK.search(text)
    assert found is not None
    return found.group()


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(_BLOCK.sub(lambda _: printed(), page.read_text(), count=1))
