"""Simulated runs beside live ones: cost, users, windows and replicas over time."""

from dataclasses import replace

import pytest
from experiments import a_result

from simulations.lab.race.comparison import deviations
from simulations.results.results import PlacementSeries, RunResult, Tuning


def with_replicas(result: RunResult, desired: list[int]) -> RunResult:
    series = result.series
    count = len(series.t_s)
    assert len(desired) >= count
    own = PlacementSeries(
        stage="asr",
        placement="gpu",
        desired=tuple(desired[:count]),
        ready=tuple(desired[:count]),
        cost_per_hour=(1.0,) * count,
    )
    (pipeline,) = series.pipelines
    return replace(result, series=replace(series, pipelines=(replace(pipeline, placements=(own,)),)))


RISE = [1, 1, 2, 4, 6, 6, 5, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]


def test_equal_runs_do_not_deviate() -> None:
    run = with_replicas(a_result("hpa", windows=30), RISE)
    (found,) = deviations([run], [run])
    assert (found.cost, found.users, found.windows, found.replicas, found.behind_s) == (1.0, 0.0, 0.0, 0.0, 0.0)


def test_a_live_run_that_follows_a_window_later_is_said_to_be_later() -> None:
    live = with_replicas(a_result("hpa", windows=30), [1, *RISE])
    simulated = with_replicas(replace(a_result("hpa", windows=30), cost=live.cost * 0.8), RISE)
    (found,) = deviations([live], [simulated])
    assert found.cost == pytest.approx(0.8)
    assert found.behind_s == live.series.length_s[0]
    assert found.replicas > 0


def test_entrants_stay_apart_by_their_settings() -> None:
    documented = with_replicas(a_result("hpa", windows=30), RISE)
    trained = replace(documented, tuning=Tuning.TRAINED, cost=documented.cost * 2)
    found = list(deviations([documented, trained], [trained, documented]))
    assert [(own.tuning, own.cost) for own in found] == [(Tuning.DEFAULT, 1.0), (Tuning.TRAINED, 1.0)]


def test_a_live_run_without_its_simulation_is_an_error() -> None:
    run = with_replicas(a_result("hpa", windows=30), RISE)
    with pytest.raises(ValueError, match="simulated: has no run of hpa"):
        list(deviations([run], []))
