"""Schedules from traces."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from simulations.scenario import schedule as schedules
from simulations.scenario.schedule import (
    LoadTooLarge,
    Replay,
    Schedule,
    SessionLength,
    chunk_times,
    request_schedule,
    stream_schedule,
    thinned,
    with_spike,
)
from simulations.scenario.traces import Column, Trace, parse_trace, read_trace

MINUTE = SessionLength(mean_s=60, cv=1.3)


def trace(values: Sequence[float], column: Column = Column.ARRIVALS, bin_s: float = 1.0) -> Trace:
    rows = "".join(f"{index * bin_s},{value}\n" for index, value in enumerate(values))
    return parse_trace(f"t_s,{column.value}\n{rows}", column, name="test")


def conversation() -> Trace:
    return read_trace("azure_llm_2023_conv_1s.csv.gz", Column.ARRIVALS, folder=Path())


def counts(schedule: Schedule, bin_s: float, bins: int) -> list[int]:
    return [int(count) for count in np.bincount((schedule.start_s // bin_s).astype(int), minlength=bins)]


def test_one_copy_plays_the_recording_as_it_was() -> None:
    schedule = request_schedule(Replay(trace=trace([3, 0, 5, 2])), 4, seed=1)

    assert counts(schedule, 1, 4) == [3, 0, 5, 2]
    assert schedule.start_s.tolist() == sorted(schedule.start_s)


def test_an_offset_names_the_segment_that_is_played_and_the_recording_starts_again_at_its_end() -> None:
    schedule = request_schedule(Replay(trace=trace([3, 0, 5, 2]), offset_s=2), 4, seed=1)

    assert counts(schedule, 1, 4) == [5, 2, 3, 0]


def test_speed_compresses_the_recording_and_its_sessions() -> None:
    replay = Replay(trace=trace([3, 0, 5, 2], bin_s=4), speed=4, session=SessionLength(mean_s=40, cv=0.0001))
    schedule = stream_schedule(replay, 4, seed=1)

    assert counts(schedule, 1, 4) == [3, 0, 5, 2]
    assert schedule.end_s - schedule.start_s == pytest.approx(10, rel=0.01)


def test_copies_are_shifted_so_that_bursts_do_not_coincide() -> None:
    burst = trace([100] + [0] * 999)
    schedule = request_schedule(Replay(trace=burst, copies=4), 1000, seed=1)

    assert len(schedule) == 400
    assert max(counts(schedule, 1, 1000)) == 100


def test_superposing_copies_keeps_the_dispersion_of_a_near_poisson_trace() -> None:
    replay = Replay(trace=conversation(), copies=8)
    binned = np.array(counts(request_schedule(replay, 3000, seed=2), 1, 3000))

    assert binned.var() / binned.mean() < 3  # multiplied counts would have 11


def test_a_seed_decides_everything_and_another_seed_something_else() -> None:
    replay = Replay(trace=conversation(), copies=2, session=MINUTE)
    first, again, other = (stream_schedule(replay, 300, seed=seed) for seed in (1, 1, 2))

    assert first.start_s.tolist() == again.start_s.tolist()
    assert first.end_s.tolist() == again.end_s.tolist()
    assert first.start_s.tolist() != other.start_s.tolist()


def test_session_lengths_have_the_mean_and_the_variation_that_was_asked() -> None:
    lengths = MINUTE.draw(np.random.default_rng(1), 400_000)

    assert lengths.mean() == pytest.approx(60, rel=0.01)
    assert lengths.std() / lengths.mean() == pytest.approx(1.3, rel=0.05)


def test_session_lengths_have_the_quantiles_of_recorded_calls() -> None:
    lengths = SessionLength(mean_s=181, cv=1.30).draw(np.random.default_rng(1), 400_000)

    assert np.percentile(lengths, [50, 95]) == pytest.approx([109, 577], rel=0.05)


def test_the_number_of_streams_follows_from_rate_and_length() -> None:
    schedule = stream_schedule(
        Replay(trace=trace([2.0] * 2000, Column.RATE_PER_S), session=SessionLength(mean_s=40, cv=1.3)), 2000, seed=3
    )

    assert schedule.active(np.arange(500.0, 2000)).mean() == pytest.approx(80, rel=0.05)


@pytest.mark.parametrize("session", [None, SessionLength(mean_s=3, cv=1.0)])
def test_the_number_of_streams_follows_a_recorded_level(session: SessionLength | None) -> None:
    levels = [10, 40, 40, 5, 0, 20]
    replay = Replay(trace=trace([float(x) for x in levels], Column.STREAMS, bin_s=10), session=session)
    schedule = stream_schedule(replay, 60, seed=1)

    assert schedule.active(np.arange(9.999, 60, 10)).tolist() == levels
    assert (schedule.end_s >= schedule.start_s).all()
    assert schedule.end_s.max() <= 60
    if session is not None:
        assert len(schedule) > 2 * sum(max(0, b - a) for a, b in itertools.pairwise([0, *levels]))


@pytest.mark.parametrize("session", [None, SessionLength(mean_s=300, cv=1.3)])
def test_a_level_holds_from_the_begin_of_the_run_however_long_its_bin_is(session: SessionLength | None) -> None:
    replay = Replay(trace=trace([100.0, 100.0], Column.STREAMS, bin_s=3600), session=session)
    schedule = stream_schedule(replay, 3600, seed=1)

    assert schedule.active(np.array([1.0]))[0] > 0
    assert schedule.active(np.arange(10.0, 3600.0, 60.0)).tolist() == [100] * 60


def test_a_level_that_rises_later_does_so_throughout_its_bin() -> None:
    schedule = stream_schedule(Replay(trace=trace([0.0, 100.0], Column.STREAMS, bin_s=100)), 200, seed=1)

    assert 30 <= schedule.active(np.array([150.0]))[0] <= 70


def test_a_rate_is_in_recorded_time() -> None:
    replay = Replay(trace=trace([10.0] * 100, Column.RATE_PER_S), speed=5)

    assert len(request_schedule(replay, 20, seed=1)) == pytest.approx(1000, rel=0.1)


def test_requests_end_when_they_start() -> None:
    schedule = request_schedule(Replay(trace=trace([3, 3])), 2, seed=1)

    assert schedule.end_s.tolist() == schedule.start_s.tolist()


@pytest.mark.parametrize("factor", [1.0, 2.0, 2.5])
def test_a_spike_multiplies_the_level_from_its_beginning_to_its_end(factor: float) -> None:
    levels = trace([400.0] * 10, Column.STREAMS, bin_s=10)
    plain = stream_schedule(Replay(trace=levels, session=SessionLength(mean_s=5, cv=1)), 100, seed=1)
    schedule = with_spike(plain, 30, 60, factor, seed=2)
    at_s = np.array([29.9, 32, 45, 59, 60.1, 90])

    level = schedule.active(at_s) / plain.active(at_s)

    assert level[[0, 4, 5]].tolist() == [1, 1, 1]
    assert level[1:4] == pytest.approx(factor, rel=0.1)


def test_a_spike_adds_requests_only_while_it_lasts_and_none_coincide() -> None:
    plain = request_schedule(Replay(trace=trace([50.0] * 30)), 30, seed=1)
    schedule = with_spike(plain, 10, 20, 3, seed=2)

    binned = counts(schedule, 10, 3)
    assert (binned[0], binned[2]) == (500, 500)
    assert binned[1] == pytest.approx(1500, rel=0.1)
    assert len(set(schedule.start_s)) == len(schedule)


def test_thinning_keeps_the_share_of_sessions_that_was_asked() -> None:
    schedule = request_schedule(Replay(trace=conversation()), 3000, seed=1)

    assert len(thinned(schedule, 0.25, seed=1)) == pytest.approx(0.25 * len(schedule), rel=0.05)
    assert len(thinned(schedule, 1, seed=1)) == len(schedule)


def test_a_stream_offers_a_chunk_per_period_from_its_first_period_to_its_end() -> None:
    schedule = Schedule(start_s=np.array([0.0, 2.0]), end_s=np.array([3.2, 99.0]))
    times_s, session = chunk_times(schedule, 0.32, duration_s=5.2, seed=1)

    assert times_s.tolist() == sorted(times_s)
    for index, (start_s, end_s) in enumerate([(0.0, 3.2), (2.0, 5.2)]):
        own = times_s[session == index]
        assert len(own) == 10
        assert np.diff(own) == pytest.approx(0.32)
        assert start_s <= own[0] < start_s + 0.32
        assert own[-1] < end_s


def test_streams_that_start_together_do_not_offer_their_chunks_together() -> None:
    schedule = Schedule(start_s=np.zeros(100), end_s=np.full(100, 1.0))
    times_s, _ = chunk_times(schedule, 1.0, duration_s=1.0, seed=1)

    assert np.histogram(times_s, bins=4, range=(0, 1))[0].min() > 10


def test_a_schedule_survives_its_file(tmp_path: Path) -> None:
    schedule = Schedule(start_s=np.array([1.0, 2.0]), end_s=np.array([3.0, 2.5]))
    schedule.save(tmp_path / "load.npz")

    again = Schedule.load(tmp_path / "load.npz")

    assert again.start_s.tolist() == [1, 2]
    assert again.end_s.tolist() == [3, 2.5]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"copies": 0}, "copies: 0: must be at least 1"),
        ({"speed": 0}, "speed: 0: must be above 0"),
        ({"offset_s": 4}, "offset: 4 s: must be within the trace's 4 s"),
    ],
)
def test_a_replay_that_cannot_be_played_is_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Replay(trace=trace([3, 0, 5, 2]), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "values", "session", "speed", "what"),
    [
        (Column.ARRIVALS, [1, 1e12], MINUTE, 1, r"3e\+13 sessions"),
        (Column.RATE_PER_S, [1, 1e25], MINUTE, 1, r"3e\+26 sessions"),
        (Column.STREAMS, [1, 1e300], None, 1, r"1e\+300 sessions"),
        (Column.ARRIVALS, [1, 1], MINUTE, 1e9, r"6e\+10 bins of the trace"),
    ],
)
def test_a_load_that_does_not_fit_into_memory_is_refused(
    column: Column, values: list[float], session: SessionLength | None, speed: float, what: str
) -> None:
    with pytest.raises(LoadTooLarge, match=f"{what}: must be at most"):
        stream_schedule(Replay(trace=trace(values, column), session=session, speed=speed), 60, seed=1)


def test_sessions_that_end_at_once_are_too_many_to_follow_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_SESSIONS", 1000)
    replay = Replay(trace=trace([1, 1], Column.STREAMS), session=SessionLength(mean_s=1e-4, cv=0))
    with pytest.raises(LoadTooLarge, match="sessions"):
        stream_schedule(replay, 60, seed=1)


def test_a_spike_of_more_sessions_than_fit_into_memory_is_refused() -> None:
    load = Schedule(start_s=np.zeros(10), end_s=np.ones(10))
    with pytest.raises(LoadTooLarge, match="sessions in the spike"):
        with_spike(load, 0, 1, 1e6, seed=1)


def test_a_level_of_streams_is_no_load_of_requests() -> None:
    with pytest.raises(ValueError, match="column: streams"):
        request_schedule(Replay(trace=trace([1, 1], Column.STREAMS)), 2, seed=1)


def test_streams_need_to_know_how_long_they_last() -> None:
    with pytest.raises(ValueError, match="session: is required"):
        stream_schedule(Replay(trace=trace([1, 1])), 2, seed=1)
