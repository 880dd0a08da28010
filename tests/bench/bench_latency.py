"""How far the latency of one stage is from an independent event simulation, at random points and beside textbooks.

    python tests/bench/bench_latency.py [--points N] [--seed S] [--json FILE]

Points lie off the grid of the product's table and under other luck. Errors are |model / simulation − 1| of the p95.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from event_simulation import arrivals, periodic, simulate

from optimizer.latency import StageLoad, capacity_rps, predict
from optimizer.model import Placement, PoolName, Routing, ServiceLaw

ITEMS = 300_000
WARM_UP = 0.1
PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One stage and its load, in units of the time of a batch of one."""

    routing: Routing
    replicas: int
    concurrency: int
    batch: int
    share: float
    rho: float
    arrival_cv2: float = 1.0
    cv: float = 0.0
    wait_s: float = 0.0
    streams: int | None = None

    @property
    def placement(self) -> Placement:
        return Placement(
            pool=PoolName("x"),
            service=ServiceLaw(fixed_s=1 - self.share, per_item_s=self.share, cv=self.cv),
            max_replicas=self.replicas,
            concurrency=self.concurrency,
            batch_sizes=(self.batch,),
            batch_wait_s=self.wait_s,
        )

    @property
    def rate_rps(self) -> float:
        return self.rho * self.replicas * capacity_rps(self.placement, self.batch)


def measure(job: tuple[Point, int]) -> dict[str, float]:
    """Return simulated and modelled values of a point."""
    point, seed = job
    n = int(ITEMS * max(1.0, point.batch / 8))
    law: dict[str, Any] = {
        "replicas": point.replicas,
        "concurrency": point.concurrency,
        "batch": point.batch,
        "batch_wait_s": point.wait_s,
        "fixed_s": 1 - point.share,
        "per_item_s": point.share,
        "cv": point.cv,
        "routing": point.routing,
    }
    if point.streams is None:
        times = arrivals(point.rate_rps, point.arrival_cv2, n, seed)
        spent = simulate(times, seed=seed, **law)[int(WARM_UP * n) :]
    else:  # the phases decide: many short runs
        runs = []
        period = point.streams / point.rate_rps
        for k in range(60):
            times, owner = periodic(point.streams, period, point.streams * 20, 1000 * seed + k)
            runs.append(simulate(times, seed=seed + k, sessions=owner, **law)[point.streams * 10 :])
        spent = np.concatenate(runs)
    row = {"simulated_mean": float(spent.mean())}
    for percentile in PERCENTILES:
        row[f"simulated_p{percentile:.0f}"] = float(np.percentile(spent, percentile))
        answer = predict(
            StageLoad(
                rate_rps=point.rate_rps,
                sessions=point.streams,
                arrival_cv2=point.arrival_cv2,
                periodic=point.streams is not None,
            ),
            point.placement,
            point.replicas,
            batch=point.batch,
            routing=point.routing,
            percentile=percentile,
        )
        assert answer is not None
        row[f"model_p{percentile:.0f}"] = answer.percentile_s
        row["model_mean"] = answer.mean_s
        row["bar"] = answer.error
    return row


def erlang_c(servers: int, load: float) -> float:
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = load * blocking / (k + load * blocking)
    return blocking / (1 - load / servers + load / servers * blocking)


def exponential_tail(servers: int, rate: float, service: float, cv2: float, ca2: float) -> tuple[float, float]:
    """Return P(wait) and the mean wait of those that wait, by Allen and Cunneen."""
    load = rate * service
    if load >= servers:
        return 1.0, math.inf
    return erlang_c(servers, load), 0.5 * (ca2 + cv2) * service / (servers - load)


def wait_percentile(chance: float, wait: float, share: float) -> float:
    return max(0.0, wait * math.log(chance / (1 - share))) if chance > 0 else 0.0


