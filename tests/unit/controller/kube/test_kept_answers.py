"""Prices and quotas on their way: from the account into the Snapshot, into the status, and back after a restart."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from builders import a_pool
from corpus import POOL, REMOVED, changed

from controller.aws.account import Account
from controller.aws.groups import SeenGroup
from controller.aws.quotas import QuotaUse, quota_reading
from controller.core.state.carry_over import PoolMemory, PriceMemory
from controller.core.state.cloud import (
    AwsPrice,
    PriceOrigin,
    PriceQuote,
    PriceRange,
    Purchase,
    QuotaReading,
    QuotaSource,
    lookup_text,
)
from controller.core.state.decision import PoolDecision
from controller.core.state.snapshot import PoolState
from controller.kube.carried_state import CarriedState
from controller.kube.karpenter import Karpenter
from controller.kube.kept_answers import kept_quota, kept_quote
from controller.kube.reader import Resources
from controller.kube.status import pool_status
from controller.kube.store import ResourceStore
from optimizer.model import PoolName

SOURCE = AwsPrice(instance_types=("g5.xlarge",), region="us-east-1", purchase=Purchase.SPOT)
QUOTE = PriceQuote(
    per_hour=0.52,
    origin=PriceOrigin.SPOT,
    as_of_s=1_790_000_000.0,
    at="g5.xlarge/us-east-1b",
    by_node={"g5.xlarge/us-east-1a": 0.41, "g5.xlarge/us-east-1b": 0.52},
    day=PriceRange(low_per_hour=0.3, high_per_hour=0.61),
)
AWS = {"instanceType": "g5.xlarge", "region": "us-east-1", "purchase": "Spot"}
INF = QuotaSource(code="L-1945791B", region="us-east-1", vcpus=4, purchase=Purchase.ON_DEMAND, name="Inf OnDemand")


@dataclass
class Told:
    """An account that answers what a test gives it."""

    quote: PriceQuote | None = None
    problem: str = ""
    watched: list[tuple[Mapping[AwsPrice, PriceQuote | None], list[QuotaSource]]] = field(default_factory=list)

    def watch(
        self,
        prices: Mapping[AwsPrice, PriceQuote | None],
        quotas: Collection[QuotaSource],
        groups: Collection[str] = (),
    ) -> None:
        assert not groups
        self.watched.append((prices, list(quotas)))

    def price(self, source: AwsPrice) -> PriceQuote | None:
        del source
        return self.quote

    def problem_of_price(self, source: AwsPrice) -> str:
        del source
        return self.problem

    def quota(self, source: QuotaSource) -> QuotaUse:
        raise AssertionError(source)

    def group(self, name: str) -> SeenGroup:
        raise AssertionError(name)


def a_resource(price: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    capacity = {"instances": 3, "quota": {"family": "G", "purchase": "Spot", "region": "us-east-1"}}
    return {
        **changed(POOL, {"spec.price": price, "spec.capacity": capacity, **changes}),
        "metadata": {"name": "gpu", "uid": "uid-gpu", "generation": 1, "resourceVersion": "1"},
    }


def seen(account: Account, resource: dict[str, Any]) -> Any:
    pools = ResourceStore()
    pools.put(resource)
    return Resources(ResourceStore(), pools, ResourceStore(), account=account).pools()


class TestSnapshot:
    def test_the_price_of_the_account_is_the_price_of_the_pool(self) -> None:
        account = Told(quote=QUOTE)
        ((spec, _),), invalid = seen(account, a_resource({"aws": AWS}))
        assert invalid == ()
        assert (spec.price_per_hour, spec.price, spec.looked_up) == (0.52, QUOTE, SOURCE)
        assert spec.node_price_per_hour("g5.xlarge", "us-east-1a") == 0.41
        ((prices, quotas),) = account.watched
        assert prices == {SOURCE: None}
        assert [(quota.code, quota.vcpus, quota.name) for quota in quotas] == [("L-3819A6DF", 4, "G Spot")]

    def test_until_aws_answers_the_declared_price_counts_and_then_the_bundled_table(self) -> None:
        account = Told(problem="no AWS credentials")
        ((declared, _),), _ = seen(account, a_resource({"aws": AWS, "perHour": "0.9"}))
        assert declared.price == PriceQuote(
            per_hour=0.9, origin=PriceOrigin.DECLARED, as_of_s=None, problem="no AWS credentials"
        )
        ((bundled, _),), _ = seen(account, a_resource({"aws": AWS}))
        assert (bundled.price_per_hour, bundled.price.origin) == (1.006, PriceOrigin.BUNDLED)
        assert bundled.price.problem == "no AWS credentials"

    def test_a_pool_without_any_price_is_not_used_and_says_why(self) -> None:
        usable, (invalid,) = seen(Told(), a_resource({"aws": {**AWS, "instanceType": "g99.xlarge"}}))
        assert usable == []
        assert invalid.problem.startswith("spec.price.aws: no price is known for g99.xlarge in us-east-1")


def a_status(quote: PriceQuote | None = QUOTE, price: PriceMemory | None = None, **state: Any) -> dict[str, Any]:
    pool = a_pool("gpu", price=0.52)
    pool = replace(pool, spec=replace(pool.spec, price=quote, looked_up=SOURCE if quote else None))
    pool = replace(pool, spec=replace(pool.spec, **state.pop("spec", {})), **state)
    decision = PoolDecision(
        name=PoolName("gpu"),
        in_use=0.0,
        planned=0,
        limit=pool.limit,
        zones=1,
        shadow_price_per_hour=0.4,
        memory=PoolMemory(),
        price=price,
    )
    return pool_status(pool, decision, {}, 1_790_000_100.0)


class TestStatus:
    def test_it_has_where_the_price_comes_from(self) -> None:
        changed_price = PriceMemory(per_hour=0.52, before_per_hour=0.41, changed_at_s=1_790_000_000.0)
        assert a_status(price=changed_price)["price"] == {
            "source": "Spot",
            "asOf": "2026-09-21T14:13:20Z",
            "lookup": "g5.xlarge Spot us-east-1",
            "at": "g5.xlarge/us-east-1b",
            "dayLowPerHour": "0.3",
            "dayHighPerHour": "0.61",
            "nodes": [
                {"instanceType": "g5.xlarge", "zone": "us-east-1a", "perHour": "0.41"},
                {"instanceType": "g5.xlarge", "zone": "us-east-1b", "perHour": "0.52"},
            ],
            "changedAt": "2026-09-21T14:13:20Z",
            "beforePerHour": "0.41",
        }

    def test_a_declared_price_that_never_changed_needs_no_words(self) -> None:
        assert "price" not in a_status(None, PriceMemory(per_hour=0.52))

    def test_a_restart_goes_on_with_the_price_of_the_status(self) -> None:
        assert kept_quote(a_status(), SOURCE) == QUOTE
        account = Told()
        seen(account, {**a_resource({"aws": AWS}), "status": a_status()})
        assert account.watched[0][0] == {SOURCE: QUOTE}

    @pytest.mark.parametrize(
        "source",
        [
            replace(SOURCE, region="eu-west-1"),
            replace(SOURCE, purchase=Purchase.ON_DEMAND),
            replace(SOURCE, instance_types=("g5.2xlarge",)),
            replace(SOURCE, zones=("us-east-1a",)),
        ],
        ids=lookup_text,
    )
    def test_but_not_with_that_of_another_look_up(self, source: AwsPrice) -> None:
        assert kept_quote(a_status(), source) is None

    @pytest.mark.parametrize(
        "edited",
        [
            {"nodes": [{"instanceType": "g5.xlarge", "zone": "us-east-1b", "perHour": "0"}]},
            {"nodes": [{"instanceType": "g5.xlarge", "zone": "us-east-1b", "perHour": "NaN"}]},
            {"nodes": "many"},
            {"asOf": "yesterday"},
            {"source": "Guess"},
            {"at": None},
        ],
    )
    def test_nor_with_one_that_was_edited(self, edited: dict[str, Any]) -> None:
        status = a_status()
        status["price"] |= edited
        assert kept_quote(status, SOURCE) is None

    def test_a_restart_remembers_the_last_change_of_the_price(self) -> None:
        remembered = PriceMemory(per_hour=0.52, before_per_hour=0.41, changed_at_s=1_790_000_000.0)
        store = ResourceStore()
        store.put({**a_resource({"perHour": "0.52"}), "status": a_status(price=remembered)})
        (kept,) = store.snapshot().values()
        assert CarriedState(15.0).priced(kept) == remembered

    def test_a_quota_that_binds_has_the_increase_that_pays_and_its_worth(self) -> None:
        reading = QuotaReading(limit_vcpus=64.0, others_vcpus=20.0, as_of_s=1_790_000_000.0)
        status = a_status(quota=reading, spec={"quota": INF})
        assert status["bounds"]["quota"] == 11
        assert status["quota"] == {
            "code": "L-1945791B",
            "name": "Inf OnDemand",
            "region": "us-east-1",
            "limitVcpus": "64",
            "usedByOthersVcpus": "20",
            "vcpusPerInstance": 4,
            "asOf": "2026-09-21T14:13:20Z",
            "increaseToVcpus": 68,
            "worthPerHour": "0.4",
        }

    @pytest.mark.parametrize(
        ("edited", "limit"),
        [
            ({}, 64.0),
            ({"usedByOthersVcpus": None}, 64.0),
            ({"code": "L-DB2E81BA"}, None),
            ({"region": "eu-west-1"}, None),
            ({"limitVcpus": "-1"}, None),
            ({"limitVcpus": "nan"}, None),
            ({"usedByOthersVcpus": "many"}, None),
            ({"asOf": "today"}, None),
        ],
    )
    def test_a_restart_goes_on_with_the_quota_of_the_status(self, edited: dict[str, Any], limit: float | None) -> None:
        document = {
            "code": INF.code,
            "region": INF.region,
            "limitVcpus": "64",
            "usedByOthersVcpus": "8",
            "asOf": "2026-01-01T00:00:00Z",
            **edited,
        }
        kept = kept_quota({"quota": document}, INF)
        assert (None if kept is None else kept.limit_vcpus) == limit
        assert kept_quota({}, INF) is None

    def test_a_quota_that_does_not_bind_has_no_worth(self) -> None:
        reading = QuotaReading(limit_vcpus=640.0, others_vcpus=0.0, as_of_s=1_790_000_000.0)
        assert not {"increaseToVcpus", "worthPerHour"} & a_status(quota=reading, spec={"quota": INF})["quota"].keys()

    def test_a_quota_that_was_not_read_has_the_reason(self) -> None:
        reading = QuotaReading(limit_vcpus=None, others_vcpus=None, as_of_s=None, problem="no AWS credentials")
        quota = a_status(quota=reading, spec={"quota": INF})["quota"]
        assert quota["problem"] == "no AWS credentials"
        assert "limitVcpus" not in quota


class TestOwnInstances:
    USE = QuotaUse(limit_vcpus=64.0, as_of_s=0.0, instances={"i-own": 4, "i-launching": 4, "i-other": 16})

    def test_nodes_and_launched_claims_of_the_pool_are_its_own(self) -> None:
        karpenter = Karpenter(cast("Any", None))
        labels = {"karpenter.sh/nodepool": "inf2"}
        karpenter._read = replace(
            karpenter._read,
            claims=(
                {"metadata": {"labels": labels}, "status": {"providerID": "aws:///us-east-1b/i-launching"}},
                {"metadata": {"labels": {"karpenter.sh/nodepool": "other"}}, "status": {"providerID": "aws:///b/i-x"}},
                {"metadata": {"labels": labels}},
            ),
        )
        nodes: list[dict[str, Any]] = [
            {"metadata": {"labels": {"pool": "inf2"}}, "spec": {"providerID": "aws:///us-east-1a/i-own"}},
            {"metadata": {"labels": {"pool": "other"}}, "spec": {"providerID": "aws:///us-east-1a/i-other"}},
            {"metadata": {"labels": {"pool": "inf2"}}},
        ]
        own = karpenter.instance_ids("inf2", {"pool": "inf2"}, nodes)
        assert own == {"i-own", "i-launching"}
        assert quota_reading(self.USE, own, 8).others_vcpus == 16.0

    def test_of_the_sum_of_cloudwatch_the_own_ones_are_subtracted(self) -> None:
        use = QuotaUse(limit_vcpus=64.0, as_of_s=0.0, used_vcpus=24.0)
        assert quota_reading(use, {"a", "b"}, 8.0).others_vcpus == 16.0
        assert quota_reading(use, {"a"}, 32.0).others_vcpus == 0.0

    def test_a_use_that_is_not_known_stays_unknown(self) -> None:
        assert quota_reading(QuotaUse(limit_vcpus=64.0, as_of_s=0.0), (), 0.0).others_vcpus is None


def test_a_pool_keeps_its_declared_spec_without_aws() -> None:
    ((spec, _),), _ = seen(Told(), a_resource({"perHour": "0.34"}, **{"spec.capacity.quota": REMOVED}))
    state = PoolState(spec=spec, ready_instances=0, zones=1, memory=PoolMemory())
    assert (spec.price, spec.quota, state.limit) == (None, None, 3)
