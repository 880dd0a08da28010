"""How far the latency of one stage is from an independent event simulation, at random points and beside textbooks.

    python tests/bench/bench_latency.py [--points N] [--items N] [--seed S] [--calibrate] [--json FILE]

Points lie off the grid of the product's table and under other luck. Errors are |model / simulation − 1| of the p95.
They hold the noise of the simulation, which is printed beside them. `--calibrate` prints the map of errors that
`optimizer.latency.stage` states; every run prints how many of its points lie within the map stated.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from event_simulation import arrivals, periodic, simulate, simulate_continuous

from optimizer.latency.lines import lines_of
from optimizer.latency.stage import StageLoad, capacity_rps, predict
from optimizer.model import Batching, Placement, PoolName, Routing, ServiceLaw

ITEMS = 300_000
WARM_UP = 0.1
BLOCKS = 20
LEAST_POINTS, LEAST_BAR = 9, 0.005
CONTINUOUS_ITEMS = 20_000
"""Every event of that simulation moves every item: it is as slow as it is simple."""
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
    bent: ServiceLaw | None = None
    """A law in place of the line that `share` says."""
    batching: Batching = Batching.DYNAMIC

    @property
    def law(self) -> ServiceLaw:
        return self.bent or ServiceLaw(fixed_s=1 - self.share, per_item_s=self.share, cv=self.cv)

    @property
    def placement(self) -> Placement:
        return Placement(
            pool=PoolName("x"),
            service=self.law,
            max_replicas=self.replicas,
            batching=self.batching,
            concurrency=self.concurrency,
            batch_sizes=(self.batch,),
            batch_wait_s=self.wait_s,
        )

    @property
    def rate_rps(self) -> float:
        return self.rho * self.replicas * capacity_rps(self.placement, self.batch)


def measure(job: tuple[Point, int, int]) -> dict[str, float]:
    """Return simulated and modelled values of a point."""
    point, seed, items = job
    n = int(items * max(1.0, point.batch / 8))
    law: dict[str, Any] = {
        "replicas": point.replicas,
        "concurrency": point.concurrency,
        "batch": point.batch,
        "batch_wait_s": point.wait_s,
        "time_s": np.array([point.law.mean_s(size) for size in range(point.batch + 1)]),
        "cv": point.cv,
        "routing": point.routing,
    }
    if point.batching is Batching.CONTINUOUS:
        n = CONTINUOUS_ITEMS
        times = arrivals(point.rate_rps, point.arrival_cv2, n, seed)
        spent = simulate_continuous(
            times,
            replicas=point.replicas,
            limit=point.batch,
            time_s=law["time_s"],
            prefill_s=point.law.prefill_s,
            cv=point.cv,
            routing=point.routing,
            seed=seed,
        )[int(WARM_UP * n) :]
    elif point.streams is None:
        times = arrivals(point.rate_rps, point.arrival_cv2, n, seed)
        spent = simulate(times, seed=seed, **law)[int(WARM_UP * n) :]
    else:  # the phases decide: many short runs
        runs = []
        period = point.streams / point.rate_rps
        for k in range(60):
            times, owner = periodic(point.streams, period, point.streams * 20, 1000 * seed + k)
            runs.append(simulate(times, seed=seed + k, sessions=owner, **law)[point.streams * 10 :])
        spent = np.concatenate(runs)
    blocks = np.percentile(spent[: len(spent) // BLOCKS * BLOCKS].reshape(BLOCKS, -1), 95, axis=1)
    row = {
        "simulated_mean": float(spent.mean()),
        "noise": float(blocks.std() / blocks.mean() / math.sqrt(BLOCKS - 1)),
    }
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


def erratic_point(rng: np.random.Generator, routing: Routing) -> Point:
    base = batching_point(rng, routing, varied=False) if rng.random() < 0.5 else single_point(rng, routing)
    return Point(**{**_fields(base), "cv": float(rng.uniform(1, 2)), "arrival_cv2": log_uniform(rng, 0.5, 2)})


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


def roofline_point(rng: np.random.Generator, routing: Routing) -> Point:
    base = batching_point(rng, routing, varied=True)
    line = ServiceLaw(fixed_s=float(rng.uniform(0, 3)), per_item_s=1.0)
    bent = ServiceLaw(**{**asdict(line), "floor_s": line.mean_s(float(rng.uniform(1, base.batch))), "cv": base.cv})
    return Point(**{**_fields(base), "bent": bent})


def points_point(rng: np.random.Generator, routing: Routing, *, falling: bool) -> Point:
    """Return a point whose law is convex; `falling`: somewhere below the limit, larger batches serve fewer items."""
    while True:
        base = batching_point(rng, routing, varied=True)
        sizes = sorted({1, *np.geomspace(2, base.batch, 4).round().astype(int).tolist()})
        slopes = np.sort(np.exp(rng.uniform(np.log(0.01), 0, len(sizes))))
        times = 1 + np.concatenate(([0], np.cumsum(slopes[1:] * np.diff(sizes))))
        bent = ServiceLaw(points=tuple(zip(sizes, times.tolist(), strict=True)), cv=base.cv)
        if lines_of(bent, base.batch, routing).falling is falling:
            return Point(**{**_fields(base), "bent": bent})


def continuous_point(rng: np.random.Generator, routing: Routing) -> Point:
    limit, per_item_s = round(log_uniform(rng, 4, 64)), log_uniform(rng, 0.002, 0.2)
    cv = float(rng.uniform(0.2, 1.0))
    law = ServiceLaw(
        fixed_s=1.0,
        per_item_s=per_item_s,
        floor_s=float(rng.choice([0.0, 1 + 0.4 * limit * per_item_s])),
        prefill_s=float(rng.choice([0.0, 0.005, 0.02])),
        cv=cv,
    )
    return Point(
        routing=routing,
        replicas=round(log_uniform(rng, 1, 16)),
        concurrency=1,
        batch=limit,
        share=0.5,
        rho=float(rng.uniform(0.3, 0.9)),
        cv=cv,
        bent=law,
        batching=Batching.CONTINUOUS,
    )


def _fields(point: Point) -> dict[str, Any]:
    return {name: getattr(point, name) for name in point.__dataclass_fields__}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Points of one kind, and the region of the product's map of errors that they are in."""

    region: str
    draw: Callable[[np.random.Generator], Point]


