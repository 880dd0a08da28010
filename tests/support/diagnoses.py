"""Small scenarios with a known cause each, and what the diagnosis makes of them: simulated, in seconds.

The pipelines are small, so that a run takes a second. `simulations.lab` plays the same files live.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from small_scenarios import PIPELINE, POOLS, a_scenario

from controller.core.cycle import decide
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Because, Cause
from controller.core.state.policy import Policy
from controller.resources.fields import duration_s
from simulations.cluster.simulated import SimulatedCluster
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.scenario import Scenario

INTERVAL_S = 5.0
AT_S = 180
"""When the fault of a case begins: what is compared with is taken in the minutes before."""
LASTS_S = 120

ONE_POOL = PIPELINE[
    : PIPELINE.index("        - pool: cpu\n          target: {apiVersion: apps/v1, kind: Deployment, name: asr")
]
"""Recognition on GPUs only: nothing takes over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scenario whose incident has the `causes`; none: all is well.

    `because` is the form of its only cause, None where it has none or several causes. What is named before `from_s` of
    the run does not count.
    """

    causes: frozenset[Cause]
    make: Callable[[Path], Scenario]
    because: Because | None = None
    from_s: float = -math.inf


def _case(*causes: Cause, because: Because | None = None, from_s: float = -math.inf, **scenario: object) -> Case:
    def make(folder: Path) -> Scenario:
        given = {"duration_s": AT_S + LASTS_S, "load": ((0.0, 40.0),), "pipeline": ONE_POOL, **scenario}
        return a_scenario(folder, **given)  # type: ignore[arg-type]

    return Case(causes=frozenset(causes), make=make, because=because, from_s=from_s)


def _fault(words: str) -> str:
    return f"{{at: {AT_S}s, for: {LASTS_S}s, {words}}}"


ROUND_ROBIN = ONE_POOL.replace("    - name: asr\n", "    - name: asr\n      routing: RoundRobin\n")
FROM_ZERO = (
    ONE_POOL.replace("  scaling:\n", "  scaling:\n    idleAfter: 60s\n")
    .replace("replicas: {min: 1, max: 10}", "replicas: {min: 0, max: 10}")
    .replace("startup: 20s", "startup: 40s")
)
VARIANTS = """\
        - pool: gpu
          replicas: {min: 0, max: 10}
          startup: 20s
          variants:
            - name: fp16
              target: {apiVersion: apps/v1, kind: Deployment, name: asr-fp16}
              serviceTime: {fixed: 40ms, cv: "0.3"}
              werBySlice: {entities: "0.05", clean: "0.03"}
              wer: "0.04"
            - name: int8
              target: {apiVersion: apps/v1, kind: Deployment, name: asr-int8}
              serviceTime: {fixed: 15ms, cv: "0.3"}
              werBySlice: {entities: "0.16", clean: "0.031"}
              wer: "0.045"
"""
WITH_VARIANTS = (PIPELINE[: PIPELINE.index("        - pool: gpu")] + VARIANTS).replace(
    "    percentile: 95\n", '    percentile: 95\n    maxWer: "0.041"\n'
)
GROWING = (
    ONE_POOL.replace(
        '          serviceTime: {fixed: 40ms, cv: "0.3"}\n',
        """\
          serviceTime: {fixed: 10ms, cv: "0.3"}
          memory:
            kvCache:
              layers: 32
              kvHeads: 32
              headDim: 128
              deviceMemory: 80G
              weights: 16G
              growth:
                tokensPerMinute: 6000
                start: 200
                most: 16000
                session: {mean: 90s, cv: "1"}
""",
    )
    .replace("latency: 500ms", "latency: 1s")
    .replace('perHour: "30"', 'perHour: "60"')
)

BATCHING = ONE_POOL.replace(
    '          serviceTime: {fixed: 40ms, cv: "0.3"}\n',
    '          serviceTime: {fixed: 40ms, perItem: 2ms, cv: "0.3"}\n          batching: {max: 16, wait: 600ms}\n',
)
WITH_SLOTS = ONE_POOL.replace("startup: 20s\n", "startup: 20s\n          memory: {sessions: 2}\n")
LONG_START = ONE_POOL.replace("startup: 20s", "startup: 60s")
WITH_NOTES = (
    ONE_POOL.replace("        - pool: gpu\n", "        - pool: gpu\n          perInstance: 2\n")
    + """\
