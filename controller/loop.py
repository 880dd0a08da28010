"""The operator's control loop: read, decide, write statuses, scale, report; every interval, for all pipelines.

While pipelines of a large fleet get their first plan and status, the next cycle begins at once: each cycle plans a few
hundred, so at the pace of the interval thousands would wait for minutes, however fast the machine is. A cycle that
leaves as many without a plan or its status as before, a failed one, and one in which the API server does not answer or
asks to wait are followed by the usual pause: nothing that lasts makes cycles follow each other without one.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from controller.core.containment import decide_contained
from controller.core.messages.explain import reason_sentence
from controller.core.messages.problems import own_error
from controller.core.plan.large_fleet import AT_ONCE, planned_at_s
from controller.core.record import decision_key, decision_record
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.policy import Policy
from controller.health import Health
from controller.kube.actuator import Actuator, Write
from controller.kube.gateway import KubeError
from controller.kube.leadership import Leadership
from controller.kube.packed import Packed, Packer
from controller.kube.readable import taken
from controller.kube.reader import Observation, Reader
from controller.kube.reporter import Reporter
from controller.process_memory import garbage_collected_afterwards
from controller.telemetry import Telemetry
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)
_RECORDS = logging.getLogger("sluice.decision")
_BEATS = 4  # intervals, at least a minute, without progress before the liveness probe fails
_RESYNC_S = 300.0
_LOGGED = 50
_STANDBY_TURN_S = 0.5
_STANDBY_DEAD_S = 120.0  # some turns read all resources, and the first one compiles


class ControlLoop:
    """Runs the cycles of the operator one after the other, in the thread that calls `run`."""

    def __init__(
        self,
        *,
        reader: Reader,
        actuator: Actuator,
        reporter: Reporter,
        resync: Callable[[], None],
        watch: Callable[[], None] = lambda: None,
        policy: Policy,
        telemetry: Telemetry,
        health: Health,
        search_effort: Callable[[], int] | None = None,
        permit: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect the parts of a cycle.

        Args:
            reader: makes the Snapshot.
            actuator: scales the workloads.
            reporter: writes statuses and Events.
            resync: lists all SpeechPipelines and ComputePools; called before the first cycle and every five minutes.
            watch: starts the watches of SpeechPipelines and ComputePools if they do not run yet; called after each
                cycle. A start lists all objects again. Before the first cycle, that would delay the first decision over
                thousands of pipelines.
            policy: settings of the decisions, such as the interval and the fleet budget.
            telemetry: records metrics of each cycle.
            health: records the state of the probes.
            search_effort: measures the units of search work that a decision may take; called once, before the first
                cycle.
            permit: raises a `KubeError` while this replica may not write; such a cycle fails before it reads.
        """
        self._reader = reader
        self._actuator = actuator
        self._reporter = reporter
        self._resync = resync
        self._watch = watch
        self._policy = policy
        self._telemetry = telemetry
        telemetry.runs_every(policy.interval_s)
        self._health = health
        self._search_effort = search_effort
        self._permit = permit
        self._resync_due_s = float("-inf")
        self._packer = Packer()
        self._recorded: dict[PipelineKey, Packed] = {}
        self._left = math.inf
        """How many pipelines had no plan after the last cycle, or not its status."""
        self._hurries = False
        """Whether the next cycle begins at once."""

    def stand_by(self, stop: threading.Event, leadership: Leadership) -> None:
        """Wait until this replica leads or `stop` is set, and prepare for the first cycle.

        While it waits, it lists all resources every five minutes, watches them, measures the search speed once, and
        reports in `/readyz` whether that succeeds. The first cycle lists all resources again.
        """
        while not stop.is_set() and not leadership.wait(_STANDBY_TURN_S):
            self._health.beat("cycle", _STANDBY_DEAD_S)
            try:
                standing = leadership.standing()
                self._prepare()
                self._watch()
            except KubeError as error:
                self._health.not_ready(str(error))
            else:
                self._health.ready(standing)
        # The last writes of the former leader may not have arrived through the watches yet.
        self._resync_due_s = float("-inf")

    def run(self, stop: threading.Event) -> None:
        """Run a cycle every interval until `stop` is set; a failed cycle is logged and does not delay the next one.

        The next cycle begins at once where the last one gave pipelines their first plan, or its status, and others wait
        for theirs.
        """
        due_s = time.monotonic()
        while not stop.is_set():
            self._beat()
            started_s = time.monotonic()
            try:
                with garbage_collected_afterwards():
                    self.cycle()
            except KubeError as error:
                _LOG.error("cycle failed, no replicas changed: %s", error)
                self._failed(str(error), started_s)
            except Exception as error:  # noqa: BLE001 -- the outermost loop: a defect must not end it
                _LOG.exception("cycle failed: internal error")
                self._failed(f"{type(error).__name__}: {error}", started_s)
            self._watch()
            now_s = time.monotonic()
            due_s = now_s if self._hurries else max(due_s + self._policy.interval_s, now_s)
            stop.wait(due_s - now_s)

    def cycle(self) -> tuple[Decision, tuple[Write, ...]]:
        """Run one cycle and return its decision and the replica changes with their outcomes.

        Raises:
            KubeError: the API server cannot be read, or this replica may not write; nothing was changed.
        """
        started_s = time.monotonic()
        self._permit()
        self._prepare()
        with self._timed("read"):
            observation = self._reader.observe()
        self._telemetry.left_out(taken())
        with self._timed("decide"):
            contained = decide_contained(observation.snapshot, self._policy, self._beat)
        for key, error in contained.failed.items():
            _LOG.error("%s: internal error; replicas left unchanged", key, exc_info=error)
        observation, decision = observation.of(contained), contained.decision
        news = self._record(observation, decision)
        unplanned = sum(at_s is None for at_s in planned_at_s(observation.snapshot, decision))
        hurried = self._hurries or (unplanned > 0 and math.isinf(self._left))
        # The status carries the state that a restart needs, so it is written before the scales: a restart in between
        # repeats a write that changes nothing. A pipeline for which it is not safe is not scaled.
        with self._timed("status"):
            writable = self._reporter.report(observation, decision, news, hurried)
        unwritten = self._reader.remember(observation, decision, news=news, written=writable)
        acting = [pipeline for pipeline in decision.pipelines if pipeline.key in writable]
        with self._timed("apply"):
            writes = self._actuator.apply(acting)
            self._reader.ownership.wrote(writes)
            settings = self._actuator.write_settings(acting)
            self._reporter.record_events(observation, acting, writes, settings)
        for write in writes:
            self._telemetry.wrote(write.outcome.value)
        invalid = sum(map(len, (observation.invalid_pipelines, observation.invalid_pools, observation.invalid_budgets)))
        invalid += sum(bool(budget.problem) for budget in observation.snapshot.budgets)
        self._telemetry.read(observation.unanswered, len(observation.foreign), unwritten)
        self._telemetry.succeeded(
            observation.snapshot,
            decision,
            time.monotonic() - started_s,
            invalid,
            refused=self._reporter.unwritten(observation),
            late=observation.late,
        )
        self._health.ready()
        left, before = unplanned + unwritten, self._left
        self._left = left
        self._hurries = bool(unplanned or self._hurries) and 0 < left < before and not self._reporter.is_delayed()
        return decision, writes

    def _beat(self) -> None:
        self._health.beat("cycle", max(60.0, _BEATS * self._policy.interval_s))

    def _prepare(self) -> None:
        """List all resources if that is due, and measure the search speed once."""
        now_s = time.monotonic()
        if now_s >= self._resync_due_s:
            self._resync()
            self._resync_due_s = now_s + _RESYNC_S
        if self._search_effort is not None:
            self._policy = replace(self._policy, search_effort=self._search_effort())
            self._search_effort = None
            _LOG.info("search effort of a decision: %d units of work", self._policy.search_effort)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        self._telemetry.took(part, time.monotonic() - started_s)

    def _failed(self, problem: str, started_s: float) -> None:
        self._hurries = False
        self._telemetry.failed(time.monotonic() - started_s)
        self._health.not_ready(problem)

    def _record(self, observation: Observation, decision: Decision) -> frozenset[PipelineKey]:
        """Log the pipelines whose decision has changed since the last cycle, and return them.

        The log line carries the decision record, except for fleets too large to be planned at once.
        """
        standing = {
            each.key: self._recorded[each.key]
            for each in observation.snapshot.standing
            if each.key in self._recorded and each.assessed_at_s is not None  # else another one had its name
        }
        known, changed = dict(standing), list[PipelineDecision]()
        for pipeline in decision.pipelines:
            key, last = decision_key(pipeline), self._recorded.get(pipeline.key)
            if last is None or last.value() != key:
                changed.append(pipeline)
                last = self._packer.pack_value(key)
            known[pipeline.key] = last
        self._recorded = known
        if changed:
            reasons = "; ".join(f"{pipeline.key}: {_sentence(pipeline)}" for pipeline in changed[:_LOGGED])
            more = f"; and {len(changed) - _LOGGED} more" if len(changed) > _LOGGED else ""
            # The record of thousands would fill the log.
            recorded = not observation.snapshot.standing and len(decision.pipelines) <= AT_ONCE
            # A function, so that only the JSON format makes the record.
            record = partial(decision_record, observation.snapshot, decision) if recorded else None
            _RECORDS.info("%s%s", reasons, more, extra={"record": record})
        return frozenset(pipeline.key for pipeline in changed)


def _sentence(pipeline: PipelineDecision) -> str:
    """Return the decision about a pipeline in one line; a defect in its words must not end the cycle of all."""
    try:
        return reason_sentence(pipeline)
    except Exception as error:  # noqa: BLE001 -- of any kind
        _LOG.exception("%s: its decision has no words: internal error", pipeline.key)
        return own_error(error)
