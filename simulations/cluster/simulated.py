"""The simulated cluster: it takes the place of a real one, makes Snapshots and applies Decisions.

A policy gets the same kind of data as on the lab: samples scrape by scrape, rates as Prometheus extrapolates them, pods
that report only after a while. Time is virtual: 0 when the load begins, negative while the policy settles. A `set`
fault changes only the resource; running pods keep the values of the manifests, as workloads do on a real cluster.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.decision import BatchWrite, Decision
from controller.core.state.snapshot import BatchingState, PipelineState, PoolState, TargetMissing, TargetState
from controller.core.state.spec import PipelineSpec, with_basis
from controller.resources.fields import duration_s
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec
from optimizer.model import Basis, PipelineKey, PlacementId, PoolName
from profiler.samples import Reading
from simulations.cluster.agenda import Agenda
from simulations.cluster.backlogs import with_deadline
from simulations.cluster.ingress_queries import ActiveStreams, ItemsLeft, parse_query
from simulations.cluster.memory import LOOK_S as LOOK_AT_MEMORY_S
from simulations.cluster.memory import grows, out_of_memory
from simulations.cluster.metric_faults import MetricFaults
from simulations.cluster.metrics import SimulatedMetrics
from simulations.cluster.neighbours import LOOK_S, Neighbours
from simulations.cluster.node_pool import NodePool, reclaimed_nodes
from simulations.cluster.pods import Pod, Workload, Workloads, initial_replicas
from simulations.cluster.readings import OnDemand
from simulations.cluster.refusals import UnsupportedScenario, queries, refusals
from simulations.cluster.resources import Resources
from simulations.cluster.serving import Serving
from simulations.engine.pipeline_engine import Conditions, PipelineEngine
from simulations.policies.autoscaler import DetailedSnapshot, IngressReading, ReplicaReading
from simulations.results import spending
from simulations.results.histogram import TRITON_SUMMARY_S
from simulations.results.scoring import Tally
from simulations.results.spending import Observation
from simulations.scenario.declared import declared
from simulations.scenario.load import item_seed, pipeline_schedules
from simulations.scenario.past_load import PastLoads
from simulations.scenario.scenario import Fault, ResourceChange, Scenario, resource_changes, sla_changes
from simulations.scenario.schedule import Schedule
from simulations.scenario.values import STUCK

SCRAPE_PHASE = 0.5
"""When in its interval a scrape happens (0–1). Decisions come at whole seconds, so samples have their average age."""
REPORTING_VISITS = 4
"""The number of scrape intervals that a ready pod may have no samples, as for the operator."""
ADMISSION_POLL_S = 1.0
"""The time between two reads of the admissible load by the ingress."""
HOP_S = 0.0013
"""The latency that every hop from the ingress to a stage adds: sockets, event loops and load generator of the lab.

