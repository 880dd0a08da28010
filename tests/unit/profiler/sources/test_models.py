from profiler.samples import Absence, AbsenceReason
from profiler.sources.models import chosen_models

ONE, TWO = ("speech", "asr-1"), ("speech", "asr-2")


def test_the_only_model_of_a_pod_counts() -> None:
    assert chosen_models({ONE: {"asr-v1"}, TWO: {"asr-v2"}}, None) == {ONE: "asr-v1", TWO: "asr-v2"}


def test_several_models_of_a_pod_are_ambiguous_and_named() -> None:
    found = chosen_models({ONE: {"asr"}, TWO: {"tokenizer", "preprocess"}}, None)
    detail = "a pod reports 2 models (preprocess, tokenizer): set metrics.model to one of them"
    assert found == Absence(reason=AbsenceReason.AMBIGUOUS, detail=detail)


def test_a_selection_holds_for_all_pods_that_report() -> None:
    assert chosen_models({ONE: {"asr", "tokenizer"}, TWO: {"tokenizer"}}, "asr") == {ONE: "asr", TWO: "asr"}


def test_a_selection_that_no_pod_reports_names_the_models() -> None:
    found = chosen_models({ONE: {"asr"}, TWO: {"tokenizer"}}, "lm")
    detail = "metrics.model: lm: no pod reports this model, but asr, tokenizer"
    assert found == Absence(reason=AbsenceReason.MISSING, detail=detail)


def test_pods_that_report_no_model_leave_nothing_to_choose() -> None:
    assert chosen_models({}, None) == {}
    assert chosen_models({}, "asr") == {}


def test_a_long_list_of_models_is_cut() -> None:
    found = chosen_models({ONE: {f"model-{index}" for index in range(10)}}, None)
    assert isinstance(found, Absence)
    assert "10 models (model-0, model-1," in found.detail
    assert "model-7 and 2 more)" in found.detail
