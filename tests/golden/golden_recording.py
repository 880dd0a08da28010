"""Snapshots for the golden records: runs in the simulator under every fault, and worlds no simulator makes."""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import (
    PendingReplica,
    PipelineState,
    PoolState,
    ServingReplica,
    Snapshot,
    TargetMissing,
    TargetState,
)
from controller.core.state.spec import PlacementKey
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import Composition
from profiler.samples import MISSING, PlacementSamples, Quantity
from simulations.cluster.simulated import SimulatedCluster
from simulations.scenario.scenario import Scenario, load_scenario

CONTRACT = Path(__file__).parents[1] / "contract"
INTERVAL_S = 5.0
FLEET = 252
"""One turn more than is planned at once."""

_USUAL = Policy(interval_s=INTERVAL_S)

Pair = tuple[str, Snapshot, Decision]
Change = Callable[[Snapshot, random.Random], Snapshot]

_POOLS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec:
  device: CPU
  nodeSelector: {pool: cpu}
  price: {perHour: "0.5"}
  capacity: {instances: 10}
  unavailable: {pendingDeadline: 20s, backoff: {initial: 30s, max: 2m}}
---
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: gpu}
spec:
  device: GPU
  nodeSelector: {pool: gpu}
  price: {perHour: "2"}
  capacity: {instances: 4}
  unavailable: {pendingDeadline: 20s, backoff: {initial: 30s, max: 2m}}
"""
_OF_NAME = '{namespace=\\"speech\\", pipeline=\\"NAME\\"}'
_REQUESTS = f'unit: Requests, query: "sum(rate(sluice_ingress_requests_total{_OF_NAME}[10s]))"'
_STREAMS = f'unit: Streams, chunk: 500ms, query: "sum(sluice_ingress_active_streams{_OF_NAME})"'
_PIPELINE = """\
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: NAME, namespace: speech}
spec:
  priority: PRIORITY
  demand: {DEMAND}
  sla:
    latency: 500ms
    percentile: 95
    query: >-
      histogram_quantile(0.95, sum by (le)
      (rate(sluice_ingress_latency_seconds_bucket{namespace="speech", pipeline="NAME"}[10s])))
  budget: {perHour: "12"}
  scaling:
    scaleUp: {stabilization: 0s, maxStep: {percent: 100, replicas: 4}}
    scaleDown: {stabilization: 20s, maxStep: {percent: 50, replicas: 2}, drain: 8s}
  stages:
    - name: vad
      passRatio: "VAD_PASSES"
      metrics: {window: 10s}
      rules:
        - {name: busy, metric: utilization, above: "0.7", addReplicas: 1, per: Zone, cooldown: 15s}
        - {name: waiting, metric: queue, above: "3", addReplicas: 2, cooldown: 10s}
        - {name: late, metric: p95, above: "0.05", addReplicas: 1, cooldown: 10s}
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: NAME-vad}
          replicas: {min: 1, max: 10}
          perInstance: 2
          serviceTime: {fixed: 10ms, cv: "0.3"}
          startup: 5s
    - name: asr
      metrics: {preset: triton, window: 10s}
      rules: [{name: sessions, metric: sessions, above: "20", addReplicas: 1, cooldown: 15s}]
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: NAME-asr-gpu}
          replicas: {min: 0, max: 10}
          serviceTime: {fixed: 20ms, perItem: 10ms, cv: "0.3"}
          batching: {max: 4, wait: 5ms}
          memory: {sessions: 40}
          startup: 15s
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: NAME-asr-cpu}
          replicas: {min: 0, max: 10}
          serviceTime: {fixed: 60ms, cv: "0.3"}
          memory: {sessions: 20}
          startup: 10s
"""
_JOIN = """\
    - name: diarizer
      after: [vad]
      metrics: {window: 10s}
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: NAME-diarizer}
          replicas: {min: 1, max: 6}
          serviceTime: {fixed: 30ms, cv: "0.5"}
          startup: 5s
    - name: merge
      after: [asr, diarizer]
      metrics: {window: 10s}
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: NAME-merge}
          replicas: {min: 1, max: 6}
          perInstance: 2
          serviceTime: {fixed: 5ms, cv: "0.3"}
          startup: 5s
"""
_PIPELINE_0 = "SpeechPipeline/speech/p0"


def _set(at: int, name: str, spec: str, lasts: str = "") -> str:
    return f'  - {{at: {at}s, {lasts}set: {{"{name}": {{spec: {spec}}}}}}}\n'


_METRIC_FAULTS = """\
  - {at: 30s, for: 25s, metricsLost: "*"}
  - {at: 70s, for: 20s, metricsStale: speech/p0}
  - {at: 100s, for: 20s, metricsPartial: {share: "0.5"}}
  - {at: 125s, for: 30s, metricsNoisy: {cv: "0.5"}}