Measured: over four stages the lab's median latency exceeded the simulated one by four times this (`make fidelity`).
"""
BATCHING_SYNC_S = 60.0
"""How long batch settings take from the ConfigMap to the servers: the mean of what a kubelet takes, 0 to 2 minutes
(`controller.core.assess.batching.SYNC_S`)."""
SETTLING_S = 30.0
"""A policy runs this long plus the slowest start-up before the load begins; the longest wait of the lab."""


class SimulatedCluster:
    """The cluster of one run; times are in seconds. `observations` has its replicas and costs since the load began."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int,
        interval_s: float,
        window_s: float | None = None,
        schedules: Mapping[str, Schedule] | None = None,
    ) -> None:
        """Set up the cluster with the minimum of replicas of every stage, at least one, all ready.

        With `coldStart` it has none, and the first decision falls into the first second of the load.

        Args:
            scenario: the scenario, with the what-if applied (`scenario.with_what_if`).
            seed: the seed of all random numbers.
            interval_s: the time between two decisions; the settling time is a multiple of it.
            window_s: the averaging window of `DetailedSnapshot.replicas` and `ingress`; None: the stages' own windows.
            schedules: the load; None: it is made from scenario and seed.

        Raises:
            UnsupportedScenario: the scenario has a feature that is not simulated.
        """
        for refusal in refusals(scenario):
            raise UnsupportedScenario(str(refusal))
        self._resources = Resources(scenario)
        self._file = scenario.file
        self.pipelines = tuple(self._resources.pipelines.values())
        self.observations: list[Observation] = []
        self._seed = seed
        self._window_s = window_s
        self._disturbances = MetricFaults(seed=seed)
        changes = resource_changes(scenario)
        patched = [pipeline_spec(c.resource) for c in changes if isinstance(c.resource, SpeechPipeline)]
        keys = [pipeline.key for pipeline in self.pipelines]
        self._queries = {
            query: parse_query(query, keys)
            for pipeline in (*self.pipelines, *patched)
            for _, query in queries(pipeline)
        }
        longest_s = max(
            TRITON_SUMMARY_S,
            window_s or 0.0,
            *(stage.metrics_window_s for pipeline in (*self.pipelines, *patched) for stage in pipeline.stages),
            *(query.window_s for query in self._queries.values() if not isinstance(query, ActiveStreams | ItemsLeft)),
        )
        for_good = {  # the pipelines whose refused streams stay away
            PipelineKey(load.pipeline)
            for load in scenario.file.load
            if load.session is not None and load.session.reconnect == "never"
        }
        loads = pipeline_schedules(scenario, seed=seed) if schedules is None else schedules
        slas = sla_changes(scenario)
        self._serving = {
            pipeline.key: Serving(
                pipeline,
                PipelineEngine(
                    with_deadline(pipeline, scenario.file),
                    loads[pipeline.key],
                    clock=scenario.file.clock,
                    seed=item_seed(seed, index),
                    hop_s=HOP_S,
                    sla_changes=slas[pipeline.key],
                    conditions=Conditions(
                        reconnects=pipeline.key not in for_good,
                        overhead_s=duration_s(scenario.file.overhead),
                        speed_spread=scenario.file.speed_spread,
                    ),
                ),
                keep_s=longest_s,
            )
            for index, pipeline in enumerate(self.pipelines)
        }
        startups_s = [p.startup_s for pipeline in self.pipelines for stage in pipeline.stages for p in stage.placements]
        cold = scenario.file.cold_start
        self.now_s = 0.0 if cold else -interval_s * math.ceil((SETTLING_S + max(startups_s)) / interval_s)
        self._past = PastLoads(scenario, loads, before_s=-self.now_s)
        self._agenda = Agenda()
        self._workloads = Workloads(
            self.pipelines,
            self._resources.pools.values(),
            agenda=self._agenda,
            servers=self,
            seed=seed,
            node_startup_s=self._file.node_startup.range_s,
            refusal_s=duration_s(self._file.refusal_cache) / self._file.pace,
        )
        self._targets = {
            (key, workload.placement.target.name): workload for (key, _), workload in self._workloads.workloads.items()
        }
        self._observed = (-1, 0)
        for pipeline in () if cold else self.pipelines:
            for key, replicas in initial_replicas(pipeline, self._resources.pools).items():
                self._workloads.start_at_once((pipeline.key, key), replicas, self.now_s)
        for pipeline in filter(grows, self.pipelines):
            self._agenda.at(0.0, partial(self._look_at_memory, pipeline))
        if scenario.file.interference:
            self._look_at(Neighbours(scenario.file.interference, self._workloads, self._serving))
        self._agenda.at(self.now_s + SCRAPE_PHASE * duration_s(self._file.scrape_interval), self._scrape)
        self._plan_faults(scenario, changes)
        self._observe()

    @property
    def duration_s(self) -> float:
        """Return the length of the run."""
        return self._file.clock.duration_s

    # -- for the policy

    def snapshot(self) -> DetailedSnapshot:
        """Return the Snapshot of the cluster now."""
        metrics = SimulatedMetrics(
            self._serving,
            self._disturbances,
            now_s=self.now_s,
            grace_s=REPORTING_VISITS * duration_s(self._file.scrape_interval),
            file=self._file,
        )
        specs = self._specs()
        billed = any(spec.basis is Basis.INSTANCES for spec in specs.values())
        return DetailedSnapshot(
            now_s=self.now_s,
            pipelines=tuple(
                self._pipeline_state(declared(spec, self._file), metrics, billed=billed) for spec in specs.values()
            ),
            pools={
                name: PoolState(
                    spec=spec,
                    ready_instances=len(self._workloads.pools[name].ready(self.now_s)),
                    leaving_instances=self._workloads.pools[name].going(self.now_s),
                    node_pool=self._workloads.pools[name].state(self.now_s),
                    zones=1,
                    memory=self._resources.pool_memories.get(name, PoolMemory()),
                    priced=self._resources.pool_prices.get(name),
                    nodes=dict.fromkeys(self._workloads.occupied(name), "") if billed else {},
                )
                for name, spec in self._resources.pools.items()
            },
            budgets=self._resources.budgets(),
            replicas=self._replica_readings(metrics),
            ingress=OnDemand(partial(self._ingress_readings, metrics, tuple(self._resources.pipelines.values()))),
        )

    def apply(self, decision: Decision) -> None:
        """Apply the changes of a decision, those that add replicas first, and keep its state for the next snapshot."""
        self._resources.remember(decision)
        changes = [(pipeline.spec, change) for pipeline in decision.pipelines for change in pipeline.changes]
        changes.sort(key=lambda entry: entry[1].after < entry[1].before)
        for spec, change in changes:
            workload = self._targets.get((spec.key, change.target.name))
            if workload is not None:
                self._workloads.scale(workload.name, change.after, self.now_s, change.deletion_costs)
        for pipeline in decision.pipelines:
            for write in pipeline.batch_writes:
                self._resources.batching[pipeline.key, (write.stage, write.placement)] = write.settings
                self._agenda.at(self.now_s + BATCHING_SYNC_S, partial(self._set_batching, pipeline.key, write))
        polled_s = (math.floor(self.now_s / ADMISSION_POLL_S) + 1) * ADMISSION_POLL_S
        for pipeline in decision.pipelines if self._file.sheds else ():
            serving = self._serving[pipeline.key]
            if pipeline.admissible != serving.published:
                serving.published = pipeline.admissible
                self._agenda.at(polled_s, partial(self._admit, pipeline.key, pipeline.admissible))
        for pipeline in decision.pipelines if self._file.hands_over else ():
            for crowded in (replica for skew in pipeline.skews for replica in skew.crowded):
                self._agenda.at(polled_s, partial(self._hand_over, pipeline.key, crowded.pod, crowded.keep))
        for pipeline in decision.pipelines:
            for pod, takes_sessions in pipeline.takes_sessions.items():
                self._agenda.at(polled_s, partial(self._open, pipeline.key, pod, takes_sessions=takes_sessions))
        self._observe()

    def advance(self, until_s: float) -> None:
        """Advance the simulation to `until_s`, with all events until then."""
        while (due_s := self._agenda.next_s()) is not None and due_s <= until_s:
            self._advance_engines(due_s)
            self._agenda.take()()
            self._observe()
        self._advance_engines(until_s)
        self._observe()

    # -- for scoring

    def tally(self, key: PipelineKey) -> Tally:
        """Return a tally of the outcomes of a pipeline's items so far."""
        return self._serving[key].engine.tally()

    @property
    def out_of_memory(self) -> int:
        """Return how many replicas have run out of memory so far."""
        return self._workloads.out_of_memory

    @property
    def sessions_cut(self) -> int:
        """Return how many sessions have lost their replica so far."""
        return sum(serving.engine.ingress().sessions_cut for serving in self._serving.values())

    # -- Servers, for the workloads

    def begin(self, pod: Pod) -> None:
        """Let a ready pod serve from now on."""
        serving = self._serving[pod.workload.pipeline.key]
        pod.number = serving.engine.add_replica(pod.workload.key)
        assert pod.number == len(serving.pods)
        serving.pods.append(pod)
        names = {pod.workload.key[0], f"{pod.workload.pipeline.key}/{pod.workload.key[0]}"}
        for fault in self._file.faults:
            cold, span = fault.cold_caches, fault.interval
            if cold is not None and cold.stage in names and span.from_s <= self.now_s < span.until_s:
                serving.engine.speed_up(pod.number, 1 / cold.factor)
                warm_s = self.now_s + duration_s(cold.lasts)
                self._agenda.at(warm_s, partial(serving.engine.speed_up, pod.number, cold.factor))

    def drain(self, pod: Pod) -> None:
        """Let a pod drain: it takes no new items or streams, and is removed when it is empty."""
        assert pod.number is not None
        serving = self._serving[pod.workload.pipeline.key]
        if self.now_s < 0:  # no load yet: it is empty
            serving.engine.kill_replica(pod.number)
            self._workloads.ended(pod, self.now_s)
            return
        serving.draining += 1
        serving.engine.drain_replica(pod.number, self.now_s + pod.workload.pipeline.scaling.drain_s)
        if self._file.hands_over:
            serving.engine.hand_over(pod.number, 0)

    def kill(self, pod: Pod) -> None:
        """Remove a pod at once, with the items and sessions it holds."""
        assert pod.number is not None
        serving = self._serving[pod.workload.pipeline.key]
        serving.draining -= pod.leaving
        serving.engine.kill_replica(pod.number)

    # -- time

    def _advance_engines(self, until_s: float) -> None:
        self.now_s = until_s
        for serving in self._serving.values():
            serving.engine.advance(min(max(until_s, 0.0), self.duration_s))
            if serving.draining:
                for number, _ in serving.engine.ended():
                    pod = serving.pods[number]
                    if not pod.gone:
                        serving.draining -= 1
                        self._workloads.ended(pod, self.now_s)

    def _scrape(self) -> None:
        for key, serving in self._serving.items():
            if not self._disturbances.stale(key):
                serving.scrape(self.now_s)
        self._agenda.at(self.now_s + duration_s(self._file.scrape_interval), self._scrape)

    def _look_at_memory(self, pipeline: PipelineSpec) -> None:
        for pod in tuple(out_of_memory(self._workloads, self._serving[pipeline.key].engine, pipeline)):
            self._workloads.restart(pod, self.now_s)
        self._agenda.at(self.now_s + LOOK_AT_MEMORY_S, partial(self._look_at_memory, pipeline))

    def _look_at(self, neighbours: Neighbours) -> None:
        neighbours.look()
        self._agenda.at(self.now_s + LOOK_S, partial(self._look_at, neighbours))

    def _admit(self, key: PipelineKey, limit: float | None) -> None:
        self._serving[key].engine.admissible = limit

    def _hand_over(self, key: PipelineKey, pod: str, keep: int) -> None:
        found = self._workloads.pod(key, pod)
        if found is not None and found.number is not None:
            self._serving[key].engine.hand_over(found.number, keep)

    def _open(self, key: PipelineKey, pod: str, *, takes_sessions: bool) -> None:
        found = self._workloads.pod(key, pod)
        if found is not None and found.number is not None:
            found.takes_sessions = takes_sessions
            self._serving[key].engine.open_replica(found.number, takes_streams=takes_sessions)

    def _observe(self) -> None:
        """Add an observation if replicas or resources have changed."""
        state = (self._workloads.changes, self._resources.changes)
        if state == self._observed:
            return
        self._observed = state
        bases = {key: spec.basis for key, spec in self._specs().items()}
        billed = Basis.INSTANCES in bases.values()
        seen = spending.observation(
            max(0.0, self.now_s),
            [replace(pipeline, declared_basis=bases[pipeline.key]) for pipeline in self.pipelines],
            {(key, *placement): w.replicas(billed=billed) for (key, placement), w in self._workloads.workloads.items()},
            budget_per_hour={key: spec.budget_per_hour for key, spec in self._resources.pipelines.items()},
            price_per_hour={name: spec.price_per_hour for name, spec in self._resources.pools.items()},
        )
        if self.observations and self.observations[-1].t_s == seen.t_s:
            self.observations.pop()
        self.observations.append(seen)

    # -- faults

    def _plan_faults(self, scenario: Scenario, changes: Sequence[ResourceChange]) -> None:
        for change in changes:
            self._agenda.at(change.at_s, partial(self._resources.set, change.resource))
        for index, fault in enumerate(scenario.file.faults):
            span = fault.interval
            self._agenda.at(span.from_s, partial(self._disturb, index, fault, begins=True))
            if span.until_s > span.from_s and math.isfinite(span.until_s):
                self._agenda.at(span.until_s, partial(self._disturb, index, fault, begins=False))

    def _disturb(self, index: int, fault: Fault, *, begins: bool) -> None:
        """Let a fault begin or end."""
        by = 1 if begins else -1
        pool = None if fault.pool is None else self._workloads.pools[PoolName(fault.pool)]
        match fault.kind:
            case "metricsLost" | "metricsStale" | "metricsPartial" | "metricsNoisy":
                if begins:
                    self._disturbances.on[index] = fault
                else:
                    del self._disturbances.on[index]
            case "poolUnavailable":
                assert pool is not None
                self._workloads.change_outages(pool, by, self.now_s)
            case "poolLost":
                assert pool is not None
                self._workloads.change_absences(pool, by, self.now_s)
            case "spotReclaim":
                assert pool is not None
                self._reclaim(index, fault, pool, begins=begins)
            case "slowStart":
                assert pool is not None
                assert fault.slow_start is not None
                pool.start_factor *= fault.slow_start.factor**by
            case "slowStage":
                assert fault.slow_stage is not None
                self._slow_down(fault.slow_stage.stage, fault.slow_stage.factor**by)
            case "stuckReplica":
                self._stick(fault.stuck_replica or "", begins=begins)
            case "passRatio":
                assert fault.pass_ratio is not None
                self._pass_on(fault.pass_ratio.stage, float(fault.pass_ratio.ratio) if begins else None)
            case "slowTransit":
                assert fault.slow_transit is not None
                added_s = duration_s(fault.slow_transit.by) if begins else 0.0
                serving = self._serving[PipelineKey(fault.slow_transit.pipeline)]
                serving.engine.delay(duration_s(self._file.overhead) + added_s)
            case "retries":
                assert fault.retries is not None
                self._serving[PipelineKey(fault.retries.pipeline)].engine.repeat(fault.retries.factor if begins else 1)
            case "rollOut":
                assert fault.roll_out is not None
                for (key, (stage, _)), workload in self._workloads.workloads.items():
                    if fault.roll_out in {stage, f"{key}/{stage}"}:
                        self._workloads.roll_out(workload, self.now_s)
            case "spike" | "set" | "cpuQuota" | "coldCaches":
                # Spikes are in the schedules, `set` faults in `changes`; replicas that start look for cold caches, and
                # there is no quota without computation.
                pass

    def _reclaim(self, index: int, fault: Fault, pool: NodePool, *, begins: bool) -> None:
        """Begin or end a `spotReclaim`: announce it, then remove nodes; without `for`, each node is replaced later."""
        reclaim = fault.spot_reclaim
        assert reclaim is not None
        pace = self._file.pace
        replaced_s = reclaimed_nodes(reclaim.share, len(pool.nodes), seed=self._seed, fault=index, pace=pace)
        chosen = list(replaced_s)
        gone_s = self.now_s + duration_s(reclaim.notice)
        span = fault.interval
        if not begins:
            pool.leaving.subtract(chosen)
            if span.until_s > span.from_s + duration_s(reclaim.notice):
                self._workloads.restore_nodes(pool, chosen, self.now_s)
            return
        pool.leaving.update(chosen)
        if fault.for_ is None or span.until_s > gone_s:
            self._agenda.at(gone_s, lambda: self._workloads.remove_nodes(pool, chosen, gone_s))
        if fault.for_ is None:
            for node, after_s in replaced_s.items():
                self._agenda.at(gone_s + after_s, partial(self._replace, pool, node, gone_s + after_s))

    def _replace(self, pool: NodePool, node: int, now_s: float) -> None:
        pool.leaving[node] -= 1
        self._workloads.restore_nodes(pool, [node], now_s)

    def _set_batching(self, key: PipelineKey, write: BatchWrite) -> None:
        """Let servers read the settings that were written, unless others have been written since."""
        placement = (write.stage, write.placement)
        if self._resources.batching[key, placement] == write.settings:
            self._serving[key].engine.set_batching(placement, write.settings)

    def _slow_down(self, name: str, factor: float) -> None:
        for key, serving in self._serving.items():
            for stage in serving.pipeline.stages:
                if name in {stage.name, f"{key}/{stage.name}"}:
                    serving.slow[stage.name] = serving.slow.get(stage.name, 1.0) * factor
                    serving.engine.slow_down(stage.name, serving.slow[stage.name])

    def _pass_on(self, name: str, ratio: float | None) -> None:
        """Let another share of the items of the stages called `name` go on, None: that of before."""
        for key, serving in self._serving.items():
            for stage in serving.pipeline.stages:
                if name in {stage.name, f"{key}/{stage.name}"}:
                    serving.engine.pass_on(stage.name, stage.pass_ratio if ratio is None else ratio)

    def _stick(self, name: str, *, begins: bool) -> None:
        """Let the oldest replica of the stages called `name` complete nothing any more, or again."""
        for key, serving in self._serving.items():
            for stage in serving.pipeline.stages:
                if name in {stage.name, f"{key}/{stage.name}"}:
                    there = [pod for pod in serving.pods if not pod.gone and pod.workload.key[0] == stage.name]
                    for pod in there[:1]:
                        assert pod.number is not None
                        serving.engine.crowd(pod.number, STUCK if begins else 1.0)

    # -- snapshots

    def _specs(self) -> Mapping[PipelineKey, PipelineSpec]:
        """Return the current pipelines, with the default basis of their budgets."""
        return {key: with_basis(spec, self._resources.pools) for key, spec in self._resources.pipelines.items()}

    def _pipeline_state(self, spec: PipelineSpec, metrics: SimulatedMetrics, *, billed: bool) -> PipelineState:
        workloads = {
            (stage.name, placement.name): self._targets.get((spec.key, placement.target.name))
            for stage in spec.stages
            for placement in stage.placements
        }
        return PipelineState(
            spec=spec,
            targets={
                (stage.name, placement.name): _target(
                    workloads[stage.name, placement.name],
                    self._workloads.pools.get(placement.pool),
                    str(placement.target),
                    now_s=self.now_s,
                    billed=billed,
                )
                for stage in spec.stages
                for placement in stage.placements
            },
            samples={
                (stage.name, placement.name): metrics.samples(
                    spec, stage, placement, workloads[stage.name, placement.name]
                )
                for stage in spec.stages
                for placement in stage.placements
            },
            demand=self._reading(metrics, spec.queries.demand),
            latency_s=None if spec.queries.latency is None else self._reading(metrics, spec.queries.latency),
            rule_readings={
                (stage.name, rule.name): self._reading(metrics, rule.query)
                for stage in spec.stages
                for rule in stage.rules
                if rule.query is not None
            },
            memory=self._resources.pipeline_memories.get(spec.key, PipelineMemory()),
            batching={
                key: BatchingState(settings=self._resources.batching.get((spec.key, key)))
                for key, placement in spec.placements().items()
                if placement.applied is not None and key[0] not in spec.borrowed
            },
            history=self._past.history(spec, self.now_s),
        )

    def _reading(self, metrics: SimulatedMetrics, text: str) -> Reading:
        return metrics.scalar(self._queries[text], text)

    def _replica_readings(self, metrics: SimulatedMetrics) -> Mapping[PlacementId, tuple[ReplicaReading, ...]]:
        placements = [
            (spec.key, stage, placement, [pod for pod in workload.staying() if pod.ready_s is not None])
            for spec in self._resources.pipelines.values()
            for stage in spec.stages
            for placement in stage.placements
            if (workload := self._targets.get((spec.key, placement.target.name))) is not None
        ]
        window_s = self._window_s
        return OnDemand(
            lambda: {
                (key, stage.name, placement.name): metrics.replicas(
                    key, placement, ready, stage.metrics_window_s if window_s is None else window_s
                )
                for key, stage, placement, ready in placements
            }
        )

    def _ingress_readings(
        self, metrics: SimulatedMetrics, specs: Sequence[PipelineSpec]
    ) -> dict[PipelineKey, IngressReading]:
        readings = {}
        for spec in specs:
            window_s = spec.stages[0].metrics_window_s if self._window_s is None else self._window_s
            reading = metrics.ingress(spec.key, window_s)
            if reading is not None:
                readings[spec.key] = reading
        return readings


def _target(
    workload: Workload | None, pool: NodePool | None, name: str, *, now_s: float, billed: bool
) -> TargetState | TargetMissing:
    if workload is None or pool is None:
        return TargetMissing(reason=f"{name}: not found")
    return workload.target_state(pool, now_s=now_s, billed=billed)
