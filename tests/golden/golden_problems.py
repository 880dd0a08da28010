"""Random questions for `sluice plan`, by kind and number: manifests and options. The same number, the same question."""

import random
from dataclasses import dataclass, field
from typing import Any

SEARCH_EFFORT_OPTION = "--search-effort"
SEARCH_EFFORT = "1000"

COUNTS = {
    "single": 70,
    "batching": 30,
    "memory": 35,
    "wer": 20,
    "joins": 45,
    "fleet": 50,
    "short-budget": 25,
    "short-pools": 30,
    "infeasible": 20,
    "current": 25,
    "frontier": 12,
    "range": 14,
}
"""How many questions there are of each kind."""

Json = dict[str, Any]

# USD per hour, time of a batch and of each item in it, relative to the CPU's, replicas that fit on one instance.
_MACHINES: dict[str, tuple[str, str, float, float, tuple[int, ...]]] = {
    "cpu": ("CPU", "0.357", 1.0, 1.0, (2, 4, 8)),
    "arm": ("CPU", "0.29", 1.15, 1.15, (2, 4)),
    "t4": ("GPU", "0.526", 0.45, 0.16, (1,)),
    "inferentia": ("Inferentia", "0.758", 0.4, 0.09, (1, 2)),
    "a10": ("GPU", "1.006", 0.3, 0.06, (1, 2)),
}
_PLENTY = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of `sluice plan`: the manifests, the options, and the loads of an earlier plan that runs now."""

    name: str
    documents: tuple[Json, ...]
    options: tuple[str, ...]
    before: tuple[str, ...] = field(default=())


def questions() -> list[Question]:
    """Return all questions."""
    return [question(kind, number) for kind, count in COUNTS.items() for number in range(count)]


def question(kind: str, number: int) -> Question:
    """Return question `number` of a kind."""
    rng = random.Random(f"{kind} {number}")
    return _Maker(kind, rng).question(f"{kind}-{number}")


class _Maker:
    """One question in the making."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self._kind = kind
        self._rng = rng
        self._machines = sorted(rng.sample(sorted(_MACHINES), rng.randint(2, 4)))

    def question(self, name: str) -> Question:
        rng, kind = self._rng, self._kind
        many = kind == "fleet" or (kind in {"short-budget", "short-pools", "current"} and rng.random() < 0.5)
        largest = 12 if kind == "fleet" else 4
        count = rng.randint(2, largest) if many else 1
        pipelines = [self._pipeline(index, small=count > 3) for index in range(count)]
        loads = {f"speech/p{index}": self._load(pipeline) for index, pipeline in enumerate(pipelines)}
        options = [f"--demand={key}={load:.6g}" for key, load in loads.items()]
        if kind == "range":
            key, load = next(iter(loads.items()))
            options[0] = f"--demand={key}={load * 0.1:.4g}:{load * rng.uniform(1, 3):.4g}:{rng.randint(3, 6)}"
        if kind == "frontier":
            options.append("--frontier=speech/p0")
        composition = rng.choice((None, "sum", "rss"))
        if composition is not None:
            options.append(f"--composition={composition}")
        if rng.random() < 0.15:
            options.append(f"--instances={self._machines[0]}={rng.randint(0, 12)}")
        before: tuple[str, ...] = ()
        if kind == "current":
            before = tuple(f"--demand={key}={load * rng.uniform(0.4, 1.8):.6g}" for key, load in loads.items())
        return Question(
            name=name,
            documents=(*(self._pool(machine, count) for machine in self._machines), *pipelines),
            options=(*options, f"{SEARCH_EFFORT_OPTION}={SEARCH_EFFORT}"),
            before=before,
        )

    def _load(self, pipeline: Json) -> float:
        rng = self._rng
        if self._kind == "infeasible":
            rate = rng.uniform(1, 40)
        else:
            rate = rng.choice((1.0, 3.0, 10.0, 10.0, 30.0)) * rng.uniform(0.5, 12)
        demand = pipeline["spec"]["demand"]
        return rate if demand["unit"] == "Requests" else rate * float(demand["chunk"].removesuffix("ms")) / 1000

    def _pool(self, machine: str, pipelines: int) -> Json:
        rng = self._rng
        device, price, *_ = _MACHINES[machine]
        instances = _PLENTY
        if self._kind == "short-pools":
            instances = rng.randint(0, 2 + 2 * pipelines)
        elif self._kind == "fleet" and rng.random() < 0.5:
            instances = rng.randint(pipelines, 12 * pipelines)
        elif rng.random() < 0.2:
            instances = rng.randint(1, 12)
        return {
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "ComputePool",
            "metadata": {"name": machine},
            "spec": {
                "device": device,
                "nodeSelector": {"sluice.dev/pool": machine},
                "price": {"perHour": price},
                "capacity": {"instances": instances},
            },
        }

    def _pipeline(self, index: int, *, small: bool) -> Json:
        rng = self._rng
        streams = self._kind == "memory" or rng.random() < 0.4
        stages = self._stages(index, small=small)
        work_s = sum(stage.pop("work_s") for stage in stages)
        factor = rng.uniform(0.05, 0.5) if self._kind == "infeasible" else rng.uniform(1.5, 8.0)
        sla: Json = {
            "latency": f"{max(1.0, 1000 * work_s * factor):.1f}ms",
            "percentile": rng.choice((50, 90, 95, 95, 99)),
        }
        if self._kind == "wer":
            sla["maxWer"] = rng.choice(("0.08", "0.1", "0.15"))
        if self._kind == "short-budget":
            budget = rng.uniform(0.1, 6)
        else:
            budget = rng.choice((10.0, 60.0, 500.0)) * rng.uniform(0.5, 1.5)
        spec: Json = {
            "demand": {"unit": "Requests", "query": "sum(load)"},
            "sla": sla,
            "budget": {"perHour": f"{budget:.4f}"},
            "stages": stages,
        }
        if streams:
            spec["demand"] = {"unit": "Streams", "chunk": f"{rng.choice((160, 320, 500))}ms", "query": "sum(streams)"}
        if rng.random() < 0.6:
            spec["priority"] = rng.choice((0, 1, 5, 100))
        return {
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "SpeechPipeline",
            "metadata": {"name": f"p{index}", "namespace": "speech"},
            "spec": spec,
        }

    def _stages(self, pipeline: int, *, small: bool) -> list[Json]:
        rng = self._rng
        joins = self._kind == "joins" or (self._kind in {"fleet", "short-pools", "frontier"} and rng.random() < 0.25)
        count = rng.randint(4, 7) if joins else rng.randint(1, 3 if small else 6)
        stages = []
        for number in range(count):
            stage = self._stage(f"s{number}", f"p{pipeline}-s{number}")
            if not joins and rng.random() < 0.3:
                stage["passRatio"] = f"{rng.uniform(0.2, 1):.3f}"
            stages.append(stage)
        if joins:
            self._join(stages)
        return stages

    def _join(self, stages: list[Json]) -> None:
        """Let several stages follow the first, and a later one wait for all of them; sometimes twice."""
        rng = self._rng
        width = rng.randint(2, min(3, len(stages) - 2))
        for number in range(1, 1 + width):
            stages[number]["after"] = ["s0"]
        ends = [f"s{number}" for number in range(1, 1 + width)]
        at = 1 + width
        if at + 1 < len(stages) and rng.random() < 0.5:  # one branch is longer
            stages[at]["after"] = [ends[-1]]
            ends[-1] = f"s{at}"
            at += 1
        stages[at]["after"] = ends
        if at == len(stages) - 1:
            return
        if rng.random() < 0.4:
            stages[-1]["after"] = [f"s{at}", "s0"]
        elif rng.random() < 0.5:
            stages[-1]["passRatio"] = f"{rng.uniform(0.3, 1):.3f}"

    def _stage(self, name: str, target: str) -> Json:
        rng = self._rng
        fixed_s, item_s = rng.uniform(0.004, 0.04), rng.uniform(0.001, 0.02)
        batches = self._kind == "batching" or rng.random() < 0.3
        machines = rng.sample(self._machines, rng.randint(1, min(3, len(self._machines))))
        fastest_s = fixed_s + item_s
        placements = []
        for machine in machines:
            _, _, once, each, sizes = _MACHINES[machine]
            noise = rng.uniform(0.8, 1.25)
            placement: Json = {
                "pool": machine,
                "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{target}-{machine}"},
                "replicas": {"min": rng.choice((0, 0, 0, 1, 2)), "max": rng.choice((6, 20, 60, 200))},
                "perInstance": rng.choice(sizes),
                "serviceTime": {
                    "fixed": f"{1000 * fixed_s * once * noise:.3f}ms",
                    "perItem": f"{1000 * item_s * each * noise:.3f}ms",
                    "cv": rng.choice(("0", "0.15", "0.3", "0.6", "1.0", "1.4")),
                },
            }
            fastest_s = min(fastest_s, (fixed_s * once + item_s * each) * noise)
            if batches:
                placement["batching"] = self._batching()
            if rng.random() < 0.15:
                placement["concurrency"] = rng.choice((2, 4))
            if self._kind == "memory" or rng.random() < 0.08:
                placement["memory"] = self._memory()
            if self._kind == "wer" and rng.random() < 0.6:
                placement["wer"] = rng.choice(("0.05", "0.07", "0.079", "0.12", "0.2"))
            placements.append(placement)
        if self._kind == "wer":
            placements[0]["wer"] = "0.06"  # at least one is good enough
        stage: Json = {"name": name, "placements": placements, "work_s": fastest_s}
        if rng.random() < 0.4:
            stage["routing"] = rng.choice(("Pull", "RoundRobin", "LeastLoaded", "Random", "Sticky"))
        if rng.random() < 0.1:
            stage["queueLimit"] = rng.choice((8, 64, 512))
        return stage

    def _batching(self) -> Json:
        rng = self._rng
        wait = f"{rng.choice((0, 0, 2, 5, 10))}ms"
        if rng.random() < 0.5:
            return {"max": rng.choice((1, 2, 4, 8, 16)), "wait": wait}
        return {"sizes": sorted(rng.sample((1, 2, 4, 8, 16, 32), rng.randint(2, 4))), "wait": wait}

    def _memory(self) -> Json:
        rng = self._rng
        if rng.random() < 0.5:
            return {"sessions": rng.choice((1, 2, 4, 8, 16, 64, 256))}
        return {
            "kvCache": {
                "layers": rng.choice((12, 24, 32)),
                "kvHeads": rng.choice((4, 8, 32)),
                "headDim": rng.choice((64, 128)),
                "bytesPerElement": rng.choice((1, 2)),
                "tokensPerSession": rng.choice((256, 1000, 4096)),
                "deviceMemory": f"{rng.choice((16, 24, 40))}Gi",
                "weights": f"{rng.choice((1, 4, 8))}Gi",
            }
        }
