"""How far end-to-end latencies are from an independent event simulation, and what becomes of SLAs planned with them.

    python tests/bench/bench_end_to_end.py [--tandems N] [--plans N] [--seed S] [--json FILE]

First random tandems, loaded up to 0.9, with dispersions of arrivals from 0.5 to 2: rules that make one latency of the
stages', given the simulated marginals of the stages and given the model's. Then the closed loop: plans by each rule,
simulated under other luck at the same load.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from event_simulation import arrivals
from problems import a_pipeline, a_stage, on, pools
from tandem_simulation import random_tandem, through

from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s, stage_load
from optimizer.latency.quantiles import gamma_quantile, normal_quantile
from optimizer.latency.stage import predict_all
from optimizer.model import Composition, Demand, Pipeline, Problem, Routing, Sla
from optimizer.plan import PipelinePlan
from optimizer.replay.replay import replay

ITEMS = 300_000
PLANNED_ITEMS = 200_000
PERCENTILE = 95.0


def tandem(index: int, seed: int) -> dict[str, float] | None:
    """Return the relative error of each rule on one random tandem."""
    rng = np.random.Generator(np.random.PCG64([seed, index]))
    pipeline, replicas, batches = random_tandem(rng)
    dispersion = float(rng.uniform(0.5, 2.0))
    rate = pipeline.demand.entry_rate_rps
    pipeline = replace(pipeline, demand=Demand(entry_rate_rps=rate, arrival_cv2=dispersion))
    spent, whole = through(
        pipeline, replicas, batches, arrivals(rate, dispersion, ITEMS, seed * 100_003 + index), seed * 100_003 + index
    )
    means, tails = spent.mean(axis=1), np.percentile(spent, PERCENTILE, axis=1)
    variance = spent.var(axis=1)
    true = float(np.percentile(whole, PERCENTILE))
    modelled = [
        predict_all(
            stage_load(pipeline, stage),
            stage.placements,
            np.array([[replicas[stage.name, stage.placements[0].pool]]]),
            [batches[stage.name, stage.placements[0].pool]],
            routing=stage.routing,
            percentile=PERCENTILE,
        )
        for stage in pipeline.stages
    ]
    model_means = np.array([float(answer.mean_s[0]) for answer in modelled])
    model_tails = np.array([float(answer.percentile_s[0]) for answer in modelled])
    took_ms = math.inf
    for _ in range(2):  # the first of a process compiles
        before = time.perf_counter()
        replayed = replay(pipeline, replicas, batches)
        took_ms = min(took_ms, 1e3 * (time.perf_counter() - before))
    rss = predicted_latency_s(pipeline, replicas, batches, composition=Composition.RSS)
    if replayed is None or rss is None:
        return None
    total, spread = np.array([means.sum()]), np.array([variance.sum()])
    found = {
        "sum of percentiles, simulated stages": tails.sum(),
        "mean + worst single excess, simulated stages": means.sum() + (tails - means).max(),
        "normal, simulated stages": means.sum() + normal_quantile(PERCENTILE) * math.sqrt(variance.sum()),
        "gamma, simulated stages": float(gamma_quantile(total, spread, PERCENTILE)[0]),
        "RSS, simulated stages": means.sum() + math.sqrt(((tails - means) ** 2).sum()),
        "sum of percentiles, model": model_tails.sum(),
        "RSS, model": rss,
        "replay": replayed.latency_s,
    }
    errors = {name: float(value) / true - 1 for name, value in found.items()}
    errors["one stage's mean, model"] = float(np.median(np.abs(model_means / means - 1)))
    errors["one stage's percentile, model"] = float(np.median(np.abs(model_tails / tails - 1)))
    return errors | {"replay_ms": took_ms}


def random_pipeline(rng: np.random.Generator) -> Pipeline:
    """Return 4–8 stages to plan on two pools, half of them batching, with an SLA some way above the bare service."""
    stages, bare_s = [], 0.0
    rate = float(rng.uniform(40, 400))
    for k in range(int(rng.integers(4, 9))):
        alone_s, share, cv = rng.uniform(0.005, 0.05), rng.uniform(0.1, 0.6), float(rng.choice([0.0, 0.15, 0.3, 0.5]))
        batching = rng.random() < 0.5
        faster = rng.uniform(0.3, 0.8)
        most = int(np.ceil(rate * alone_s / 0.5)) + 2

        law = ((1 - share) * alone_s, share * alone_s) if batching else (alone_s, 0.0)
        batches = (1, 2, 4, 8) if batching else (1,)
        own = [
            on(pool, service=(law[0] * factor, law[1] * factor), cv=cv, bounds=(0, most), batches=batches)
            for pool, factor in (("cpu", 1.0), ("gpu", faster))
        ]
        stages.append(
            a_stage(
                f"s{k}",
                *own,
                after=(f"s{k - 1}",) if k else (),
                routing=(Routing.PULL, Routing.LEAST_LOADED)[int(rng.integers(2))],
            )
        )
        bare_s += alone_s * (1 + cv)
    return a_pipeline(*stages, rate_rps=rate, sla_s=float(bare_s * rng.uniform(1.0, 2.0)))


def planned(index: int, seed: int) -> dict[str, tuple[float, float]] | None:
    """Return for each way to plan: simulated latency over the SLA, and cost. None where any has no plan."""
    rng = np.random.Generator(np.random.PCG64([seed, 7, index]))
    pipeline = random_pipeline(rng)
    sla_s = pipeline.sla.latency_s
    where = pools(cpu=(0.4, 500), gpu=(1.1, 500))

    def plan_for(target_s: float, composition: Composition, *, replayed: bool = False) -> PipelinePlan | None:
        asked = replace(pipeline, sla=Sla(latency_s=target_s, percentile=PERCENTILE))
        problem = Problem(pipelines=(asked,), pools=where, composition=composition)
        plan = allocate(problem, replayed=replayed).of(pipeline.key)
        return plan if plan.feasible else None

    def batches(plan: PipelinePlan) -> dict[Any, int]:
        return {(stage.name, placed.name): placed.batch for stage in plan.stages for placed in stage.placements}

    ways: dict[str, PipelinePlan | None] = {
        "sum": plan_for(sla_s, Composition.SUM),
        "RSS": plan_for(sla_s, Composition.RSS),
        "RSS, 10 % headroom": plan_for(0.9 * sla_s, Composition.RSS),
        "RSS, replay": plan_for(sla_s, Composition.RSS, replayed=True),
    }
    found = {}
    for name, plan in ways.items():
        if plan is None or any(sum(p.replicas > 0 for p in stage.placements) != 1 for stage in plan.stages):
            return None  # no plan, or a stage on two pools, which the simulation does not know
        rate = pipeline.demand.entry_rate_rps
        luck = seed * 100_003 + 50_000 + index
        _, whole = through(pipeline, plan.replicas(), batches(plan), arrivals(rate, 1.0, PLANNED_ITEMS, luck), luck)
        found[name] = (float(np.percentile(whole, PERCENTILE)) / sla_s, plan.cost_per_hour)
    return found


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tandems", type=int, default=200)
    parser.add_argument("--plans", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:
        tandems = [e for e in pool.map(partial(tandem, seed=given.seed), range(given.tandems)) if e is not None]
        plans = list(pool.map(partial(planned, seed=given.seed), range(given.plans)))
    result = {
        "seed": given.seed,
        "tandems": errors_of(tandems, given.tandems),
        "closed_loop": loop_of([plan for plan in plans if plan is not None], given.plans),
    }
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def errors_of(tandems: Sequence[dict[str, float]], asked: int) -> dict[str, Any]:
    """Print and return the errors of the rules."""
    print(f"p95 end to end against event simulation, {len(tandems)} of {asked} random tandems (target: ≤ 3 %, ≤ 10 %)")
    print(f"{'rule':46s} {'median':>8s} {'p90':>8s} {'bias':>8s} {'under by > 10 %':>16s}")
    rows: dict[str, Any] = {}
    for name in tandems[0]:
        values = np.array([errors[name] for errors in tandems])
        if name == "replay_ms":
            low, middle, high = np.percentile(values, (0, 50, 100))
            print(f"a replay takes {middle:.1f} ms in the median, {low:.1f}–{high:.1f} ms")
            rows[name] = {"min": low, "median": middle, "max": high}
            continue
        row = {
            "median": float(np.median(np.abs(values))),
            "p90": float(np.percentile(np.abs(values), 90)),
            "bias": float(np.median(values)),
            "under_by_a_tenth": float(np.mean(values < -0.1)),
        }
        rows[name] = row
        print(f"{name:46s} {row['median']:8.1%} {row['p90']:8.1%} {row['bias']:+8.1%} {row['under_by_a_tenth']:16.1%}")
    return rows


def loop_of(plans: Sequence[dict[str, tuple[float, float]]], asked: int) -> dict[str, Any]:
    """Print and return what became of the plans."""
    print(f"\nplans simulated under other luck, {len(plans)} of {asked} pipelines")
    print("(target: p95 / SLA 0.93 in the median, none missed by > 5 %)")
    print(f"{'planned by':26s} {'p95 / SLA':>10s} {'missed':>8s} {'by > 5 %':>9s} {'worst':>7s} {'cost / sum':>11s}")
    rows: dict[str, Any] = {}
    for name in plans[0] if plans else ():
        over = np.array([plan[name][0] for plan in plans])
        row = {
            "median": float(np.median(over)),
            "missed": float(np.mean(over > 1)),
            "missed_by_5_percent": float(np.mean(over > 1.05)),
            "worst": float(over.max()),
            "cost_over_sum": sum(plan[name][1] for plan in plans) / sum(plan["sum"][1] for plan in plans),
        }
        rows[name] = row
        print(
            f"{name:26s} {row['median']:10.3f} {row['missed']:8.1%} {row['missed_by_5_percent']:9.1%} "
            f"{row['worst']:7.2f} {row['cost_over_sum']:11.3f}"
        )
    return rows


if __name__ == "__main__":
    main()
