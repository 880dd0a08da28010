"""The error bar of simulated numbers."""

import json

import pytest

from simulations.report.fidelity import measured_fidelity, parse, words

DOCUMENT = {
    "command": "make fidelity",
    "scenarios": ["steady", "daily", "burst"],
    "seeds": 3,
    "errors": [{"quantity": "p95", "mean": 0.071, "nine_of_ten": 0.12}, {"quantity": "cost", "mean": 0.02}],
}


def test_what_was_measured_in_words() -> None:
    assert words(parse(json.dumps(DOCUMENT))) == (
        "Against live runs of 3 scenarios × 3 seeds (steady, daily and burst), the simulator's relative errors are: "
        "p95 7.1 % on average (within 12.0 % in nine of ten comparisons) and cost 2.0 % on average."
    )


def test_what_was_not_measured_is_told_as_such() -> None:
    assert "was not measured" in words(None)


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({**DOCUMENT, "errors": [{}]})])
def test_a_file_that_says_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fidelity\.json: must have command, scenarios, seeds and errors"):
        parse(text)


def test_what_ships_can_be_read() -> None:
    assert words(measured_fidelity())
