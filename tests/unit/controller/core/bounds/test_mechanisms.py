"""The list of mechanisms is complete, in order, and the one in the documents."""

import inspect
from itertools import pairwise

import pytest
from bounds_document import ARCHITECTURE, FOR_USERS, module_of, renewed

from controller.core import bounds
from controller.core.bounds.mechanisms import MECHANISMS
from controller.core.state.bound import Level, Mechanism


def test_every_mechanism_is_listed_once() -> None:
    declared = {
        own.name
        for _, module in inspect.getmembers(bounds, inspect.ismodule)
        for own in vars(module).values()
        if isinstance(own, Mechanism)
    }
    names = [mechanism.name for mechanism in MECHANISMS]
    assert declared == set(names)
    assert len(names) == len(set(names))


def test_they_are_in_the_order_of_their_levels_and_no_level_is_empty() -> None:
    levels = [mechanism.level for mechanism in MECHANISMS]
    assert all(one <= other for one, other in pairwise(levels))
    assert set(levels) == set(Level)


def test_the_contract_has_its_order() -> None:
    """Cap, never down on missing data, replicas.min, SLA, cost."""
    assert Level.CAP < Level.MISSING_DATA < Level.DECLARED < Level.SLA < Level.FLOOR < Level.COST


@pytest.mark.parametrize("document", [ARCHITECTURE, FOR_USERS], ids=lambda path: path.name)
def test_the_documents_have_the_list_of_the_code(document: object) -> None:
    text = document.read_text()  # type: ignore[attr-defined]
    assert renewed(text) == text, "run `make docs-renew`"


def test_each_mechanism_has_a_file() -> None:
    assert module_of(next(own for own in MECHANISMS if own.level is Level.MISSING_DATA)) == "missing_data.py"
