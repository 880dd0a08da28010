"""How wrong the demand forecast is on the bundled traces, beside the last value.

Run `python tests/bench/bench_forecast.py`.
Every cycle (15 s) of every trace forecasts the load one horizon ahead from the last five minutes. `streams` are
sessions under way (mean 40 s, cv 1.3), `rate` the starts per second over a cycle, of 1, 4 and 16 superposed copies.
`mean` is the mean absolute error, `short` the 95th percentile of how far the forecast fell short; both over three
seeds, in percent of the mean load.

The second table is of days with a history of seven days before: forecasts without and with it, every two minutes of the
day (or of the five minutes before and after each rise: `rises`). Loads are Poisson around a mean: `daily` rises and
falls over the day; `opening` rises to five times at nine, and falls at five; `Monday`, `Wednesday` and `Saturday` are
days of a week that opens on five days; `holiday` is a day that does not open after days that all did; `noise` has past
days without any pattern.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiler.forecast import forecast
from profiler.season import DemandHistory, Season, packed, period_before, season
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


DAY_S = 86_400.0
STEP_S = 300.0
EVERY_S = 120.0
NEAR_S = 300.0
NIGHT, NOON = 100.0, 500.0
Mean = Callable[[float], float]


def daily(at_s: float) -> float:
    return NIGHT + (NOON - NIGHT) * (1 - math.cos(2 * math.pi * at_s / DAY_S)) / 2


def opening(at_s: float) -> float:
    return NOON if 9 * 3600 <= at_s % DAY_S < 17 * 3600 else NIGHT


def week(at_s: float) -> float:
    return opening(at_s) if int(at_s // DAY_S) % 7 < 5 else NIGHT


def holiday(at_s: float) -> float:
    return opening(at_s) if at_s < 21 * DAY_S else NIGHT


def noise(at_s: float) -> float:
    return opening(at_s) if at_s >= 21 * DAY_S else float(np.random.default_rng(int(at_s)).uniform(0, 2 * NOON))


DAYS: dict[str, tuple[Mean, int]] = {
    "daily": (daily, 21),
    "opening": (opening, 21),
    "Monday": (week, 21),
    "Wednesday": (week, 23),
    "Saturday": (week, 26),
    "holiday": (holiday, 21),
    "noise": (noise, 21),
}
"""The mean load, and the day of it that is forecast."""


def with_history(mean: Mean, day: int, horizon_s: float, seed: int) -> Iterator[tuple[float, float, float, bool]]:
    """Yield forecast minus truth without and with history, the load, and whether a rise is near, over a day."""
    rng = np.random.default_rng(seed)
    begin_s, end_s = (day - 8.5) * DAY_S, (day + 1) * DAY_S
    recorded = [float(rng.poisson(mean(at_s))) for at_s in np.arange(begin_s, end_s, STEP_S)]
    loads = rng.poisson([mean(at_s) for at_s in np.arange(day * DAY_S - 600, end_s + 600, CYCLE_S)]).astype(float)
    for now_s in np.arange(day * DAY_S, end_s, EVERY_S):
        last = round((now_s - day * DAY_S + 600) / CYCLE_S)
        history = [(now_s + CYCLE_S * back, float(loads[last + back])) for back in range(-20, 1)]
        first_s, count = period_before(now_s, DAY_S, 7, STEP_S)
        first = round((first_s - begin_s) / STEP_S)
        past = DemandHistory(
            begin_s=first_s, step_s=STEP_S, season_s=DAY_S, most=7, levels=packed(recorded[first : first + count])
        )
        found = season(past, history, now_s, horizon_s)
        assert isinstance(found, Season)
        truth = mean(now_s + horizon_s)
        near = mean(now_s + NEAR_S) > 1.5 * mean(now_s - NEAR_S)
        plain, seasonal = forecast(history, now_s, horizon_s), forecast(history, now_s, horizon_s, found)
        yield plain - truth, seasonal - truth, truth, near


def print_seasons() -> None:
    """Print the table of days with history."""
    print(f"\n{'day':<12} {'ahead':>6}   {'mean error %':>16}   {'short p95 %':>16}   {'rises, short %':>16}")
    print(f"{'':<12} {'':>6}   {'without':>7} {'with':>8}   {'without':>7} {'with':>8}   {'without':>7} {'with':>8}")
    for name, (mean, day) in DAYS.items():
        for horizon_s in (60.0, 300.0):
            rows = np.array([row for seed in SEEDS for row in with_history(mean, day, horizon_s, seed)])
            errors, percent = rows[:, :2], 100 / rows[:, 2].mean()
            near = errors[rows[:, 3] > 0]
            short = np.maximum(0.0, -near).mean(axis=0) * percent if len(near) else (math.nan, math.nan)
            cells = zip(
                np.abs(errors).mean(axis=0) * percent,
                np.percentile(np.maximum(0.0, -errors), 95, axis=0) * percent,
                short,
                strict=True,
            )
            (mean_0, p95_0, near_0), (mean_1, p95_1, near_1) = cells
            print(
                f"{name:<12} {horizon_s:>4.0f} s   {mean_0:>7.1f} {mean_1:>8.1f}   {p95_0:>7.1f} {p95_1:>8.1f}   "
                f"{near_0:>7.1f} {near_1:>8.1f}"
            )


def main() -> None:
    """Print the tables and the geometric mean of the ratios."""
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
    print_seasons()


if __name__ == "__main__":
    main()
