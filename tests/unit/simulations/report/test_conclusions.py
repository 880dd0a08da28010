"""The results in sentences."""

from dataclasses import replace
from typing import Any

import pytest
from experiments import a_result, an_experiment, some_users

from controller.core.state.spec import DemandUnit
from simulations.policies.recorded import RECORDED
from simulations.report.conclusions import Figure, figures, label, sentences, served_sentence, subject
from simulations.results.results import BoundResult, Experiment, RunResult, Tuning
from simulations.results.users import Users


def told(experiment: Experiment) -> str:
    return " ".join(sentences(experiment))


def figure(result: RunResult, name: str) -> Figure:
    (found,) = (each for each in figures(an_experiment(result), None) if each.name == name)
    return found


def of(share: float, **changed: Any) -> tuple[Users, ...]:
    return (replace(some_users(share=share), **changed),)


def test_the_first_sentence_says_how_many_users_were_served_refused_cut_late_and_lost() -> None:
    users = of(0.96, refused=4.0, late=8.0, lost=4.0)
    assert next(sentences(an_experiment(replace(a_result(), users=users)))) == (
        "Sluice served 384 of 400 open streams (mean) as promised (96.0 %; the SLA asks for 95.0 %): "
        "4 refused, 8 late, 4 lost; 4 sessions were cut."
    )


def test_requests_are_counted_and_have_no_sessions() -> None:
    users = (some_users(share=0.9, streams=10_000.0, unit=DemandUnit.REQUESTS),)
    assert served_sentence("hpa", users, 0) == (
        "hpa served 9,000 of 10,000 requests as promised (90.0 %; below the 95.0 % of the SLA): "
        "0 refused, 500 late, 500 lost."
    )
    assert served_sentence("hpa", (replace(users[0], offered=0.0),), 0) == "hpa had no users to serve."


def test_items_of_a_backlog_are_counted_against_their_deadline() -> None:
    users = (some_users(share=0.9, streams=10_000.0, unit=DemandUnit.ITEMS),)
    found = served_sentence("Sluice", users, 0)
    assert found.startswith(
        "Sluice served 9,000 of 10,000 items as promised (90.0 %; below the 95.0 % of the deadline)"
    )


@pytest.mark.parametrize(("share", "good"), [(0.95, True), (0.949, False)])
def test_green_is_what_the_users_own_sla_asks_for_and_not_a_share_of_windows(share: float, good: bool) -> None:
    result = replace(a_result(met=0.5), users=of(share))
    assert figure(result, "served as promised").good is good


def test_few_late_users_are_not_none() -> None:
    assert "under 0.1 late" in next(sentences(an_experiment(replace(a_result(), users=of(0.99, late=0.004)))))


def test_a_report_is_about_sluice_as_it_is_by_default() -> None:
    experiment = an_experiment(
        a_result("hpa"), a_result(what_if="half"), a_result(tuning=Tuning.TRAINED), a_result(cost=3.0)
    )
    assert subject(experiment).mean("cost") == 3.0
    assert label(subject(experiment)) == "Sluice"
    assert subject(an_experiment(a_result("keda"), a_result("hpa"))).policy == "keda"


def test_cost_and_bound_are_told_per_hour_and_month() -> None:
    result = a_result(cost=10.0, windows=360)  # an hour
    words = told(an_experiment(result))
    assert "It cost $10.00/h ($7,300/month)." in words
    assert "The best that could be paid is $8.00/h ($5,840/month)" in words
    assert "even if it knows load and faults in advance. The run cost 1.25 × this bound." in words
    assert "Spend never exceeded the budget" in words


def test_it_is_compared_with_what_runs_today_or_else_with_the_static_peak() -> None:
    ours = a_result(cost=10.0, windows=360)
    peak = replace(a_result("static-peak", cost=20.0, windows=360), users=of(0.99))
    ran = replace(a_result(RECORDED, cost=12.5, windows=360), users=of(0.9))
    words = told(an_experiment(ours, peak))
    assert "A static allocation for the peak costs $20.00/h ($14,600/month) and serves 99.0 %" in words
    assert "Sluice saves $7,300/month (50.0 %)." in words
    assert "What runs today costs $12.50/h ($9,125/month) and serves 90.0 %" in told(an_experiment(ours, peak, ran))
    dear = told(an_experiment(replace(ours, cost=25.0), peak))
    assert "Sluice costs $3,650/month more (25.0 %)." in dear


def test_who_beats_it_is_named_first() -> None:
    words = told(an_experiment(a_result(), a_result("hpa", cost=9.0, met=0.999), a_result("keda", cost=99.0)))
    assert "Better: hpa at $540.00 per hour (99.8 % of the users) cost no more" in words
    assert "No other policy" not in words
    assert "The cheapest other policy" not in words


def test_the_cheapest_of_those_that_serve_as_many_is_named() -> None:
    words = told(an_experiment(a_result(), a_result("hpa", cost=15.0, met=0.999), a_result("keda", cost=99.0)))
    assert "The cheapest other policy that served as many is hpa: $900.00 per hour, 50.0 % more." in words


def test_cheaper_but_worse_is_no_defeat() -> None:
    words = told(an_experiment(a_result(), a_result("hpa", cost=9.0, met=0.9)))
    assert "No other policy served as many users as promised for as little (1 other run)." in words
    assert "Cheaper, but served fewer users as promised: hpa at $540.00 per hour (89.9 % of the users)." in words


def test_a_rival_that_serves_more_users_is_not_called_worse_for_its_windows() -> None:
    rival = replace(a_result("hpa", cost=9.0, met=0.7), users=of(0.999))
    words = told(an_experiment(replace(a_result(met=0.996), users=of(0.97)), rival))
    assert "Better: hpa" in words
    assert "fewer" not in words
    assert "less often" not in words


def test_a_policy_above_the_cap_is_named_and_not_compared() -> None:
    words = told(an_experiment(a_result(), a_result("hpa", cost=1.0, met=1.0, violations=2)))
    assert "Not compared, because they spent above the cap: hpa." in words
    assert "Better" not in words


def test_it_is_not_praised_when_it_breaks_the_cap_itself() -> None:
    words = told(an_experiment(a_result(violations=2), a_result("hpa", cost=99.0, met=0.1)))
    assert "Spend exceeded the budget 2 times." in words
    assert "No other policy" not in words


def test_no_bound_is_told_as_such() -> None:
    nothing = BoundResult(what_if=None, seed=1, cost=None, windows_share=0.4, cost_per_hour=None)
    assert "there is no bound to compare with" in told(an_experiment(bounds=[nothing]))
    assert "bound" not in told(an_experiment(bounds=[]))
