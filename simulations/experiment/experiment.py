"""The runs of an experiment: which ones there are, one run from start to result, and many runs in parallel processes.

Every run starts alike: each stage has its minimum of replicas ready, at least one, and the policy runs without load
for `cluster.simulated.SETTLING_S` plus the slowest start-up before the load begins, as on the lab.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from multiprocessing import resource_tracker
from typing import Any, Protocol

import numpy as np

from controller.core.messages.explain import reason_sentence
from controller.core.record import decision_key, recorded_diagnosis
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.spec import with_basis
from controller.resources.fields import duration_s
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import PipelineKey, StageName
from profiler.samples import Quantity
from simulations.cluster.simulated import SimulatedCluster
from simulations.experiment.cost_accounts import CostAccounts
from simulations.experiment.hardware import cheapest_first
from simulations.experiment.hindsight import BoundRequest, bound_one
from simulations.policies.autoscaler import Autoscaler, AutoscalerDecision, Briefing, Hardware, OneWorkloadSettings
from simulations.policies.catalogue import POLICIES, paced
from simulations.policies.recorded import RecordedReplicas, RecordedSettings
from simulations.policies.sluice import SluiceSettings
from simulations.results import spending
from simulations.results.diagnoses import NamedCause, at_their_highest, episodes, named_causes
from simulations.results.results import BoundResult, DecisionEntry, PlacementChange, RunResult, Tuning
from simulations.results.run_series import run_series
from simulations.results.run_times import in_run_times
from simulations.results.scoring import ItemScore, Tally, totals
from simulations.results.users import users_of
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.scenario import Scenario, resource_changes, with_what_if
from simulations.scenario.schedule import Schedule

_SCHEDULES_KEPT = 4
SLUICE = "sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run to make: a policy under a what-if and a seed, with `settings`, or with those of `tuning` if None.

    `breakdown` asks for the parts of the cost, which takes two more plans in each cycle; only Sluice has them.
    """

    policy: str
    seed: int
    tuning: Tuning = Tuning.DEFAULT
    what_if: str | None = None
    settings: Any = None
    breakdown: bool = False


Request = RunRequest | BoundRequest
Answer = RunResult | BoundResult


class Executor(Protocol):
    """Where the runs and bounds of an experiment are made. Their results do not depend on it."""

    def answers(
        self, scenario: Scenario, requests: Sequence[Request], report: Callable[[Answer], object]
    ) -> Sequence[Answer]:
        """Return the answers in the order of `requests`; call `report` in this process with each as it is made."""


