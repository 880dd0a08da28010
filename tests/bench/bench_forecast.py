"""How wrong the demand forecast is on the bundled traces, beside the last value.

Run `python tests/bench/bench_forecast.py`.
Every cycle (15 s) of every trace forecasts the load one horizon ahead from the last five minutes. `streams` are
sessions under way (mean 40 s, cv 1.3), `rate` the starts per second over a cycle, of 1, 4 and 16 superposed copies.
`mean` is the mean absolute error, `short` the 95th percentile of how far the forecast fell short; both over three
seeds, in percent of the mean load.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiler.forecast import forecast
from simulations.scenario.schedule import Replay, SessionLength, request_schedule, stream_schedule
from simulations.scenario.traces import Column, bundled_names, read_trace

CYCLE_S = 15.0
HISTORY_S = 300.0
WARM_UP_S = 180.0
HORIZONS_S = (30.0, 60.0)
COPIES = (1, 4, 16)
SEEDS = (1, 2, 3)
UNITS = ("rate", "streams")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors in percent of the mean load."""

    mean: float
    short: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One trace, played one way: our errors and those of the last value."""

    trace: str
    unit: str
    copies: int
    horizon_s: float
    ours: Score
    last_value: Score


def levels(name: str, unit: str, copies: int, seed: int) -> list[float]:
    """The load of each cycle."""
    trace = read_trace(name, Column.ARRIVALS, folder=Path())
    if unit == "streams":
        replay = Replay(trace=trace, copies=copies, session=SessionLength(mean_s=40.0, cv=1.3))
        schedule = stream_schedule(replay, trace.span_s, seed)
        return [float(level) for level in schedule.active(np.arange(WARM_UP_S, trace.span_s, CYCLE_S))]
    schedule = request_schedule(Replay(trace=trace, copies=copies), trace.span_s, seed)
    counts, _ = np.histogram(schedule.start_s, np.arange(0.0, trace.span_s, CYCLE_S))
    return [float(count) / CYCLE_S for count in counts]


def errors(series: Sequence[float], horizon_s: float) -> Iterator[tuple[float, float]]:
    """Forecast minus truth, ours and the last value's, for every cycle that has two minutes of past."""
    samples = [(cycle * CYCLE_S, load) for cycle, load in enumerate(series)]
    ahead, kept = round(horizon_s / CYCLE_S), round(HISTORY_S / CYCLE_S)
    for now in range(8, len(samples) - ahead):
        history = samples[max(0, now - kept) : now + 1]
        truth = series[now + ahead]
        yield forecast(history, samples[now][0], horizon_s) - truth, series[now] - truth


def compare(name: str, unit: str, copies: int, horizon_s: float) -> Comparison:
    """Score one trace, played one way."""
    runs = [levels(name, unit, copies, seed) for seed in SEEDS]
    found = np.array([pair for run in runs for pair in errors(run, horizon_s)])
    percent = 100.0 / float(np.mean([load for run in runs for load in run]))
    ours, last_value = (
        Score(
            mean=float(np.mean(np.abs(found[:, column]))) * percent,
            short=float(np.percentile(np.maximum(0.0, -found[:, column]), 95)) * percent,
        )
        for column in (0, 1)
    )
    return Comparison(trace=name, unit=unit, copies=copies, horizon_s=horizon_s, ours=ours, last_value=last_value)


def main() -> None:
    """Print the table and the geometric mean of the ratios."""
    print(f"{'trace':<32} {'unit':<8} {'copies':>6} {'ahead':>6}   {'mean error %':>16}   {'short p95 %':>16}")
    print(f"{'':<32} {'':<8} {'':>6} {'':>6}   {'last':>7} {'ours':>8}   {'last':>7} {'ours':>8}")
    ratios: dict[str, list[tuple[float, float]]] = {unit: [] for unit in UNITS}
    for name in bundled_names():
        for unit in UNITS:
            for copies in COPIES:
                for horizon_s in HORIZONS_S:
                    row = compare(name, unit, copies, horizon_s)
                    ratios[unit].append((row.ours.mean / row.last_value.mean, row.ours.short / row.last_value.short))
                    print(
                        f"{name.split('.')[0]:<32} {unit:<8} {copies:>6} {horizon_s:>4.0f} s   "
                        f"{row.last_value.mean:>7.1f} {row.ours.mean:>8.1f}   "
                        f"{row.last_value.short:>7.1f} {row.ours.short:>8.1f}"
                    )
    for unit, pairs in ratios.items():
        mean, short = (math.exp(float(np.mean(np.log([pair[i] for pair in pairs])))) for i in (0, 1))
        worst = max(pair[0] for pair in pairs)
        print(f"{unit}: ours / last value: mean error {mean:.2f} (worst {worst:.2f}), short p95 {short:.2f}")


if __name__ == "__main__":
    main()