"""
_POOL_FAULTS = """\
  - {at: 20s, for: 50s, poolUnavailable: gpu}
  - {at: 85s, for: 20s, poolLost: gpu}
  - {at: 120s, for: 25s, spotReclaim: {pool: cpu, share: "0.6", notice: 12s}}
"""
_LOAD_FAULTS = """\
  - {at: 20s, for: 30s, spike: {pipeline: speech/p0, factor: 3}}
  - {at: 55s, for: 40s, slowStart: {pool: cpu, factor: 3}}
  - {at: 60s, for: 40s, slowStage: {stage: asr, factor: 2}}
  - {at: 110s, for: 30s, slowStage: {stage: speech/p0/vad, factor: 5}}
"""
_SETS = "".join(
    [
        _set(20, "ComputePool/cpu", '{price: {perHour: "3"}}', "for: 30s, "),
        _set(40, _PIPELINE_0, '{budget: {perHour: "2.5"}}', "for: 30s, "),
        _set(75, "ComputePool/gpu", "{capacity: {instances: 0}}", "for: 20s, "),
        _set(100, _PIPELINE_0, "{mode: Recommend}", "for: 15s, "),
        _set(120, _PIPELINE_0, "{mode: Paused}", "for: 15s, "),
        _set(140, _PIPELINE_0, "{sla: {latency: 30ms, percentile: 99}}"),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run of `pipelines` under some faults; `change` makes of what is seen what no simulator shows."""

    name: str
    faults: str = ""
    pipelines: int = 1
    streams: bool = False
    joins: bool = False
    load: tuple[float, ...] = (8, 30, 45, 20, 8)
    policy: Policy = _USUAL
    change: Change | None = None
    kept: int = 14


def simulated() -> Iterator[Pair]:
    """Yield snapshots of all runs with their decisions: every eighth, and those in which something changed."""
    for run in _runs():
        with tempfile.TemporaryDirectory() as folder:
            seen = list(_cycles(run, _scenario(run, Path(folder))))
        yield from _chosen(seen, run.kept)


def large_fleet() -> Iterator[Pair]:
    """Yield two cycles of a fleet that is planned in turns: the first, and a later one with other loads."""
    rng = random.Random("large fleet")
    with tempfile.TemporaryDirectory() as folder:
        scenario = _scenario(_Run(name="fleet", pipelines=1), Path(folder))
    spec = pipeline_spec(scenario.pipelines[0])
    pools = {pool.name: pool for pool in map(pool_spec, scenario.pools)}
    stage = replace(spec.stages[0], rules=())
    states = []
    for number in range(FLEET):
        key = type(spec.key)(f"speech/f{number:03}")
        own = replace(
            spec,
            key=key,
            name=f"f{number:03}",
            uid=f"uid-{number}",
            priority=number % 3,
            stages=(stage,),
            queries=replace(spec.queries, latency=None),
        )
        states.append(
            PipelineState(
                spec=own,
                targets={
                    key: TargetState(desired=1, existing=1, ready=1, terminating=0, pending=(), resource_version="1")
                    for key in own.placement_keys()
                },
                samples={},
                demand=round(rng.uniform(1, 300), 2),
                latency_s=None,
                rule_readings={},
                memory=PipelineMemory(),
            )
        )
    snapshot = Snapshot(
        now_s=10_000.0,
        pipelines=tuple(states),
        pools={
            name: PoolState(spec=replace(pool, instances=500), ready_instances=500, zones=2, memory=PoolMemory())
            for name, pool in pools.items()
        },
    )
    policy = Policy(interval_s=15.0, advice=False)
    first = decide(snapshot, policy)
    yield "large-fleet-first", snapshot, first
    later = Snapshot(
        now_s=snapshot.now_s + 15,
        pipelines=tuple(
            replace(
                state,
                memory=decided.memory,
                planned=decided.planned,
                demand=state.demand * rng.choice((1.0, 1.0, 1.01, 1.6)) if isinstance(state.demand, float) else MISSING,
            )
            for state, decided in zip(snapshot.pipelines, first.pipelines, strict=True)
        ),
        pools=snapshot.pools,
    )
    yield "large-fleet-later", later, decide(later, policy)


