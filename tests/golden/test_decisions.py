"""`decide` answers the recorded snapshots as it did when they were recorded, but for the words."""

from functools import cache

import pytest
from golden_decisions import Record, answer_now, load_records
from golden_files import told


@cache
def records() -> dict[str, Record]:
    return load_records()


@pytest.mark.parametrize("name", records())
def test_the_decision_is_the_recorded_one(name: str) -> None:
    record = records()[name]
    difference = told(name, record["decision"], answer_now(record)[0])
    assert not difference, difference
