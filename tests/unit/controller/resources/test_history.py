"""`spec.demand.history`: what it reads by default, and what is refused."""

from pathlib import Path

import pytest
import yaml

from controller.core.state.spec import HistorySpec
from controller.resources.parsing import InvalidResource, parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec

CONTRACT = Path(__file__).parents[3] / "contract" / "live-captions.yaml"


def history(**fields: object) -> HistorySpec | None:
    document = yaml.safe_load(CONTRACT.read_text())
    document["spec"]["demand"]["history"] = fields
    return pipeline_spec(parse(SpeechPipeline, document)).history


def test_by_default_a_week_of_days_is_read_every_five_minutes() -> None:
    assert history() == HistorySpec(season_s=86_400.0, seasons=7, step_s=300.0)


def test_more_or_shorter_seasons_have_another_resolution() -> None:
    weeks, hours = history(seasons=28), history(season="1h")
    assert weeks is not None
    assert hours is not None
    assert (weeks.step_s, hours.step_s) == (1200.0, 15.0)


def test_a_query_and_a_resolution_are_taken_as_they_are() -> None:
    assert history(query="recorded:demand", seasons=1, resolution="1m") == HistorySpec(
        season_s=86_400.0, seasons=1, step_s=60.0, query="recorded:demand"
    )


def test_without_it_there_is_none() -> None:
    document = yaml.safe_load(CONTRACT.read_text())
    assert pipeline_spec(parse(SpeechPipeline, document)).history is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"season": "5m"}, "season: .*must be at least 10m"),
        ({"resolution": "10s"}, "resolution: .*must be at least 15s"),
        ({"resolution": "1m"}, r"resolution: .*must be at least season × seasons / 2016"),
        ({"seasons": 29}, "seasons"),
    ],
)
def test_what_would_not_fit_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidResource, match=message):
        history(**fields)