---
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: notes, namespace: speech}
spec:
  demand:
    unit: Requests
    query: sum(rate(sluice_ingress_requests_total{namespace="speech", pipeline="notes"}[10s]))
  sla: {latency: 2s, percentile: 95}
  budget: {perHour: "30"}
  stages:
    - name: summary
      metrics: {window: 10s}
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: summary}
          replicas: {min: 4, max: 4}
          perInstance: 2
          serviceTime: {fixed: 40ms, cv: "0.3"}
          startup: 20s
"""
)
"""A second pipeline, whose replicas are on the instances of recognition."""
ONE_REPLICA = "replicas: {min: 1, max: 1}".join(WITH_NOTES.rsplit("replicas: {min: 0, max: 10}", 1))
"""Recognition has one replica, which is beside one of the other pipeline's."""
BUSY_S = 300
"""When that pipeline gets a load that it had never before, after waves from which the diagnosis learned."""
WAVES = (*((30.0 * wave, 25.0 if wave % 2 else 5.0) for wave in range(9)), (270.0, 5.0), (float(BUSY_S), 95.0))
ROOM = POOLS.replace("instances: 4", "instances: 12")
_NOTES_QUERY = 'sum(rate(sluice_ingress_requests_total{namespace="speech", pipeline="notes"}[10s]))'

_SPIKE = _fault("spike: {pipeline: speech/captions, factor: 4}")
_SLOW = _fault("slowStage: {stage: asr, factor: 4}")
_PASSES = _fault('passRatio: {stage: vad, ratio: "1"}')
_TRANSIT = _fault("slowTransit: {pipeline: speech/captions, by: 450ms}")
_STUCK = _fault("stuckReplica: asr")
_POOL = _fault("poolLost: gpu")
_LOST = _fault("metricsLost: speech/captions")
_CHEAPER = _fault("set: {SpeechPipeline/speech/captions: {spec: {budget: {perHour: '3'}}}}")
_NODES_GONE = f"{{at: {AT_S}s, for: 10s, spotReclaim: {{pool: gpu, share: '0.55', notice: 0s}}}}"
_NODES_GO = f"{{at: {AT_S}s, for: 100s, spotReclaim: {{pool: gpu, share: '0.7', notice: 70s}}}}"
_COLD = _fault("coldCaches: {stage: asr, factor: 4, lasts: 60s}")
_OTHER_QUERY = _fault(f"set: {{SpeechPipeline/speech/captions: {{spec: {{demand: {{query: '{_NOTES_QUERY}'}}}}}}}}")

MASKED = "stuck replica and data plane"
"""The queue of the stuck replica hides the time outside the stages: only the first is found."""

