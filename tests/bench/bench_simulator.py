"""How fast the simulator's engine is, beside SimPy on the same model, and whether both give the same answer.

The model is a tandem of four stages under Poisson arrivals, two of them with batches, with a control loop: the clock is
stopped every two seconds, and now and then a replica is added and another drained. SimPy simulates the same stages
without the changes of replicas, which a SimPy user would have to write first; its figures are compared with a run of
ours without them. A stage-job is one item in one stage. Times are of the CPU, generation of the load included.

A second row is a pipeline of streams as long as the contract's scenario; memory is that of the engine's arrays.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Generator
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import simpy
from engine_specs import a_pipeline, a_placement, a_stage, an_engine, streams

from controller.core.state.spec import PipelineSpec
from optimizer.model import PoolName, StageName
from simulations.engine.pipeline_engine import PipelineEngine
from simulations.scenario.schedule import Schedule
from simulations.warm_up import warm_up

RATE_RPS = 500.0
# name, replicas, batch, fixed_s, per_item_s, cv
STAGES = (
    ("vad", 4, 1, 0.006, 0.0, 0.5),
    ("encoder", 4, 8, 0.014, 0.003, 0.3),
    ("decoder", 5, 8, 0.020, 0.003, 0.4),
    ("lm", 8, 1, 0.011, 0.0, 0.5),
)
_T_95 = 2.26  # Student's t, nine degrees of freedom


def tandem() -> PipelineSpec:
    after: list[str] = []
    stages = []
    for name, _, batch, fixed_s, per_item_s, cv in STAGES:
        placement = a_placement(fixed_s=fixed_s, per_item_s=per_item_s, cv=cv, batch_sizes=(batch,))
        stages.append(a_stage(name, placement, after=after, queue_limit=10_000))
        after = [name]
    return a_pipeline(*stages, sla_s=10.0)


def load(duration_s: float, seed: int) -> Schedule:
    gaps_s = np.random.default_rng(seed).exponential(1 / RATE_RPS, round(RATE_RPS * duration_s * 1.1) + 500)
    times_s = np.cumsum(gaps_s)
    times_s = times_s[: np.searchsorted(times_s, duration_s)]
    return Schedule(start_s=times_s, end_s=times_s)


def ours(duration_s: float, seed: int, *, control: bool) -> tuple[PipelineEngine, float]:
    """Return the engine after the run, and the seconds of CPU that it took."""
    replicas = {(name, "cpu"): count for name, count, *_ in STAGES}
    began = time.process_time()
    engine = an_engine(tandem(), load(duration_s, seed), replicas, duration_s=duration_s + 5, seed=seed)
    step = 0
    spare: list[int] = []
    while engine.now_s < duration_s:
        engine.advance(min(duration_s, engine.now_s + 2.0))
        engine.counters()
        step += 1
        if control and step % 15 == 0:
            name = STAGES[step // 15 % len(STAGES)][0]
            spare.append(engine.add_replica((StageName(name), PoolName("cpu"))))
            if len(spare) > 2:
                engine.drain_replica(spare.pop(0), engine.now_s + 10.0)
            engine.ended()
    engine.advance(duration_s + 5)
    return engine, time.process_time() - began


class SimPyStage:
    """A stage of replicas that take up to `batch` of what waits; an item goes to the least loaded."""

    def __init__(
        self, environment: simpy.Environment, row: tuple[str, int, int, float, float, float], seed: int
    ) -> None:
        _, replicas, self.batch, self.fixed_s, self.per_item_s, self.cv = row
        self.environment = environment
        self.rng = np.random.default_rng(seed)
        self.queues = [simpy.Store(environment) for _ in range(replicas)]
        self.load = [0] * replicas
        self.credit = [0] * replicas
        for index in range(replicas):
            environment.process(self.replica(index))

    def put(self, done: simpy.Event) -> None:
        lowest = min(self.load)
        tied = [index for index, load in enumerate(self.load) if load == lowest]
        for index in tied:
            self.credit[index] += 1
        chosen = max(tied, key=self.credit.__getitem__)
        self.credit[chosen] -= len(tied)
        self.load[chosen] += 1
        self.queues[chosen].put(done)

    def replica(self, index: int) -> Generator[Any, Any, None]:
        queue = self.queues[index]
        while True:
            items = [(yield queue.get())]
            while queue.items and len(items) < self.batch:
                items.append((yield queue.get()))
            mean_s = self.fixed_s + len(items) * self.per_item_s
            yield self.environment.timeout(self.rng.gamma(self.cv**-2, mean_s * self.cv**2))
            self.load[index] -= len(items)
            for done in items:
                done.succeed()


def theirs(duration_s: float, seed: int) -> tuple[list[float], float]:
    """Return the latencies of SimPy, and the seconds of CPU that it took."""
    began = time.process_time()
    environment = simpy.Environment()
    stages = [SimPyStage(environment, row, seed * 10 + index) for index, row in enumerate(STAGES)]
    spent: list[float] = []

    def item(at_s: float) -> Generator[Any, Any, None]:
        for stage in stages:
            done = environment.event()
            stage.put(done)
            yield done
        spent.append(environment.now - at_s)

    def source() -> Generator[Any, Any, None]:
        now_s = 0.0
        for at_s in load(duration_s, seed + 1000).start_s.tolist():
            yield environment.timeout(at_s - now_s)
            now_s = at_s
            environment.process(item(at_s))

    environment.process(source())
    environment.run(duration_s + 5)
    return spent, time.process_time() - began


def interval(values: list[float]) -> tuple[float, float]:
    return mean(values), _T_95 * stdev(values) / math.sqrt(len(values))


def captions() -> PipelineSpec:
    """Four stages, of which three keep the streams' state."""
    return a_pipeline(
        a_stage("vad", a_placement(fixed_s=0.002, cv=0.3), pass_ratio=0.45),
        a_stage(
            "encoder",
            a_placement(
                fixed_s=0.014, per_item_s=0.003, cv=0.15, batch_sizes=(8,), batch_wait_s=0.01, session_slots=256
            ),
            after=["vad"],
        ),
        a_stage(
            "decoder",
            a_placement(
                fixed_s=0.022, per_item_s=0.005, cv=0.4, batch_sizes=(8,), batch_wait_s=0.01, session_slots=128
            ),
            after=["encoder"],
        ),
        a_stage(
            "lm",
            a_placement(fixed_s=0.015, per_item_s=0.002, cv=0.5, batch_sizes=(16,), session_slots=4096),
            after=["decoder"],
        ),
        chunk_s=0.16,
        sla_s=0.25,
    )


