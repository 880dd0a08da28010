"""Records of items."""

import math
from pathlib import Path

from simulations.lab.traffic.records import RecordWriter, read_records
from simulations.results.scoring import Outcome


def test_each_pipeline_finds_its_own_items_again(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "items")
    writer.add(0, Outcome.SERVED, 1.5, 0.125)
    writer.add(1, Outcome.FILTERED, 2.0, 0.01)
    writer.add(0, Outcome.LOST, 2.5, math.inf)
    writer.close()

    items = read_records(tmp_path / "items", 0)

    assert items.arrival_s.tolist() == [1.5, 2.5]
    assert items.latency_s.tolist() == [0.125, math.inf]
    assert items.outcome.tolist() == [Outcome.SERVED, Outcome.LOST]


def test_a_file_that_is_being_written_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "items")
    for number in range(3):
        writer.add(0, Outcome.SERVED, float(number), 0.1)
    writer.flush()
    writer.close()
    content = (tmp_path / "items").read_bytes()
    (tmp_path / "items").write_bytes(content[:-5])

    assert read_records(tmp_path / "items", 0).arrival_s.tolist() == [0, 1]
