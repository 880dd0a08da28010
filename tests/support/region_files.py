"""A small file of regions with its manifests and loads: one stage, two or three regions, a day of four steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

PIPELINE = """\
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {{name: captions, namespace: speech}}
spec:
  demand:
    unit: Streams
    chunk: 320ms
    query: sum(sluice_ingress_active_streams)
    atLeast: {at_least}
  sla: {{latency: 400ms}}
  budget: {{perHour: "100"}}
  stages:
    - name: encoder
      metrics: {{preset: generic, window: 30s}}
      placements:
        - pool: gpu
          target: {{apiVersion: apps/v1, kind: Deployment, name: encoder}}
          replicas: {{min: 1, max: 40}}
          perInstance: 1
          serviceTime: {{fixed: 20ms, cv: "0.3", source: example, confidence: Low}}
          startup: 50s
"""
POOL = """\
---
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {{name: gpu}}
spec:
  device: GPU
  nodeSelector: {{pool: gpu}}
  price: {{perHour: "{price}"}}
  capacity: {{instances: {instances}}}
"""
EAST, WEST = (40, 20, 4, 20), (4, 20, 40, 20)


def write_regions(
    folder: Path,
    loads: Mapping[str, Sequence[float]],
    *,
    prices: Mapping[str, str] | None = None,
    instances: int = 30,
    paid: str = "ForDay",
    more: Mapping[str, str] | None = None,
    round_trip: str = "100ms",
    at_least: str = "[]",
    fields: str = "session: 10m",
) -> Path:
    """Write a file of regions that are all linked, and return its path.

    `fields` are further fields of the file, `more` of its regions.
    """
    names = list(loads)
    lines = ["name: captions", "step: 6h", fields, "regions:"]
    for name in names:
        price = (prices or {}).get(name, "1.00")
        manifest = PIPELINE.format(at_least=at_least) + POOL.format(price=price, instances=instances)
        (folder / f"{name}.manifests.yaml").write_text(manifest)
        rows = "".join(f"{hour * 21_600},{load}\n" for hour, load in enumerate(loads[name]))
        (folder / f"{name}.csv").write_text(f"t_s,streams\n{rows}")
        lines += [
            f"  - name: {name}",
            f"    manifests: [{name}.manifests.yaml]",
            f"    load: {{trace: {name}.csv, column: streams}}",
            f"    paid: {paid}",
        ]
        if further := (more or {}).get(name):
            lines.append(f"    {further}")
    lines.append("links:")
    lines += [
        f"  - {{between: [{first}, {second}], roundTrip: {round_trip}}}"
        for index, first in enumerate(names)
        for second in names[index + 1 :]
    ]
    path = folder / "regions.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path
