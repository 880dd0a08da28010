"""What ran against Sluice, from made-up results."""

from dataclasses import replace

import pytest
from compared import ONE, RAN, RECORDED, SLUICE
from experiments import a_result, a_series, some_users

from controller.core.state.spec import DemandUnit
from simulations.backtest.comparison import COLUMNS, Measures, rows, sentences, served
from simulations.policies.recorded import RECORDED as RECORDED_POLICY
from simulations.results.results import RunResult


def test_the_saving_is_between_two_simulations_not_against_the_record() -> None:
    assert ONE.saving == pytest.approx(0.5)
    said = " ".join(sentences(ONE))
    assert "Sluice would have cost $55.00, 50.0% less than what ran ($110.00)" in said
    assert "99.0 % of the windows instead of 97.0 %" in said


def test_more_cost_is_said_as_such() -> None:
    dear = replace(ONE, sluice=replace(SLUICE, cost=121.0))
    assert "10.0% more than what ran" in " ".join(sentences(dear))


def test_the_calibration_sets_simulated_against_measured() -> None:
    assert ONE.calibration() == (
        "calibration: what ran was within the SLA in 98.0 % of the measured steps, and in 97.0 % of the simulated "
        "windows; median p95 200 ms measured, 210 ms simulated (1.05 ×)"
    )
    far = replace(ONE, recorded_simulated=replace(RAN, latency_s=0.1))
    assert "(0.50 ×). The service times do not fit what ran" in far.calibration()


def test_percentiles_that_differ_are_not_compared() -> None:
    words = replace(ONE, percentile=99.0).calibration()
    assert "p99 and the simulated p95 are not compared" in words
    assert "×" not in words


def test_what_is_not_known_is_not_a_number() -> None:
    unknown = replace(
        ONE,
        recorded=Measures(cost=None, windows=0, sla_share=None, latency_s=None, unanswered=None),
        recorded_simulated=None,
    )
    assert unknown.saving is None
    assert next(iter(sentences(unknown))) == "what ran is not known, so no saving can be stated"
    assert "calibration: none" in unknown.calibration()
    assert rows(unknown)[0] == ("what ran, as recorded", "not recorded", "not measured", "not measured", "not measured")
    assert [row[0] for row in rows(unknown)] == ["what ran, as recorded", "Sluice, simulated"]
    assert {len(row) for row in rows(ONE)} == {len(COLUMNS)}
    unmeasured = replace(ONE, recorded=replace(RECORDED, sla_share=None, latency_s=None))
    assert "no latency was measured" in unmeasured.calibration()
    endless = replace(ONE, sluice=replace(SLUICE, latency_s=None))
    assert rows(endless)[2][3] == "p95 no answer"


def a_part(policy: str, windows: int, *, streams: float, requests: float, cut: int) -> RunResult:
    """A run of one part: a pipeline of streams, of which all are served as promised, and one of requests, none late."""
    return replace(
        a_result(policy, windows=windows),
        users=(
            some_users(share=1.0, streams=streams),
            some_users(share=0.9, streams=requests, unit=DemandUnit.REQUESTS),
        ),
        series=a_series(windows=windows),
        sessions_cut=cut,
    )


def test_users_of_the_parts_are_a_mean_of_streams_by_length_and_a_sum_of_requests() -> None:
    results = [
        a_part("sluice", 1, streams=10.0, requests=100.0, cut=2),
        a_part(RECORDED_POLICY, 1, streams=10.0, requests=100.0, cut=0),
        a_part("sluice", 3, streams=50.0, requests=300.0, cut=5),
        a_part(RECORDED_POLICY, 3, streams=50.0, requests=300.0, cut=1),
    ]
    ours, ran = served(results, 2)

    assert (ours.name, ours.sessions_cut, ran.name, ran.sessions_cut) == ("Sluice", 7, "What ran (simulated)", 1)
    streams, requests = ours.users
    assert streams.offered == pytest.approx(40.0)
    assert requests.offered == pytest.approx(400.0)
    assert requests.as_promised == pytest.approx(360.0)
    assert requests.late + requests.lost == pytest.approx(40.0)
    assert ours.sentence().startswith("Sluice served 40 of 40 open streams (mean) as promised (100 %")


def test_what_ran_is_not_told_where_it_is_not_recorded_in_every_part() -> None:
    parts = [a_part(policy, 2, streams=1.0, requests=1.0, cut=0) for policy in ("sluice", RECORDED_POLICY, "sluice")]

    assert [one.name for one in served(parts, 2)] == ["Sluice"]
