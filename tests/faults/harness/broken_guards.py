"""Removes one guard of the operator, to show that the matrix notices the broken promise."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def _missing_is_zero() -> None:
    """Read missing metrics as zero load."""
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
    """Ignore the budget."""
    from controller.kube import reader as module

    reader: Any = module
    spec = reader.pipeline_spec
    reader.pipeline_spec = lambda resource: replace(spec(resource), budget_per_hour=1e6)


def _no_lease() -> None:
    """Run without leader election."""
    os.environ["SLUICE_LEADER_ELECT"] = "false"


def _no_pending_deadline() -> None:
    """Wait for pending replicas without a deadline."""
    from controller.core.bounds import availability

    patient: Any = availability
    patient._next = lambda _spec, memory, _late, **_: memory


def _always_write() -> None:
    """Write the status in every cycle."""
    from controller.kube import reporter

    reporter.worth_writing = lambda *_: True  # type: ignore[attr-defined]


def _fail_on_invalid() -> None:
    """Fail the cycle for an invalid resource."""
    from controller.kube.reader import Resources

    parsed = Resources.pipelines

    def strict(self: Resources) -> Any:
        usable, invalid = parsed(self)
        if invalid:
            raise ValueError(invalid[0].problem)
        return usable, invalid

    Resources.pipelines = strict  # type: ignore[method-assign]


def _slow_after_failure() -> None:
    """Wait 30 intervals after a failed cycle."""
    from controller.loop import ControlLoop

    failed = ControlLoop._failed

    def slowed(self: Any, problem: str, started_s: float) -> None:
        import time

        failed(self, problem, started_s)
        time.sleep(30 * self._policy.interval_s)

    ControlLoop._failed = slowed  # type: ignore[method-assign]


def _no_status() -> None:
    """Do not write statuses."""
    from controller.kube.reporter import Reporter, _Outcome

    Reporter._write = lambda *_: _Outcome.WRITTEN  # type: ignore[method-assign]


def _declared_only() -> None:
    """Plan with the declared service times alone: what is measured neither corrects them nor adds capacity."""
    from controller.core.bounds import feedback, learning
    from controller.core.bounds.feedback import Feedback
    from controller.core.state.carry_over import FeedbackMemory
    from profiler import estimate, profile

    deaf: Any = feedback
    deaf.close_loop = lambda *_, **__: Feedback(memory=FeedbackMemory())
    unmeasured: Any = profile
    unmeasured.with_corrections = lambda estimated, *_, **__: estimated
    own: Any = estimate
    own._measured_service_ratio = own._measured_batch = lambda *_: None
    sure: Any = learning
    sure.floors = lambda *_: ()


def _all_models() -> None:
    """Add up the metrics of all models of a server, whichever is selected."""
    from profiler.sources import queries

    every: Any = queries
    every.chosen_models = lambda *_: {}
    every.of_models = _summed


def _summed(result: Any, label: str, _: object) -> list[Any]:
    totals: dict[Any, Any] = {}
    for series in result:
        metric = {name: value for name, value in series["metric"].items() if name != label}
        key, (at_s, value) = tuple(sorted(metric.items())), series["value"]
        before = float(totals[key]["value"][1]) if key in totals else 0.0
        totals[key] = {"metric": metric, "value": [at_s, str(before + float(value))]}
    return list(totals.values())


def _first_tokens() -> None:
    """Read the metrics of first tokens for those of whole answers."""
    from profiler.samples import Answer
    from profiler.sources import queries
    from profiler.sources.presets import Preset

    formula = Preset.formula
    first: Any = Preset
    first.formula = lambda self, quantity, _: formula(self, quantity, Answer.FIRST)
    coarse: Any = queries
    coarse.refines = lambda *_: False


def _usual_scrapes() -> None:
    """Expect metrics of a new replica as soon as with a scrape every 15 s, whatever `--scrape-interval` is."""
    from controller.settings import OperatorSettings

    OperatorSettings.reporting_grace_s = property(lambda _: 4.0)  # type: ignore[assignment,method-assign]


def _any_window() -> None:
    """Do not compare windows with the scrape interval."""
    from controller.core import cycle

    unchecked: Any = cycle
    unchecked.with_short_windows_named = lambda snapshot, _: snapshot


def _lost_with_pool() -> None:
    """Give up what runs on a pool while new replicas cannot be placed there."""
    from controller.core.bounds import outages

    every: Any = outages
    most = every._most
    every._most = lambda own, pools, key, failure: 0 if pools.out(key[1]) else most(own, pools, key, failure)


class _Forgetful(dict[Any, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def _one_failure_stops_all() -> None:
    """Take an error about one object for a server that is away, and write what failed at its usual place."""
    from controller.kube import gateway
    from controller.kube.actuator import Actuator
    from controller.kube.refusals import Refusals

    module: Any = gateway
    translated = module._translated

    def away(error: Any, request: str) -> Any:
        found = translated(error, request)
        return gateway.Silent(str(found)) if isinstance(found, gateway.Failed) else found

    module._translated = away
    actuator: Any = Actuator
    actuator._failed = property(lambda _: _Forgetful(), lambda *_: None)
    Refusals.last_failure = lambda *_: 0  # type: ignore[method-assign]


def _memory_nowhere() -> None:
    """Scale a pipeline whose status is refused without keeping its memory elsewhere."""
    from controller.kube.kept_memory import KeptMemory

    kept: Any = KeptMemory
    kept.keep = lambda _, documents: frozenset(documents)


def _all_kinds_wait() -> None:
    """Hold back every request for the Retry-After of one."""
    from controller.kube import gateway

    every: Any = gateway
    every.kind_of = lambda *_: ""


def _own_clock() -> None:
    """Date cycles by the operator's own clock."""
    import time

    from controller.kube.server_clock import ServerClock

    own: Any = ServerClock
    own.now_s = lambda _: time.time()


