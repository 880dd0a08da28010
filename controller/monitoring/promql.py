"""PromQL for dashboards and alerts. A metric that `controller.telemetry` does not have cannot be used."""

from functools import cache

from controller.telemetry import described, metric_names

OBJECTIVE = 0.99
"""The share of the time in which the latency is to be within the SLA. The rest is the error budget."""
CUT_SESSIONS = "sluice_ingress_sessions_cut_total"
"""Counts the sessions that lost their replica. Only an ingress can count them: the lab's does, and yours may."""
PIPELINE = "namespace, pipeline"
"""The labels of a pipeline's series."""
INSTALLATION = "namespace, job"
"""The labels that Prometheus gives to the replicas of one installation of the operator, and to no others."""


class UnknownMetric(ValueError):
    """The operator does not export a metric of this name, or not with this label."""


def series(name: str) -> str:
    """Return the full name of the operator's metric `name`, which is without the prefix `sluice_`.

    Raises:
        UnknownMetric: the operator does not export it.
    """
    full = name if name.startswith("process_") else f"sluice_{name}"
    if full not in _names():
        raise UnknownMetric(f"{full}: the operator does not export this metric")
    return full


def gauge(name: str, *, by: str = "", where: str = "") -> str:
    """Return the PromQL for a gauge of the last decision, one series for each value of the labels `by`.

    `by` and `where` are the labels of a `by` clause and the matchers of a selector. The labels of the scraped replica
    go away: for a moment after a change of leaders, two replicas may have series.

    Raises:
        UnknownMetric: the operator does not export it, or not with these labels.
    """
    full = series(name)
    for label in filter(None, by.split(", ")):
        if by != INSTALLATION and label not in _labels()[full]:
            raise UnknownMetric(f"{full}: has no label {label}")
    selector = f"{full}{{{where}}}" if where else full
    return f"max by ({by}) ({selector})" if by else f"max({selector})"


def missed_share(window: str, *, where: str = "") -> str:
    """Return the PromQL for the share of the known time within `window` in which each pipeline missed its SLA."""
    missed = f"{series('pipeline_sla_missed')}{{{where}}}" if where else series("pipeline_sla_missed")
    over = f"sum by ({PIPELINE}) (sum_over_time({missed}[{window}]))"
    return f"{over} / sum by ({PIPELINE}) (count_over_time({missed}[{window}]))"


def burn_rate(window: str, *, where: str = "") -> str:
    """Return the PromQL for how many times faster than allowed each pipeline uses its error budget in `window`."""
    return f"({missed_share(window, where=where)}) / {1 - OBJECTIVE:g}"


@cache
def _names() -> frozenset[str]:
    return metric_names()


@cache
def _labels() -> dict[str, tuple[str, ...]]:
    return {metric.name: metric.labels for metric in described()}
