"""The report of a live run."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from live_runs import (
    ASR_CPU,
    ASR_GPU,
    CAPTIONS,
    CLOCK,
    CPU,
    GPU,
    a_decision,
    a_run,
    a_run_with_a_backlog,
    an_observation,
    items,
    observed,
    pipeline,
    replicas,
    report_of,
)

from optimizer.model import PipelineKey, PlacementId, Sla
from simulations.lab.session.report import lab_windows
from simulations.results.scoring import Interval, Items, Outcome
from simulations.results.spending import Observation, Replicas


def both(first: Items, second: Items) -> Items:
    return Items(
        arrival_s=np.concatenate([first.arrival_s, second.arrival_s]),
        latency_s=np.concatenate([first.latency_s, second.latency_s]),
        outcome=np.concatenate([first.outcome, second.outcome]),
    )


def test_every_item_offered_in_scored_time_has_exactly_one_fate() -> None:
    fates = items(Outcome.SERVED)
    for outcome in (Outcome.FILTERED, Outcome.SHED, Outcome.REFUSED, Outcome.LOST, Outcome.IN_FLIGHT):
        fates = both(fates, items(outcome, count=40))
    summary = report_of(a_run(items_of={CAPTIONS: fates}))["summary"]

    assert summary["offered"] == 450
    assert [summary[fate] for fate in ("served", "filtered", "shed", "refused", "lost", "in_flight")] == [
        300,
        *[30] * 5,
    ]


def test_windows_are_scored_by_the_sla_that_the_faults_set() -> None:
    strict = {CAPTIONS: ((20.0, Sla(latency_s=0.05, percentile=95)),)}
    summary = report_of(replace(a_run(), sla_changes=strict))["summary"]

    assert report_of(a_run())["summary"]["sla_windows_met"] == 1
    assert summary["sla_windows_met"] == pytest.approx(1 / 3)


def test_windows_tell_rates_latency_and_what_there_was_at_their_end() -> None:
    def seen(t_s: float) -> Observation:
        later = t_s >= 19
        placements = {ASR_CPU: replicas(3 if later else 2, ready=2), ASR_GPU: replicas(0)}
        return an_observation(t_s, placements, spend=6.0 if later else 4.0)

    windows = lab_windows(a_run(observations=observed(seen)))

    assert [window.t_s for window in windows] == [10.0, 20.0, 30.0]
    assert asdict(windows[0]) == {
        "t_s": 10.0,
        "offered_rps": 10.0,
        "served_rps": 10.0,
        "p95_s": 0.1,
        "spend_per_hour": 6.0,
        "replicas": {"asr": {"cpu": {"desired": 3, "ready": 2}, "gpu": {"desired": 0, "ready": 0}}},
    }


def test_a_last_window_that_is_shorter_has_rates_of_its_own_length() -> None:
    run = replace(a_run(), clock=replace(CLOCK, window_s=20.0))
    windows = lab_windows(run)

    assert [(window.t_s, window.offered_rps) for window in windows] == [(10.0, 10.0), (30.0, 10.0)]


def test_a_window_whose_items_were_mostly_lost_has_no_percentile() -> None:
    assert lab_windows(a_run(items_of={CAPTIONS: items(Outcome.LOST)}))[0].p95_s is None


def test_windows_met_are_a_share_of_those_with_enough_items() -> None:
    late = items(latency_s=0.9)
    late.latency_s[:200] = 0.1  # the SLA of 0.5 s holds in the first half of the run
    summary = report_of(a_run(items_of={CAPTIONS: late}))["summary"]
    assert (summary["windows"], summary["sla_windows_met"]) == (3, pytest.approx(1 / 3))

    few = report_of(a_run(items_of={CAPTIONS: items(count=40)}))["summary"]
    assert (few["windows"], few["sla_windows_met"], few["sla_windows_met_calm"]) == (0, None, None)


def test_a_backlog_has_an_entry_of_its_own_and_windows_are_those_of_the_live_pipelines() -> None:
    run = a_run_with_a_backlog()
    found, live = report_of(run), report_of(replace(a_run(), clock=run.clock))

    assert found["backlogs"] == [
        {
            "pipeline": "speech/archive",
            "items": 40,
            "done": 40,
            "last_done_s": 30.0,
            "due_s": 35.0,
            "met": True,
            "cost": pytest.approx(40 / 3600 * 1.0),
        }
    ]
    for name in ("offered_rps", "served_rps", "p95_s"):
        assert [window[name] for window in found["windows"]] == [window[name] for window in live["windows"]]
    assert found["summary"]["windows"] == live["summary"]["windows"] == 4
    assert found["summary"]["sla_windows_met"] == 1


def test_a_run_of_backlogs_alone_has_no_windows_and_no_shares() -> None:
    run = a_run_with_a_backlog()
    found = report_of(replace(run, pipelines=run.pipelines[1:]))
    assert (found["windows"], found["summary"]["windows"], found["summary"]["sla_windows_met"]) == ([], 0, None)
    assert found["backlogs"][0]["done"] == 40


def test_calm_windows_are_those_before_a_fault_in_a_short_run() -> None:
    late = items(latency_s=0.9)
    late.latency_s[:200] = 0.1
    summary = report_of(replace(a_run(items_of={CAPTIONS: late}), faults=(Interval(from_s=20.0, until_s=25.0),)))[
        "summary"
    ]
    assert summary["sla_windows_met_calm"] == 1.0
    assert summary["sla_windows_met"] < 1


def test_money_and_changes_are_counted_after_the_warm_up() -> None:
    def seen(t_s: float) -> Observation:
        desired = 1 if t_s < 5 else 2 if t_s < 20 else 1 if t_s < 30 else 4
        return an_observation(t_s, {ASR_CPU: replicas(desired), ASR_GPU: replicas(0)}, spend=36.0, budget=100.0)

    summary = report_of(a_run(observations=observed(seen)))["summary"]

    assert summary["cost"] == pytest.approx(36.0 * 30 / 3600)
    assert summary["replica_changes"] == 1 + 3


def test_the_static_peak_is_paid_at_the_prices_that_held() -> None:
    def seen(t_s: float) -> Observation:
        return an_observation(t_s, prices={CPU: 1.0, GPU: 2.0 if t_s < 25 else 4.0})

    run = a_run(observations=observed(seen), peak_instances={CPU: 1.5, GPU: 2.0})
    expected = (1.5 * 30 + 2.0 * (15 * 2.0 + 15 * 4.0)) / 3600

    assert report_of(run)["summary"]["static_peak_cost"] == pytest.approx(expected)
    assert report_of(a_run(peak_instances=None))["summary"]["static_peak_cost"] is None


def test_decisions_are_told_in_time_of_the_run() -> None:
    (decision,) = report_of(a_run(decisions=[a_decision(now_s=1_000_012.3456)]))["decisions"]

    assert decision == {
        "t_s": 12.346,
        "pipeline": CAPTIONS,
        "changes": [{"stage": "asr", "pool": "cpu", "replicas": [1, 2]}],
        "reason": "more demand",
    }


def test_several_pipelines_are_added_up_and_their_stages_told_apart() -> None:
    other = pipeline("notes")
    notes = PipelineKey("speech/notes")

    def seen(t_s: float) -> Observation:
        placements: dict[PlacementId, Replicas] = {
            (key, stage, pool): replicas(1) for key in (CAPTIONS, notes) for _, stage, pool in (ASR_CPU, ASR_GPU)
        }
        return an_observation(t_s, placements, spend=4.0)

    run = a_run(
        pipeline(),
        other,
        items_of={CAPTIONS: items(), notes: items(Outcome.LOST, count=200)},
        observations=observed(seen),
    )
    report = report_of(run)
    summary, window = report["summary"], report["windows"][0]

    assert (summary["offered"], summary["served"], summary["lost"]) == (450, 300, 150)
    assert (summary["windows"], summary["sla_windows_met"]) == (6, 0.5)
    assert window["replicas"].keys() == {"speech/captions/asr", "speech/notes/asr"}
    assert (window["offered_rps"], window["spend_per_hour"]) == (15.0, 8.0)
    assert window["p95_s"] is None, "one of the two has none"


def cap_violations(*steps: tuple[float, float, float], prices: tuple[tuple[float, float], ...] = ()) -> int:
    """Steps are (from, spend, budget) and (from, price of cpu), in order of time; the drain is 4 s, the cycle 2 s."""

    def seen(t_s: float) -> Observation:
        *_, (_, spend, budget) = (step for step in steps if step[0] <= t_s)
        *_, (_, price) = (step for step in ((-1.0, 1.0), *prices) if step[0] <= t_s)
        return an_observation(t_s, spend=spend, budget=budget, prices={CPU: price, GPU: 2.0})

    violations: int = report_of(a_run(observations=observed(seen)))["summary"]["cap_violations"]
    return violations


START = (-1.0, 5.0, 10.0)


def test_spend_above_the_budget_is_a_violation_once_per_interval() -> None:
    assert cap_violations(START) == 0
    assert cap_violations(START, (10, 10.0, 10.0)) == 0, "the cap itself may be spent"
    assert cap_violations(START, (10, 10.5, 10.0)) == 1
    assert cap_violations(START, (10, 10.5, 10.0), (15, 11.0, 10.0), (20, 9.0, 10.0), (30, 12.0, 10.0)) == 2


def test_after_a_budget_cut_the_excess_is_forgiven_until_the_drain_and_two_cycles_later() -> None:
    cut = (20.0, 8.0, 6.0)
    assert cap_violations((-1, 8.0, 10.0), cut, (28, 5.0, 6.0)) == 0
    assert cap_violations((-1, 8.0, 10.0), cut, (29, 5.0, 6.0)) == 1, "a second too late"
    assert cap_violations((-1, 8.0, 10.0), cut, (23, 9.0, 6.0), (24, 5.0, 6.0)) == 1, "spend rose meanwhile"


def test_after_a_price_rise_the_excess_is_forgiven_too() -> None:
    rise = ((20.0, 2.0),)
    assert cap_violations((-1, 6.0, 10.0), (20, 12.0, 10.0), (27, 9.0, 10.0), prices=rise) == 0
    assert cap_violations((-1, 6.0, 10.0), (20, 12.0, 10.0), (27, 9.0, 10.0)) == 1, "without a rise it is not"
    assert cap_violations((-1, 6.0, 10.0), (20, 12.0, 10.0), (27, 9.0, 10.0), prices=((20.0, 0.5),)) == 1


def test_taking_over_above_the_cap_is_forgiven_while_it_comes_down() -> None:
    assert cap_violations((-1, 12.0, 10.0), (6, 9.0, 10.0)) == 0
    assert cap_violations((-1, 12.0, 10.0), (12, 9.0, 10.0)) == 1
    assert cap_violations((-1, 9.0, 10.0), (2, 12.0, 10.0), (4, 9.0, 10.0)) == 1


def test_a_run_that_nobody_observed_is_a_report_all_the_same() -> None:
    report = report_of(a_run(observations=()))
    assert report["windows"][0]["replicas"] == {}
    assert (report["summary"]["cost"], report["summary"]["replica_changes"]) == (0.0, 0)
