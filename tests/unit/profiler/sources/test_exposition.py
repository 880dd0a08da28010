import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from profiler.sources.exposition import MOST_SERIES, InvalidExposition, samples

TEXT = """# HELP x_total What was served.
# TYPE x_total counter
x_total{stage="vad",path="a\\"}b\\\\c\\nd"} 17
x_total{} 1e3
x_total_more 5
 x_total 6
y 1.5 1700000000000
z{le="+Inf"} +Inf
n NaN
e_total{a="b"} 3 # {trace_id="x"} 0.5 1700000000
# EOF
"""


def test_only_what_is_asked_for_is_taken() -> None:
    assert samples(TEXT, {"x_total", "absent"}) == [
        ("x_total", {"stage": "vad", "path": 'a"}b\\c\nd'}, 17.0),
        ("x_total", {}, 1000.0),
    ]
    assert samples(TEXT, set()) == []


def test_infinities_and_nan_are_numbers_and_an_example_is_none() -> None:
    assert samples(TEXT, {"z"}) == [("z", {"le": "+Inf"}, math.inf)]
    ((_, _, value),) = samples(TEXT, {"n"})
    assert math.isnan(value)
    assert samples(TEXT, {"e_total"}) == [("e_total", {"a": "b"}, 3.0)]


def test_a_sample_with_a_time_of_its_own_is_left_out() -> None:
    assert samples(TEXT, {"y"}) == []


def test_a_text_that_is_cut_off_is_refused() -> None:
    with pytest.raises(InvalidExposition, match="cut off"):
        samples(TEXT[:-1], {"x_total"})


@pytest.mark.parametrize("line", ["x 1,5", "x one", "x{a=b} 1", 'x{a="b"} #'])
def test_a_line_that_cannot_be_read_is_refused(line: str) -> None:
    with pytest.raises(InvalidExposition, match="cannot be parsed"):
        samples(f"{line}\n", {"x"})


@pytest.mark.parametrize(("longest", "value"), [(4096, "v"), (1024, "ü")])
def test_labels_beyond_4_kib_are_refused(longest: int, value: str) -> None:
    labels = f'{{a="{value * (longest - 6)}"}}'
    assert samples(f"x{labels} 1\n", {"x"})
    with pytest.raises(InvalidExposition, match="more than 4096 bytes of labels"):
        samples(f"x{labels[:-2]}{value}{labels[-2:]} 1\n", {"x"})


def test_too_many_series_are_refused() -> None:
    text = "".join(f'x{{a="{index}"}} 1\n' for index in range(MOST_SERIES + 1))
    with pytest.raises(InvalidExposition, match="more than"):
        samples(text, {"x"})


def test_the_official_client_is_read_as_its_own_parser_reads_it() -> None:
    registry = CollectorRegistry()
    Counter("served", "Items.", ["stage"], registry=registry).labels('v"a\\d\n').inc(3)
    Gauge("waiting", "Items.", registry=registry).set(-0.25)
    latency = Histogram("latency_seconds", "Seconds.", ["stage"], registry=registry)
    for value in (0.004, 0.3, 12.0):
        latency.labels("vad").observe(value)
    text = generate_latest(registry).decode()
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    ours = {
        (name, tuple(sorted(labels.items()))): value
        for name, labels, value in samples(text, {name for name, _ in theirs})
    }
    assert ours == theirs