def _family(region: str, draw: Callable[..., Point], routing: Routing, **options: bool) -> Family:
    return Family(region=region, draw=lambda rng: draw(rng, routing, **options))


_ROUTINGS = (Routing.PULL, Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM)
FAMILIES = {
    "batching, Pull": _family("batching", batching_point, Routing.PULL, varied=False),
    "batching, LeastLoaded": _family("batching, least loaded", batching_point, Routing.LEAST_LOADED, varied=False),
    "batching, RoundRobin": _family("round robin", batching_point, Routing.ROUND_ROBIN, varied=False),
    "batching, Random": _family("at random", batching_point, Routing.RANDOM, varied=False),
    "batching, Pull, ca² cv": _family("batching", batching_point, Routing.PULL, varied=True),
    "batching, LeastLoaded, ca² cv": _family(
        "batching, least loaded", batching_point, Routing.LEAST_LOADED, varied=True
    ),
    "batching, RoundRobin, ca² cv": _family("round robin", batching_point, Routing.ROUND_ROBIN, varied=True),
    "batching, Random, ca² cv": _family("at random", batching_point, Routing.RANDOM, varied=True),
    "batching that waits, Pull": _family("patient", waiting_point, Routing.PULL),
    "batching that waits, LeastLoaded": _family("patient", waiting_point, Routing.LEAST_LOADED),
    "several slots, LeastLoaded": _family("several slots", slots_point, Routing.LEAST_LOADED),
    "single items, Pull": _family("single items", single_point, Routing.PULL),
    "single items, LeastLoaded": _family("single items, least loaded", single_point, Routing.LEAST_LOADED),
    "single items, RoundRobin": _family("round robin", single_point, Routing.ROUND_ROBIN),
    "single items, Random": _family("at random", single_point, Routing.RANDOM),
    "cv above 1, Pull": _family("erratic", erratic_point, Routing.PULL),
    "cv above 1, LeastLoaded": _family("erratic", erratic_point, Routing.LEAST_LOADED),
    **{f"rooflines, {routing.value}": _family("bent", roofline_point, routing) for routing in _ROUTINGS},
    **{f"points, {routing.value}": _family("bent", points_point, routing, falling=False) for routing in _ROUTINGS},
    **{
        f"points that fall, {routing.value}": _family("falling", points_point, routing, falling=True)
        for routing in _ROUTINGS
    },
    **{
        f"continuous, {routing.value}": _family("continuous", continuous_point, routing)
        for routing in (Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM)
    },
    "periodic streams": Family(region="periodic", draw=periodic_point),
}
SERVERS = ((1, 2), (3, 7), (8, 20), (21, 64))
BANDS = ((0.0, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 0.91))
"""Rows and columns of the map of errors, as in `optimizer.latency.stage`."""


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
    parser.add_argument("--only", default="", help="families whose names match this")
    parser.add_argument("--items", type=int, default=ITEMS, help="items per point, more where batches are large")
    parser.add_argument("--calibrate", action="store_true", help="print the map of errors for optimizer.latency.stage")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(
        f"{'p95 of one stage':34} {'N':>5} {'median':>8} {'p90':>8} {'max':>8} {'bias':>7} {'< −10 %':>9} {'noise':>8}"
    )
    with ProcessPoolExecutor(options.workers) as pool:
        for index, (name, family) in enumerate(FAMILIES.items()):
            if not re.search(options.only, name):
                continue
            rng = np.random.Generator(np.random.PCG64([options.seed, index]))
            points = [family.draw(rng) for _ in range(options.points)]
            jobs = [(point, options.seed * 100_003 + k, options.items) for k, point in enumerate(points)]
            found = [
                {
                    "family": name,
                    "region": family.region,
                    **asdict(point),
                    "routing": point.routing.value,
                    "batching": point.batching.value,
                    **row,
                    **textbooks(point),
                }
                for point, row in zip(points, pool.map(measure, jobs, chunksize=4), strict=True)
            ]
            rows += found
            noise = np.median([row["noise"] for row in found])
            print(line(name, map(error, found)) + f" {noise:8.1%}", flush=True)
    report(rows)
    if options.calibrate:
        calibrate(rows)
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
            off = [r[name] / r["simulated_p95"] - 1 for r in chosen if math.isfinite(r.get(name, math.inf))]
            if off:
                print(line(f"  {name}, p95", off))
    print("\nerror of p95 by servers (rows) and utilisation: p90, number of points, share within the bar stated")
    for region in dict.fromkeys(family.region for family in FAMILIES.values()):
        chosen = [row for row in rows if row["region"] == region]
        if not chosen:
            continue
        print(f"{region:34}" + "".join(f"   ρ {low:.1f}–{high:.1f}   " for low, high in BANDS))
        for servers in SERVERS:
            cells = []
            for band in BANDS:
                cell = inside(chosen, servers, band)
                size = [abs(error(row)) for row in cell]
                cells.append(
                    f"{np.percentile(size, 90):5.1%} {len(cell):3d} {within(cell):4.0%}" if cell else f"{'–':>14}"
                )
            print(f"{'':22}{f'c {servers[0]}–{servers[1]}':10}" + "  ".join(cells))
        print(f"{'':22}within the bar stated: {within(chosen):.1%} of {len(chosen)}")
    print(f"within the bar stated, all: {within(rows):.1%} of {len(rows)} (90 % ± 3 % wanted)")


