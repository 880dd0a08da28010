from dataclasses import replace

import numpy as np
import pytest
from builders import a_placement, a_spec, a_stage

from controller.core.state.spec import DemandUnit, PipelineSpec
from simulations.bound.arrivals import count_arrivals
from simulations.engine.draws import verdict
from simulations.scenario.schedule import Schedule, chunk_times

SEED = 12345678901


def a_stream_pipeline() -> PipelineSpec:
    """vad filters; two branches follow, one of which filters again."""
    pipeline = a_spec(
        a_stage("vad", a_placement("cpu"), pass_ratio=0.45),
        a_stage("text", a_placement("cpu"), after=["vad"]),
        a_stage("mood", a_placement("cpu"), after=["vad"], pass_ratio=0.5),
        a_stage("alarm", a_placement("cpu"), after=["mood"]),
    )
    return replace(pipeline, unit=DemandUnit.STREAMS, chunk_s=0.32)


def a_schedule(sessions: int = 80) -> Schedule:
    rng = np.random.default_rng(5)
    start_s = np.sort(rng.random(sessions) * 60)
    return Schedule(start_s=start_s, end_s=start_s + rng.exponential(15.0, sessions))


def test_items_are_counted_and_filtered_as_the_data_plane_numbers_them() -> None:
    pipeline, schedule, times_s = a_stream_pipeline(), a_schedule(), np.array([0.0, 7.3, 20.0, 33.3, 60.0])
    counted = count_arrivals(pipeline, schedule, times_s, seed=SEED, duration_s=60.0)
    chunks_s, _ = chunk_times(schedule, 0.32, 60.0, SEED)
    for column, time_s in enumerate(times_s):
        numbers = range(1, int(np.searchsorted(chunks_s, time_s)) + 1)
        voiced = [n for n in numbers if verdict(SEED, 0, n) * 2.0**-64 < 0.45]
        loud = [n for n in voiced if verdict(SEED, 2, n) * 2.0**-64 < 0.5]
        # An item that ends at the third stage is answered by the second, so it counts.
        assert counted.needed[:, column].tolist() == [len(voiced)] * 3 + [len(loud)]
        assert counted.spared[:, column].tolist() == [len(numbers) - len(voiced), 0, 0, 0]
        assert counted.unfiltered[column] == len(voiced)
    assert len(chunks_s) > 1000


def test_the_data_planes_draw_decides_what_is_filtered() -> None:
    from simulations.lab.traffic.dataplane import _uniform

    for number in range(1, 200):
        assert verdict(SEED, 2, number) * 2.0**-64 == pytest.approx(_uniform(SEED, 2, number), abs=1e-12)


def test_streams_are_present_from_their_first_chunk_to_their_last() -> None:
    schedule, times_s = a_schedule(), np.array([0.0, 11.0, 42.0, 60.0])
    counted = count_arrivals(a_stream_pipeline(), schedule, times_s, seed=SEED, duration_s=60.0)
    chunks_s, session = chunk_times(schedule, 0.32, 60.0, SEED)
    for column, time_s in enumerate(times_s):
        present_s = 0.0
        for stream in np.unique(session):
            own = chunks_s[session == stream]
            present_s += max(0.0, min(time_s, own.max()) - own.min())
        assert counted.present_s[column] == pytest.approx(present_s)


def test_requests_are_items() -> None:
    start_s = np.array([1.0, 2.0, 2.5, 9.0])
    counted = count_arrivals(
        a_spec(), Schedule(start_s=start_s, end_s=start_s), np.array([0.0, 2.0, 10.0]), seed=1, duration_s=10.0
    )
    assert counted.unfiltered.tolist() == [0, 1, 4]
    assert counted.present_s.tolist() == [0.0, 0.0, 0.0]