def textbooks(point: Point) -> dict[str, float]:
    """Return p95 by the usual formulas."""
    c, rate = point.replicas * point.concurrency, point.rate_rps
    full = 1 - point.share + point.share * point.batch
    chance, wait = exponential_tail(c, rate / point.batch, full, 1.0, 1.0)
    rows = {"M/M/c on batches": full * 3.0 + wait_percentile(chance, wait, 0.95)}
    chance, wait = exponential_tail(c, rate, full / point.batch, point.cv**2, point.arrival_cv2)
    rows["G/G/c per job + s(b)"] = wait_percentile(chance, wait, 0.95) + full
    rows["2·s(b)"] = 2 * full
    rows["(b−1)/λ + s(b)"] = (point.batch - 1) / rate + full
    if point.batch == 1:
        rows["W95 + E[S]"] = wait_percentile(chance, wait, 0.95) + 1
    return rows


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def batching_point(rng: np.random.Generator, routing: Routing, *, varied: bool) -> Point:
    return Point(
        routing=routing,
        replicas=round(log_uniform(rng, 1, 64)),
        concurrency=1,
        batch=round(log_uniform(rng, 2, 32)),
        share=float(rng.uniform(0.06, 0.95)),
        rho=float(rng.uniform(0.3, 0.9)),
        arrival_cv2=log_uniform(rng, 0.4, 4) if varied else 1.0,
        cv=float(rng.uniform(0, 1)) if varied else 0.0,
    )


def single_point(rng: np.random.Generator, routing: Routing) -> Point:
    return Point(
        routing=routing,
        replicas=round(log_uniform(rng, 1, 64)),
        concurrency=1,
        batch=1,
        share=0.5,
        rho=float(rng.uniform(0.3, 0.9)),
        arrival_cv2=log_uniform(rng, 0.25, 4),
        cv=float(rng.uniform(0, 1)),
    )


def waiting_point(rng: np.random.Generator, routing: Routing) -> Point:
    base = batching_point(rng, routing, varied=False)
    return Point(**{**_fields(base), "wait_s": log_uniform(rng, 0.1, 2), "cv": float(rng.uniform(0, 0.4))})


def slots_point(rng: np.random.Generator, routing: Routing) -> Point:
    base = batching_point(rng, routing, varied=False)
    return Point(
        **{
            **_fields(base),
            "replicas": round(log_uniform(rng, 2, 16)),
            "concurrency": int(rng.integers(2, 5)),
            "batch": int(rng.choice([1, 4, 8])),
        }
    )


def periodic_point(rng: np.random.Generator) -> Point:
    c = round(log_uniform(rng, 1, 16))
    return Point(
        routing=Routing.STICKY,
        replicas=1,
        concurrency=c,
        batch=1,
        share=0.5,
        rho=float(rng.uniform(0.3, 0.9)),
        streams=max(2, c * round(log_uniform(rng, 4, 64))),
    )


def _fields(point: Point) -> dict[str, Any]:
    return {name: getattr(point, name) for name in point.__dataclass_fields__}


FAMILIES: dict[str, Callable[[np.random.Generator], Point]] = {
    "batching, Pull": lambda rng: batching_point(rng, Routing.PULL, varied=False),
    "batching, LeastLoaded": lambda rng: batching_point(rng, Routing.LEAST_LOADED, varied=False),
    "batching, RoundRobin": lambda rng: batching_point(rng, Routing.ROUND_ROBIN, varied=False),
    "batching, Random": lambda rng: batching_point(rng, Routing.RANDOM, varied=False),
    "batching, Pull, ca² cv": lambda rng: batching_point(rng, Routing.PULL, varied=True),
    "batching, LeastLoaded, ca² cv": lambda rng: batching_point(rng, Routing.LEAST_LOADED, varied=True),
    "batching, RoundRobin, ca² cv": lambda rng: batching_point(rng, Routing.ROUND_ROBIN, varied=True),
    "batching that waits, Pull": lambda rng: waiting_point(rng, Routing.PULL),
    "batching that waits, LeastLoaded": lambda rng: waiting_point(rng, Routing.LEAST_LOADED),
    "several slots, LeastLoaded": lambda rng: slots_point(rng, Routing.LEAST_LOADED),
    "single items, Pull": lambda rng: single_point(rng, Routing.PULL),
    "single items, LeastLoaded": lambda rng: single_point(rng, Routing.LEAST_LOADED),
    "single items, RoundRobin": lambda rng: single_point(rng, Routing.ROUND_ROBIN),
    "periodic streams": periodic_point,
}


