from typing import cast

import pytest
from annotated_lease import LeaseLog

from controller.kube.gateway import Conflict, Gateway, NotLeading
from controller.kube.kept_memory import KeptMemory

PREFIX = "memory.sluice.dev/"


def kept_by(lease: LeaseLog, identity: str = LeaseLog.HOLDER) -> KeptMemory:
    return KeptMemory(cast(Gateway, lease), namespace="sluice-system", name="sluice", identity=identity)


def test_the_next_leader_finds_what_was_kept() -> None:
    lease = LeaseLog(annotations={"another": "note"})
    kept_by(lease).keep({"uid-a": {"demand": 4.5}, "uid-b": {"demand": 7}})
    lease.holder = "sluice-1_b"
    successor = kept_by(lease, "sluice-1_b")
    successor.load()
    assert (successor.document("uid-a"), successor.document("uid-b")) == ({"demand": 4.5}, {"demand": 7})
    assert successor.document("uid-c") is None

    successor.forget({"uid-a", "uid-c"})
    assert successor.uids == {"uid-b"}
    assert successor.document("uid-a") is None
    assert lease.annotations.keys() == {"another", f"{PREFIX}uid-b"}


def test_a_renewal_in_between_is_followed_by_another_try() -> None:
    lease = LeaseLog(renewals=2)
    kept_by(lease).keep({"uid-a": {}})
    assert f"{PREFIX}uid-a" in lease.annotations
    lease.renewals = 3
    with pytest.raises(Conflict):
        kept_by(lease).keep({"uid-a": {}})


def test_a_former_leader_replaces_nothing() -> None:
    lease = LeaseLog()
    former = kept_by(lease)
    former.keep({"uid-a": {"demand": 1}})
    before = dict(lease.annotations)
    lease.holder = "sluice-1_b"
    with pytest.raises(NotLeading, match="held by sluice-1_b"):
        former.keep({"uid-a": {"demand": 2}})
    former.forget({"uid-a"})
    assert lease.annotations == before


def test_what_is_kept_already_is_not_written_again() -> None:
    lease = LeaseLog()
    kept = kept_by(lease)
    for _ in range(3):
        kept.keep({"uid-a": {"demand": 1}})
        kept.keep({})
        kept.forget({"uid-b"})
    assert lease.patches == 1


def test_as_many_are_kept_as_an_object_may_hold() -> None:
    lease = LeaseLog()
    many = {f"uid-{number}": {"noise": [hash((number, i)) for i in range(100)]} for number in range(300)}
    kept = kept_by(lease)
    safe = kept.keep(many)
    assert 50 < len(safe) < len(many)
    assert safe == kept.uids
    assert sum(len(name) + len(text) for name, text in lease.annotations.items()) <= 200_000
    assert kept.keep({next(iter(safe)): {"demand": 1}}), "the room of a document is its own"


@pytest.mark.parametrize("text", ["", "!", "bm90IHBhY2tlZA=="])
def test_an_annotation_that_is_not_ours_is_passed_over(text: str) -> None:
    lease = LeaseLog(annotations={f"{PREFIX}uid-a": text})
    kept = kept_by(lease)
    kept.load()
    assert kept.document("uid-a") is None
    kept.keep({"uid-a": {"demand": 1}})
    assert kept.document("uid-a") == {"demand": 1}
