"""Self-checks of the engine against textbook formulas. The formulas are used nowhere else."""

import math

import numpy as np
from numpy.typing import NDArray

from controller.core.state.spec import (
    DemandUnit,
    Mode,
    PipelineQueries,
    PipelineSpec,
    PlacementSpec,
    Scaling,
    StageSpec,
    StepPolicy,
    Target,
)
from optimizer.model import PipelineKey, Placement, PoolName, Routing, ServiceLaw, Sla, StageName
from simulations.engine.pipeline_engine import PipelineEngine
from simulations.results.results import SelfCheck
from simulations.results.scoring import Clock
from simulations.scenario.schedule import Schedule

Array = NDArray[np.float64]

_BATCHES = 24
_T_999 = 3.768
"""Student's t, 23 degrees of freedom, two-sided 99.9 %: a correct engine fails one check in a thousand."""
_STAGE, _POOL = StageName("stage"), PoolName("pool")
_FOREVER_S = 1e6


def self_checks(seed: int) -> tuple[SelfCheck, ...]:
    """Simulate queues with a known solution and return the comparisons; times are in seconds."""
    return (_mmc(seed), _md1(seed), _dmc(seed), _little(seed), _batch_bound(seed))


def _mmc(seed: int) -> SelfCheck:
    """M/M/c: Erlang's C formula."""
    servers, rate, mean_s = 4, 320.0, 0.010
    offered = rate * mean_s
    waiting = offered**servers / math.factorial(servers) * servers / (servers - offered)
    idle = sum(offered**k / math.factorial(k) for k in range(servers))
    expected = mean_s + waiting / (idle + waiting) * mean_s / (servers - offered)
    spent_s, _ = _played(_poisson(rate, 120_000, seed, 1), servers, ServiceLaw(fixed_s=mean_s, cv=1.0), seed)
    return _two_sided("M/M/4 at 0.8: mean time (Erlang C)", expected, *_interval(spent_s))


def _md1(seed: int) -> SelfCheck:
    """M/D/1: Pollaczek and Khinchine."""
    rate, mean_s = 75.0, 0.010
    load = rate * mean_s
    expected = mean_s * (1 + load / (2 * (1 - load)))
    spent_s, _ = _played(_poisson(rate, 120_000, seed, 2), 1, ServiceLaw(fixed_s=mean_s), seed)
    return _two_sided("M/D/1 at 0.75: mean time (Pollaczek-Khinchine)", expected, *_interval(spent_s))


def _dmc(seed: int) -> SelfCheck:
    """G/G/c, checked by D/M/c, which has an exact solution: the Markov chain embedded at arrivals."""
    servers, gap_s, mean_s, states = 3, 0.004, 0.010, 120
    # Between two arrivals batches end at min(n, c) / mean_s: uniformised, that is a Poisson number of steps of a chain.
    step = np.zeros((states, states))
    for n in range(states):
        step[n, max(n - 1, 0)] += min(n, servers) / servers
        step[n, n] += 1 - min(n, servers) / servers
    mean_steps = servers / mean_s * gap_s
    between, power = np.zeros((states, states)), np.eye(states)
    for k in range(60):
        between += math.exp(-mean_steps) * mean_steps**k / math.factorial(k) * power
        power = power @ step
    seen = np.zeros(states)
    seen[0] = 1.0
    for _ in range(400):
        after = np.append(0.0, seen[:-1])  # the arrival itself
        seen = after @ between
    ahead = np.maximum(np.arange(states) - servers + 1, 0)
    expected = mean_s + float(seen @ ahead) * mean_s / servers
    arrivals_s = np.arange(1, 120_001, dtype=np.float64) * gap_s
    spent_s, _ = _played(arrivals_s, servers, ServiceLaw(fixed_s=mean_s, cv=1.0), seed)
    return _two_sided("G/G/c by D/M/3 at 0.83: mean time (embedded chain)", expected, *_interval(spent_s))


def _little(seed: int) -> SelfCheck:
    """Little's law: the mean number in the stage is the rate times the mean time."""
    arrivals_s = _poisson(400.0, 120_000, seed, 3)
    law = ServiceLaw(fixed_s=0.006, per_item_s=0.001, cv=0.5)
    _, (seen, flow) = _played(arrivals_s, 3, law, seed, batch=4, wait_s=0.002, looks=40)
    # The difference is compared batch by batch, because both sides vary together.
    _, half_width = _interval(seen - flow)
    return _two_sided("Little's law: items in a stage with batches", float(flow.mean()), float(seen.mean()), half_width)


