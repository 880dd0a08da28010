import math
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.exposition import heading, joined, line, lines

LABELS = {"ready": ["pool", "namespace"], "fleet": []}
NAMED = st.lists(st.tuples(st.lists(st.text(), min_size=2, max_size=2), st.floats()), min_size=1)
PARTS = st.lists(st.fixed_dictionaries({}, optional={"ready": NAMED, "fleet": st.just([([], 2.0)])}), min_size=1)


class Library(Collector):
    """The series as the library has them."""

    def __init__(self, text: str, parts: Sequence[dict[str, list[tuple[list[str], float]]]]) -> None:
        self.text, self.parts = text, parts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, labels in LABELS.items():
            family = GaugeMetricFamily(f"x_{name}", self.text, labels=labels)
            for part in self.parts:
                for values, value in part.get(name, ()):
                    family.add_metric(values, value)
            if family.samples:
                yield family


@given(st.text(), PARTS)
def test_the_text_is_that_of_the_library(text: str, parts: list[dict[str, list[tuple[list[str], float]]]]) -> None:
    registry = CollectorRegistry()
    registry.register(Library(text, parts))
    pages = joined(lines(part, "x_", LABELS) for part in parts)
    own = b"".join(heading(f"x_{name}", "gauge", text) + pages[name] for name in LABELS if name in pages)
    assert own == generate_latest(registry)


def test_a_line_has_its_labels_in_the_order_of_their_names() -> None:
    assert line("x", ["b", "a"], ["2", "1"], math.inf) == 'x{a="1",b="2"} +Inf\n'
