"""Which factor a scenario states for two stages on one instance."""

import pytest

from simulations.scenario.interference import beside

ENCODER, LM = ("speech/a", "encoder"), ("speech/a", "lm")


def test_a_pair_counts_both_ways_unless_the_other_way_is_stated_too() -> None:
    assert beside({"encoder,lm": 2.0}, ENCODER, LM) == 2.0
    assert beside({"encoder,lm": 2.0}, LM, ENCODER) == 2.0
    both = {"encoder,lm": 2.0, "lm,encoder": 1.2}
    assert (beside(both, ENCODER, LM), beside(both, LM, ENCODER)) == (2.0, 1.2)


@pytest.mark.parametrize(
    ("pair", "factor"),
    [("speech/a/encoder,lm", 2.0), ("speech/b/encoder,lm", 1.0), ("encoder , lm", 2.0), ("encoder,encoder", 1.0)],
)
def test_stages_are_named_with_or_without_their_pipeline(pair: str, factor: float) -> None:
    assert beside({pair: 2.0}, ENCODER, LM) == factor


def test_without_a_statement_nobody_slows_anybody() -> None:
    assert beside(None, ENCODER, LM) == 1.0
