"""Incidents on the lab, side by side in one run: a pipeline each, with pools and a fault of its own."""

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.core.state.diagnosis import Cause

SLUICE = Path(sys.executable).parent / "sluice"
AT_S = 100
"""When the faults begin: the operator takes what it compares with after a calm minute."""
DURATION_S = 190
LIMIT_S = 500.0

PIPELINE = """\
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: NAME, namespace: speech}
spec:
  demand:
    unit: Requests
    query: sum(rate(sluice_ingress_requests_total{namespace="speech", pipeline="NAME"}[10s]))
  sla:
    latency: 1s
    percentile: 95
    query: >-
      histogram_quantile(0.95, sum by (le)
      (rate(sluice_ingress_latency_seconds_bucket{namespace="speech", pipeline="NAME"}[10s])))
  budget: {perHour: "40"}
  scaling:
    scaleUp: {stabilization: 0s, maxStep: {percent: 100, replicas: 8}}
    scaleDown: {stabilization: 60s, maxStep: {percent: 100, replicas: 8}, drain: 8s}
  stages:
    - name: vad
      passRatio: "0.5"
      metrics: {window: 15s}
      placements:
        - pool: cpu-NAME
          target: {apiVersion: apps/v1, kind: Deployment, name: vad-NAME}
          replicas: {min: 1, max: 4}
          serviceTime: {fixed: 20ms, cv: "0.3"}
          startup: 3s
    - name: asr
      metrics: {window: 15s}
      placements:
        - pool: gpu-NAME
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-NAME}
          replicas: {min: 1, max: 6}
          serviceTime: {fixed: 120ms, cv: "0.3"}
          startup: 8s
"""
POOLS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu-NAME}
spec: {device: CPU, nodeSelector: {pool: cpu-NAME}, price: {perHour: "0.5"}, capacity: {instances: 4}}
---
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: gpu-NAME}
spec:
  device: GPU
  nodeSelector: {pool: gpu-NAME}
  price: {perHour: "2"}
  capacity: {instances: 6}
  unavailable: {pendingDeadline: 20s}
"""
VARIANTS = """\
        - pool: gpu-NAME
          replicas: {min: 0, max: 6}
          startup: 8s
          variants:
            - name: fp16
              target: {apiVersion: apps/v1, kind: Deployment, name: asr-fp16-NAME}
              serviceTime: {fixed: 200ms, cv: "0.3"}
              wer: "0.04"
              werBySlice: {entities: "0.05"}
            - name: int8
              target: {apiVersion: apps/v1, kind: Deployment, name: asr-int8-NAME}
              serviceTime: {fixed: 50ms, cv: "0.3"}
              wer: "0.045"
              werBySlice: {entities: "0.16"}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCase:
    """An incident with its `causes` (none: all is well): faults with NAME for the pipeline, and another manifest."""

    causes: frozenset[Cause]
    faults: tuple[str, ...] = ()
    pipeline: str = PIPELINE
    rps: float = 10.0
    set_: str = ""


def _case(*causes: Cause, faults: Sequence[str] = (), **more: object) -> LiveCase:
    return LiveCase(causes=frozenset(causes), faults=tuple(faults), **more)  # type: ignore[arg-type]


