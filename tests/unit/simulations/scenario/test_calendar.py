"""The date of a simulated run: known demand and budgets by the calendar, from the begin of the load."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from builders import a_spec
from small_scenarios import PIPELINE, POOLS, a_scenario

from controller.core.assess.budgets import budget_per_hour
from controller.core.assess.schedule import highest_floor
from controller.core.cycle import decide
from controller.core.state.policy import Policy
from controller.core.state.schedule import CronFloor, DemandFloor, EventFloor, WeeklyFloor
from controller.resources.schedule import CronEntry
from controller.resources.time_zones import time_zone
from controller.resources.translate import windows_of
from simulations.cluster.refusals import refusals
from simulations.cluster.resources import Resources
from simulations.cluster.simulated import SimulatedCluster
from simulations.scenario.calendar import in_run_time
from simulations.scenario.scenario import with_what_if

BEGINS = "2026-03-28T20:00:00+01:00"  # clocks are set forward seven hours later


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    "floor",
    [
        EventFloor(name="a", demand=1.0, start_s=at("2026-03-29T00:00:00Z"), end_s=at("2026-03-29T02:00:00Z")),
        WeeklyFloor(name="b", demand=1.0, from_s=7200.0, until_s=14400.0, days=(6,), zone=time_zone("Europe/Berlin")),
        CronFloor(
            name="c",
            demand=1.0,
            windows=windows_of(
                CronEntry.model_validate({"schedule": "30 1,2,3 * * *", "timeZone": "Europe/Berlin", "for": "10m"})
            ),
        ),
    ],
    ids=["event", "hours", "cron"],
)
def test_at_every_time_of_the_run_that_is_known_which_is_known_on_its_date(floor: DemandFloor) -> None:
    (shifted,) = in_run_time(replace(a_spec(), at_least=(floor,)), at(BEGINS)).at_least
    active = 0
    for minute in range(-60, 24 * 60, 5):
        run_s, date_s = 60.0 * minute, at(BEGINS) + 60.0 * minute
        known = highest_floor((floor,), date_s, date_s) is not None
        active += known
        assert (highest_floor((shifted,), run_s, run_s) is not None) == known, minute
    assert active


QUERY = next(line for line in PIPELINE.splitlines() if "query: sum" in line)
EXPECTED = f"""{QUERY}
    expected: [{{schedule: "0 21 * * SAT", timeZone: Europe/Berlin, for: 1h, atLeast: "9"}}]"""
BUDGET = """---
apiVersion: sluice.dev/v1alpha1
kind: ComputeBudget
metadata: {name: team}
spec:
  namespaceSelector: {matchLabels: {team: a}}
  perHour: "3"
  periods: [{schedule: "0 21 * * *", timeZone: Europe/Berlin, for: 1h, perHour: "1"}]
---
apiVersion: v1
kind: Namespace
metadata: {name: speech, labels: {team: a}}
"""


def test_a_scenario_with_a_begin_simulates_expected_demand(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path, pipeline=PIPELINE.replace(QUERY, EXPECTED), properties=f"begins: {BEGINS}")
    assert not list(refusals(scenario))
    (pipeline,) = Resources(scenario).pipelines.values()
    assert highest_floor(pipeline.at_least, 3599.0, 3599.0) is None
    assert highest_floor(pipeline.at_least, 3600.0, 3600.0) is not None


def test_without_a_begin_expected_demand_and_periods_are_refused(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path, pipeline=PIPELINE.replace(QUERY, EXPECTED), pools=POOLS + BUDGET)
    assert [(refusal.resource, refusal.path) for refusal in refusals(scenario)] == [
        ("ComputeBudget/team", ("spec", "periods")),
        ("SpeechPipeline/speech/captions", ("spec", "demand", "expected")),
    ]


def test_a_budget_of_the_manifests_caps_the_pipelines_in_its_namespaces_by_the_calendar(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path, pools=POOLS + BUDGET, properties=f"begins: {BEGINS}")
    (state,) = Resources(scenario).budgets()
    assert (state.spec.name, state.namespaces) == ("team", frozenset({"speech"}))
    assert [budget_per_hour(state.spec, at_s) for at_s in (3599.0, 3600.0, 7200.0)] == [3.0, 1.0, 3.0]


def test_a_what_if_changes_a_budget(tmp_path: Path) -> None:
    what_if = '[{name: poor, set: {ComputeBudget/team: {spec: {perHour: "2", periods: []}}}}]'
    scenario = a_scenario(tmp_path, pools=POOLS + BUDGET, what_if=what_if)
    (state,) = Resources(with_what_if(scenario, scenario.what_if("poor"))).budgets()
    assert state.spec.per_hour == 2.0


def test_a_simulated_fleet_spends_no_more_than_its_budget(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path, pools=POOLS + BUDGET, properties=f"begins: {BEGINS}", load=((0, 200.0),))
    cluster = SimulatedCluster(scenario, seed=1, interval_s=15.0)
    while cluster.now_s < 60.0:
        decision = decide(cluster.snapshot(), Policy())
        cluster.apply(decision)
        cluster.advance(cluster.now_s + 15.0)
    (budget,) = decision.budgets
    assert 1.5 < budget.spend_per_hour <= 3.0
    assert [short.key for short in budget.short] == ["speech/captions"]