def planned_runs(
    scenario: Scenario,
    *,
    policies: Sequence[str] | None = None,
    what_ifs: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> tuple[RunRequest, ...]:
    """Return the runs of an experiment: every policy with every seed, and what-ifs.

    A policy runs with its documented settings, and with its trained settings where these differ. `policies`, `what_ifs`
    and `seeds` default to the scenario's. What-ifs are run for Sluice only, unless `policies` are given.
    """
    named = scenario.file.policies if policies is None else policies
    pairs: list[tuple[str | None, str]] = [(None, policy) for policy in named]
    for what_if in [each.name for each in scenario.file.what_if] if what_ifs is None else what_ifs:
        pairs += [(what_if, policy) for policy in ([SLUICE] if policies is None else policies)]
    return tuple(
        RunRequest(policy=policy, tuning=tuning, what_if=what_if, seed=seed)
        for what_if, policy in pairs
        for tuning in Tuning
        if tuning is Tuning.DEFAULT or POLICIES[policy].trained not in {None, POLICIES[policy].default}
        for seed in (scenario.file.seeds if seeds is None else seeds)
    )


def run_one(
    scenario: Scenario,
    *,
    policy: str,
    seed: int,
    tuning: Tuning = Tuning.DEFAULT,
    what_if: str | None = None,
    settings: Any = None,
    breakdown: bool = False,
    schedules: Mapping[str, Schedule] | None = None,
) -> RunResult:
    """Run a scenario once under a policy and return the result.

    `settings` are used instead of those of the tuning, unless None. `breakdown` as in `RunRequest`. `schedules` is the
    load of each pipeline; if None, it is made from scenario and seed.

    Raises:
        UnsupportedScenario: the scenario has a feature that is not simulated.
        ValueError: there is no such what-if, or the policy has no trained settings.
    """
    began_s = time.perf_counter()
    scenario = with_what_if(scenario, None if what_if is None else scenario.what_if(what_if))
    loads = pipeline_schedules(scenario, seed=seed) if schedules is None else schedules
    chosen = settings_of(scenario, policy, tuning) if settings is None else settings
    if isinstance(chosen, OneWorkloadSettings) and chosen.hardware is Hardware.CHEAPEST:
        scenario = cheapest_first(scenario)
    autoscaler = _autoscaler(scenario, policy, chosen, loads)
    cluster = SimulatedCluster(
        scenario, seed=seed, interval_s=autoscaler.interval_s, window_s=autoscaler.metrics_window_s, schedules=loads
    )
    log = _DecisionLog()
    accounts = CostAccounts(pipelines=cluster.pipelines, autoscaler=autoscaler) if breakdown else None
    policy_of_cycle = Policy(
        interval_s=autoscaler.interval_s, scrape_interval_s=duration_s(scenario.file.scrape_interval)
    )
    due_s = cluster.now_s
    while due_s < cluster.duration_s:
        cluster.advance(due_s)
        snapshot = cluster.snapshot()
        decision = autoscaler(snapshot, policy_of_cycle)
        if accounts is not None:
            accounts.add(snapshot, policy_of_cycle, decision)
        cluster.apply(decision)
        log.add(decision)
        due_s += autoscaler.interval_s
    cluster.advance(cluster.duration_s)
    return _result(
        scenario,
        cluster,
        policy=policy,
        tuning=tuning,
        what_if=what_if,
        seed=seed,
        interval_s=autoscaler.interval_s,
        log=log,
        accounts=accounts,
        wall_s=time.perf_counter() - began_s,
    )


def run_all(
    scenario: Scenario,
    requests: Sequence[RunRequest],
    *,
    jobs: int = 1,
    progress: Callable[[RunResult], None] | None = None,
) -> tuple[RunResult, ...]:
    """Make runs in `jobs` processes and return their results in the order of the requests.

    `progress` is called in this process with each result. The results do not depend on the number of processes.
    """

    def report(result: Answer) -> None:
        if progress is not None and isinstance(result, RunResult):
            progress(result)

    return _runs(LocalProcesses(jobs=jobs).answers(scenario, requests, report))


def run_and_bound(
    scenario: Scenario,
    runs: Sequence[RunRequest],
    bounds: Sequence[BoundRequest],
    *,
    jobs: int = 1,
    progress: Callable[[], None] | None = None,
    executor: Executor | None = None,
) -> tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]:
    """Make runs and find bounds with `executor`, by default in `jobs` processes; return both in the requests' order.

    The results do not depend on the number of processes. `progress` is called in this process each time that a run
    or a bound is done. An interrupt ends the processes before it is raised.
    """
    chosen = executor or LocalProcesses(jobs=jobs)
    found = chosen.answers(scenario, [*runs, *bounds], lambda _: progress and progress())
    return _runs(found), tuple(answer for answer in found if isinstance(answer, BoundResult))


