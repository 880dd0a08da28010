"""The rules of a stage's metrics agree with the presets: a field is allowed where the preset can use it."""

from typing import Any

import pytest

from controller.resources.stage import Metrics
from profiler.sources.presets import load_presets

PRESETS = load_presets()


def is_allowed(**fields: Any) -> bool:
    metrics = Metrics.model_validate(fields)
    return not [breach for rule in Metrics.constraints for breach in rule.find(metrics)]


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_can_be_selected_where_the_metrics_name_it(name: str) -> None:
    assert is_allowed(preset=name)
    assert is_allowed(preset=name, model="asr") is (PRESETS[name].model_label is not None)


@pytest.mark.parametrize("name", PRESETS)
def test_an_answer_can_be_selected_where_both_are_measured(name: str) -> None:
    assert is_allowed(preset=name, answer="First") is bool(PRESETS[name].first)
