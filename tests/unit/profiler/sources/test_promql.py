import math
import re

import pytest

from profiler.samples import Absence, AbsenceReason, SeriesLabels
from profiler.sources.promql import (
    PodSeries,
    fill,
    namespace_matcher,
    of_models,
    pod_ages,
    pod_buckets,
    pod_matcher,
    pod_models,
    pod_values,
    relabelled,
    scalar,
)


def test_a_template_is_filled_with_whole_milliseconds() -> None:
    assert fill("rate(m{$pods}[$window])", pods='pod="a"', window_s=2.5) == 'rate(m{pod="a"}[2500ms])'


def test_each_namespace_is_asked_for_once() -> None:
    assert namespace_matcher(["b", "a", "b"]) == 'namespace=~"a|b"'


def test_more_namespaces_than_fit_a_url_are_all_namespaces() -> None:
    assert namespace_matcher(f"tenant-{number}" for number in range(1000)) == 'namespace!=""'


def test_nothing_in_a_label_value_can_leave_its_string() -> None:
    matcher = pod_matcher("speech", ['x"} or up{a="', "a.b", "back\\slash", "new\nline"])
    inside = re.fullmatch(r'namespace=~"speech", pod=~"((?:[^"\\\n]|\\.)*)"', matcher)
    assert inside is not None
    pattern = inside.group(1).replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
    assert all(re.fullmatch(pattern, name) for name in ['x"} or up{a="', "a.b", "back\\slash", "new\nline"])
    assert not re.fullmatch(pattern, "aXb")


def series(value: str, **labels: str) -> dict[str, object]:
    return {"metric": labels, "value": [1700000000.0, value]}


def test_values_are_kept_by_pod() -> None:
    result = [series("1.5", namespace="a", pod="x"), series("NaN", namespace="a", pod="y"), series("3", instance="z")]
    values = pod_values(result)
    assert values["a", "x"] == 1.5
    assert values["a", "y"] != values["a", "y"]
    assert len(values) == 2


def test_two_values_of_a_pod_are_none() -> None:
    assert math.isnan(pod_values([of("x", "1", job="a"), of("x", "2", job="b")])["a", "x"])


def test_labels_are_replaced_whatever_the_case_of_by() -> None:
    labels = SeriesLabels(pod="exported_pod", namespace="exported_namespace")
    assert relabelled("sum BY (namespace, pod) (m)", labels) == "sum BY (exported_namespace, exported_pod) (m)"


def test_buckets_are_kept_by_pod_and_bound() -> None:
    result = [series("1", namespace="a", pod="x", le="0.1"), series("2", namespace="a", pod="x", le="+Inf")]
    assert pod_buckets(result) == {("a", "x"): {0.1: 1.0, float("inf"): 2.0}}


def of(pod: str, value: str = "1", **labels: str) -> dict[str, object]:
    return series(value, namespace="a", pod=pod, **labels)


def test_the_series_of_some_pods_are_found_in_a_result_of_all() -> None:
    found = PodSeries([of("x"), of("y"), of("x", le="1"), series("3", instance="z")])
    assert found.of({("a", "x"), ("a", "w")}) == [of("x"), of("x", le="1")]


def test_series_of_other_models_are_left_out_and_those_without_a_model_stay() -> None:
    result = [of("x", model="asr"), of("x", model="lm"), of("x"), of("y", model="lm")]
    assert of_models(result, "model", {("a", "x"): "asr"}) == [result[0], result[2], result[3]]


def test_models_are_those_with_recent_samples() -> None:
    ages = [of("x", "3", model="asr"), of("x", "90", model="lm"), of("y", "NaN", model="asr"), of("z", "1")]
    assert pod_models(ages, "model", 45.0) == {("a", "x"): {"asr"}}


def test_a_pod_is_as_old_as_its_newest_series() -> None:
    ages = [of("x", "90", model="lm"), of("x", "3", model="asr"), of("x", "50", model="old")]
    assert pod_ages(ages) == {("a", "x"): 3.0}


@pytest.mark.parametrize("result", [[series("42.5", job="x")], [1700000000.0, "42.5"]])
def test_one_series_or_one_scalar_is_a_number(result: list[object]) -> None:
    assert scalar(result) == 42.5


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ([], AbsenceReason.MISSING),
        ([series("NaN")], AbsenceReason.NOT_A_NUMBER),
        ([series("+Inf")], AbsenceReason.NOT_A_NUMBER),
        ([series("1e308")], AbsenceReason.NOT_A_NUMBER),
        ([1700000000.0, "some text"], AbsenceReason.NOT_A_NUMBER),
        ([series("1", pod="a"), series("2", pod="b")], AbsenceReason.NOT_A_NUMBER),
        ([{"metric": {}, "values": [[1700000000.0, "1"]]}], AbsenceReason.NOT_A_NUMBER),
    ],
)
def test_anything_else_is_named(result: list[object], reason: AbsenceReason) -> None:
    found = scalar(result)
    assert isinstance(found, Absence)
    assert found.reason is reason
    assert found.detail


def test_a_query_with_several_series_is_asked_to_aggregate() -> None:
    found = scalar([series("1", pod="a"), series("2", pod="b")])
    assert isinstance(found, Absence)
    assert "2 series" in found.detail