def _runs() -> Sequence[_Run]:
    capped = Policy(interval_s=INTERVAL_S, budget_per_hour=9.0)
    careful = Policy(interval_s=INTERVAL_S, composition=Composition.SUM, latency_headroom=0.2)
    hasty = Policy(interval_s=INTERVAL_S, search_effort=50, switching_cost_per_hour=0.0)
    return (
        _Run(name="load", faults=_LOAD_FAULTS),
        _Run(name="load-streams", faults=_LOAD_FAULTS, streams=True),
        _Run(name="metrics", faults=_METRIC_FAULTS),
        _Run(name="metrics-streams", faults=_METRIC_FAULTS, streams=True, policy=careful),
        _Run(name="pools", faults=_POOL_FAULTS),
        _Run(name="pools-streams", faults=_POOL_FAULTS, streams=True),
        _Run(name="sets", faults=_SETS),
        _Run(name="sets-streams", faults=_SETS, streams=True, policy=hasty),
        _Run(name="joins", faults=_POOL_FAULTS, joins=True),
        _Run(name="joins-sets", faults=_SETS, joins=True, policy=careful),
        _Run(name="three", faults=_POOL_FAULTS, pipelines=3),
        _Run(name="three-capped", faults=_LOAD_FAULTS, pipelines=3, policy=capped),
        _Run(name="three-streams", faults=_METRIC_FAULTS, pipelines=3, streams=True),
        _Run(name="three-sets", faults=_SETS, pipelines=3, policy=capped),
        _Run(name="disturbed", change=_disturbed, kept=30),
        _Run(name="disturbed-three", pipelines=3, change=_disturbed, kept=30),
    )


