"""The rules of a stage's metrics agree with the presets: a field is allowed where the preset can use it."""

from typing import Any

import pytest
from pydantic import ValidationError

from controller.resources.stage import LabelMatch, MetricLabels, Metrics
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


@pytest.mark.parametrize("field", ["namespace", "pod"])
@pytest.mark.parametrize("label", ["le", "quantile", "instance", "job", "__name__"])
def test_a_label_that_never_has_a_pod_or_its_namespace_is_refused(field: str, label: str) -> None:
    with pytest.raises(ValidationError, match="never have a pod or its namespace"):
        MetricLabels.model_validate({field: label})


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        (MetricLabels(namespace="team", pod="team"), "must not be the label that has the namespace"),
        (LabelMatch(label="cluster", value="~eu.*"), "must not begin with ~"),
    ],
)
def test_labels_that_select_no_series_of_a_pod_are_refused(part: MetricLabels | LabelMatch, rule: str) -> None:
    (breach,) = (breach for each in part.constraints for breach in each.find(part))
    assert breach.rule.startswith(rule)
