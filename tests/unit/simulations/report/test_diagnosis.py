"""The section about why the SLA was missed: what the decisions of a run named, in the words of the diagnosis."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from diagnoses import AT_S, CASES, INTERVAL_S, LASTS_S, decisions
from experiments import a_result, a_scenario, an_experiment

from controller.core.messages.diagnosis import SECTION, TITLES, cause_words, certain_words, cost_words
from controller.core.record import recorded_diagnosis
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Cause, Finding
from simulations.report.page import render
from simulations.results.diagnoses import Episode, NamedCause, episodes, named_causes
from simulations.results.results import RunResult

CAUSE = NamedCause(
    cause="SlowerStage",
    because="NewVersion",
    stage="asr",
    confidence=0.917,
    evidence=("batches of 4 take 80 ms", "its replicas are of revision 2"),
    remedy="the version of before",
    cost_per_hour=1.25,
)
EPISODE = Episode(pipeline="speech/live-captions", from_s=125.0, until_s=3725.0, named=CAUSE)


def with_episodes(*told: Episode, policy: str = "sluice", seed: int = 1, what_if: str | None = None) -> RunResult:
    return replace(a_result(policy, seed=seed, what_if=what_if), diagnosis=told)


def section(*results: RunResult) -> str:
    """The section as HTML; empty where there is none."""
    found = re.search(r'<section id="why".*?</section>', render(an_experiment(*results), a_scenario(), error_bar=None))
    return found[0] if found else ""


def rows(markup: str) -> list[list[str]]:
    """The texts of the cells, row by row; the sentences of a list are parted by |."""
    body = "".join(re.findall(r"<tbody>(.*?)</tbody>", markup))
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)]
    return [[unescape(re.sub("<.*?>", "", cell.replace("</li><li>", "|"))) for cell in row] for row in found]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Sequence[tuple[float, PipelineDecision]]:
    """The decisions of a simulated run in which a replica is stuck while another stage gets slower."""
    scenario = CASES["stuck replica and slower stage"].make(tmp_path_factory.mktemp("case"))
    return [(t_s, decision) for t_s, decision in decisions(scenario, 1) if t_s >= 0]


def test_what_a_run_s_decisions_named_is_there_in_the_words_of_the_diagnosis(
    made: Sequence[tuple[float, PipelineDecision]],
) -> None:
    told = episodes(
        ((t_s, decision.key, named_causes(recorded_diagnosis(decision))) for t_s, decision in made),
        interval_s=INTERVAL_S,
        end_s=float(AT_S + LASTS_S),
    )
    found = {(row[1], row[3]): row for row in rows(section(with_episodes(*told)))}

    surest: dict[tuple[Cause, str | None], tuple[Finding, PipelineDecision]] = {}
    for _, decision in made:
        for finding in decision.diagnosis:
            key = finding.cause, finding.stage
            if key not in surest or finding.confidence > surest[key][0].confidence:
                surest[key] = finding, decision
    assert {Cause.QUEUEING, Cause.SLOWER_STAGE} <= {cause for cause, _ in surest}
    for (cause, stage), (finding, decision) in surest.items():
        words = cause_words(finding, decision)
        row = found[TITLES[cause] + cause.value, stage or "–"]
        assert row[2] == (finding.because.value if finding.because else "–")
        assert row[4] == certain_words(finding.confidence)
        assert row[5] == "|".join(words.evidence)
        assert row[6] == words.remedy + cost_words(finding.cost_per_hour)
    assert len(found) == len(surest)


def test_a_row_has_the_time_the_cause_its_form_and_stage_and_what_the_remedy_costs() -> None:
    assert rows(section(with_episodes(EPISODE))) == [
        [
            "2:05 – 1:02:05",
            "a stage is slower than it wasSlowerStage",
            "NewVersion",
            "asr",
            "92% certain",
            "batches of 4 take 80 ms|its replicas are of revision 2",
            "the version of before; costs $1.25/h more",
        ]
    ]
    nowhere = replace(EPISODE, named=replace(CAUSE, because=None, stage=None, cost_per_hour=None))
    ((_, _, form, stage, _, _, remedy),) = rows(section(with_episodes(nowhere)))
    assert (form, stage, remedy) == ("–", "–", "the version of before")


def test_the_section_is_linked_and_titled_and_its_table_has_heads() -> None:
    markup = render(an_experiment(with_episodes(EPISODE)), a_scenario(), error_bar=None)
    assert f'<a href="#why">{SECTION}</a>' in markup
    assert f'<h2 id="why-title">{SECTION}</h2>' in markup
    found = section(with_episodes(EPISODE))
    assert re.findall(r'<th scope="col">(.*?)</th>', found) == [
        "from – to",
        "cause",
        "form",
        "stage",
        "highest confidence",
        "evidence",
        "what would help",
    ]
    assert found.count('<th scope="row">') == 1
    assert 'aria-label="Causes of a missed SLA of speech/live-captions: Sluice, seed 1"' in found


def test_where_nothing_was_diagnosed_there_is_no_section() -> None:
    markup = render(an_experiment(a_result(), a_result("hpa")), a_scenario(), error_bar=None)
    assert 'id="why"' not in markup
    assert SECTION not in markup


def test_each_pipeline_has_its_table_and_its_name() -> None:
    other = replace(EPISODE, pipeline="speech/dictation")
    several = section(with_episodes(EPISODE, other, EPISODE))
    assert re.findall(r"<h3>(.*?)</h3>", several) == ["speech/dictation", "speech/live-captions"]
    assert [table.count("<tr>") - 1 for table in several.split("</table>")[:-1]] == [1, 2]
    assert "<h3>" not in section(with_episodes(EPISODE))


def test_other_seeds_and_what_ifs_are_folded_and_runs_without_a_diagnosis_are_left_out() -> None:
    runs = (
        with_episodes(EPISODE),
        with_episodes(EPISODE, EPISODE, seed=2),
        with_episodes(policy="hpa"),
        with_episodes(policy="hpa", seed=2),
        with_episodes(EPISODE, what_if="half-budget"),
        with_episodes(what_if="half-budget", seed=2),
    )
    found = section(*runs)
    assert re.findall(r"<summary><b>(.*?)</b>(.*?)</summary>", found) == [
        ("Sluice, seed 2", " · 2 episodes"),
        ("Sluice, what if: half-budget, seed 1", " · 1 episode"),
    ]
    assert "Shown is Sluice, seed 1; the other runs are below." in found
    assert len(rows(found)) == 4
    assert "the other runs are below" not in section(with_episodes(EPISODE), with_episodes(policy="hpa"))
    assert "Nothing was diagnosed with Sluice, seed 1." in section(with_episodes(), with_episodes(EPISODE, seed=2))


def test_names_of_the_cluster_stay_text() -> None:
    hostile = "<script>alert(1)</script>"
    named = replace(CAUSE, stage=hostile, evidence=(hostile,), remedy=hostile)
    found = section(with_episodes(replace(EPISODE, pipeline=hostile, named=named)))
    assert hostile not in found
    assert found.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    scenario = CASES["data plane"].make(tmp_path)
    once, again = ([recorded_diagnosis(decision) for _, decision in decisions(scenario, 1)] for _ in range(2))
    assert once == again
    assert any(once)
