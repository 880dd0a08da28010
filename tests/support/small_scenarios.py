"""Scenarios small enough for a test: captions of two stages on two pools, under a load that the test writes down."""

from collections.abc import Sequence
from pathlib import Path

from simulations.scenario.scenario import Scenario, load_scenario

VAD_CPU = ("vad", "cpu")
ASR_GPU = ("asr", "gpu")
ASR_CPU = ("asr", "cpu")

PIPELINE = """\
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  demand:
    unit: Requests
    query: sum(rate(sluice_ingress_requests_total{namespace="speech", pipeline="captions"}[10s]))
  sla:
    latency: 500ms
    percentile: 95
    query: >-
      histogram_quantile(0.95, sum by (le)
      (rate(sluice_ingress_latency_seconds_bucket{namespace="speech", pipeline="captions"}[10s])))
  budget: {perHour: "30"}
  scaling:
    scaleUp: {stabilization: 0s, maxStep: {percent: 100, replicas: 8}}
    scaleDown: {stabilization: 20s, maxStep: {percent: 100, replicas: 8}, drain: 8s}
  stages:
    - name: vad
      passRatio: "0.5"
      metrics: {window: 10s}
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: vad}
          replicas: {min: 1, max: 10}
          perInstance: 2
          serviceTime: {fixed: 10ms, cv: "0.3"}
          startup: 5s
    - name: asr
      metrics: {window: 10s}
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-gpu}
          replicas: {min: 0, max: 10}
          serviceTime: {fixed: 40ms, cv: "0.3"}
          startup: 20s
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-cpu}
          replicas: {min: 0, max: 10}
          serviceTime: {fixed: 60ms, cv: "0.3"}
          startup: 10s
"""
POOLS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec:
  device: CPU
  nodeSelector: {pool: cpu}
  price: {perHour: "0.5"}
  capacity: {instances: 10}
---
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: gpu}
spec:
  device: GPU
  nodeSelector: {pool: gpu}
  price: {perHour: "2"}
  capacity: {instances: 4}
"""
STREAMS = (
    (
        '    unit: Requests\n    query: sum(rate(sluice_ingress_requests_total{namespace="speech", '
        'pipeline="captions"}[10s]))\n'
    ),
    (
        "    unit: Streams\n    chunk: 500ms\n"
        '    query: sum(sluice_ingress_active_streams{namespace="speech", pipeline="captions"})\n'
    ),
)
"""What to replace in PIPELINE, and by what, for a pipeline of streams."""


def a_scenario(
    folder: Path,
    *,
    load: Sequence[tuple[float, float]] = ((0.0, 8.0),),
    faults: str = "[]",
    what_if: str = "[]",
    duration_s: int = 120,
    warmup_s: int = 0,
    streams: bool = False,
    pipeline: str = PIPELINE,
    pools: str = POOLS,
    seeds: str = "[1]",
    policies: str = "[sluice]",
    session: str = "",
    properties: str = "",
    other: tuple[str, Sequence[tuple[float, float]]] | None = None,
) -> Scenario:
    """Write and load a scenario; `load` is what is offered (requests/s, or streams) from each instant on.

    `properties` are further lines of the scenario file. `other` is the name (namespace/name) of a second pipeline in
    `pipeline`, which takes requests, with its load.
    """
    column = "streams" if streams else "rate_per_s"
    session = session and f", session: {session}"
    folder.mkdir(exist_ok=True)
    (folder / "load.csv").write_text(_trace(load, duration_s, column))
    beside = ""
    if other is not None:
        (folder / "other.csv").write_text(_trace(other[1], duration_s, "rate_per_s"))
        beside = f"  - {{pipeline: {other[0]}, trace: other.csv, column: rate_per_s}}\n"
    (folder / "pipeline.yaml").write_text(pipeline.replace(*STREAMS) if streams else pipeline)
    (folder / "pools.yaml").write_text(pools)
    path = folder / "scenario.yaml"
    path.write_text(
        f"name: small\nmanifests: [pools.yaml, pipeline.yaml]\nduration: {duration_s}s\nwarmup: {warmup_s}s\n"
        f"seeds: {seeds}\npolicies: {policies}\nload:\n"
        f"  - {{pipeline: speech/captions, trace: load.csv, column: {column}{session}}}\n{beside}"
        f"faults: {faults}\nwhatIf: {what_if}\n{properties}\n"
    )
    return load_scenario(path)


def _trace(load: Sequence[tuple[float, float]], duration_s: int, column: str) -> str:
    """Return a trace with a level for each second."""
    levels = [next(level for from_s, level in reversed(load) if from_s <= t_s) for t_s in range(duration_s)]
    return f"t_s,{column}\n" + "".join(f"{t_s},{level}\n" for t_s, level in enumerate(levels))