def error(row: dict[str, Any]) -> float:
    return float(row["model_p95"] / row["simulated_p95"] - 1)


def within(rows: list[dict[str, Any]]) -> float:
    return float(np.mean([abs(error(row)) <= row["bar"] for row in rows]))


def inside(rows: list[dict[str, Any]], servers: tuple[int, int], band: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        row
        for row in rows
        if band[0] <= row["rho"] < band[1] and servers[0] <= row["replicas"] * row["concurrency"] <= servers[1]
    ]


def calibrate(rows: list[dict[str, Any]]) -> None:
    """Print for each cell what nine of ten further points are expected to stay below: an order statistic."""
    print("\n_ERRORS, in thousandths:")
    for region in dict.fromkeys(row["region"] for row in rows):
        chosen = [row for row in rows if row["region"] == region]
        table = []
        for servers in SERVERS:
            cells = []
            for band in BANDS:
                cell = inside(chosen, servers, band)
                if len(cell) < LEAST_POINTS:  # too few to tell: all servers of this load
                    cell = inside(chosen, (1, 64), band)
                size = sorted(abs(error(row)) for row in cell)
                rank = min(math.ceil(0.9 * (len(size) + 1)), len(size)) - 1
                cells.append(f"{1000 * max(math.ceil(size[rank] * 1000) / 1000, LEAST_BAR):.0f}" if size else "1000")
            table.append("(" + ", ".join(cells) + ")")
        print(f'        "{region}": ({", ".join(table)}),')


if __name__ == "__main__":
    main()
