"""Simulate the table of latencies that `optimizer.latency.batching_table` reads: `python -m
simulations.engine.make_batching_table`.

Every cell is one run of the queues of one stage, in units of the time of a batch of one. It holds what is smooth in all
parameters, so that a coarse grid suffices: the probability of waiting, and the distribution of the time in the stage of
those that wait. Percentiles of all items jump where that probability crosses 1 − p; those of waiting items do not.

Cells that differ only in load, servers and routing share random numbers, which keeps noise out of their differences;
other cells do not, so that noise averages out between them. A run is as long as its noise requires. The same command
gives the same file. `--check N` simulates N cells with other random numbers and compares the differences with the
noise.
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

import optimizer.latency.batching_table as table
from optimizer.model import Routing, ServiceLaw
from optimizer.replay.queues import ServerGroup, serve

Array = NDArray[np.float64]

SEED = 20
NOISE = 0.03
"""The target relative standard error of p95 and mean, estimated from blocks of a run; the whole run's is smaller."""
_LEAST_ITEMS, _LEAST_BATCHES = 15_000, 20  # batches are per server
_MOST_ITEMS, _MOST_BATCHES = 70_000, 4_000
_MORE = 8
_CHUNK = 50_000
_FEW = 300  # too few waiting items for a distribution
_BINS, _LOWEST, _HIGHEST = 8192, -6.0, 10.0  # of the logarithm of times
_LOOKED_AT = 20_000  # neighbours wait nearly alike, so a part of them is enough
_BLOCKS = 20
_WARM_UP = 0.1
_ROUNDING = 1 / 512  # of logarithms
_FAR, _MOST_FAR, _MOST_SPREAD = 3.0, 0.05, 1.0  # in units of the noise
_ROUTINGS = (Routing.PULL, Routing.LEAST_LOADED, Routing.ROUND_ROBIN)
assert tuple(routing.value for routing in _ROUTINGS) == table.ROUTINGS


@lru_cache(maxsize=128)
def _between(ca: float, every: int, seed: int, chunk: int) -> Array:
    """Return `_CHUNK` random times of mean 1, each between two arrivals that are `every` arrivals apart.

    Times between single arrivals have the coefficient of variation `ca`: gamma up to 1, hyperexponential above.
    """
    rng = np.random.Generator(np.random.PCG64([seed, round(1000 * ca), every, chunk]))
    if ca <= 1:
        return rng.gamma(every / ca**2, ca**2 / every, _CHUNK)
    share = 0.5 * (1 + np.sqrt((ca**2 - 1) / (ca**2 + 1)))  # two phases with balanced means
    quick = rng.binomial(every, share, _CHUNK)
    between = rng.standard_gamma(quick) / (2 * share) + rng.standard_gamma(every - quick) / (2 * (1 - share))
    return np.asarray(between / every)