def streaming(duration_s: float) -> tuple[PipelineEngine, float]:
    """About 900 streams at a time."""
    replicas = {("vad", "cpu"): 16, ("encoder", "cpu"): 16, ("decoder", "cpu"): 26, ("lm", "cpu"): 10}
    schedule = streams(round(900 / 40 * duration_s * 0.8), duration_s, mean_s=40.0)
    began = time.process_time()
    engine = an_engine(captions(), schedule, replicas, duration_s=duration_s)
    while engine.now_s < duration_s:
        engine.advance(min(duration_s, engine.now_s + 5.0))
    return engine, time.process_time() - began


def jobs(engine: PipelineEngine) -> int:
    return int(engine.counters().completed.sum())


def megabytes(engine: PipelineEngine) -> float:
    """What the engine holds besides the schedule and what it keeps per stream."""
    per_stream = {"stream", "pin"}
    state = engine._state
    arrays = [getattr(state, name) for name in state._fields if name not in per_stream]
    return float(sum(array.nbytes for array in (*arrays, *engine._tally.arrays)) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=1000.0, help="seconds simulated by ours")
    parser.add_argument("--simpy-duration", type=float, default=60.0, help="seconds simulated by SimPy, per repeat")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    repeats = arguments.repeats
    warm_up()

    speeds, stream_speeds, stream_seconds, simpy_speeds = [], [], [], []
    answers: dict[str, list[float]] = {name: [] for name in ("our mean", "our p95", "SimPy mean", "SimPy p95")}
    for seed in range(1, repeats + 1):
        engine, seconds = ours(arguments.duration, seed, control=True)
        speeds.append(jobs(engine) / seconds / 1e6)
        spent, seconds = theirs(arguments.simpy_duration, seed)
        simpy_speeds.append(len(spent) * len(STAGES) / seconds / 1e6)
        answers["SimPy mean"].append(float(np.mean(spent)))
        answers["SimPy p95"].append(float(np.percentile(spent, 95)))
        engine, _ = ours(arguments.simpy_duration, seed + 500, control=False)
        score, ingress = engine.tally().score(), engine.ingress()
        answers["our mean"].append(ingress.latency_sum_s / ingress.served)
        answers["our p95"].append(score.p95_s or math.inf)
    for _ in range(min(3, repeats)):
        engine, seconds = streaming(3000.0)
        stream_speeds.append(jobs(engine) / seconds / 1e6)
        stream_seconds.append(seconds)
    short = megabytes(ours(arguments.duration / 10, 1, control=False)[0])
    long = megabytes(ours(arguments.duration, 1, control=False)[0])

    def spread(values: list[float], digits: int) -> str:
        return " / ".join(f"{value:.{digits}f}" for value in (min(values), median(values), max(values)))

    ratio = median(speeds) / median(simpy_speeds)
    print(f"tandem, batches, control loop   {spread(speeds, 2)} M stage-jobs/s (least / middle / most of {repeats})")
    print(f"900 streams, 50 min             {spread(stream_speeds, 2)} M stage-jobs/s; {spread(stream_seconds, 2)} s")
    print(f"SimPy {simpy.__version__}, tandem            {spread(simpy_speeds, 4)} M stage-jobs/s; ratio {ratio:.0f}")
    agree = True
    for what in ("mean", "p95"):
        (one, one_half), (other, other_half) = interval(answers[f"our {what}"]), interval(answers[f"SimPy {what}"])
        same = abs(one - other) <= one_half + other_half
        agree &= same
        print(
            f"{what:<5} ours {one * 1e3:.2f} ± {one_half * 1e3:.2f} ms,"
            f" SimPy {other * 1e3:.2f} ± {other_half * 1e3:.2f} ms: {'agree' if same else 'DISAGREE'}"
        )
    print(f"memory of {arguments.duration / 10:g} s {short:.2f} MB, of {arguments.duration:g} s {long:.2f} MB")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {
                    "stage_jobs_per_s": speeds,
                    "streams_stage_jobs_per_s": stream_speeds,
                    "streams_seconds": stream_seconds,
                    "simpy_stage_jobs_per_s": simpy_speeds,
                    "ratio": ratio,
                    "answers_s": answers,
                    "agree": agree,
                    "memory_mb": [short, long],
                },
                indent=1,
            )
        )
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