def line(name: str, error: Iterable[float]) -> str:
    values = np.array(list(error))
    size = np.abs(values)
    return (
        f"{name:34} {len(size):5d} {np.median(size):8.1%} {np.percentile(size, 90):8.1%} {size.max():8.1%} "
        f"{np.median(values):+7.1%} {np.mean(values < -0.1):9.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200, help="points per family")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default="", help="families whose names contain this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'p95 of one stage':34} {'N':>5} {'median':>8} {'p90':>8} {'max':>8} {'bias':>7} {'< −10 %':>9}")
    with ProcessPoolExecutor(options.workers) as pool:
        for index, (name, draw) in enumerate(FAMILIES.items()):
            if options.only not in name:
                continue
            rng = np.random.Generator(np.random.PCG64([options.seed, index]))
            points = [draw(rng) for _ in range(options.points)]
            jobs = [(point, options.seed * 100_003 + k) for k, point in enumerate(points)]
            found = [
                {"family": name, **asdict(point), "routing": point.routing.value, **row, **textbooks(point)}
                for point, row in zip(points, pool.map(measure, jobs, chunksize=4), strict=True)
            ]
            rows += found
            print(line(name, (row["model_p95"] / row["simulated_p95"] - 1 for row in found)), flush=True)
    report(rows)
    if options.json:
        options.json.write_text(json.dumps(rows))


def report(rows: list[dict[str, Any]]) -> None:
    """Print other percentiles, the textbooks, and where the errors are."""
    for kind in ("batching, ", "single items"):
        chosen = [row for row in rows if row["family"].startswith(kind)]
        if not chosen:
            continue
        print(f"\n{kind.rstrip(', ')}: all routings")
        for quantity in ("mean", "p50", "p95", "p99"):
            print(
                line(f"  model, {quantity}", (r[f"model_{quantity}"] / r[f"simulated_{quantity}"] - 1 for r in chosen))
            )
        for name in ("M/M/c on batches", "G/G/c per job + s(b)", "2·s(b)", "(b−1)/λ + s(b)", "W95 + E[S]"):
            error = [r[name] / r["simulated_p95"] - 1 for r in chosen if math.isfinite(r.get(name, math.inf))]
            if error:
                print(line(f"  {name}, p95", error))
    print("\nerror of p95 by servers (rows) and utilisation: p90, number of points, share beyond the bar stated")
    bands = ((0.3, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 0.9))
    for name in FAMILIES:
        chosen = [row for row in rows if row["family"] == name]
        if not chosen:
            continue
        print(f"{name:34}" + "".join(f"   ρ {low:.1f}–{high:.1f}   " for low, high in bands))
        for least, most in ((1, 2), (3, 7), (8, 20), (21, 64)):
            cells = []
            for low, high in bands:
                cell = [
                    (abs(r["model_p95"] / r["simulated_p95"] - 1), r["bar"])
                    for r in chosen
                    if low <= r["rho"] < high and least <= r["replicas"] * r["concurrency"] <= most
                ]
                error = [size for size, _ in cell]
                beyond = np.mean([size > bar for size, bar in cell]) if cell else 0.0
                cells.append(f"{np.percentile(error, 90):5.1%} {len(cell):3d} {beyond:4.0%}" if cell else f"{'–':>14}")
            print(f"{'':24}{f'c {least}–{most}':10}" + "  ".join(cells))


if __name__ == "__main__":
    main()