CASES: Mapping[str, Case] = {
    "well": _case(),
    "demand": _case(Cause.DEMAND, faults=f"[{_SPIKE}]", load=((0.0, 15.0),)),
    "pool": _case(Cause.POOL, faults=f"[{_POOL}]"),
    "cold start": _case(
        Cause.COLD_START,
        because=Because.FROM_ZERO,
        pipeline=FROM_ZERO,
        load=((0.0, 20.0), (60.0, 0.0), (float(AT_S), 20.0)),
        faults="[]",
    ),
    "late start": _case(
        Cause.COLD_START,
        because=Because.LATE_START,
        from_s=AT_S,
        load=((0.0, 150.0),),
        pools=ROOM,
        faults=f"[{_NODES_GONE}, {_fault('slowStart: {pool: gpu, factor: 5}')}]",
    ),
    "slower stage": _case(Cause.SLOWER_STAGE, faults=f"[{_SLOW}]"),
    "new version": _case(
        Cause.SLOWER_STAGE, because=Because.NEW_VERSION, faults=f"[{{at: {AT_S}s, rollOut: asr}}, {_SLOW}]"
    ),
    "slower than declared": _case(
        Cause.SLOWER_STAGE,
        because=Because.DECLARED,
        pipeline=ONE_POOL.replace("latency: 500ms", "latency: 70ms"),
        load=((0.0, 20.0),),
        properties='profileError: {asr: "0.2"}',
        duration_s=120,
    ),
    "neighbours": _case(
        Cause.SLOWER_STAGE,
        because=Because.NEIGHBOURS,
        from_s=BUSY_S,
        pipeline=ONE_REPLICA,
        load=((0.0, 18.0),),
        other=("speech/notes", WAVES),
        properties='interference: {"asr,summary": "4"}',
        duration_s=BUSY_S + 60,
    ),
    "cold caches": _case(
        Cause.SLOWER_STAGE,
        because=Because.COLD_CACHES,
        from_s=AT_S,
        pipeline=LONG_START,
        load=((0.0, 110.0),),
        pools=ROOM,
        faults=f"[{_COLD}, {_NODES_GO}]",
    ),
    "pass ratio": _case(
        Cause.PASS_RATIO,
        faults=f"[{_PASSES}]",
        pipeline=ONE_POOL.replace('passRatio: "0.5"', 'passRatio: "0.2"'),
        load=((0.0, 70.0),),
    ),
    "stuck replica": _case(
        Cause.QUEUEING,
        because=Because.STUCK_REPLICA,
        faults=f"[{_STUCK}]",
        pipeline=ROUND_ROBIN,
        load=((0.0, 60.0),),
    ),
    "batch wait": _case(
        Cause.QUEUEING,
        because=Because.BATCH_WAIT,
        from_s=AT_S,
        pipeline=BATCHING,
        load=((0.0, 200.0), (float(AT_S), 10.0)),
    ),
    "autoscaler lag": _case(
        Cause.QUEUEING,
        because=Because.LAG,
        from_s=AT_S,
        pipeline=LONG_START,
        load=((0.0, 150.0),),
        pools=ROOM,
        faults=f"[{_NODES_GONE}]",
    ),
    "limit": _case(
        Cause.QUEUEING,
        because=Because.LIMIT,
        from_s=AT_S,
        load=((0.0, 100.0),),
        faults=f"[{_CHEAPER}]",
        properties="sheds: false",
    ),
    "uneven sessions": _case(
        Cause.UNEVEN_SESSIONS,
        pipeline=ONE_POOL.replace("    - name: asr\n", "    - name: asr\n      routing: Sticky\n"),
        streams=True,
        load=((0.0, 60.0),),
        session="{mean: 1h, cv: 1, reconnect: backoff}",
        faults=f"[{{at: {AT_S}s, for: 10s, spotReclaim: {{pool: gpu, share: '0.5', notice: 0s}}}}]",
        pools=POOLS.replace("instances: 4", "instances: 8"),
        properties="handsOver: false",
    ),
    "data plane": _case(Cause.DATA_PLANE, because=Because.OVERHEAD, faults=f"[{_TRANSIT}]"),
    "retries": _case(
        Cause.DATA_PLANE,
        because=Because.RETRIES,
        from_s=AT_S,
        load=((0.0, 70.0),),
        faults=f"[{_fault('retries: {pipeline: speech/captions, factor: 2}')}]",
    ),
    "refused": _case(
        Cause.DATA_PLANE,
        because=Because.REFUSED,
        from_s=AT_S,
        pipeline=WITH_SLOTS,
        load=((0.0, 60.0),),
        faults=f"[{_CHEAPER}]",
        properties="sheds: false",
    ),
    "metrics": _case(Cause.METRICS, because=Because.LOST, faults=f"[{_LOST}]"),
    "missing metrics": _case(
        Cause.METRICS,
        because=Because.MISSING,
        faults=f"[{_fault('metricsPartial: {share: 1}')}, {_SLOW}]",
    ),
    "contradicted demand": _case(
        Cause.METRICS,
        because=Because.CONTRADICTED,
        pipeline=WITH_NOTES,
        other=("speech/notes", ((0.0, 10.0),)),
        faults=f"[{_OTHER_QUERY}]",
    ),
    "quality": _case(
        Cause.QUALITY_DROP,
        pipeline=WITH_VARIANTS,
        load=((0.0, 80.0),),
        faults=f"[{{at: {AT_S}s, set: {{SpeechPipeline/speech/captions: {{spec: {{sla: {{maxWer: '0.05'}}}}}}}}}}]",
    ),
    "memory": _case(
        Cause.MEMORY_GROWTH,
        pipeline=GROWING,
        streams=True,
        load=((0.0, 60.0),),
        session="{mean: 90s, cv: 1}",
        properties="ignoreGrowth: true",
        pools=POOLS.replace("instances: 4", "instances: 20"),
        duration_s=600,
    ),
    "demand and slower stage": _case(
        Cause.DEMAND, Cause.SLOWER_STAGE, faults=f"[{_SPIKE}, {_SLOW}]", load=((0.0, 15.0),)
    ),
    "pass ratio and data plane": _case(Cause.PASS_RATIO, Cause.DATA_PLANE, faults=f"[{_PASSES}, {_TRANSIT}]"),
    "stuck replica and slower stage": _case(
        Cause.QUEUEING,
        Cause.SLOWER_STAGE,
        faults=f"[{_STUCK}, {_fault('slowStage: {stage: vad, factor: 20}')}]",
        pipeline=ROUND_ROBIN,
        load=((0.0, 60.0),),
    ),
    "pool and demand": _case(
        Cause.POOL, Cause.DEMAND, faults=f"[{_SPIKE}, {_fault('poolUnavailable: gpu')}]", load=((0.0, 15.0),)
    ),
    MASKED: _case(
        Cause.QUEUEING,
        Cause.DATA_PLANE,
        faults=f"[{_STUCK}, {_TRANSIT}]",
        pipeline=ROUND_ROBIN,
        load=((0.0, 60.0),),
    ),
}
"""The cases by name."""


