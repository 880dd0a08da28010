"""`sluice operator` with synthetic metrics: the demand of a pipeline is the number that its query consists of.

With `--prometheus-url` they are those of a Prometheus. `--small-turns N` lets a fleet of more than N pipelines be
planned and assessed in turns of N, as thousands are. `--core N` binds the process to a processor. `--noise FILE` has
the share by which every number moves in each read.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from synthetic_metrics import SyntheticMetrics

TURNS = (
    "controller.core.cycle.AT_ONCE",
    "controller.core.plan.large_fleet.PER_TURN",
    "controller.kube.turns.AT_ONCE",
    "controller.kube.turns.MOST",
    "controller.kube.turns.PER_TURN",
)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--small-turns", type=int)
    parser.add_argument("--core", type=int)
    parser.add_argument("--noise", type=Path)
    own, flags = parser.parse_known_args()
    if own.core is not None:
        os.sched_setaffinity(0, {own.core})
    from controller.commands.operator import operator

    def noise() -> float:
        return 0.0 if own.noise is None else float(own.noise.read_text() or 0)

    with ExitStack() as patches:
        if "--prometheus-url" not in flags:
            flags += ["--prometheus-url", "http://synthetic"]
            source = SyntheticMetrics(noise, tails=False)
            patches.enter_context(mock.patch("profiler.sources.prometheus.PrometheusSource", return_value=source))
        for name in () if own.small_turns is None else TURNS:
            patches.enter_context(mock.patch(name, own.small_turns))
        operator(flags)


if __name__ == "__main__":
    main()