_LATE = "slowTransit: {pipeline: speech/NAME, by: 900ms}"
_SLOW = "slowStage: {stage: speech/NAME/asr, factor: 5}"
CASES: Mapping[str, LiveCase] = {
    "well": _case(),
    "demand": _case(Cause.DEMAND, faults=["spike: {pipeline: speech/NAME, factor: 5}"], rps=6.0),
    "pool": _case(Cause.POOL, faults=["poolLost: gpu-NAME"]),
    "slower": _case(Cause.SLOWER_STAGE, faults=[_SLOW]),
    "passes": _case(
        Cause.PASS_RATIO,
        faults=['passRatio: {stage: speech/NAME/vad, ratio: "1"}'],
        pipeline=PIPELINE.replace('passRatio: "0.5"', 'passRatio: "0.25"'),
        rps=20.0,
    ),
    "stuck": _case(
        Cause.QUEUEING,
        faults=["stuckReplica: speech/NAME/asr"],
        pipeline=PIPELINE.replace("    - name: asr\n", "    - name: asr\n      routing: RoundRobin\n"),
        rps=25.0,
    ),
    "transit": _case(Cause.DATA_PLANE, faults=[_LATE]),
    "metrics": _case(Cause.METRICS, faults=["metricsLost: speech/NAME", _LATE]),
    "quality": _case(
        Cause.QUALITY_DROP,
        pipeline=(PIPELINE[: PIPELINE.index("        - pool: gpu-NAME")] + VARIANTS).replace(
            "    percentile: 95\n", '    percentile: 95\n    maxWer: "0.041"\n'
        ),
        faults=['set: {SpeechPipeline/speech/NAME: {spec: {sla: {maxWer: "0.05"}}}}'],
        rps=25.0,
    ),
    "two": _case(
        Cause.DEMAND, Cause.SLOWER_STAGE, faults=["spike: {pipeline: speech/NAME, factor: 5}", _SLOW], rps=6.0
    ),
}
"""The incidents by the name of their pipeline. Those that the lab's workers cannot have are simulated."""


def scenario(folder: Path, names: Sequence[str] = tuple(CASES)) -> Path:
    """Write the scenario with these incidents, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    documents, loads, faults = [], [], []
    for name in names:
        case = CASES[name]
        documents += [case.pipeline.replace("NAME", name), POOLS.replace("NAME", name)]
        (folder / f"{name}.csv").write_text(
            "t_s,rate_per_s\n" + "".join(f"{t},{case.rps}\n" for t in range(0, DURATION_S, 10))
        )
        loads.append(f"  - {{pipeline: speech/{name}, trace: {name}.csv, column: rate_per_s}}")
        ends = "" if name == "quality" else f"for: {DURATION_S - AT_S - 1}s, "
        faults += [f"  - {{at: {AT_S}s, {ends}{fault.replace('NAME', name)}}}" for fault in case.faults]
    (folder / "manifests.yaml").write_text("---\n".join(documents))
    path = folder / "scenario.yaml"
    path.write_text(
        f"name: diagnosis\nmanifests: [manifests.yaml]\nduration: {DURATION_S}s\nwindow: 10s\nscrapeInterval: 2s\n"
        "load:\n" + "\n".join(loads) + "\nfaults:\n" + "\n".join(faults) + "\n"
    )
    return path


def run(file: Path, seed: int, folder: Path) -> Path:
    """Run the scenario on the lab; return the log of the operator."""
    report = folder / "report.json"
    command = [str(SLUICE), "lab", "run", str(file), "--seed", str(seed), "--report", str(report)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    log = report.with_suffix(".operator.jsonl")
    assert log.exists(), done.stdout + done.stderr
    return log


def weights(log: Path) -> Mapping[str, Counter[Cause]]:
    """Return how much each cause was named, by pipeline: its confidence, summed over the decisions of a log."""
    found: dict[str, Counter[Cause]] = defaultdict(Counter)
    for line in log.read_text().splitlines():
        record = json.loads(line).get("record")
        if not isinstance(record, dict):
            continue
        for key, decision in record["decision"]["pipelines"].items():
            for finding in decision.get("diagnosis", []):
                found[key.rpartition("/")[2]][Cause(finding["cause"])] += finding["confidence"]
    return found


def named(found: Mapping[str, Counter[Cause]], name: str) -> frozenset[Cause]:
    """Return the causes that were named most for an incident, as many as it has; of a healthy pipeline all."""
    own, count = found.get(name, Counter()), len(CASES[name].causes)
    return frozenset(cause for cause, _ in own.most_common(count or None))
