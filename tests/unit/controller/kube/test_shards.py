from typing import Any

import pytest

from controller.core.state.shards import Shard, shard_of
from controller.kube.shards import Family, Members

OWN = "sluice-system/sluice-0"
MINE, OTHERS = (next(f"team-{n}" for n in range(99) if shard_of(f"team-{n}", 2) == index) for index in (0, 1))


def a_pipeline(namespace: str, operator: str | None, uid: str = "uid-1") -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": "captions", "uid": uid}
    return {"metadata": metadata, "status": {} if operator is None else {"operator": operator}}


def a_namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("operator", "own", "index"),
    [
        ("sluice-system/sluice", True, None),
        ("sluice-system/sluice-0", True, 0),
        ("sluice-system/sluice-12", True, 12),
        ("sluice-system/sluice-01", False, None),
        ("sluice-system/sluice-b", False, None),
        ("other-system/sluice-0", False, None),
    ],
)
def test_the_leases_of_a_fleet_are_known_by_their_names(operator: str, own: bool, index: int | None) -> None:
    family = Family("sluice-system/sluice")
    assert (family.has(operator), family.index(operator)) == (own, index)


def test_without_shards_every_namespace_is_this_operators() -> None:
    members = Members()
    assert members.has("any")
    assert members.keeps_pipeline(a_pipeline("any", "another/operator"))


def test_what_is_of_another_shard_is_not_stored_but_for_pipelines_to_hand_over() -> None:
    members = Members(Shard(index=0, count=2), OWN)
    assert members.keeps_pipeline(a_pipeline(MINE, "sluice-system/sluice-1"))
    assert not members.keeps_pipeline(a_pipeline(OTHERS, None))
    assert not members.keeps_pipeline(a_pipeline(OTHERS, "sluice-system/sluice-1"))
    # It is kept from when it is released until another operator has claimed it.
    assert members.keeps_pipeline(a_pipeline(OTHERS, OWN))
    assert members.keeps_pipeline(a_pipeline(OTHERS, None))
    assert not members.keeps_pipeline(a_pipeline(OTHERS, "sluice-system/sluice-1"))
    assert not members.keeps_pipeline(a_pipeline(OTHERS, None))


def test_with_a_label_no_namespace_is_of_the_shard_before_its_labels_are_known() -> None:
    value = next(f"v{n}" for n in range(99) if shard_of(f"v{n}", 2) == 0)
    members = Members(Shard(index=0, count=2, label="team"), OWN)
    members.seen(a_namespace(OTHERS, team=value))
    assert not members.known.is_set()
    assert not members.has(OTHERS)
    members.begin()
    assert members.known.is_set()
    assert [members.has(name) for name in (OTHERS, "not-seen-yet")] == [True, False]


def test_a_namespace_whose_label_changes_joins_and_leaves_when_that_is_taken() -> None:
    mine, others = (next(f"v{n}" for n in range(99) if shard_of(f"v{n}", 2) == index) for index in (0, 1))
    members = Members(Shard(index=0, count=2, label="team"), OWN)
    members.seen(a_namespace("speech", team=others))
    members.begin()
    assert members.moves() == {}
    members.seen(a_namespace("speech", team=mine))
    assert members.moves() == {"speech": True}
    assert not members.has("speech")
    members.take("speech", joins=True)
    assert members.moves() == {}
    assert members.has("speech")
    members.seen(a_namespace("speech", team=others))
    assert members.moves() == {"speech": False}
