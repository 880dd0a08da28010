"""The operator's one loop: read, decide, persist, apply, report; every interval, for the whole fleet, until stopped."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from controller.core.containment import decide_contained
from controller.core.messages.explain import reason_sentence
from controller.core.plan.large_fleet import AT_ONCE
from controller.core.record import decision_key, decision_record
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.health import Health
from controller.kube.actuator import Actuator, Write
from controller.kube.gateway import KubeError
from controller.kube.leadership import Leadership
from controller.kube.reader import Observation, Reader
from controller.kube.reporter import Reporter
from controller.process_memory import tidied_afterwards
from controller.telemetry import Telemetry
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)
_RECORDS = logging.getLogger("sluice.decision")
_BEATS = 4  # intervals, at least a minute, without a turn of the loop: something hangs
_RESYNC_S = 300.0
_TOLD = 50
_STANDBY_TURN_S = 0.5
_STANDBY_DEAD_S = 120.0  # a turn reads all resources at times, and compiles the first time


class ControlLoop:
    """Runs cycles, one at a time."""

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
        """`resync` reads all resources anew; it is called before the first cycle and every five minutes.

        `watch` begins to tell what changes in between. It takes in all resources once more, thousands at times, so it
        is called when the first cycle is over, and again after each other one.
        `search_effort` measures the work that a decision may take; it is called once, when there is something to
        decide. `permit` raises a `KubeError` while this replica may not write: there is no cycle then.
        """
        self._reader = reader
        self._actuator = actuator
        self._reporter = reporter
        self._resync = resync
        self._watch = watch
        self._policy = policy
        self._telemetry = telemetry
        self._health = health
        self._search_effort = search_effort
        self._permit = permit
        self._resync_due_s = float("-inf")
        self._recorded: dict[PipelineKey, object] = {}

    def stand_by(self, stop: threading.Event, leadership: Leadership) -> None:
        """Wait until this replica leads or `stop` is set; know the resources and this machine's speed by then."""
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
        # What the former leader wrote last may not have come by the watches yet.
        self._resync_due_s = float("-inf")

    def run(self, stop: threading.Event) -> None:
        """Run cycles until `stop` is set. A cycle that fails is reported, and the next one comes at its time."""
        due_s = time.monotonic()
        while not stop.is_set():
            self._health.beat("cycle", max(60.0, _BEATS * self._policy.interval_s))
            started_s = time.monotonic()
            try:
                with tidied_afterwards():
                    self.cycle()
            except KubeError as error:
                _LOG.error("this cycle changes nothing: %s", error)
                self._failed(str(error), started_s)
            except Exception as error:  # noqa: BLE001 -- the outermost loop: a bug must not end all cycles to come
                _LOG.exception("this cycle failed")
                self._failed(f"{type(error).__name__}: {error}", started_s)
            self._watch()
            due_s = max(due_s + self._policy.interval_s, time.monotonic())
            stop.wait(due_s - time.monotonic())

    def cycle(self) -> tuple[Decision, tuple[Write, ...]]:
        """Run one cycle and return what was decided and what became of it.

        Raises:
            KubeError: the API server cannot be read, or this replica may not write; nothing was changed.
        """
        started_s = time.monotonic()
        self._permit()
        self._prepare()
        with self._timed("read"):
            observation = self._reader.observe()
        with self._timed("decide"):
            contained = decide_contained(observation.snapshot, self._policy)
        for key, error in contained.failed.items():
            _LOG.error("%s is left as it is: a mistake in Sluice", key, exc_info=error)
        observation, decision = observation.of(contained), contained.decision
        news = self._record(observation, decision)
        # What must last is written before it is acted on: a restart in between must not act twice. A pipeline whose
        # status cannot be written is gone, or the server is; it is left as it is.
        with self._timed("status"):
            writable = self._reporter.report(observation, decision, news)
        self._reader.remember(observation, decision)
        acting = [pipeline for pipeline in decision.pipelines if pipeline.key in writable]
        with self._timed("apply"):
            writes = self._actuator.apply(acting)
            self._reader.ownership.wrote(writes)
            self._reporter.tell(observation, acting, writes)
        for write in writes:
            self._telemetry.wrote(write.outcome.value)
        invalid = len(observation.invalid_pipelines) + len(observation.invalid_pools)
        self._telemetry.succeeded(observation.snapshot, decision, time.monotonic() - started_s, invalid)
        self._health.ready()
        return decision, writes

    def _prepare(self) -> None:
        """Read all resources anew when it is time to, and learn once how fast this machine is."""
        now_s = time.monotonic()
        if now_s >= self._resync_due_s:
            self._resync()
            self._resync_due_s = now_s + _RESYNC_S
        if self._search_effort is not None:
            self._policy = replace(self._policy, search_effort=self._search_effort())
            self._search_effort = None
            _LOG.info("a decision may take %d units of work", self._policy.search_effort)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        self._telemetry.took(part, time.monotonic() - started_s)

    def _failed(self, problem: str, started_s: float) -> None:
        self._telemetry.failed(time.monotonic() - started_s)
        self._health.not_ready(problem)

    def _record(self, observation: Observation, decision: Decision) -> frozenset[PipelineKey]:
        """Log the decision when a pipeline's has changed, with all it was made from unless the fleet is large.

        Return the pipelines whose decision has changed.
        """
        keys = {pipeline.key: decision_key(pipeline) for pipeline in decision.pipelines}
        changed = [
            pipeline for pipeline in decision.pipelines if self._recorded.get(pipeline.key) != keys[pipeline.key]
        ]
        self._recorded = keys
        if changed:
            words = "; ".join(f"{pipeline.key}: {reason_sentence(pipeline)}" for pipeline in changed[:_TOLD])
            more = f"; and {len(changed) - _TOLD} more" if len(changed) > _TOLD else ""
            whole = len(decision.pipelines) <= AT_ONCE  # a record of thousands would fill the log
            # Made by who writes it down: text for people has no use for it.
            record = partial(decision_record, observation.snapshot, decision) if whole else None
            _RECORDS.info("%s%s", words, more, extra={"record": record})
        return frozenset(pipeline.key for pipeline in changed)
