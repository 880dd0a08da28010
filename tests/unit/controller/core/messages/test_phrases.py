"""The words for one step of a plan."""

import pytest

from controller.core.messages.phrases import MOST_CHARACTERS, brief, step_words
from optimizer.model import PoolName, StageName
from optimizer.plan import PlacementStep, Step


def a_change(pool: str, before: int, after: int, batch: int = 1) -> PlacementStep:
    return PlacementStep(name=PoolName(pool), before=before, after=after, batch=batch)


@pytest.mark.parametrize(
    ("changes", "saved_s", "added", "words"),
    [
        ([a_change("gpu", 4, 5)], 0.038, 1.01, "decoder +1 on gpu: −38 ms for $1.01/h"),
        (
            [a_change("inferentia", 5, 0, 8), a_change("gpu", 0, 2, 16)],
            0.205,
            -0.12,
            "decoder −5 on inferentia, +2 on gpu in batches of 16: −205 ms saving $0.12/h",
        ),
        ([a_change("gpu", 2, 2, 16)], -0.002, 0.0, "decoder batches of 16 on gpu: +2 ms at the same cost"),
        (
            [a_change("inferentia", 0, 9), a_change("gpu", 2, 0)],
            -0.0112,
            1.4,
            "decoder +9 on inferentia, −2 on gpu: +11.2 ms and $1.40/h more, which frees gpu",
        ),
    ],
)
def test_a_step_says_what_changes_and_what_that_buys(
    changes: list[PlacementStep], saved_s: float, added: float, words: str
) -> None:
    step = Step(stage=StageName("decoder"), changes=tuple(changes), latency_saved_s=saved_s, cost_added_per_hour=added)
    assert step_words(step) == words


def test_a_message_says_each_clause_once_and_is_never_too_long() -> None:
    assert brief(["a; b", "b", "", "c; a"]) == "a; b; c"
    assert brief(["short", "many words " * 30, "z"]).startswith("short; many words many")
    assert brief(["short", "many words " * 30, "z"]).endswith(" many …; and 1 more")
    assert brief(["x" * 220, "y" * 300, "z"]) == f"{'x' * 220}; and 2 more"
    words = brief([" ".join(["word"] * 100)])
    assert len(words) <= MOST_CHARACTERS
    assert "word … word" in words
    provider = brief(
        [f"no node: NodeClaim gpu-1 event: {'resolving node class, ' * 12}InsufficientInstanceCapacity: none"]
    )
    assert provider.startswith("no node: NodeClaim gpu-1 event: ")
    assert provider.endswith("InsufficientInstanceCapacity: none"), "the words of the provider come last"
    assert len(brief(["x" * 300])) <= MOST_CHARACTERS
    assert brief(["x" * 300]).startswith("xxx")
