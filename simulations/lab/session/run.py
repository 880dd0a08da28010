"""Runs a scenario on the lab: starts the lab, replays the load, injects the faults and records the results."""

import contextlib
import json
import math
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from controller.core.state.spec import PipelineSpec, PoolSpec, with_basis
from controller.resources.fields import duration_s
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import PipelineKey
from simulations.cluster.backlogs import with_deadline
from simulations.lab.cluster.cluster import OPERATOR, LabCluster
from simulations.lab.cluster.deployments import deployments, pool_nodes
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import LOOPBACK, Child, Processes, free_ports
from simulations.lab.session import fault_actions
from simulations.lab.session.decisions import DecisionLog, LoggedDecision
from simulations.lab.session.observer import Observer
from simulations.lab.session.report import LiveRun, lab_windows
from simulations.lab.session.scaler import Nothing, Operator, Scaler
from simulations.lab.session.view import Moment, OperatorMetrics, RunView, window_line
from simulations.lab.session.workload import StageWorkers, Workload
from simulations.lab.traffic.generator import GeneratorConfig, PipelineLoad
from simulations.lab.traffic.records import read_records
from simulations.lab.traffic.topology import IngressConfig, pipeline_topology
from simulations.policies.static_peak import peak_instances
from simulations.results.scoring import Clock
from simulations.scenario.calendar import in_run_time
from simulations.scenario.declared import declared_document
from simulations.scenario.load import item_seed, pipeline_schedules, refused_loads
from simulations.scenario.scenario import Scenario, invalid, sla_changes
from simulations.scenario.schedule import Schedule

MAX_LAG_S = 0.005
"""The largest lag of the load generator (p99) with which latencies are measured well."""
MOST_OF_SLA = 0.02
"""A run of stage workers is valid up to this share of its tightest SLA too: latencies include the lag."""
MAX_SPEECH_LAG_S = 0.02
"""The same where the load speaks: chunks are tenths of a second of audio, and their latency includes the lag."""

GENERATOR_REPORT = "generator-report.json"
"""The name of the file that the generator writes at the end, in the folder of the lab."""

INGRESS_SUMMARY = "ingress-summary.json"
"""The same of the ingress: `ingress.totals` of each pipeline."""

LAB_INTERVAL_S = 2.0
"""The time between the operator's cycles, unless the scenario or the user says otherwise."""

NO_LOAD = Schedule(start_s=np.empty(0), end_s=np.empty(0))
"""What the generator sends of a backlog: its items are in the ingress."""