def unit_arrivals(ca: float, n: int, *, every: int = 1, seed: int = SEED) -> Array:
    """Return `n` ascending arrival times at rate 1: every `every`-th arrival of a random stream.

    `ca` is the coefficient of variation of the times between the stream's arrivals. The rate is exactly 1, because a
    random number of arrivals would be half of the noise of a queue's length at high load.
    """
    chunks = [_between(ca, every, seed, k) for k in range(-(-n // _CHUNK))]
    times = np.cumsum(np.concatenate(chunks)[:n])
    return np.asarray(times * (n / times[-1]))


def simulate_cell(cell: tuple[int, ...], *, noise: float = NOISE, seed: int = SEED) -> tuple[Array, float]:
    """Return the values of one cell, NaN where too few items wait, and the relative noise of its p95 or its mean.

    `cell` has an index for each axis of the table except the last. `noise` is the target.
    """
    own = int(np.ravel_multi_index(cell[1:5], table.SHAPE[1:5])) + 100_003 * seed
    batch, servers = table.LIMITS[cell[1]], table.SERVERS[cell[5]]
    routing = _ROUTINGS[cell[0]]
    items = _LEAST_ITEMS + _LEAST_BATCHES * batch * (1 if routing is Routing.ROUND_ROBIN else servers)
    most = _MOST_ITEMS + _MOST_BATCHES * batch
    if routing is not Routing.LEAST_LOADED:  # takes a fraction of the time
        most *= 2
    if batch == 1 or servers == 1:  # few cells, with the longest correlations, and often used
        noise, most = noise * _MORE**-0.5, most * _MORE
    most = max(items, most)
    while True:
        value, found = _run(cell, items, own)
        if found <= noise or items == most:
            return value, found
        items = int(min(most, items * max(1.5, (found / noise) ** 2)))


def _run(cell: tuple[int, ...], n: int, seed: int) -> tuple[Array, float]:
    """Return the values of a cell from one run of `n` items, and their relative noise."""
    batch, share = table.LIMITS[cell[1]], table.SHARES[cell[2]]
    cv, ca = table.SERVICE_CV[cell[3]], table.ARRIVAL_CV[cell[4]]
    servers, load = table.SERVERS[cell[5]], table.LOADS[cell[6]]
    gain = batch / (1 - share + share * batch)
    rho = table.UTILIZATION_CEILING * load / (gain - (gain - 1) * load)
    routing, every = _ROUTINGS[cell[0]], 1
    if routing is Routing.ROUND_ROBIN:  # replicas are independent
        servers, every = 1, servers
    arrivals = unit_arrivals(ca, n, every=every, seed=seed) / (rho * servers * gain)
    starts = np.empty(n)
    law = ServiceLaw(fixed_s=1 - share, per_item_s=share, cv=cv)
    group = ServerGroup(replicas=servers, service=law, batch=batch)
    done = serve(arrivals, np.zeros(n, dtype=np.int64), groups=(group,), routing=routing, seed=seed, starts_s=starts)
    kept = slice(int(_WARM_UP * n), None)
    inside, waits = (done - arrivals)[kept], (starts - arrivals)[kept] > 1e-9
    chance = (np.count_nonzero(waits) + 0.5) / (len(waits) + 1)
    value = np.full(table.WIDTH, np.nan)
    value[0] = np.log(chance / (1 - chance))
    if np.count_nonzero(waits) >= _FEW:
        waited = inside[waits]
        value[1] = np.log(waited.mean())
        value[2:] = _log_percentiles(waited)
    each = len(inside) // _BLOCKS
    blocks = inside[: each * _BLOCKS].reshape(_BLOCKS, each)
    slow = np.percentile(blocks[:, :: 1 + len(inside) // _LOOKED_AT], 95, axis=1)
    noise = max(one.std() / one.mean() for one in (slow, blocks.mean(axis=1))) / np.sqrt(_BLOCKS - 1)
    return value, float(noise)


def _log_percentiles(times: Array) -> Array:
    """Return the logarithms of the percentiles at the table's levels, from a fine histogram: sorting takes longer."""
    bins = ((np.log(times) - _LOWEST) * (_BINS / (_HIGHEST - _LOWEST))).astype(np.int64)
    below = np.cumsum(np.bincount(np.clip(bins, 0, _BINS - 1), minlength=_BINS)) / len(times)
    edges = np.linspace(_LOWEST, _HIGHEST, _BINS + 1)[1:]
    shares = 1 - np.exp(-np.array(table.LEVELS))
    at = np.minimum(np.searchsorted(below, shares), _BINS - 1)  # the bin in which a percentile lies
    before = np.where(at > 0, below[at - 1], 0.0)
    part = (shares - before) / np.maximum(below[at] - before, 1e-12)
    return np.asarray(edges[at] - (1 - part) * (_HIGHEST - _LOWEST) / _BINS)


def fill(values: Array) -> Array:
    """Return `values` (…, loads, WIDTH); missing ones (NaN) get the value of the next higher load, 0 at the highest."""
    values = values.copy()
    values[..., -1, 1:] = np.where(np.isnan(values[..., -1, 1:]), 0.0, values[..., -1, 1:])
    for k in range(values.shape[-2] - 2, -1, -1):
        gap = np.isnan(values[..., k, 1:])
        values[..., k, 1:] = np.where(gap, values[..., k + 1, 1:], values[..., k, 1:])
    return values


def cells() -> Iterator[tuple[int, ...]]:
    """Yield the indexes of the cells to simulate.

    Routing makes no difference with one server, nor does the share with batches of one: only the first value of the
    axis is simulated then.
    """
    for cell in np.ndindex(*table.SHAPE[:-1]):
        if (cell[0] > 0 and table.SERVERS[cell[5]] == 1) or (table.LIMITS[cell[1]] == 1 and cell[2] > 0):
            continue
        yield cell


def _slab(job: tuple[list[tuple[int, ...]], float]) -> list[tuple[Array, float]]:
    return [simulate_cell(cell, noise=job[1]) for cell in job[0]]


def simulate(noise: float, workers: int) -> tuple[Array, Array]:
    """Return the whole table, and the relative noise of each cell, simulated in `workers` processes."""
    values, noises = np.full(table.SHAPE, np.nan), np.zeros(table.SHAPE[:-1])
    slabs: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for cell in cells():
        slabs.setdefault(cell[1:5], []).append(cell)
    with ProcessPoolExecutor(workers) as pool:
        found = pool.map(_slab, [(slab, noise) for slab in slabs.values()])
        for count, (slab, results) in enumerate(zip(slabs.values(), found, strict=True)):
            for cell, (value, off) in zip(slab, results, strict=True):
                values[cell], noises[cell] = value, off
            print(f"\r{count + 1}/{len(slabs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for array in (values, noises):
        array[:, 0] = array[:, 0, :1]
        array[1:, :, :, :, :, 0] = array[:1, :, :, :, :, 0]
    return fill(values), noises


def check(count: int, noise: float) -> bool:
    """Print the differences of `count` stored cells to runs with other random numbers; return whether they agree.

    The mean time of all items is compared, and the p95 of waiting items where most items wait.
    """
    rng = np.random.Generator(np.random.PCG64(SEED))
    every = list(cells())
    level = 2 + table.LEVELS.index(3.0)
    away, size = [], []
    for index in rng.choice(len(every), min(count, len(every)), replace=False).tolist():
        again, found = simulate_cell(every[index], noise=noise, seed=SEED + 1)
        stored = table.values()[every[index]].astype(np.float64)
        if np.isnan(again[1]):
            continue
        waits = 1 / (1 + np.exp(-np.array([again[0], stored[0]])))
        mean = 1 - waits + waits * np.exp([again[1], stored[1]])
        off = [np.log(mean[0] / mean[1])]
        if waits[0] > 0.5:
            off.append(again[level] - stored[level])
        size += off
        away += [one / np.hypot(max(found, _ROUNDING), max(noise, found)) for one in off]
    error, sigma = np.abs(size), np.array(away)
    spread, far, bias = float(np.sqrt(np.mean(sigma**2))), float(np.mean(np.abs(sigma) > _FAR)), float(np.mean(size))
    print(
        f"{len(error)} means and percentiles with other random numbers: differ by {np.median(error):.2%} (median), "
        f"{np.percentile(error, 90):.2%} (p90), {error.max():.1%} (max), {bias:+.2%} on average; in units of the noise "
        f"{spread:.2f} (root of mean square), beyond {_FAR}: {far:.1%}"
    )
    return spread <= _MOST_SPREAD and far <= _MOST_FAR and abs(bias) <= 4 * noise / np.sqrt(len(error)) + _ROUNDING / 2


def fingerprint(noise: float = NOISE) -> str:
    """Return a hash of the parameters of the table."""
    return hashlib.sha256(
        repr((table.AXES, SEED, noise, _LEAST_ITEMS, _LEAST_BATCHES, _MOST_ITEMS, _MOST_BATCHES, _MORE)).encode()
    ).hexdigest()


def main() -> None:
    """Write the table to `--out`, or with `--check` compare the stored one with new runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=int, metavar="N", help="simulate N stored cells again")
    parser.add_argument("--noise", type=float, default=NOISE, help="target standard error of runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=table.FILE)
    options = parser.parse_args()
    if options.check:
        sys.exit(0 if check(options.check, options.noise) else 1)
    values, noises = simulate(options.noise, options.workers)
    mark = fingerprint(options.noise)
    with options.out.open("wb") as file:
        rounded = np.round(values / _ROUNDING) * _ROUNDING  # what is below the noise does not compress
        np.savez_compressed(file, values=rounded.astype(np.float16), fingerprint=np.array(mark))
    print(
        f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB, parameters {mark[:12]}, noise of cells "
        + ", ".join(
            f"{name} {value:.2%}" for name, value in zip(("median", "p90", "max"), _spread(noises), strict=True)
        )
    )


def _spread(values: Array) -> list[float]:
    return [float(value) for value in np.percentile(values, (50, 90, 100))]


if __name__ == "__main__":
    main()
