"""The results in sentences."""

from dataclasses import replace

import pytest
from experiments import a_result, an_experiment

from simulations.report.conclusions import Figure, figures, label, sentences, subject
from simulations.results.results import BoundResult, Experiment, RunResult, Tuning


def told(experiment: Experiment) -> str:
    return " ".join(sentences(experiment))


def figure(result: RunResult, name: str) -> Figure:
    (found,) = (each for each in figures(subject(an_experiment(result)), 0.99) if each.name == name)
    return found


@pytest.mark.parametrize(
    ("lost", "refused", "shed", "words"),
    [
        (5, 0, 0, "5 lost, 0 refused, 0 shed, of 1,000 offered"),
        (0, 5, 0, "0 lost, 5 refused, 0 shed, of 1,000 offered"),
        (0, 0, 5, "0 lost, 0 refused, 5 shed, of 1,000 offered"),
    ],
)
def test_items_without_an_answer_are_not_shown_as_good(lost: int, refused: int, shed: int, words: str) -> None:
    answered = replace(a_result(), lost=0, refused=0, shed=0)
    assert figure(answered, "items without an answer").good is True
    found = figure(replace(answered, lost=lost, refused=refused, shed=shed), "items without an answer")
    assert (found.good, found.words, found.note) == (False, "5", words)


def test_a_run_in_which_nothing_was_answered_is_good_for_its_spend_alone() -> None:
    nothing = replace(
        a_result(met=0.0),
        sla_windows_met_calm=0.0,
        served=0,
        filtered=0,
        refused=992,
        p50_s=None,
        p95_s=None,
        p99_s=None,
    )
    good = [each.name for each in figures(subject(an_experiment(nothing)), 0.99) if each.good]
    assert good == ["times above the budget"]


def test_a_report_is_about_sluice_as_it_is_by_default() -> None:
    experiment = an_experiment(
        a_result("hpa"), a_result(what_if="half"), a_result(tuning=Tuning.TRAINED), a_result(cost=3.0)
    )
    assert subject(experiment).mean("cost") == 3.0
    assert label(subject(experiment)) == "Sluice"
    assert subject(an_experiment(a_result("keda"), a_result("hpa"))).policy == "keda"


def test_cost_promise_and_bound_are_told() -> None:
    words = told(an_experiment(a_result(cost=10.0, met=0.9962)))
    assert "met the SLA in 99.6 % of the windows (99.8 % away from faults) for $10.00." in words
    assert "costs less than $8.00, even if it knows load and faults in advance." in words
    assert "The run cost 1.25 × this bound." in words
    assert "Spend never exceeded the budget" in words


def test_without_faults_nothing_is_said_of_calm() -> None:
    calm = replace(a_result(met=0.95), sla_windows_met_calm=0.95)
    assert "met the SLA in 95.0 % of the windows for $10.00." in told(an_experiment(calm))


def test_who_beats_it_is_named_first() -> None:
    words = told(an_experiment(a_result(), a_result("hpa", cost=9.0, met=0.999), a_result("keda", cost=99.0)))
    assert "Better: hpa cost no more and met the SLA in at least as many windows." in words
    assert "No other policy" not in words
    assert "The cheapest other policy" not in words


def test_the_cheapest_of_those_that_are_as_good_is_named() -> None:
    words = told(an_experiment(a_result(), a_result("hpa", cost=15.0, met=0.999), a_result("keda", cost=99.0)))
    assert "The cheapest other policy that met it as often is hpa: $15.00, 50.0 % more." in words


def test_cheaper_but_worse_is_no_defeat() -> None:
    words = told(an_experiment(a_result(), a_result("hpa", cost=9.0, met=0.9)))
    assert "No other policy was as cheap and met the SLA as often (1 other run)." in words
    assert "Cheaper, but met the SLA less often: hpa at $9.00 (90.0 % of the windows)." in words


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
