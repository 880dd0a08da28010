"""The operator without one of its guards, to check that the fault matrix fails without it."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def _nothing_is_zero() -> None:
    """Missing data counts as zero load, and never prevents a scale-down."""
    from controller.core.assess.assessment import Assessment
    from profiler.samples import Absence
    from profiler.sources.prometheus import PrometheusSource

    read = PrometheusSource.read

    def zeros(self: Any, request: Any) -> Any:
        answer = read(self, request)
        scalars = {key: 0.0 if isinstance(found, Absence) else found for key, found in answer.scalars.items()}
        return replace(answer, scalars=scalars)

    PrometheusSource.read = zeros  # type: ignore[method-assign]
    Assessment.never_down = property(lambda _: False)  # type: ignore[assignment,method-assign]


def _no_budget() -> None:
    """Budgets are ignored."""
    from controller.kube import reader as module

    reader: Any = module
    spec = reader.pipeline_spec
    reader.pipeline_spec = lambda resource: replace(spec(resource), budget_per_hour=1e6)


def _no_lease() -> None:
    """Every replica takes itself for the only one; the server is not asked either."""
    os.environ["SLUICE_LEASE"] = "false"


def _pools_deliver() -> None:
    """A pending replica never makes a pool unavailable."""
    from controller.core.assess import availability

    patient: Any = availability
    patient._next = lambda _spec, memory, _late, **_: memory


def _everything_is_news() -> None:
    """A status is written whether or not it says anything new."""
    from controller.kube import reporter

    reporter.worth_writing = lambda *_: True  # type: ignore[attr-defined]


def _one_for_all() -> None:
    """An invalid resource ends the cycle."""
    from controller.kube.reader import Reader

    parsed = Reader._parsed_pipelines

    def strict(self: Reader) -> Any:
        usable, invalid = parsed(self)
        if invalid:
            raise ValueError(invalid[0].problem)
        return usable, invalid

    Reader._parsed_pipelines = strict  # type: ignore[method-assign]


def _ever_slower() -> None:
    """After a cycle that failed, the next one comes much later."""
    from controller.loop import ControlLoop

    failed = ControlLoop._failed

    def discouraged(self: Any, problem: str, started_s: float) -> None:
        import time

        failed(self, problem, started_s)
        time.sleep(30 * self._policy.interval_s)

    ControlLoop._failed = discouraged  # type: ignore[method-assign]


def _no_words() -> None:
    """Statuses are decided on and not written."""
    from controller.kube.reporter import Reporter

    Reporter._write = lambda *_: True  # type: ignore[method-assign]


GUARDS: dict[str, Callable[[], None]] = {
    "never-down": _nothing_is_zero,
    "caps": _no_budget,
    "one-writer": _no_lease,
    "pending": _pools_deliver,
    "restart": _everything_is_news,
    "others": _one_for_all,
    "recovery": _ever_slower,
    "reason": _no_words,
}

PROOFS: dict[str, str] = {
    "never-down": "Prometheus: empty",
    "caps": "API: down",
    "one-writer": "three replicas",
    "pending": "API: down",
    "restart": "API: down",
    "others": "API: down",
    "recovery": "API: down",
    "reason": "Prometheus: empty",
}
"""The row in which each of them is missed."""


def take_away(name: str) -> None:
    """Take away a guard, before the operator is assembled."""
    GUARDS[name]()
