"""Series as Prometheus' range queries return them, from values by step; NaN and None are steps without a sample."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from profiler.sources.prometheus_api import Period

DEPLOYMENTS = 'max by (deployment) (kube_deployment_status_replicas{namespace="speech"})'
OWN = 'max by (stage, pool) (sluice_stage_replicas_ready{namespace="speech", pipeline="captions"})'


def a_series(period: Period, values: Sequence[float | None], **labels: str) -> dict[str, Any]:
    return {
        "metric": labels,
        "values": [
            [period.start_s + index * period.step_s, str(value)]
            for index, value in enumerate(values)
            if value is not None and not math.isnan(value)
        ],
    }


def deployments(period: Period, replicas: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    return [a_series(period, values, deployment=name) for name, values in replicas.items()]
