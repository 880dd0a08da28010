"""The load of a scenario: for each pipeline the schedule of its sessions or requests."""

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controller.core.messages.phrases import duration
from controller.core.state.spec import DemandUnit, PipelineSpec
from controller.resources.base import Breach
from controller.resources.fields import duration_s
from simulations.scenario.scenario import Load, PastLoad, Scenario, pipeline_key
from simulations.scenario.schedule import (
    LoadTooLarge,
    Replay,
    Schedule,
    SessionLength,
    derived_seed,
    request_schedule,
    stream_schedule,
    thinned,
    with_spike,
)
from simulations.scenario.traces import Column, read_trace

_PEAK_WINDOW_S = 20


def pipeline_schedules(scenario: Scenario, *, seed: int, scale: float = 1.0) -> dict[str, Schedule]:
    """Return the schedule of every pipeline, by namespace/name, with spikes; empty for a pipeline without load.

    `scale` is the share of the sessions kept. The sessions of a load entry depend only on the entry, its place in
    `load`, the seed and the duration of the run.

    Raises:
        InvalidTrace: a trace cannot be read.
        LoadTooLarge: there are too many sessions; `path` of the error is the field that causes them.
        ValueError: `scale` is outside (0, 1].
    """
    clock = scenario.file.clock
    units = {pipeline_key(pipeline): pipeline.spec.demand.unit for pipeline in scenario.pipelines}
    nothing = np.empty(0)
    schedules = {key: Schedule(start_s=nothing, end_s=nothing) for key in units}
    for index, load in enumerate(scenario.file.load):
        if load.backlog is not None:
            arrivals = np.full(load.backlog.items, duration_s(load.backlog.at))
            schedules[load.pipeline] = schedules[load.pipeline].merged(Schedule.of(arrivals, arrivals))
            continue
        entry_seed = derived_seed(seed, zlib.crc32(load.pipeline.encode()), index)
        make = stream_schedule if units[load.pipeline] == "Streams" else request_schedule
        with _blame("load", index):
            schedule = make(replay_of(load, scenario.path.parent), clock.duration_s, entry_seed)
        schedules[load.pipeline] = schedules[load.pipeline].merged(schedule)
    for index, fault in enumerate(scenario.file.faults):
        spike = fault.spike
        if spike is not None:
            until_s = min(fault.interval.until_s, clock.duration_s)
            with _blame("faults", index, "spike"):
                schedules[spike.pipeline] = with_spike(
                    schedules[spike.pipeline], fault.interval.from_s, until_s, spike.factor, derived_seed(seed, index)
                )
    if scale == 1:
        return schedules
    return {
        key: thinned(schedule, scale, derived_seed(seed, zlib.crc32(key.encode())))
        for key, schedule in schedules.items()
    }


def refused_loads(scenario: Scenario, seeds: Iterable[int]) -> Iterator[Breach]:
    """Yield one breach for the first load that is too large under one of `seeds`; nothing if all loads fit."""
    for seed in seeds:
        try:
            pipeline_schedules(scenario, seed=seed)
        except LoadTooLarge as error:
            yield Breach(path=error.path, rule=str(error))
            return


@contextlib.contextmanager
def _blame(*path: str | int) -> Iterator[None]:
    try:
        yield
    except LoadTooLarge as error:
        error.path = path
        raise


def item_seed(seed: int, index: int) -> int:
    """Return the seed of the pipeline at `index` in a run, for chunk phases, filtering and service times."""
    return derived_seed(seed, index)


def replay_of(load: Load | PastLoad, folder: Path) -> Replay:
    """Return how the trace of `load` is replayed; its path is relative to `folder`.

    Raises:
        InvalidTrace: it cannot be read.
    """
    session = load.session
    trace, column = load.recording
    return Replay(
        trace=read_trace(trace, Column(column), folder=folder, series=load.series),
        copies=1 if load.copies is None else load.copies,
        speed=1.0 if load.speed is None else load.speed,
        offset_s=0.0 if load.offset is None else duration_s(load.offset),
        session=None if session is None else SessionLength(mean_s=duration_s(session.mean), cv=session.cv),
        ends=isinstance(load, Load) and load.at_end == "end",
    )


def load_notes(scenario: Scenario) -> tuple[str, ...]:
    """Return what was made of the traces, and which are shorter than the run, one sentence each.

    Raises:
        InvalidTrace: a trace cannot be read.
    """
    notes: list[str] = []
    run_s = scenario.file.clock.duration_s
    for load in scenario.file.load:
        if load.backlog is not None:
            continue
        replay = replay_of(load, scenario.path.parent)
        notes += [f"{load.pipeline}: {load.trace}: {note}" for note in replay.trace.notes]
        if (lasts_s := replay.lasts_s()) < run_s * (1 - 1e-9):
            what = "it ends then (atEnd: end)" if replay.ends else "it is repeated (atEnd: repeat)"
            notes.append(
                f"{load.pipeline}: {load.trace}: lasts {duration(lasts_s)} of the run's {duration(run_s)}: {what}"
            )
    return tuple(dict.fromkeys(notes))


def peak_demand(load: Schedule, pipeline: PipelineSpec, until_s: float) -> float:
    """Return the highest 20-second mean of a load from 0 to `until_s`, in the pipeline's unit."""
    level = demand_by_second(load, pipeline, until_s)
    width = min(_PEAK_WINDOW_S, len(level))
    return float(np.convolve(level, np.ones(width) / width, mode="valid").max())


def demand_by_second(load: Schedule, pipeline: PipelineSpec, until_s: float) -> NDArray[np.float64]:
    """Return the load of each second: the streams at its middle, or the requests that arrive in it."""
    edges = np.arange(0.0, until_s + 1.0)
    if pipeline.unit is DemandUnit.STREAMS:
        return load.active(edges[:-1] + 0.5).astype(float)
    return np.histogram(load.start_s, edges)[0].astype(float)