def _batch_bound(seed: int) -> SelfCheck:
    """One server that takes all that waits: the mean time is at most the bound of Inoue (2021)."""
    rate, fixed_s, per_item_s = 600.0, 0.010, 0.001
    load = rate * per_item_s
    first = (per_item_s + fixed_s) / (2 * (1 - load)) * (1 + 2 * rate * fixed_s + (1 - rate * fixed_s) / (1 + load))
    second = 1.5 * fixed_s / (1 - load) + per_item_s / 2 * (load + 2) / (1 - load**2)
    bound = min(first, second)
    law = ServiceLaw(fixed_s=fixed_s, per_item_s=per_item_s)
    spent_s, _ = _played(_poisson(rate, 120_000, seed, 4), 1, law, seed, batch=4096)
    simulated, half_width = _interval(spent_s)
    # The bound is tight: a result far below it is as wrong as one above.
    ok = 0.9 * bound <= simulated <= bound + half_width
    return SelfCheck(
        name="Batches without limit at 0.6: mean time (bound of Inoue)",
        expected=bound,
        simulated=simulated,
        half_width=half_width,
        ok=ok,
    )


def _two_sided(name: str, expected: float, simulated: float, half_width: float) -> SelfCheck:
    ok = abs(simulated - expected) <= half_width
    return SelfCheck(name=name, expected=expected, simulated=simulated, half_width=half_width, ok=ok)


def _interval(means: Array) -> tuple[float, float]:
    return float(means.mean()), float(_T_999 * means.std(ddof=1) / math.sqrt(len(means)))


def _poisson(rate_rps: float, count: int, seed: int, purpose: int) -> Array:
    return np.asarray(np.cumsum(np.random.default_rng([seed, purpose]).exponential(1 / rate_rps, count)))


def _played(
    arrivals_s: Array,
    servers: int,
    law: ServiceLaw,
    seed: int,
    *,
    batch: int = 1,
    wait_s: float = 0.0,
    looks: int = 1,
) -> tuple[Array, tuple[Array, Array]]:
    """Simulate one stage with a shared queue, and return statistics of equal intervals of time.

    The first interval is warm-up. For each of the `_BATCHES` after it: the mean time (s) in the stage of the
    items that complete in it; the mean number of items in the stage, at `looks` instants; and the rate times the mean
    time.
    """
    placement = Placement(
        pool=_POOL, service=law, max_replicas=1, concurrency=servers, batch_sizes=(batch,), batch_wait_s=wait_s
    )
    schedule = Schedule(start_s=arrivals_s, end_s=arrivals_s)
    end_s = float(arrivals_s[-1])
    engine = PipelineEngine(
        alone(placement), schedule, clock=Clock(duration_s=end_s, warmup_s=0.0, window_s=end_s), seed=seed
    )
    engine.add_replica((_STAGE, placement.name))
    length_s = end_s / (_BATCHES + 1)
    spent, seen, flow = [], [], []
    for number in range(_BATCHES + 1):
        before = engine.counters()
        inside = []
        for look in range(looks):
            engine.advance(number * length_s + (look + 1) / looks * length_s)
            now = engine.counters()
            inside.append(float((now.queued + now.in_service).sum()))
        after = engine.counters()
        completed = int((after.completed - before.completed).sum())
        total_s = float((after.latency_sum_s - before.latency_sum_s).sum())
        spent.append(total_s / completed)
        seen.append(sum(inside) / looks)
        flow.append(total_s / length_s)
    return np.array(spent[1:]), (np.array(seen[1:]), np.array(flow[1:]))


def alone(placement: Placement) -> PipelineSpec:
    """Return a pipeline of one stage on `placement`, whose SLA and queue limit are so high that no item is lost."""
    steps = StepPolicy(stabilization_s=0.0, max_share=1.0, max_replicas=1)
    target = Target(api_version="apps/v1", kind="Deployment", name="stage")
    stage = StageSpec(
        name=_STAGE,
        after=(),
        pass_ratio=1.0,
        routing=Routing.LEAST_LOADED,
        queue_limit=100_000,
        preset="generic",
        metrics_window_s=60.0,
        metric_overrides={},
        rules=(),
        placements=(PlacementSpec(target=target, prior=placement, startup_s=0.0),),
    )
    return PipelineSpec(
        key=PipelineKey("self/check"),
        namespace="self",
        name="check",
        uid="",
        generation=1,
        mode=Mode.AUTO,
        priority=0,
        unit=DemandUnit.REQUESTS,
        chunk_s=None,
        queries=PipelineQueries(demand=""),
        sla=Sla(latency_s=_FOREVER_S),
        max_wer=None,
        budget_per_hour=0.0,
        scaling=Scaling(tolerance=0.0, up=steps, down=steps, drain_s=0.0),
        stages=(stage,),
    )
