import pytest

from controller.core.state.shards import MILLS, Entry, Want
from controller.kube.shard_entries import entries_from, entry_documents
from controller.resources.shards import BudgetShard, PoolShard

FULL = Entry(
    shard=1,
    of=3,
    used=1250,
    agreed=2000,
    allowed=2000,
    reduce=True,
    awaiting=4,
    users=7,
    want=Want(lacking=5, unserved=0.25, priority=3, least_priority=-1, price_per_hour=1.5),
    renewed_at_s=1_000_000.0,
)
BARE = Entry(shard=0, of=3, used=0, agreed=0, renewed_at_s=1_000_000.0)


@pytest.mark.parametrize("unit", [1, MILLS])
def test_what_is_written_is_read_again(unit: int) -> None:
    documents = entry_documents((FULL, BARE), unit)
    assert entries_from({"shards": documents}, unit) == (BARE, FULL)


def test_amounts_of_budgets_are_usd_per_hour() -> None:
    (document,) = entry_documents((FULL,), MILLS)
    assert (document["used"], document["allowed"], document["lacking"]) == ("1.25", "2", "0.005")


def test_the_fields_are_those_of_the_api() -> None:
    def names(kind: type[PoolShard | BudgetShard]) -> set[str]:
        return {field.alias or name for name, field in kind.model_fields.items()}

    assert set(entry_documents((FULL,))[0]) <= names(PoolShard)
    assert set(entry_documents((FULL,), MILLS)[0]) <= names(BudgetShard)


@pytest.mark.parametrize("broken", [{"shard": "one"}, {"used": None}, {"agreed": "many"}, {"of": None}])
def test_an_entry_that_was_edited_gives_no_allowance(broken: dict[str, object]) -> None:
    (document,) = entry_documents((FULL,))
    assert entries_from({"shards": [{**document, **broken}]}) == ()
