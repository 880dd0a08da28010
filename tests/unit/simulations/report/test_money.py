"""Where the money went: every split adds up to the cost of the run."""

from dataclasses import replace

import pytest
from experiments import a_result, an_experiment, some_users

from controller.core.state.spec import DemandUnit
from simulations.report.money import by_placement, by_time, money, per_unit
from simulations.results.cost_breakdown import MEANINGS, CostBreakdown, CostPart
from simulations.results.results import Run, RunResult


def run_of(*results: RunResult) -> Run:
    (run,) = an_experiment(*results).runs()
    return run


def cost_of(result: RunResult) -> float:
    (own,) = result.series.pipelines
    return sum(usd * s for usd, s in zip(own.cost_per_hour, result.series.length_s, strict=True)) / 3600


def test_stages_and_pools_add_up_to_the_cost_the_dearest_first() -> None:
    result = a_result(windows=360)  # an hour
    found = by_placement(run_of(result))
    assert sum(usd for _, usd in found) == pytest.approx(cost_of(result))
    assert {place for place, _ in found} >= {("vad", "cpu"), ("encoder", "gpu"), ("encoder", "inferentia")}
    assert [usd for _, usd in found] == sorted((usd for _, usd in found), reverse=True)


@pytest.mark.parametrize(("windows", "parts"), [(360, 7), (6 * 360, 7)])  # ten minutes, then hours, from 2:00 on
def test_parts_of_time_add_up_to_the_cost(windows: int, parts: int) -> None:
    result = a_result(windows=windows)
    found = list(by_time(run_of(result, replace(result, seed=2))))
    assert len(found) == parts
    assert sum(usd for _, usd, _, _ in found) == pytest.approx(cost_of(result))


def test_a_stream_hour_and_a_thousand_requests_have_a_price() -> None:
    result = replace(a_result(windows=360), users=(some_users(share=0.5),))
    cost = cost_of(result)
    assert list(per_unit(run_of(result))) == [f"Per stream-hour served as promised: ${cost / 200:.4f}."]
    requests = replace(result, users=(some_users(share=0.5, streams=10_000, unit=DemandUnit.REQUESTS),))
    assert list(per_unit(run_of(requests))) == [f"Per thousand requests served as promised: ${cost / 5:.2f}."]


def test_no_user_served_has_no_price() -> None:
    nobody = replace(a_result(windows=360), users=(some_users(share=0.0),))
    assert "no cost can be stated" in next(per_unit(run_of(nobody)))


def test_what_the_cost_was_spent_on_is_shown_where_it_was_asked_for() -> None:
    result = a_result(windows=360)
    page = str(money(run_of(result)))
    assert "By cause" not in page
    parts = {part: 1.0 if part is CostPart.WORK else 0.0 for part in CostPart} | {CostPart.HELD: -0.25}
    asked = replace(result, breakdown=CostBreakdown(parts=parts))
    page = str(money(run_of(asked, replace(asked, seed=2))))
    assert MEANINGS[CostPart.WORK] in page
    assert MEANINGS[CostPart.HELD] in page
    assert MEANINGS[CostPart.WINDOW] not in page


def test_a_run_without_scored_time_has_no_section() -> None:
    assert money(run_of(a_result(windows=0))) is None
