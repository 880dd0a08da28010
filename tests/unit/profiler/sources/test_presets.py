import re
from pathlib import Path

import pytest

from profiler.samples import Answer, Quantity
from profiler.sources.presets import Combine, Divisor, InvalidPreset, PresetFiles, load_presets, parse_preset

MINIMAL = """
freshness = "up"
[arrivalRate]
combine = "sum"
value = "sum by (namespace, pod) (rate(requests_total{$pods}[$window]))"
"""


_OF_SOME_SERVERS = {
    Quantity.SERVED_BATCH,
    Quantity.PRESENT_BATCH,
    Quantity.PREFILL_TIME,
    Quantity.PREFIX_HIT_RATE,
    Quantity.WORK_VARIATION,
    Quantity.ENGINES,
}


def test_the_bundled_presets_are_there() -> None:
    assert set(load_presets()) >= {"generic", "triton", "vllm"}


@pytest.mark.parametrize("name", ["generic", "triton", "vllm"])
def test_a_bundled_preset_has_every_quantity_of_a_stage(name: str) -> None:
    edges = {Quantity.LATENCY_P95_FLOOR, Quantity.LATENCY_P95_CEILING}  # only histograms have them
    formulas = load_presets()[name].formulas
    assert set(Quantity) - set(formulas) <= {*_OF_SOME_SERVERS, *edges}
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
        (
            ('"sum"\n', '"sum"\nvanishes = 1\n'),
            "arrivalRate.vanishes: 1: must be true or false, and belongs to combine =",
        ),
        (('"sum"\n', '"max"\nvanishes = true\n'), "arrivalRate.vanishes: True: must be true or false, and belongs to"),
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


USABLE = MINIMAL + MINIMAL[MINIMAL.index("[arrivalRate]") :].replace("arrivalRate", "completionRate")


class TestPresetsOfUsers:
    def test_a_file_is_a_preset_beside_those_of_the_package(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text(USABLE)
        loaded = PresetFiles(tmp_path).load()
        assert loaded.usable.keys() == {*load_presets(), "mine"}
        assert loaded.usable["mine"] == parse_preset("mine", USABLE)
        assert loaded.problems == {}

    @pytest.mark.parametrize(
        ("name", "text", "problem"),
        [
            ("mine", 'freshness = "my metric"', "freshness: 'my metric': must be the name of a metric"),
            ("mine", "freshness = 3", "mine.toml: freshness: 3: must be the name of a metric"),
            ("mine", MINIMAL, "mine.toml: completionRate: None: is required: without it nothing scales down"),
            ("mine", USABLE.replace("sum by (", "sum by ", 1), "must be PromQL: "),
            ("mine", USABLE.replace('combine = "sum"', 'combine = ["sum"]', 1), "combine: ['sum']: must be one of sum"),
            ("mine", "a = " + "[" * 5000, "mine.toml: "),
            (
                "mine",
                USABLE.replace("by (namespace, pod)", "by (namespace, pod, method)", 1),
                "must be by (namespace, ",
            ),
            ("mine", USABLE.replace("by (namespace, pod)", "by (pod)", 1), "must be by (namespace, pod)"),
            ("mine", USABLE.replace("sum by (namespace, pod)", "SUM by (namespace, pod)", 1), "must aggregate as `sum"),
            ("mine", USABLE.replace("sum by (namespace, pod) ", "", 1), "must aggregate as `sum by (namespace, pod)"),
            ("mine", "port = true\n" + USABLE, "port: True: must be from 1 to 65535"),
            ("generic", USABLE, "generic.toml: 'generic': is the name of a preset of Sluice: choose another one"),
            ("Mine_2", USABLE, "Mine_2.toml: 'Mine_2': must be lower-case letters, digits and -, at most 63"),
        ],
    )
    def test_an_invalid_one_is_named_with_field_value_and_rule_and_others_stay(
        self, tmp_path: Path, name: str, text: str, problem: str
    ) -> None:
        (tmp_path / f"{name}.toml").write_text(text)
        (tmp_path / "good.toml").write_text(USABLE)
        loaded = PresetFiles(tmp_path).load()
        assert problem in loaded.problems[name]
        assert loaded.problem(name) == f"metrics.preset: {name!r}: {loaded.problems[name]}"
        assert loaded.usable.keys() == {*load_presets(), "good"}
        assert loaded.usable["generic"] == load_presets()["generic"]

    def test_a_file_that_is_not_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
        assert PresetFiles(tmp_path).load().problems == {"mine": "mine.toml: not UTF-8 text"}

    def test_a_change_is_read_and_so_is_the_end_of_a_file(self, tmp_path: Path) -> None:
        files = PresetFiles(tmp_path)
        assert "mine" not in files.load().usable
        (tmp_path / "mine.toml").write_text(USABLE)
        assert "mine" in files.load().usable
        (tmp_path / "mine.toml").write_text("freshness = 3")
        assert "mine" in files.load().problems
        assert "mine" not in files.load().usable
        (tmp_path / "mine.toml").unlink()
        assert files.load().problems == {}

    def test_a_name_without_a_file_is_told_those_that_there_are(self) -> None:
        assert (
            PresetFiles().load().problem("x") == "metrics.preset: 'x': must be one of generic, ray-serve, triton, vllm"
        )