def played(case: Case, folder: Path, seed: int) -> Sequence[tuple[float, PipelineDecision]]:
    """Return the decisions of a case that count, with the time of each in the run."""
    return [each for each in decisions(case.make(folder), seed) if each[0] >= case.from_s]


def decisions(scenario: Scenario, seed: int) -> Sequence[tuple[float, PipelineDecision]]:
    """Return the decisions about the first pipeline of a simulated run, with the time of each in the run."""
    cluster = SimulatedCluster(
        scenario, seed=seed, interval_s=INTERVAL_S, window_s=None, schedules=pipeline_schedules(scenario, seed=seed)
    )
    policy = Policy(interval_s=INTERVAL_S, scrape_interval_s=duration_s(scenario.file.scrape_interval))
    found, due_s = [], cluster.now_s
    while due_s < cluster.duration_s:
        cluster.advance(due_s)
        decision = decide(cluster.snapshot(), policy)
        cluster.apply(decision)
        found.append((due_s, decision.pipelines[0]))
        due_s += INTERVAL_S
    return found


def weights(made: Sequence[tuple[float, PipelineDecision]]) -> Counter[Cause]:
    """Return how much each cause was named over a run: its confidence, summed over the cycles."""
    found = Counter[Cause]()
    for _, decision in made:
        for finding in decision.diagnosis:
            found[finding.cause] += finding.confidence  # type: ignore[assignment]
    return found


def form(made: Sequence[tuple[float, PipelineDecision]], cause: Cause) -> Because | None:
    """Return the form in which a cause was named most, None where it was not named or mostly had none."""
    found = Counter[Because | None]()
    for _, decision in made:
        for finding in decision.diagnosis:
            if finding.cause is cause:
                found[finding.because] += finding.confidence  # type: ignore[assignment]
    return found.most_common(1)[0][0] if found else None


def named(made: Sequence[tuple[float, PipelineDecision]], count: int) -> frozenset[Cause]:
    """Return the `count` causes that were named most."""
    return frozenset(cause for cause, _ in weights(made).most_common(max(1, count)))