_READY_S = 30.0
_TICK_S = 0.25
_LEAD_S = 4.0  # enough for a Python process to start and to load compiled code
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run: `scale` is the share of the sessions to keep; without `operator` nothing scales.

    `seed` is the seed of load, faults and service times. `interval_s` is the time between the operator's cycles.
    `operator_program` is as in `LabCluster.start_operator`.
    """

    seed: int
    scale: float = 1.0
    operator: bool = True
    interval_s: float = LAB_INTERVAL_S
    operator_program: tuple[str, ...] = OPERATOR


def max_lag_s(scenario: Scenario) -> float:
    """Return the largest lag of the load generator (p99) of a valid run of `scenario`."""
    if scenario.file.speech is not None:
        return MAX_SPEECH_LAG_S
    tightest_s = min(pipeline_spec(resource).sla.latency_s for resource in scenario.pipelines)
    return max(MAX_LAG_S, MOST_OF_SLA * tightest_s)


def check(scenario: Scenario, *, seed: int, workload: Workload | None = None) -> None:
    """Check that the lab can run `scenario`, without starting anything; `workload` is as in `run`.

    Raises:
        InvalidScenario: the scenario has a fault that the lab cannot inject, or a load that is too large.
        UnsupportedManifest: the manifests need a feature that the lab does not have.
    """
    breaches = [*fault_actions.unsupported(scenario.file), *refused_loads(scenario, [seed])]
    if breaches:
        raise invalid(scenario, [(None, breach) for breach in breaches])
    pipelines, pools = _specs(scenario)
    deployments(pipelines, pool_nodes(pools), (workload or StageWorkers(scenario, seed)).pod)


@contextlib.contextmanager
def run(
    scenario: Scenario,
    options: Options,
    folder: Path,
    binaries: Binaries,
    view: RunView,
    workload: Workload | None = None,
    scaler: Scaler | None = None,
) -> Iterator[tuple[LiveRun, LabCluster]]:
    """Run `scenario` on a lab in `folder`, then yield the records and the cluster, which stops at the end of the block.

    `workload` has the pods and their load, by default stage workers. `scaler` is what scales them, by default what
    `options` say.

    Raises:
        InvalidScenario: the scenario has a fault that the lab cannot inject, or a load that is too large.
        UnsupportedManifest: the manifests need a feature that the lab does not have.
        FaultRefused: the API server refused a patch of the scenario.
        ProcessError: a process of the lab ended unexpectedly, or was not ready in time.
    """
    workload = workload or StageWorkers(scenario, options.seed)
    check(scenario, seed=options.seed, workload=workload)
    pipelines, pools = _specs(scenario)
    loads = pipeline_schedules(scenario, seed=options.seed, scale=options.scale)
    view.say("starting Kubernetes and Prometheus")
    scrape_interval_s = duration_s(scenario.file.scrape_interval)
    scaler = scaler or _scaler(options)
    with LabCluster(
        folder, binaries, seed=options.seed, scrape_interval_s=scrape_interval_s, flags=scaler.flags
    ) as cluster:
        view.say(f"Kubernetes {cluster.kubernetes_version} is up: kubectl --kubeconfig {cluster.kubeconfig}")
        documents = [declared_document(document, scenario.file) for document in scenario.documents.values()]
        cluster.apply(documents, pipelines, pools, workload.pod)
        if scenario.file.interference is not None:
            cluster.interfere(scenario.file.interference)
        yield _Run(scenario, options, cluster, pipelines, pools, loads, view, workload, scaler).execute(), cluster


def _scaler(options: Options) -> Scaler:
    if not options.operator:
        return Nothing()
    return Operator(interval_s=options.interval_s, program=options.operator_program)


def _specs(scenario: Scenario) -> tuple[tuple[PipelineSpec, ...], tuple[PoolSpec, ...]]:
    pools = {spec.name: spec for spec in map(pool_spec, scenario.pools)}
    return (
        tuple(with_basis(pipeline_spec(resource), pools) for resource in scenario.pipelines),
        tuple(pools.values()),
    )


class _Run:
    """One run of a scenario on a started cluster."""

    def __init__(
        self,
        scenario: Scenario,
        options: Options,
        cluster: LabCluster,
        pipelines: tuple[PipelineSpec, ...],
        pools: tuple[PoolSpec, ...],
        schedule_of: Mapping[str, Schedule],
        view: RunView,
        workload: Workload,
        scaler: Scaler,
    ) -> None:
        self._scenario = scenario
        self._options = options
        self._cluster = cluster
        self._pipelines = pipelines
        self._view = view
        self._workload = workload
        self._scaler = scaler
        self._loads = {pipeline.key: schedule_of[pipeline.key] for pipeline in pipelines}
        self._peak_instances = None
        # Without a declared service time the peak cannot be planned, and a backlog has none.
        if scenario.file.speech is None and all(pipeline.backlog is None for pipeline in pipelines):
            self._peak_instances = peak_instances(pipelines, pools, self._loads, scenario.file.clock.duration_s)
        slas = sla_changes(scenario)
        self._sla_changes = {pipeline.key: slas[pipeline.key] for pipeline in pipelines}
        self._began_s = 0.0
        self._decisions: list[LoggedDecision] = []

    def execute(self) -> LiveRun:
        """Start what scales and the load, follow the run to its end, and return its records."""
        with (
            closing(
                _Load(self._cluster, self._scenario, self._pipelines, self._loads, self._options.seed, self._workload)
            ) as load,
            Observer(self._cluster.kubeconfig, self._pipelines) as observer,
            self._scaler.scaling(self._cluster, self._pipelines),
        ):
            if not isinstance(self._scaler, Nothing):
                self._wait_for_every_stage(observer)
            self._view.say(f"replaying {self._scenario.file.name}: {self._scenario.file.duration}")
            start_s = time.monotonic() + _LEAD_S
            self._began_s = time.time() + _LEAD_S
            load.begin(start_s)
            observer.begin(start_s)
            self._follow(observer, load, start_s)
            load.end()
            return self._live_run(observer, load)

    def _wait_for_every_stage(self, observer: Observer) -> None:
        """Wait until every stage has a ready replica, so that no item arrives at an empty one, or until a deadline.

        Stages of a backlog need none, because their items wait. Its deadline counts from when it was seen to be empty.
        """
        self._view.say("waiting for a ready replica of every stage")
        startups_s = [
            p.startup_s for pipeline in self._pipelines for stage in pipeline.stages for p in stage.placements
        ]
        waiting = {pipeline.key for pipeline in self._pipelines if pipeline.backlog is not None}
        deadline = time.monotonic() + _READY_S + max(startups_s)
        while True:
            self._cluster.check()
            ready: dict[tuple[PipelineKey, str], int] = {}
            for (key, stage, _), replicas in observer.observe().placements.items():
                if key not in waiting:
                    ready[key, stage] = ready.get((key, stage), 0) + replicas.ready
            missing = [f"a ready replica of {key} {stage}" for (key, stage), count in ready.items() if not count]
            missing += [f"a status of {key}" for key in sorted(waiting - observer.backlogs())] if waiting else []
            if not missing:
                return
            if time.monotonic() > deadline:
                self._view.say(f"starting without {', '.join(missing)}; see {self._cluster.operator_log}")
                return
            time.sleep(_TICK_S)

    def _follow(self, observer: Observer, load: "_Load", start_s: float) -> None:
        """Show the run and inject its faults, until `_SETTLE_S` after the end of the load; `start_s` is its time 0."""
        clock = self._scenario.file.clock
        log = DecisionLog(self._cluster.operator_log)
        metrics = OperatorMetrics(self._cluster.operator_url)
        due = fault_actions.actions(self._scenario.file, self._cluster, self._pipelines, seed=self._options.seed)
        shown = 0
        words: dict[str, str] = {}
        while (now_s := time.monotonic() - start_s) < clock.duration_s + _SETTLE_S:
            self._cluster.check()
            observer.check()
            if now_s < clock.duration_s:
                load.check()
            while due and due[0].at_s <= now_s:
                action = due.pop(0)
                self._view.say(f"{now_s:5.0f}s  fault: {action.words}")
                action.do()
            for decision in log.latest():
                self._decisions.append(decision)
                if decision.changes:
                    words[decision.pipeline] = decision.reason
            metrics.refresh()
            lines: tuple[str, ...] = ()
            if (ended := _ended_windows(clock, now_s - _TICK_S)) > shown:
                budget = sum(observer.latest.budget_per_hour.values())
                windows = lab_windows(self._live_run(observer, load))[shown:ended]
                lines, shown = tuple(window_line(window, budget) for window in windows), ended
            self._view.show(
                Moment(
                    seen=observer.latest,
                    duration_s=clock.duration_s,
                    stages=dict(metrics.stages),
                    totals=dict(metrics.totals),
                    decisions=dict(words),
                    windows=lines,
                    news=tuple(self._workload.news(load.folder)),
                )
            )
            time.sleep(max(0.0, _TICK_S - (time.monotonic() - start_s - now_s)))

    def _live_run(self, observer: Observer, load: "_Load") -> LiveRun:
        """Return the records of the run so far."""
        file = self._scenario.file
        return LiveRun(
            scenario=file.name,
            kubernetes=self._cluster.kubernetes_version,
            clock=file.clock,
            began_s=self._began_s,
            interval_s=self._options.interval_s,
            pipelines=tuple(
                pipeline if pipeline.backlog is None else with_deadline(in_run_time(pipeline, self._began_s), file)
                for pipeline in self._pipelines
            ),
            items={p.key: read_records(load.records, index) for index, p in enumerate(self._pipelines)},
            faults=tuple(fault.interval for fault in file.faults),
            sla_changes=self._sla_changes,
            observations=tuple(observer.observations),
            decisions=[decision for decision in self._decisions if decision.now_s >= self._began_s],
            sessions_cut=load.sessions_cut,
            retries=load.retries,
            peak_instances=self._peak_instances,
            generator_lag_p99_s=load.lag_p99_s,
        )


class _Load:
    """The ingress, and the generator that replays the schedules of all pipelines against it."""

    def __init__(
        self,
        cluster: LabCluster,
        scenario: Scenario,
        pipelines: tuple[PipelineSpec, ...],
        schedule_of: Mapping[PipelineKey, Schedule],
        seed: int,
        workload: Workload,
    ) -> None:
        """Start the ingress; `begin` starts the load."""
        folder = cluster.folder
        self.folder = folder / "load"
        self._workload = workload
        self._cluster = cluster
        self._backlogs = {own.key: schedule_of[own.key] for own in pipelines if own.backlog is not None}
        ports = free_ports(len(pipelines))
        self.records = folder / "records.bin"
        self.lag_p99_s = 0.0
        self.sessions_cut = 0
        self.retries = 0
        self._summary = folder / INGRESS_SUMMARY
        self._lag = folder / GENERATOR_REPORT
        # Apart from the cluster's processes: the generator ends on its own, which for the others is an error.
        self._processes = Processes(self.folder)
        self._generator: Child | None = None
        ingress = folder / "ingress.json"
        ingress.write_text(
            IngressConfig(
                metrics_port=cluster.ingress_port,
                records=self.records,
                summary=self._summary,
                pipelines=tuple(
                    workload.topology(
                        pipeline_topology(
                            pipeline,
                            port=port,
                            seed=item_seed(seed, index),
                            overhead_s=duration_s(scenario.file.overhead),
                            hands_over=scenario.file.hands_over,
                        )
                    )
                    for index, (pipeline, port) in enumerate(zip(pipelines, ports, strict=True))
                ),
                sheds=scenario.file.sheds,
            ).to_json()
        )
        loads = []
        for index, (pipeline, port) in enumerate(zip(pipelines, ports, strict=True)):
            path = folder / f"schedule-{index}.npz"
            (NO_LOAD if pipeline.key in self._backlogs else schedule_of[pipeline.key]).save(path)
            loads.append(
                PipelineLoad(
                    port=port,
                    schedule=path,
                    chunk_s=pipeline.chunk_s,
                    seed=item_seed(seed, index),
                    reconnects=scenario.file.reconnects(pipeline.key),
                )
            )
        self._config = folder / "generator.json"
        self._config.write_text(
            workload.generator_config(
                GeneratorConfig(
                    duration_s=scenario.file.clock.duration_s,
                    drain_s=_SETTLE_S,
                    report=self._lag,
                    loads=tuple(loads),
                )
            )
        )
        self._ingress = self._start("ingress", workload.ingress, {"config": ingress, "kubeconfig": cluster.kubeconfig})
        self._ingress.wait_until(lambda: _listens(cluster.ingress_port), _READY_S)

    def begin(self, start_s: float) -> None:
        """Start the generator, and let the ingress expect the items of backlogs.

        The times of their schedules count from `start_s` (seconds, monotonic clock).
        """
        for key, schedule in self._backlogs.items():
            items = zip(*(column.tolist() for column in np.unique(schedule.start_s, return_counts=True)), strict=True)
            self._cluster.tell_ingress(f"backlogs/{key}", {"start_s": start_s, "items": list(items)})
        self._generator = self._start(
            "generator", self._workload.generator, {"config": self._config, "start-at": start_s}
        )

    def check(self) -> None:
        """Raise `ProcessError` if the ingress or the generator has ended."""
        self._ingress.check()
        if self._generator is not None:
            self._generator.check()

    def end(self) -> None:
        """Stop ingress and generator, and read the reports that they wrote."""
        self._processes.stop()
        self.lag_p99_s = json.loads(self._lag.read_text())["lag_p99_s"]
        pipelines = json.loads(self._summary.read_text())
        self.sessions_cut = sum(pipeline["sessions_cut"] for pipeline in pipelines)
        self.retries = sum(pipeline["retries"] for pipeline in pipelines)

    def close(self) -> None:
        """Stop ingress and generator."""
        self._processes.stop()

    def _start(self, name: str, module: str, flags: Mapping[str, object]) -> Child:
        return self._processes.start_module(name, module, flags)


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex((LOOPBACK, port)) == 0


def _ended_windows(clock: Clock, now_s: float) -> int:
    """Return how many windows have ended at `now_s`; the last one may be shorter than the others."""
    if now_s >= clock.duration_s:
        return math.ceil(round((clock.duration_s - clock.warmup_s) / clock.window_s, 9))
    return max(0, int((now_s - clock.warmup_s) // clock.window_s))
