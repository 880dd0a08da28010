"""Simulate the table of latencies that `optimizer.batching_table` reads: `python -m simulations.batching_table`.

Every cell is one run of the queues of one stage, in units of the time of a batch of one. It holds what is smooth in
all parameters, so that a coarse grid suffices: the probability of waiting, and the distribution of the time in the
stage of those that wait. Percentiles of all items jump where that probability crosses 1 − p; these do not.

Neighbouring cells share their luck, which keeps noise out of the differences between them. The same command gives the
same file. `--check N` simulates N cells under other luck and says how far the stored ones are from them.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import optimizer.batching_table as table
from optimizer.model import Routing
from optimizer.queues import ServerGroup, serve_from

Array = NDArray[np.float64]

SEED = 20
EFFORT = 0.35
_FEW = 300  # fewer that wait say little about how long
_NOISE = 0.007  # of the mean, by which runs are repeated
_ROUNDS = 2
_ROUNDS_UNBATCHED = 8
_ROUND_ITEMS = 300_000
_SORTED = 40_000  # neighbours wait nearly alike: a part of them tells the percentiles
_BLOCKS = 20
_TOLERANCE = 0.05
_WARM_UP = 0.05


@lru_cache(maxsize=16)
def unit_arrivals(ca: float, seed: int) -> Array:
    """Return times of arrival at rate 1 with this coefficient of variation: gamma below 1, hyperexponential above."""
    rng = np.random.Generator(np.random.PCG64([seed, round(1000 * ca)]))
    if ca <= 1:
        between = rng.gamma(1 / ca**2, ca**2, _ROUND_ITEMS)
    else:  # two phases with balanced means
        share = 0.5 * (1 + np.sqrt((ca**2 - 1) / (ca**2 + 1)))
        quick = rng.random(_ROUND_ITEMS) < share
        between = rng.exponential(1.0, _ROUND_ITEMS) / np.where(quick, 2 * share, 2 * (1 - share))
    return np.asarray(np.cumsum(between))


def simulate_cell(cell: tuple[int, ...], *, effort: float = EFFORT, seed: int = SEED) -> Array:
    """Return the values of one cell before gaps are filled; NaN where too few items wait.

    `cell` indexes the axes of the table but the last. Runs are repeated under new luck, up to a limit, until the noise
    of the mean is small.
    """
    batch = table.LIMITS[cell[1]]
    if batch == 1:  # few cells, with the longest memory
        effort = max(effort, 1.0)
    rounds = _ROUNDS if batch > 1 else _ROUNDS_UNBATCHED
    most, least_noise = int(min(1.0, effort) * _ROUND_ITEMS), _NOISE / np.sqrt(effort)
    items = int(min(most, (20_000 + 1_000 * batch) * np.sqrt(effort)))
    values: list[Array] = []
    noise = np.inf
    while len(values) < max(1.0, rounds * effort) and noise > least_noise:
        value, noise = _run(cell, items, seed + 1000 * len(values))
        if not values and noise > least_noise:  # as many as are needed, if it is not too many
            wanted = items * (noise / least_noise) ** 2
            items = int(min(most, wanted))
            value, noise = _run(cell, items, seed)
        values.append(value)
        noise /= np.sqrt(len(values))
    return np.asarray(np.mean(values, axis=0))


def _run(cell: tuple[int, ...], n: int, seed: int) -> tuple[Array, float]:
    """Return the values of one run of `n` items, and the relative noise of its mean."""
    routing = (Routing.PULL, Routing.LEAST_LOADED)[cell[0]]
    batch, share = table.LIMITS[cell[1]], table.SHARES[cell[2]]
    cv, ca = table.SERVICE_CV[cell[3]], table.ARRIVAL_CV[cell[4]]
    servers, load = table.SERVERS[cell[5]], table.LOADS[cell[6]]
    gain = batch / (1 - share + share * batch)
    rho = table.UTILIZATION_CEILING * load / (gain - (gain - 1) * load)
    arrivals = unit_arrivals(ca, seed)[:n] / (rho * servers * gain)
    starts = np.empty(n)
    group = ServerGroup(replicas=servers, batch=batch, fixed_s=1 - share, per_item_s=share, cv=cv)
    done = serve_from(
        arrivals, np.zeros(n, dtype=np.int64), groups=(group,), routing=routing, seed=seed, starts_s=starts
    )
    kept = slice(int(_WARM_UP * n), None)
    inside, waits = (done - arrivals)[kept], (starts - arrivals)[kept] > 1e-9
    each = len(inside) // _BLOCKS
    blocks = inside[: each * _BLOCKS].reshape(_BLOCKS, each).mean(axis=1)
    chance = (np.count_nonzero(waits) + 0.5) / (len(waits) + 1)
    value = np.full(table.WIDTH, np.nan)
    value[0] = np.log(chance / (1 - chance))
    if np.count_nonzero(waits) >= _FEW:
        waited = inside[waits]
        value[1] = np.log(waited.mean())
        waited = np.sort(waited[:: 1 + len(waited) // _SORTED])
        at = (1 - np.exp(-np.array(table.LEVELS))) * (len(waited) - 1)
        value[2:] = np.log(np.interp(at, np.arange(len(waited)), waited))
    return value, float(blocks.std() / np.sqrt(_BLOCKS) / blocks.mean())


def fill(values: Array) -> Array:
    """Return `values` (…, loads, WIDTH) with what is missing taken from the next higher load."""
    values = values.copy()
    values[..., -1, 1:] = np.where(np.isnan(values[..., -1, 1:]), 0.0, values[..., -1, 1:])
    for k in range(values.shape[-2] - 2, -1, -1):
        gap = np.isnan(values[..., k, 1:])
        values[..., k, 1:] = np.where(gap, values[..., k + 1, 1:], values[..., k, 1:])
    return values


def cells() -> Iterator[tuple[int, ...]]:
    """Yield the cells to simulate: one server has no routing, a batch of one no share."""
    for cell in np.ndindex(*table.SHAPE[:-1]):
        if (cell[0] == 1 and table.SERVERS[cell[5]] == 1) or (table.LIMITS[cell[1]] == 1 and cell[2] > 0):
            continue
        yield cell


def _row(job: tuple[tuple[int, ...], float]) -> tuple[tuple[int, ...], Array]:
    row, effort = job
    return row, np.array([simulate_cell((*row, k), effort=effort) for k in range(len(table.LOADS))])


def simulate(effort: float, workers: int) -> Array:
    """Return the whole table."""
    values = np.full(table.SHAPE, np.nan)
    rows = sorted({cell[:-1] for cell in cells()})
    with ProcessPoolExecutor(workers) as pool:
        for count, (row, value) in enumerate(pool.map(_row, [(row, effort) for row in rows], chunksize=4)):
            values[row] = value
            if count % 200 == 0:
                print(f"\r{count}/{len(rows)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    values[:, 0] = values[:, 0, :1]
    values[1, :, :, :, :, 0] = values[0, :, :, :, :, 0]
    return fill(values)


def check(count: int, effort: float) -> bool:
    """Print how far `count` stored cells are from runs under other luck; return whether all agree within noise."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    every = list(cells())
    off = []
    for k, index in enumerate(rng.choice(len(every), count, replace=False).tolist()):
        again = simulate_cell(every[index], effort=effort, seed=SEED + 1 + k)
        stored = table.values()[every[index]]
        if not np.isnan(again[1]):
            off.append(float(np.max(np.abs(np.expm1(again[1:-2] - stored[1:-2])))))
    error = np.array(off)
    print(
        f"{len(error)} cells with waiting: largest difference over their levels: "
        f"median {np.median(error):.1%}, p90 {np.percentile(error, 90):.1%}, max {error.max():.1%}"
    )
    return bool(np.median(error) <= _TOLERANCE)


def fingerprint(effort: float = EFFORT) -> str:
    """Return what tells tables of other parameters apart."""
    return hashlib.sha256(repr((table.AXES, SEED, effort)).encode()).hexdigest()


def main() -> None:
    """Write the table, or check what is stored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=int, metavar="N", help="simulate N stored cells again")
    parser.add_argument("--effort", type=float, default=EFFORT, help="in proportion to it more items per cell")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=table.FILE)
    options = parser.parse_args()
    if options.check:
        sys.exit(0 if check(options.check, options.effort) else 1)
    values = simulate(options.effort, options.workers).astype(np.float16)
    mark = fingerprint(options.effort)
    with options.out.open("wb") as file:
        np.savez_compressed(file, values=values, fingerprint=np.array(mark))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB, parameters {mark[:12]}")


if __name__ == "__main__":
    main()
