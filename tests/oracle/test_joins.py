"""Joins against simulation: what the composition says of stages' simulated times, and what a replay says."""

import itertools
import math

import numpy as np
import pytest
from event_simulation import arrivals
from numpy.typing import NDArray
from problems import a_pipeline, a_stage, on
from tandem_simulation import through

from optimizer.latency.composition import Latency, end_to_end, shape_of
from optimizer.model import Composition, Pipeline, PlacementKey, PoolName, Routing, Stage, StageName
from optimizer.replay.replay import replay

Array = NDArray[np.float64]

SAMPLES = 100_000
ITEMS = 80_000
RATE_RPS = 50.0


def a_time(rng: np.random.Generator) -> Array:
    """Return samples of what a stage may take: service, and for some a wait before it."""
    service_s, cv = rng.uniform(0.5, 2.0), rng.choice([0.1, 0.3, 0.5])
    service = service_s * rng.gamma(1 / cv**2, cv**2, SAMPLES)
    wait = rng.exponential(rng.uniform(0.2, 1.5) * service_s, SAMPLES)
    return np.asarray(service + np.where(rng.random(SAMPLES) < rng.uniform(0.1, 1.0), wait, 0.0))


def composed(names: list[tuple[str, str]], times: list[Array], percentile: float) -> float:
    shape = shape_of([(StageName(name), [StageName(source) for source in after]) for name, after in names])
    parts = [
        Latency(mean_s=np.array(time.mean()), percentile_s=np.array(np.percentile(time, percentile))) for time in times
    ]
    return float(end_to_end(shape, parts, composition=Composition.RSS, percentile=percentile).percentile_s)


def slowest_percentile(names: list[tuple[str, str]], times: list[Array], percentile: float) -> float:
    """Return the rule not to use: along each path the composition, and of those the maximum."""
    ends = [position for position, (name, _) in enumerate(names) if not any(name in after for _, after in names)]

    def paths(position: int) -> list[list[int]]:
        after = names[position][1]
        before = [path for k, (name, _) in enumerate(names) if name in after for path in paths(k)]
        return [[*path, position] for path in before or [[]]]

    found = []
    for path in itertools.chain.from_iterable(paths(end) for end in ends):
        means = [times[k].mean() for k in path]
        excess = [np.percentile(times[k], percentile) - times[k].mean() for k in path]
        found.append(float(sum(means) + math.sqrt(sum(e * e for e in excess))))
    return float(max(found))


TWO = [("a", ""), ("b", "a"), ("c", "a"), ("d", "bc")]
THREE = [("a", ""), ("b", "a"), ("c", "a"), ("d", "a"), ("e", "bcd")]
NESTED = [("a", ""), ("b", "a"), ("c", "a"), ("d", "bc"), ("e", "a"), ("f", "de")]


def simulated(names: list[tuple[str, str]], times: list[Array]) -> Array:
    left: dict[str, Array] = {}
    for (name, after), time in zip(names, times, strict=True):
        came = np.max([left[source] for source in after], axis=0) if after else np.zeros(SAMPLES)
        left[name] = came + time
    return left[names[-1][0]]


@pytest.mark.parametrize(("names", "label"), [(TWO, "two"), (THREE, "three"), (NESTED, "nested")])
@pytest.mark.parametrize(
    ("percentile", "median", "worst"), [(50.0, 0.06, 0.15), (95.0, 0.02, 0.06), (99.0, 0.08, 0.12)]
)
def test_independent_stages_around_joins_are_composed_within_a_few_percent(
    names: list[tuple[str, str]], label: str, percentile: float, median: float, worst: float
) -> None:
    errors, naive = [], []
    for seed in range(12):
        rng = np.random.Generator(np.random.PCG64([seed, len(names)]))
        times = [a_time(rng) for _ in names]
        true = float(np.percentile(simulated(names, times), percentile))
        errors.append(composed(names, times, percentile) / true - 1)
        naive.append(slowest_percentile(names, times, percentile) / true - 1)
    error = np.array(errors)
    print(
        f"{label} branches, p{percentile:g}: median error {np.median(np.abs(error)):.1%}, worst "
        f"{np.max(np.abs(error)):.1%}, bias {np.mean(error):+.1%}; by the slowest percentile {np.mean(naive):+.1%}"
    )
    assert np.median(np.abs(error)) <= median
    assert np.max(np.abs(error)) <= worst
    if percentile == 95:  # at p99 the composition of what is in series errs to the safe side by as much
        assert np.mean(np.abs(naive)) > 1.5 * np.mean(np.abs(error))


def queued(name: str, after: str, service_s: float, *, batch: int = 1, cv: float = 0.3) -> Stage:
    return a_stage(
        name,
        on("x", service=(service_s, 0.1 * service_s if batch > 1 else 0.0), cv=cv, batches=(batch,)),
        after=tuple(after),
        routing=Routing.PULL,
    )


def forked(branches: int) -> Pipeline:
    stages = [queued("a", "", 0.03), queued("b", "a", 0.05), queued("c", "a", 0.06, batch=4, cv=0.1)]
    stages += [queued("d", "a", 0.055, cv=0.5)] if branches == 3 else []
    stages += [queued("z", "bcd"[:branches], 0.02)]
    return a_pipeline(*stages, rate_rps=RATE_RPS)


@pytest.mark.parametrize("branches", [2, 3])
def test_queues_that_share_a_past_join_as_replayed_and_no_later_than_composed(branches: int) -> None:
    pipeline = forked(branches)
    replicas: dict[PlacementKey, int] = {
        (stage.name, PoolName("x")): 2 if stage.name in "az" else 4 for stage in pipeline.stages
    }
    batches: dict[PlacementKey, int] = {
        (stage.name, PoolName("x")): stage.placements[0].batch_sizes[-1] for stage in pipeline.stages
    }
    spent, whole = through(pipeline, replicas, batches, arrivals(RATE_RPS, 1.0, ITEMS, 5), 5)
    names = [(str(stage.name), "".join(stage.after)) for stage in pipeline.stages]
    for percentile in (50.0, 95.0, 99.0):
        asked = a_pipeline(*pipeline.stages, rate_rps=RATE_RPS, percentile=percentile)
        true = float(np.percentile(whole, percentile))
        replayed = replay(asked, replicas, batches)
        assert replayed is not None
        from_stages = composed(names, list(spent), percentile)
        print(f"p{percentile:g}: composed {from_stages / true - 1:+.1%}, replayed {replayed.latency_s / true - 1:+.1%}")
        assert replayed.latency_s == pytest.approx(true, rel=0.06)
        assert from_stages == pytest.approx(true, rel=0.10)
