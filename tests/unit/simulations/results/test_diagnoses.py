"""The episodes of the causes that the decisions of a run name."""

import json
from dataclasses import replace

import pytest

from simulations.results.diagnoses import Episode, NamedCause, at_their_highest, episodes, named_causes

CAPTIONS, DICTATION = "speech/captions", "speech/dictation"
SLOW = NamedCause(
    cause="SlowerStage",
    because="NewVersion",
    stage="asr",
    confidence=0.6,
    evidence=("batches take longer",),
    remedy="a roll-back",
    cost_per_hour=None,
)
SURER = replace(SLOW, confidence=0.9, because="Neighbours", evidence=("a neighbour is busy",), cost_per_hour=1.5)
DEMAND = replace(SLOW, cause="DemandAbovePlan", because=None)

Told = tuple[float, str, tuple[NamedCause, ...]]


def found(*decisions: Told, end_s: float = 600.0) -> tuple[Episode, ...]:
    return episodes(decisions, interval_s=10.0, end_s=end_s)


def spans(told: tuple[Episode, ...]) -> list[tuple[str, str | None, float, float]]:
    return [(each.named.cause, each.named.stage, each.from_s, each.until_s) for each in told]


def test_a_cause_is_one_episode_from_the_decision_that_names_it_to_the_one_that_does_not() -> None:
    told = found(
        (10.0, CAPTIONS, ()), (20.0, CAPTIONS, (SLOW,)), (50.0, CAPTIONS, (SLOW, DEMAND)), (70.0, CAPTIONS, ())
    )
    assert spans(told) == [("SlowerStage", "asr", 20.0, 70.0), ("DemandAbovePlan", "asr", 50.0, 70.0)]
    assert {each.pipeline for each in told} == {CAPTIONS}


def test_an_episode_has_the_form_and_the_evidence_of_its_highest_confidence() -> None:
    (told,) = found((20.0, CAPTIONS, (SLOW,)), (30.0, CAPTIONS, (SURER,)), (40.0, CAPTIONS, (SLOW,)))
    assert told.named == SURER
    assert at_their_highest((SLOW, replace(SLOW, remedy="another"), DEMAND)) == (SLOW, DEMAND)


@pytest.mark.parametrize(("again_s", "count"), [(80.0, 1), (90.0, 2)])
def test_gaps_of_a_few_cycles_are_joined_and_longer_ones_are_not(again_s: float, count: int) -> None:
    told = found((20.0, CAPTIONS, (SLOW,)), (50.0, CAPTIONS, ()), (again_s, CAPTIONS, (SLOW,)), (100.0, CAPTIONS, ()))
    assert len(told) == count
    assert (told[0].from_s, told[-1].until_s) == (20.0, 100.0)


def test_the_same_cause_at_another_stage_and_of_another_pipeline_is_another_episode() -> None:
    told = found(
        (20.0, CAPTIONS, (SLOW, replace(SLOW, stage="vad"), replace(SLOW, stage=None))),
        (25.0, DICTATION, (SLOW,)),
        (40.0, CAPTIONS, ()),
        (60.0, DICTATION, ()),
    )
    assert [(each.pipeline, each.named.stage, each.until_s) for each in told] == [
        (CAPTIONS, "asr", 40.0),
        (CAPTIONS, "vad", 40.0),
        (CAPTIONS, None, 40.0),
        (DICTATION, "asr", 60.0),
    ]


def test_an_episode_ends_with_the_run_and_none_begins_after_it() -> None:
    told = found((20.0, CAPTIONS, (SLOW,)), (101.0, CAPTIONS, (DEMAND,)), end_s=100.0)
    assert spans(told) == [("SlowerStage", "asr", 20.0, 100.0)]
    assert found() == ()


def test_its_json_has_the_fields_of_sluice_diagnose() -> None:
    (told,) = found((20.0, CAPTIONS, (SURER,)), end_s=100.0)
    assert json.loads(json.dumps(told.to_json())) == {
        "pipeline": CAPTIONS,
        "from_s": 20.0,
        "until_s": 100.0,
        "cause": "SlowerStage",
        "because": "Neighbours",
        "stage": "asr",
        "confidence": 0.9,
        "evidence": ["a neighbour is busy"],
        "remedy": "a roll-back",
        "cost_per_hour": 1.5,
    }


def test_causes_are_read_from_a_decision_record() -> None:
    document = {**found((0.0, CAPTIONS, (SLOW,)))[0].to_json(), "placement": "cpu", "numbers": {"times": 2.0}}
    assert named_causes([document]) == (SLOW,)
    assert named_causes([]) == ()