def _runs(answers: Sequence[Answer]) -> tuple[RunResult, ...]:
    return tuple(answer for answer in answers if isinstance(answer, RunResult))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProcesses:
    """The executor on this machine, in `jobs` processes; in this process if that is 1."""

    jobs: int

    def answers(
        self, scenario: Scenario, requests: Sequence[Request], report: Callable[[Answer], object]
    ) -> Sequence[Answer]:
        """Return the answers in the order of `requests`; call `report` in this process with each as it is made."""
        if self.jobs == 1 or len(requests) <= 1:
            results = []
            for request in requests:
                results.append(answer(scenario, request, schedules_of(scenario, request)))
                report(results[-1])
            return results
        found: dict[int, Answer] = {}
        pool = ProcessPoolExecutor(
            min(self.jobs, len(requests)),
            mp_context=multiprocessing.get_context("spawn"),  # compiled code has threads, which do not survive a fork
            initializer=_begin_process,
            initargs=(scenario,),
        )
        try:
            with _uninterruptible():
                waiting: dict[Future[Answer], int] = {
                    pool.submit(_in_process, requests[index]): index for index in longest_first(requests)
                }
            while waiting:
                for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                    found[waiting.pop(done)] = done.result()
                    report(done.result())
        except BaseException:
            processes = tuple((pool._processes or {}).values())  # noqa: SLF001 - a run has no way to be stopped
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise
        pool.shutdown()
        return [found[index] for index in range(len(requests))]


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Return the indexes of the requests, the longest first, so that all processes are busy until the end.

    Runs of Sluice take longest because it plans, then bounds; in all other runs most of the work is the queues.
    """

    def turn(index: int) -> int:
        request = requests[index]
        if isinstance(request, BoundRequest):
            return 1
        return 0 if request.policy == SLUICE else 2

    return sorted(range(len(requests)), key=turn)


_scenario_of_process: Scenario | None = None


def _begin_process(scenario: Scenario) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    global _scenario_of_process  # noqa: PLW0603 - sent once, not with every run
    _scenario_of_process = scenario


@contextlib.contextmanager
def _uninterruptible() -> Iterator[None]:
    """Let processes that are started in the `with` block not get Ctrl-C, which a terminal sends to them too.

    The parent process ends them instead. One that it gets in the block is delivered after it.
    """
    resource_tracker.ensure_running()  # a start of it in the block would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # it was killed, and nothing takes the result of the run


def _in_process(request: Request) -> Answer:
    assert _scenario_of_process is not None
    return answer(_scenario_of_process, request, schedules_of(_scenario_of_process, request))


def answer(scenario: Scenario, request: Request, schedules: Mapping[str, Schedule]) -> Answer:
    """Return the run or the bound that `request` asks for; `schedules` are those of `schedules_of`."""
    if isinstance(request, BoundRequest):
        return bound_one(scenario, request, schedules=schedules)
    chosen = {field.name: getattr(request, field.name) for field in fields(request)}
    return run_one(scenario, **chosen, schedules=schedules)


def load_key(scenario: Scenario, request: Request) -> tuple[str | None, int]:
    """Return the what-if and the seed that the load of a request depends on; requests with equal ones share it."""
    # A what-if that does not change the load has the scenario's load.
    changes_load = request.what_if is not None and scenario.what_if(request.what_if).load is not None
    return (request.what_if if changes_load else None, request.seed)


def schedules_of(scenario: Scenario, request: Request) -> Mapping[str, Schedule]:
    """Return the load of each pipeline under the what-if and the seed of a request."""
    return _loads.get(scenario, load_key(scenario, request))


class _Loads:
    """A cache of the last loads made, because all policies of an experiment get the same ones."""

    def __init__(self) -> None:
        self._scenario: Scenario | None = None
        self._made: dict[tuple[str | None, int], Mapping[str, Schedule]] = {}

    def get(self, scenario: Scenario, key: tuple[str | None, int]) -> Mapping[str, Schedule]:
        """Return the schedule of each pipeline under a what-if and a seed."""
        if scenario is not self._scenario:
            self._scenario, self._made = scenario, {}
        if key not in self._made:
            while len(self._made) >= _SCHEDULES_KEPT:
                del self._made[next(iter(self._made))]
            other = with_what_if(scenario, None if key[0] is None else scenario.what_if(key[0]))
            self._made[key] = pipeline_schedules(other, seed=key[1])
        return self._made[key]


_loads = _Loads()


def settings_of(scenario: Scenario, policy: str, tuning: Tuning) -> Any:
    """Return the settings of a policy for a scenario: those of `tuning`, at the pace of its load.

    Raises:
        ValueError: the policy has no trained settings.
    """
    family = POLICIES[policy]
    settings = family.default if tuning is Tuning.DEFAULT else family.trained
    if settings is None:
        raise ValueError(f"policy: {policy}: has no trained settings")
    if isinstance(settings, SluiceSettings):
        own = scenario.file.interval
        return settings if own is None else replace(settings, interval_s=duration_s(own))
    return paced(settings, scenario.file.pace, scrape_interval_s=duration_s(scenario.file.scrape_interval))


def _autoscaler(scenario: Scenario, policy: str, settings: Any, loads: Mapping[str, Schedule]) -> Autoscaler:
    if isinstance(settings, RecordedSettings):  # not in the catalogue: it needs the record of a backtest
        return RecordedReplicas(settings)
    return POLICIES[policy].make(settings, briefing_of(scenario, loads))


def briefing_of(scenario: Scenario, loads: Mapping[str, Schedule]) -> Briefing:
    """Return what policies are set up with before a run of `scenario`; `loads` is the load of each pipeline."""
    pools = {spec.name: spec for spec in map(pool_spec, scenario.pools)}
    pipelines = tuple(with_basis(pipeline_spec(resource), pools) for resource in scenario.pipelines)
    return Briefing(
        pipelines=pipelines,
        pools=tuple(pools.values()),
        changes=tuple(
            pipeline_spec(change.resource)
            if isinstance(change.resource, SpeechPipeline)
            else pool_spec(change.resource)
            for change in resource_changes(scenario)
            if isinstance(change.resource, SpeechPipeline | ComputePool)
        ),
        loads={pipeline.key: loads[pipeline.key] for pipeline in pipelines},
        duration_s=scenario.file.clock.duration_s,
    )


class _DecisionLog:
    """The decisions since the load began that differ from the one before for the same pipeline.

    `receive_pressures` has what each cycle since then has read.
    """

    def __init__(self) -> None:
        self.entries: list[DecisionEntry] = []
        self.receive_pressures: dict[PipelineKey, list[tuple[float, Mapping[StageName, float]]]] = {}
        self._keys: dict[PipelineKey, object] = {}
        self._latest: dict[PipelineKey, int] = {}

    def add(self, decision: Decision) -> None:
        """Add the pipelines' decisions that differ from the ones before; of the others, keep the surest causes."""
        for pipeline in decision.pipelines:
            read = {stage.name: stage.readings.get(Quantity.RX_QUEUE_PRESSURE) for stage in pipeline.profile.stages}
            known = {stage: reading for stage, reading in read.items() if isinstance(reading, float)}
            if known and decision.now_s >= 0:
                self.receive_pressures.setdefault(pipeline.key, []).append((decision.now_s, known))
            key = decision_key(pipeline)
            causes = named_causes(recorded_diagnosis(pipeline))
            if self._keys.get(pipeline.key) == key:
                self._surer(pipeline.key, causes)
                continue
            self._keys[pipeline.key] = key
            if decision.now_s >= 0:
                self._latest[pipeline.key] = len(self.entries)
                self.entries.append(
                    DecisionEntry(
                        t_s=decision.now_s,
                        pipeline=pipeline.key,
                        changes=tuple(
                            PlacementChange(
                                stage=change.stage, placement=change.placement, before=change.before, after=change.after
                            )
                            for change in pipeline.changes
                        ),
                        reason=decision.reason
                        if isinstance(decision, AutoscalerDecision)
                        else in_run_times(reason_sentence(pipeline)),
                        causes=causes,
                    )
                )

    def _surer(self, pipeline: PipelineKey, causes: tuple[NamedCause, ...]) -> None:
        """Let the last entry of the pipeline have each of `causes` that is surer than its own of the same kind."""
        if causes and pipeline in self._latest:
            index = self._latest[pipeline]
            entry = self.entries[index]
            self.entries[index] = replace(entry, causes=at_their_highest((*entry.causes, *causes)))


