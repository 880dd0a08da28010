"""The whole report: what is on it, what is not, and that it needs nothing else."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from experiments import CONTRACT, a_check, a_result, a_scenario, a_whole_experiment, an_experiment

from simulations.report.fidelity import Fidelity, QuantityError
from simulations.report.page import render
from simulations.report.trust import Live
from simulations.results.results import DecisionEntry, Experiment, PlacementChange, Tuning
from simulations.scenario.scenario import Scenario, load_scenario

LIVE = Live(kubernetes="v1.36.3", static_peak_cost=12.5, generator_lag_p99_s=0.001, max_lag_s=0.005)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return a_scenario()


@pytest.fixture(scope="module")
def whole(scenario: Scenario) -> str:
    return render(a_whole_experiment(), scenario, error_bar=None)


def page(experiment: Experiment, scenario: Scenario, **kwargs: object) -> str:
    return render(experiment, scenario, error_bar=kwargs.get("error_bar"), live=kwargs.get("live"))  # type: ignore[arg-type]


def section(markup: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', markup, re.DOTALL)
    assert found is not None, f"no section {name}"
    return found[0]


def test_the_contract_scenario_fits_into_three_megabytes(whole: str) -> None:
    assert len(whole.encode()) < 3e6


def test_the_page_needs_nothing_else(whole: str) -> None:
    assert not re.findall(r"<(?:link|img|iframe|object|embed|base)\b", whole)
    assert not re.findall(r"\b(?:src|srcset|action)=", whole)
    assert not [link for link in re.findall(r'href="([^"]*)"', whole) if not link.startswith("#")]
    assert not re.findall(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", whole)
    assert "default-src 'none'" in unescape(whole)


def test_every_link_leads_somewhere(whole: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', whole)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', whole)) <= set(ids)


def test_the_same_experiment_gives_the_same_bytes_whatever_the_time_it_took(scenario: Scenario) -> None:
    once = an_experiment(a_result(), a_result("hpa"))
    slow = replace(once, results=tuple(replace(result, wall_s=99.0) for result in once.results))
    assert page(once, scenario) == page(slow, scenario)


def test_every_policy_in_both_settings_is_in_the_table_and_has_its_charts(whole: str) -> None:
    rows = re.findall(r"<tr>.*?</tr>", section(whole, "policies"))
    assert len(rows) == 2 * (1 + 2 + 10 * 2)
    for name in ("run-hpa-default", "run-hpa-trained", "run-sluice-default-double-load"):
        assert re.search(rf'id="{name}".*?<figure', section(whole, "time"), re.DOTALL)


def test_the_verdict_is_first_and_what_was_asked_last(whole: str) -> None:
    order = re.findall(r'<section id="([^"]*)"', whole)
    assert order == ["found", "changes", "time", "money", "policies", "what-ifs", "trust", "asked", "again", "words"]
    first = re.search(r"<main>.*?<p[^>]*>(.*?)</p>", whole, re.DOTALL)
    assert first is not None
    assert first[1].startswith("Sluice served 398 of 400 open streams (mean) as promised")


def test_savings_are_told_against_each_rival(whole: str) -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", section(whole, "policies").partition("<details>")[0])
    static = next(row for row in rows if ">static-peak</a>" in row)
    assert 'data-label="Sluice saves per month">$9,937<' in static
    assert sum('data-label="Sluice saves per month">–<' in row for row in rows) == 1


def test_what_to_change_comes_with_its_worth_the_most_valuable_first(whole: str) -> None:
    rows = re.findall(r'<th scope="row">(.*?)</th><td class="n"[^>]*>(.*?)</td>', section(whole, "changes"))
    assert [re.sub("<.*?>.*", "", name) for name, _ in rows] == [
        "Sluice in place of a static allocation for the peak",
        "half-budget",
        "Any better policy: at most",
        "no-inferentia",
        "double-load",
    ]
    assert [re.sub("<.*?>", "", worth)[0] for _, worth in rows] == ["+", "+", "+", "−", "−"]


def test_what_was_asked_is_there(whole: str) -> None:
    asked = section(whole, "asked")
    for words in (
        "speech/live-captions",
        "within 250 ms",
        "$20.00 per hour",
        "from 15:00 to 27:00: new replicas get no node of inferentia",
        "at 40:00: ComputePool/gpu: spec.price.perHour = 1.6",
        "the first 2 min are not scored",
    ):
        assert words in asked


def test_what_was_simulated_otherwise_than_written_is_told_with_what_was_asked(scenario: Scenario) -> None:
    notes = ("speech/live-captions: demand.query is replaced: <b>", "speech/live-captions: mode Recommend runs as Auto")
    asked = section(page(replace(an_experiment(), notes=notes), scenario), "asked")

    assert "<h3>Simulated otherwise than written</h3>" in asked
    assert "<li>speech/live-captions: demand.query is replaced: &lt;b&gt;</li>" in asked
    assert "<li>speech/live-captions: mode Recommend runs as Auto</li>" in asked
    assert "otherwise than written" not in page(an_experiment(), scenario)


def test_the_interval_of_a_scenario_is_among_what_was_asked(scenario: Scenario) -> None:
    quick = replace(scenario, file=scenario.file.model_copy(update={"interval": "2s"}))

    assert "Sluice decides every 2 s." in section(page(an_experiment(), quick), "asked")
    assert "Sluice decides every" not in section(page(an_experiment(), scenario), "asked")


def test_what_ifs_are_side_by_side_with_the_scenario_as_it_is(whole: str) -> None:
    rows = re.findall(r'<th scope="row"><a[^>]*>(.*?)</a>', section(whole, "what-ifs"))
    assert rows == ["no change", "half-budget", "no-inferentia", "double-load"]
    assert "ComputePool/inferentia: spec.capacity.instances = 0" in section(whole, "what-ifs")


def test_a_policy_that_is_beaten_is_told_by_whom(scenario: Scenario) -> None:
    markup = page(
        an_experiment(a_result(), a_result("hpa", cost=11.0, met=0.9), a_result("keda", cost=9.0, violations=1)),
        scenario,
    )
    rows = {
        name: row
        for row in re.findall(r"<tr>(.*?)</tr>", section(markup, "policies").partition("<details>")[0])
        for name in re.findall(r"<a[^>]*>(.*?)</a>", row)
    }
    assert "dominated by Sluice" in rows["hpa"]
    assert "spent above the cap" in rows["keda"]
    assert "on the frontier" in rows["sluice"]


def test_a_cheap_policy_that_is_late_is_not_praised(scenario: Scenario) -> None:
    markup = page(an_experiment(a_result(), a_result("flink", cost=1.0, met=0.1)), scenario)
    assert "on the frontier, but serves fewer users than promised" in section(markup, "policies")
    assert section(markup, "policies").count('class="verdict good"') == 1


def test_one_run_alone_has_no_comparison(scenario: Scenario) -> None:
    markup = page(an_experiment(), scenario)
    assert 'id="policies"' not in markup
    assert 'id="what-ifs"' not in markup


def test_a_failed_self_check_marks_the_report(scenario: Scenario) -> None:
    good, bad = (page(an_experiment(checks=[a_check(ok=ok)]), scenario) for ok in (True, False))
    assert 'role="alert"' not in good
    assert "✓ agrees" in section(good, "trust")
    assert 'role="alert"' in bad
    assert "do not rely on these numbers" in bad
    assert "✕ FAILED" in section(bad, "trust")


def test_a_simulation_without_self_checks_is_marked(scenario: Scenario) -> None:
    assert "No self-check was run." in section(page(an_experiment(checks=[]), scenario), "trust")


def test_the_error_bar_is_told_or_its_absence(scenario: Scenario) -> None:
    measured = Fidelity(
        command="make fidelity",
        scenarios=("steady", "daily"),
        seeds=3,
        errors=(QuantityError(quantity="p95", mean=0.071, nine_of_ten=0.124),),
    )
    told = section(page(an_experiment(), scenario, error_bar=measured), "trust")
    assert "p95 7.1 % on average (within 12.4 % in nine of ten comparisons)" in told
    assert "was not measured for this version" in section(page(an_experiment(), scenario), "trust")


def test_all_that_it_takes_to_repeat_it_is_there(whole: str) -> None:
    again = section(whole, "again")
    for words in ("sluice simulate scenario.yaml", "Seeds: 1, 2, 3", "3.11.2", "ab" * 32):
        assert words in again


def test_a_live_run_has_the_same_report(scenario: Scenario) -> None:
    experiment = replace(an_experiment(a_result(), bounds=[]), self_checks=())
    markup = page(experiment, scenario, live=LIVE)
    assert "A live run of 50 min on Kubernetes v1.36.3" in markup
    assert "A static allocation for the peak costs $750.00/h" in section(markup, "found")
    assert "By stage and pool" in section(markup, "money")
    assert "late by 1 ms (p99). At most 5 ms is allowed." in section(markup, "trust")
    assert "These numbers are not simulated, so there are no self-checks" in section(markup, "trust")
    assert "No self-check was run" not in markup
    assert 'role="alert"' not in markup
    late = page(experiment, scenario, live=replace(LIVE, generator_lag_p99_s=0.02))
    assert "the run is invalid" in section(late, "trust")


def test_the_decisions_of_sluice_are_all_there_and_those_of_baselines_up_to_a_limit(scenario: Scenario) -> None:
    markup = page(an_experiment(a_result(decisions=450), a_result("hpa", decisions=450)), scenario)
    ours, theirs = re.findall(r'<div class="log">.*?</table>', markup, re.DOTALL)
    assert ours.count("<tr") == 451
    assert theirs.count("<tr") == 401
    assert "The first 400 are listed." in theirs


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>&\"'"
    for name in ("pools.yaml", "live-captions.yaml"):
        (tmp_path / name).write_text((CONTRACT / name).read_text())
    text = (CONTRACT / "scenario.yaml").read_text()
    yaml = hostile.replace("'", "''").replace("/", "\\u2215")
    path = tmp_path / "scenario.yaml"
    path.write_text(text.replace("captions-morning", f"'{yaml}'").replace("name: half-budget", f"name: '{yaml}'"))
    entry = DecisionEntry(
        t_s=1.0,
        pipeline=hostile,
        changes=(PlacementChange(stage=hostile, placement=hostile, before=1, after=2),),
        reason=hostile,
    )
    result = replace(a_result(hostile, tuning=Tuning.TRAINED), decisions=(entry,))
    experiment = an_experiment(result, a_result(), replace(a_result(), what_if=yaml.replace("''", "'")))
    experiment = replace(experiment, scenario=hostile)
    markup = page(experiment, load_scenario(path))
    assert markup.count("<script>") == 1  # our own
    assert "&lt;script&gt;alert(1)" in markup
    assert "alert(1)</script>" not in markup


def test_a_race_shows_every_entrant_unfolded_and_how_far_the_simulator_is_off() -> None:
    row = ("hpa", "−0.2%", "−0.5 points", "+0.0 points", "2.1%", "+0 s")
    live = Live(
        kubernetes="v1.36.3", static_peak_cost=None, generator_lag_p99_s=0.001, max_lag_s=0.005, simulated=(row,)
    )
    experiment = an_experiment(a_result("sluice"), a_result("hpa", cost=12.0), bounds=(), checks=())
    page = render(experiment, a_scenario(), error_bar=None, live=live)
    assert "the same load live on Kubernetes v1.36.3 under each of 2 entrants" in page
    assert page.count("<details id=") == page.count(" open>") > 0
    assert all(cell in section(page, "trust") for cell in row)