def _scenario(run: _Run, folder: Path) -> Scenario:
    duration_s = 160
    names = [f"p{number}" for number in range(run.pipelines)]
    column = "streams" if run.streams else "rate_per_s"
    text = _PIPELINE + (_JOIN if run.joins else "")
    documents = [_POOLS]
    for number, name in enumerate(names):
        made = text.replace("DEMAND", _STREAMS if run.streams else _REQUESTS).replace("NAME", name)
        made = made.replace("VAD_PASSES", "1" if run.joins else "0.5").replace("PRIORITY", str((0, 5, 5)[number]))
        documents.append(made)
    (folder / "all.yaml").write_text("---\n".join(documents))
    for number, name in enumerate(names):
        span = duration_s // len(run.load)
        levels = [run.load[min((t + 17 * number) // span, len(run.load) - 1)] for t in range(duration_s)]
        rows = "".join(f"{t},{level}\n" for t, level in enumerate(levels))
        (folder / f"{name}.csv").write_text(f"t_s,{column}\n{rows}")
    loads = "".join(f"  - {{pipeline: speech/{name}, trace: {name}.csv, column: {column}}}\n" for name in names)
    path = folder / "scenario.yaml"
    path.write_text(
        f"name: golden\nmanifests: [all.yaml]\nduration: {duration_s}s\nload:\n{loads}"
        + (f"faults:\n{run.faults}" if run.faults else "")
    )
    return load_scenario(path)


def _cycles(run: _Run, scenario: Scenario) -> Iterator[Pair]:
    rng = random.Random(run.name)
    cluster = SimulatedCluster(scenario, seed=1, interval_s=INTERVAL_S)
    due_s = cluster.now_s
    while due_s < cluster.duration_s:
        cluster.advance(due_s)
        seen = cluster.snapshot()
        snapshot = Snapshot(now_s=seen.now_s, pipelines=seen.pipelines, pools=seen.pools)
        if run.change is not None and due_s >= 0:
            snapshot = run.change(snapshot, rng)
        decision = decide(snapshot, run.policy)
        if due_s >= 0:
            yield f"{run.name}-{due_s:g}", snapshot, decision
        cluster.apply(decision)
        due_s += INTERVAL_S


def _chosen(seen: Sequence[Pair], kept: int) -> Iterator[Pair]:
    """Yield at most `kept` of the cycles in which something changed, spread over the run, or every eighth."""
    before: object = None
    news = []
    for index, pair in enumerate(seen):
        gist = [_gist(decided) for decided in pair[2].pipelines]
        if gist != before or not index % 8:
            news.append(pair)
        before = gist
    step = max(1.0, len(news) / kept)
    yield from (news[int(number * step)] for number in range(min(kept, len(news))))


def _gist(decided: PipelineDecision) -> object:
    return decided.changes, decided.outcome, sorted(hold.reason.value for hold in decided.holds), decided.admissible


def _disturbed(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Return what is seen with two things that are wrong with it."""
    for change in rng.sample(_CHANGES, 2):
        snapshot = change(snapshot, rng)
    return snapshot


def _on_a_target(
    alter: Callable[[TargetState, float], TargetState | TargetMissing],
) -> Change:
    def change(snapshot: Snapshot, rng: random.Random) -> Snapshot:
        state = rng.choice(snapshot.pipelines)
        key = rng.choice(sorted(state.targets))
        target = state.targets[key]
        if isinstance(target, TargetMissing):
            return snapshot
        return _with(snapshot, replace(state, targets={**state.targets, key: alter(target, snapshot.now_s)}))

    return change


def _on_a_pipeline(alter: Callable[[PipelineState, PlacementKey, float], PipelineState]) -> Change:
    def change(snapshot: Snapshot, rng: random.Random) -> Snapshot:
        state = rng.choice(snapshot.pipelines)
        return _with(snapshot, alter(state, rng.choice(sorted(state.targets)), snapshot.now_s))

    return change


def _on_a_pool(alter: Callable[[PoolState], PoolState | None]) -> Change:
    def change(snapshot: Snapshot, rng: random.Random) -> Snapshot:
        name = rng.choice(sorted(snapshot.pools))
        altered = alter(snapshot.pools[name])
        others = {other: pool for other, pool in snapshot.pools.items() if other != name}
        return replace(snapshot, pools=others if altered is None else {**others, name: altered})

    return change


def _with(snapshot: Snapshot, state: PipelineState) -> Snapshot:
    return replace(snapshot, pipelines=tuple(state if p.spec.key == state.spec.key else p for p in snapshot.pipelines))


def _waiting(since_s: float, reason: str) -> tuple[PendingReplica, ...]:
    return (PendingReplica(name="pod-w", since_s=since_s, reason=reason),)


def _pressed(state: PipelineState, key: PlacementKey, now_s: float) -> PipelineState:
    samples = state.samples_of(*key)
    readings = {**samples.readings, Quantity.RX_QUEUE_PRESSURE: 0.95, Quantity.QUEUE_DEPTH: 80.0}
    return replace(state, samples={**state.samples, key: replace(samples, readings=readings)})


_CHANGES: Sequence[Change] = (
    _on_a_target(lambda target, now_s: TargetMissing(reason="not found")),
    _on_a_target(lambda target, now_s: TargetMissing(reason="forbidden", unreadable=True)),
    _on_a_target(lambda target, now_s: replace(target, terminating=3)),
    _on_a_target(lambda target, now_s: replace(target, existing=target.existing + 2)),
    _on_a_target(lambda target, now_s: replace(target, desired=target.desired + 3)),
    _on_a_target(
        lambda target, now_s: replace(target, desired=target.desired + 1, pending=_waiting(now_s - 300, "no room"))
    ),
    _on_a_target(
        lambda target, now_s: replace(target, desired=target.desired + 1, starting=_waiting(now_s - 300, "crashes"))
    ),
    _on_a_target(lambda target, now_s: replace(target, ready=0, stranded=_waiting(now_s - 30, "node is not ready"))),
    _on_a_target(
        lambda target, now_s: replace(
            target,
            serving=tuple(
                ServingReplica(name=f"pod-{number}", leaving=number % 2 == 0, deletion_cost=number)
                for number in range(target.ready)
            ),
        )
    ),
    _on_a_pipeline(lambda state, key, now_s: replace(state, autoscalers={key: "HorizontalPodAutoscaler/asr"})),
    _on_a_pipeline(lambda state, key, now_s: replace(state, written={key: state.desired(*key) + 1})),
    _on_a_pipeline(lambda state, key, now_s: replace(state, refused={key: "admission webhook denied the request"})),
    _on_a_pipeline(lambda state, key, now_s: replace(state, demand=MISSING)),
    _on_a_pipeline(lambda state, key, now_s: replace(state, latency_s=9.0)),
    _on_a_pipeline(lambda state, key, now_s: replace(state, latency_s=MISSING, samples={})),
    _on_a_pipeline(
        lambda state, key, now_s: replace(state, samples={**state.samples, key: PlacementSamples(readings={})})
    ),
    _on_a_pipeline(lambda state, key, now_s: replace(state, memory=PipelineMemory())),
    _on_a_pipeline(_pressed),
    _on_a_pool(lambda pool: None),
    _on_a_pool(lambda pool: replace(pool, leaving_instances=2)),
    _on_a_pool(lambda pool: replace(pool, unaccounted={1: 1, 2: 3})),
    _on_a_pool(lambda pool: replace(pool, unread="forbidden", zones=3)),
    _on_a_pool(lambda pool: replace(pool, spec=replace(pool.spec, instances=None), ready_instances=2)),
    _on_a_pool(lambda pool: replace(pool, spec=replace(pool.spec, price_per_hour=7.5))),
)
