"""What another wrote cannot end the cycle: it is left out, named once, and counted."""

import logging
from typing import Any

import pytest

from controller.kube.readable import UNREADABLE, left_out, name_of, readable


def test_an_object_that_cannot_be_read_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    before = UNREADABLE["Event"]
    items: list[dict[str, Any]] = [{"at": 1}, {"metadata": {"namespace": "a", "name": "bad"}}, {"at": 3}]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert readable("Event", items, lambda item: item["at"]) == [1, 3]
    assert UNREADABLE["Event"] == before + 3
    assert [record.getMessage() for record in caplog.records] == [
        "Event a/bad cannot be read and is left out: KeyError: 'at'"
    ]


@pytest.mark.parametrize("item", [None, 7, "text", {}, {"metadata": None}, {"metadata": {"name": 7}}])
def test_any_object_has_a_name_as_text(item: Any) -> None:
    assert name_of(item)


def test_long_words_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    left_out("pod", "x", ValueError("y" * 10**6))
    assert len(caplog.records[-1].getMessage()) < 300
