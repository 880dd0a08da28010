"""The queries of all dashboards as Grafana would send them, with the variables replaced."""

from collections.abc import Iterator
from dataclasses import dataclass

from controller.monitoring.generate import DASHBOARDS

RATE_INTERVAL = "30s"
RANGE = "5m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A query of a dashboard with its place, its expression, and why it is empty in a healthy run."""

    place: str
    expr: str
    empty_because: str

    def __str__(self) -> str:
        return self.place


def queries(*, namespace: str, pipeline: str, rate_interval: str = RATE_INTERVAL) -> Iterator[Asked]:
    """Yield the queries of panels and annotations, for one pipeline and all pools."""
    values = {
        "$__rate_interval": rate_interval,
        "$__range": RANGE,
        "$namespace": namespace,
        "$pipeline": pipeline,
        "$pool": ".*",
    }
    for name, dashboard in DASHBOARDS.items():
        for number, query in enumerate(dashboard.queries):
            expr = query.expr
            for variable, value in values.items():
                expr = expr.replace(variable, value)
            yield Asked(place=f"{name}-{number}", expr=expr, empty_because=query.empty_because)