def _unread_refusals() -> None:
    """Do not read why pods are not created, neither in a Deployment's conditions nor in Events."""
    from controller.kube import matching
    from controller.kube.reader import Reader

    unread: Any = Reader
    unread._with_refusals = lambda _self, _specs, _resources, workloads, _now_s: workloads
    silent: Any = matching
    silent._failure = lambda _: ""


def _labels_untold() -> None:
    """Do not look for the label that has the pods when no series has one of them."""
    from profiler.sources import reporting_pods

    untold: Any = reporting_pods
    untold.unlabelled = lambda *_: ""


def _copies_counted() -> None:
    """Take each pod for one that is scraped once."""
    from profiler.sources.reporting_pods import PodQueries

    once: Any = PodQueries
    counted = once.copies.func
    once.copies = property(lambda self: f"({counted(self)}) * 0 + 1")


def _hang_is_silence() -> None:
    """Take a write that is not answered in time for a server that is away."""
    from controller.kube.gateway import Gateway

    silent: Any = Gateway
    silent._answers = lambda _: False


def _by_text() -> None:
    """Send each query alone, in the order of their texts."""
    from profiler.sources.query_order import QueryOrder

    unordered: Any = QueryOrder
    unordered.requests = lambda _self, kinds, *_: tuple((query,) for query in sorted(kinds))


def _one_revision() -> None:
    """Do not tell the pods of a new revision from those of the one before."""
    from controller.kube import workloads

    alike: Any = workloads
    alike._newest_revision = lambda _: None


GUARDS: dict[str, Callable[[], None]] = {
    "never-down": _missing_is_zero,
    "caps": _no_budget,
    "one-writer": _no_lease,
    "pending": _no_pending_deadline,
    "restart": _always_write,
    "others": _fail_on_invalid,
    "recovery": _slow_after_failure,
    "reason": _no_status,
    "sla-met": _declared_only,
    "one-model": _all_models,
    "whole-answers": _first_tokens,
    "scrape-interval": _usual_scrapes,
    "windows": _any_window,
    "ready-stays": _lost_with_pool,
    "own-failure": _one_failure_stops_all,
    "kept-memory": _memory_nowhere,
    "one-kind": _all_kinds_wait,
    "server-clock": _own_clock,
    "refusals": _unread_refusals,
    "labels-told": _labels_untold,
    "copies": _copies_counted,
    "hung": _hang_is_silence,
    "query-order": _by_text,
    "bad-image": _one_revision,
}

PROOFS: dict[str, tuple[str, ...]] = {
    "never-down": ("Prometheus: empty",),
    "caps": ("API: down",),
    "one-writer": ("three replicas",),
    "pending": ("API: down",),
    "restart": ("API: down",),
    "others": ("API: down",),
    "recovery": ("API: down",),
    "reason": ("Prometheus: empty",),
    "sla-met": ("one stage 0.2", "unequal replicas"),
    "one-model": ("one selected", "none selected"),
    "whole-answers": ("several tokens",),
    "scrape-interval": ("scrapes every",),
    "windows": ("windows of 60 s",),
    "ready-stays": ("roll-out on a full pool",),
    "own-failure": ("500 for one object",),
    "kept-memory": ("a webhook refuses statuses",),
    "one-kind": ("Retry-After for one kind",),
    "server-clock": ("clock 5 min behind",),
    "refusals": ("a quota refuses", "a webhook refuses its pods"),
    "labels-told": ("no pod labels",),
    "copies": ("pods scraped twice",),
    "hung": ("a webhook hangs",),
    "query-order": ("2 s a query",),
    "bad-image": ("a bad image",),
}
"""The rows that show the missing guard."""


def remove_guard(name: str) -> None:
    """Remove a guard, before the operator is assembled."""
    GUARDS[name]()
