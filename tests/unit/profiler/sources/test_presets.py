import re

import pytest

from profiler.samples import Answer, Quantity
from profiler.sources.presets import Combine, Divisor, InvalidPreset, load_presets, parse_preset

MINIMAL = """
freshness = "up"
[arrivalRate]
combine = "sum"
value = "sum by (namespace, pod) (rate(requests_total{$pods}[$window]))"
"""


def test_the_bundled_presets_are_there() -> None:
    assert set(load_presets()) >= {"generic", "triton", "vllm"}


@pytest.mark.parametrize("name", ["generic", "triton", "vllm"])
def test_a_bundled_preset_has_every_quantity_of_a_stage(name: str) -> None:
    edges = {Quantity.LATENCY_P95_FLOOR, Quantity.LATENCY_P95_CEILING}  # only histograms have them
    formulas = load_presets()[name].formulas
    assert set(Quantity) - set(formulas) <= {Quantity.SERVED_BATCH, Quantity.PRESENT_BATCH, *edges}
    assert (edges <= set(formulas)) is (formulas[Quantity.LATENCY_P95].combine is Combine.QUANTILE)


@pytest.mark.parametrize("name", ["generic", "triton", "vllm"])
def test_every_expression_keeps_pods_apart(name: str) -> None:
    for formula in load_presets()[name].formulas.values():
        for expression in (formula.value, formula.over):
            assert expression is None or re.search(r"by \(namespace, pod(, model|, model_name)?(, le)?\)", expression)


def test_the_answers_of_a_server_have_formulas_of_their_own_only_where_they_differ() -> None:
    vllm = load_presets()["vllm"]
    assert {quantity.value for quantity in vllm.first} == {
        *("latencyMean", "latencyP95", "latencyP95Floor", "latencyP95Ceiling", "latencyP99")
    }
    for quantity in Quantity:
        whole, first = (vllm.formula(quantity, answer) for answer in Answer)
        assert (whole != first) is (quantity in vllm.first)
    assert load_presets()["triton"].first == {}


@pytest.mark.parametrize("name", ["triton", "vllm"])
def test_all_quantities_of_a_server_are_of_one_model_but_those_of_the_speech_metrics(name: str) -> None:
    formulas = load_presets()[name].formulas
    of_the_pod = {quantity for quantity, formula in formulas.items() if not formula.per_model}
    assert of_the_pod == {Quantity.SESSIONS, Quantity.SESSION_REFUSALS, Quantity.RX_QUEUE_PRESSURE}


def test_a_model_label_that_some_clauses_lack_is_refused() -> None:
    text = MINIMAL.replace("(namespace, pod)", "(namespace, pod, model)").replace("[arr", 'model_label = "model"\n[arr')
    assert parse_preset("mine", text).formulas[Quantity.ARRIVAL_RATE].per_model
    mixed = text.replace("$window]))", "$window])) + sum by (namespace, pod) (x{$pods})")
    with pytest.raises(InvalidPreset, match=r"arrivalRate: 'model': must be in all `by` clauses, or in none"):
        parse_preset("mine", mixed)


def test_answers_need_both_means() -> None:
    table = MINIMAL[MINIMAL.index("combine") :]
    text = f'freshness = "up"\n[latencyP95.first]\n{table}\n[latencyP95.whole]\n{table}'
    with pytest.raises(InvalidPreset, match=r"latencyMean: None: needs the tables first and whole"):
        parse_preset("mine", text)


def test_a_new_server_needs_only_a_data_file() -> None:
    preset = parse_preset("mine", MINIMAL)
    assert preset.formulas[Quantity.ARRIVAL_RATE].combine is Combine.SUM
    assert preset.formulas[Quantity.ARRIVAL_RATE].divide_by is Divisor.ONE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('freshness = "up"', ""), "mine.toml: freshness: None: must be the name of a metric"),
        (("[arrivalRate]", "[arrivals]"), "mine.toml: [arrivals]: 'arrivals': must be one of arrivalRate, "),
        (('"sum"\n', '"average"\n'), "mine.toml: arrivalRate.combine: 'average': must be one of sum, mean, max, "),
        (('combine = "sum"', ""), "mine.toml: arrivalRate.combine: None: must be one of sum, "),
        (("$pods", ""), "must be PromQL that contains $pods"),
        (('combine = "sum"', 'combine = "ratio"'), "mine.toml: arrivalRate.over: None: belongs to combine = ratio"),
        (('"sum"\n', '"sum"\nover = "x{$pods}"\n'), "arrivalRate.over: 'x{$pods}': belongs to combine = ratio"),
        (('"sum"\n', '"sum"\nquantile = 0.5\n'), "arrivalRate.quantile: 0.5: belongs to combine = quantile"),
        (('"sum"\n', '"quantile"\nquantile = 95\n'), "arrivalRate.quantile: 95: must be in (0, 1)"),
        (('"sum"\n', '"sum"\ndivide_by = "concurrency"\n'), "divide_by: 'concurrency': belongs to combine = mean"),
        (('"sum"\n', '"sum"\nunit = "s"\n'), "mine.toml: arrivalRate: ['unit']: knows only combine, "),
        (("[arrivalRate]", "arrivalRate = 1\n[sessions]"), "mine.toml: arrivalRate: 1: must be a table"),
        (("[arrivalRate]", "[arrivalRate"), "mine.toml: "),
        (("[arrivalRate]", "model_label = 3\n[arrivalRate]"), "mine.toml: model_label: 3: must be the name of a label"),
        (('"sum"\n', '"sum"\npositive = true\n'), "arrivalRate.positive: True: must be true or false, and belongs to"),
        (("[arrivalRate]", "[arrivalRate.whole]"), "arrivalRate: ['whole']: must have exactly the tables first and"),
        (("[arrivalRate]", "[arrivalRate]\nfirst = 1\nwhole = 2"), "must have exactly the tables first and whole"),
    ],
)
def test_a_preset_that_cannot_be_meant_is_refused_by_name_and_rule(change: tuple[str, str], message: str) -> None:
    with pytest.raises(InvalidPreset) as refusal:
        parse_preset("mine", MINIMAL.replace(*change))
    assert message in str(refusal.value)
