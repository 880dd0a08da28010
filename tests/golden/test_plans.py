"""`sluice plan` answers the random questions as it did when they were recorded, to the bit."""

from functools import cache

import pytest
from golden_files import plain, read, told
from golden_plans import NAME, Answer, answer
from golden_problems import COUNTS, question


@cache
def recorded() -> dict[str, Answer]:
    answers: dict[str, Answer] = read(NAME)
    return answers


@pytest.mark.parametrize(("kind", "number"), [(kind, n) for kind, count in COUNTS.items() for n in range(count)])
def test_the_plan_is_the_recorded_one(kind: str, number: int) -> None:
    asked = question(kind, number)
    difference = told(asked.name, recorded()[asked.name], plain(answer(asked)))
    assert not difference, difference


def test_every_recorded_plan_is_asked_for() -> None:
    assert sorted(recorded()) == sorted(f"{kind}-{n}" for kind, count in COUNTS.items() for n in range(count))