def _result(
    scenario: Scenario,
    cluster: SimulatedCluster,
    *,
    policy: str,
    tuning: Tuning,
    what_if: str | None,
    seed: int,
    interval_s: float,
    log: "_DecisionLog",
    accounts: CostAccounts | None,
    wall_s: float,
) -> RunResult:
    clock = scenario.file.clock
    faults = tuple(fault.interval for fault in scenario.file.faults)
    tallies = [cluster.tally(pipeline.key) for pipeline in cluster.pipelines]
    scores = [tally.score(faults) for tally in tallies]
    unfiltered = sum(score.offered - score.filtered for score in scores)
    within = sum(round((score.within_sla_share or 0.0) * (score.offered - score.filtered)) for score in scores)
    return RunResult(
        policy=policy,
        tuning=tuning,
        what_if=what_if,
        seed=seed,
        cost=spending.cost(cluster.observations, clock),
        **totals(scores),
        within_sla_share=within / unfiltered if unfiltered else None,
        p50_s=_percentile(tallies, scores, 50),
        p95_s=_percentile(tallies, scores, 95),
        p99_s=_percentile(tallies, scores, 99),
        sessions_cut=cluster.sessions_cut,
        out_of_memory=cluster.out_of_memory,
        replica_changes=spending.replica_changes(cluster.observations, clock),
        cap_violations=sum(
            spending.cap_violations(cluster.observations, pipeline, interval_s=interval_s, duration_s=clock.duration_s)
            for pipeline in cluster.pipelines
        ),
        simulated_s=clock.duration_s,
        wall_s=wall_s,
        users=tuple(
            users_of(pipeline, score, clock) for pipeline, score in zip(cluster.pipelines, scores, strict=True)
        ),
        series=run_series(
            cluster.pipelines,
            {pipeline.key: score for pipeline, score in zip(cluster.pipelines, scores, strict=True)},
            cluster.observations,
            log.receive_pressures,
        ),
        decisions=tuple(log.entries),
        diagnosis=episodes(
            ((entry.t_s, entry.pipeline, entry.causes) for entry in log.entries),
            interval_s=interval_s,
            end_s=clock.duration_s,
        ),
        breakdown=None if accounts is None else accounts.breakdown(cluster.observations, clock),
    )


def _percentile(tallies: Sequence[Tally], scores: Sequence[ItemScore], percent: float) -> float | None:
    """Return the nearest-rank percentile (s) of the served and lost items of all pipelines.

    Lost items are infinitely late. None if the percentile is infinite, or there are no items.
    """
    counts, latencies_s = [], []
    for tally in tallies:
        counts.append(tally.arrays.run_fine + tally.arrays.fine.sum(axis=0))
        latencies_s.append(np.maximum(tally.arrays.run_peaks, tally.arrays.peaks.max(axis=0)))
    count, latency_s = np.concatenate(counts), np.concatenate(latencies_s)
    order = np.argsort(latency_s, kind="stable")
    upto = np.cumsum(count[order])
    total = int(upto[-1]) + sum(score.lost for score in scores)
    rank = max(1, math.ceil(round(percent / 100 * total, 9)))
    return None if not total or rank > upto[-1] else float(latency_s[order][np.searchsorted(upto, rank)])
