from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from controller.kube.claims import Claims
from controller.kube.gateway import LEASES, Forbidden, Gateway, KubeError, NotFound, Resource
from controller.kube.shards import Family
from controller.kube.store import KeptResource, kept_resource

FIRST, SECOND = "a-system/sluice", "b-system/sluice"


@dataclass
class Leases:
    """The Leases on a server by NAMESPACE/NAME: their resource versions. Each lasts for 15 s."""

    versions: dict[str, int] = field(default_factory=dict)
    problem: KubeError | None = None
    now_s: float = 1000.0
    asked: list[str] = field(default_factory=list)
    holder: str | None = None

    def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        assert resource is LEASES
        self.asked.append(f"{namespace}/{name}")
        if self.problem is not None:
            raise self.problem
        if self.asked[-1] not in self.versions:
            raise NotFound("no such lease")
        version = str(self.versions[self.asked[-1]])
        return {
            "metadata": {"resourceVersion": version},
            "spec": {"leaseDurationSeconds": 15, "holderIdentity": self.holder},
        }

    def claims(self, own: str = SECOND, *, everywhere: bool = True) -> Claims:
        return Claims(cast(Gateway, self), own, everywhere=everywhere, clock=lambda: self.now_s)


def claimed(name: str, operator: str | None, *, namespace: str = "speech") -> KeptResource:
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}", "generation": 1}
    return kept_resource({"metadata": metadata, "status": {} if operator is None else {"operator": operator}})


def of_others(claims: Claims, *resources: KeptResource) -> list[str | None]:
    claims.begin(resources)
    return [claims.elsewhere(each) for each in resources]


def test_what_is_unclaimed_or_its_own_is_of_this_operator_and_no_lease_is_read() -> None:
    leases = Leases({FIRST: 1})
    assert of_others(leases.claims(), claimed("new", None), claimed("own", SECOND)) == [None, None]
    assert leases.asked == []


def test_what_a_running_operator_claims_is_left_alone_and_so_is_what_is_new_beside_it() -> None:
    leases = Leases({FIRST: 1})
    mine = claimed("mine", SECOND, namespace="mine")
    found = of_others(leases.claims(), claimed("theirs", FIRST), claimed("new", None), mine)
    assert found == [FIRST, FIRST, None]


def test_the_operator_that_has_the_pools_gets_the_first_pipeline_of_a_new_namespace() -> None:
    leases = Leases({FIRST: 1})
    pool, new = claimed("gpu", FIRST, namespace=""), claimed("new", None, namespace="other")
    assert of_others(leases.claims(), pool, new) == [FIRST, FIRST]
    # One that manages some namespaces is the only one that does.
    assert of_others(leases.claims(everywhere=False), pool, new) == [FIRST, None]


def test_of_two_with_claims_in_a_namespace_one_gets_what_is_new() -> None:
    leases = Leases({FIRST: 1, SECOND: 1})
    pipelines = claimed("one", FIRST), claimed("two", SECOND), claimed("new", None)
    assert of_others(leases.claims(FIRST), *pipelines) == [None, SECOND, None]
    assert of_others(leases.claims(SECOND), *pipelines) == [FIRST, None, FIRST]


@pytest.mark.parametrize("renewed", [True, False])
def test_a_claim_lasts_as_long_as_the_lease_is_renewed(renewed: bool) -> None:
    leases = Leases({FIRST: 1})
    claims, theirs = leases.claims(), claimed("theirs", FIRST)
    for _ in range(30):
        found = of_others(claims, theirs)
        leases.now_s += 15.0
        leases.versions[FIRST] += renewed
    assert found == [FIRST if renewed else None]


def test_a_claim_ends_with_the_lease() -> None:
    leases = Leases({FIRST: 1})
    claims, theirs = leases.claims(), claimed("theirs", FIRST)
    assert of_others(claims, theirs) == [FIRST]
    del leases.versions[FIRST]
    assert of_others(claims, theirs) == [None]
    assert claims.to_make(theirs)


def test_a_lease_that_cannot_be_read_is_not_gone() -> None:
    leases = Leases(problem=Forbidden("403"))
    claims, theirs = leases.claims(), claimed("theirs", FIRST)
    for _ in range(100):
        assert of_others(claims, theirs) == [FIRST]
        leases.now_s += 60.0


def test_a_claim_that_names_no_lease_is_none() -> None:
    leases = Leases()
    assert of_others(leases.claims(), claimed("edited", "../../pods/x"), claimed("too", "sluice")) == [None, None]
    assert leases.asked == []


def test_without_a_lease_of_its_own_it_makes_no_claim_and_leaves_alone_what_is_claimed() -> None:
    leases = Leases({FIRST: 1})
    claims, free = leases.claims(""), claimed("free", None, namespace="free")
    assert of_others(claims, claimed("theirs", FIRST), free) == [FIRST, None]
    assert not claims.to_make(free)


def test_a_claim_is_made_once_also_where_the_field_is_dropped() -> None:
    claims, new = Leases().claims(), claimed("new", None)
    claims.begin([new])
    assert claims.to_make(new)
    claims.made(new)
    assert not claims.to_make(new)


def test_what_was_claimed_and_lost_can_be_claimed_again() -> None:
    claims, theirs = Leases().claims(), claimed("one", FIRST)
    claims.made(claimed("one", SECOND))
    assert of_others(claims, theirs) == [None], "that operator is gone"
    assert claims.to_make(theirs)


SHARD, SIBLING, BEFORE = "b-system/sluice-0", "b-system/sluice-1", "b-system/sluice"


def of_a_shard(leases: Leases, count: int = 2) -> Claims:
    claims = leases.claims(SHARD)
    claims.family, claims.count = Family(BEFORE), count
    return claims


def test_a_new_pipeline_is_for_its_shard_whatever_other_shards_have_beside_it() -> None:
    claims = of_a_shard(Leases({SIBLING: 1, FIRST: 1}))
    pool, neighbour = claimed("gpu", SIBLING, namespace=""), claimed("one", SIBLING)
    assert of_others(claims, pool, neighbour, claimed("new", None)) == [SIBLING, SIBLING, None]
    assert [claims.sibling(each) for each in (neighbour, claimed("new", None))] == [SIBLING, None]
    # That of another release is its own, as without shards.
    stranger = claimed("theirs", FIRST, namespace="theirs")
    assert of_others(claims, stranger, claimed("new", None, namespace="theirs")) == [FIRST, FIRST]
    assert claims.sibling(stranger) is None


@pytest.mark.parametrize(
    ("operator", "count", "taken"), [(BEFORE, 2, True), (SIBLING, 1, True), (SIBLING, 2, False), (FIRST, 2, False)]
)
def test_a_lease_that_was_released_and_that_no_shard_has_any_more_ends_its_claims_at_once(
    operator: str, count: int, taken: bool
) -> None:
    leases = Leases({operator: 1})
    claims = of_a_shard(leases, count)
    assert of_others(claims, claimed("one", operator)) == [None if taken else operator]
    leases.holder = "pod_1"
    assert of_others(claims, claimed("one", operator)) == [operator]
