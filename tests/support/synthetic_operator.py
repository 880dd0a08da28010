"""`sluice operator` with synthetic metrics: the demand of a pipeline is the number that its query consists of."""

import sys
from unittest import mock

from large_fleets import SyntheticMetrics


def main() -> None:
    from controller.commands.operator import operator

    source = SyntheticMetrics(tails=False)
    with mock.patch("profiler.sources.prometheus.PrometheusSource", return_value=source):
        operator(["--prometheus-url", "http://synthetic", *sys.argv[1:]])


if __name__ == "__main__":
    main()
