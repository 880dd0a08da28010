"""What a change of a price, a quota and an error of the provider do to decisions."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import a_placement, a_pool, a_scaling, a_snapshot, a_spec, a_stage, a_state, a_target, applied, pools

from controller.core.cycle import decide
from controller.core.messages.conditions import pool_conditions
from controller.core.messages.explain import explain_pipeline
from controller.core.messages.reasons import ConditionType
from controller.core.state.carry_over import PoolMemory, PriceMemory
from controller.core.state.cloud import PriceOrigin, PriceQuote, PriceRange, Purchase, QuotaReading, QuotaSource
from controller.core.state.decision import ChangeReason, Decision
from controller.core.state.policy import Policy
from controller.core.state.provider_errors import ErrorClass, ProviderError
from controller.core.state.snapshot import LaunchFailure, NodePoolState, PendingReplica, PoolState, Snapshot
from optimizer.model import PoolName, StageName
from optimizer.plan import LimitKind

SPOT, ON_DEMAND = PoolName("spot"), PoolName("on-demand")
STAGE = StageName("asr")
POLICY = Policy()
INF = QuotaSource(code="L-1945791B", region="us-east-1", vcpus=4, purchase=Purchase.ON_DEMAND, name="Inf OnDemand")


def a_fleet(spot_price: float, *, quota: QuotaReading | None = None) -> Mapping[PoolName, PoolState]:
    spot = a_pool("spot", price=spot_price)
    if quota is not None:
        spot = replace(spot, spec=replace(spot.spec, quota=INF), quota=quota)
    return pools(spot, a_pool("on-demand", price=1.0))


def a_world(fleet: Mapping[PoolName, PoolState], *, replicas: int = 6) -> Snapshot:
    spec = a_spec(
        a_stage("asr", a_placement("spot"), a_placement("on-demand")), scaling=a_scaling(tolerance=0.1, down_s=0.0)
    )
    state = a_state(spec, demand=60.0, replicas={(STAGE, SPOT): replicas})
    return a_snapshot(state, fleet=fleet)


def run(snapshot: Snapshot, cycles: int) -> tuple[Snapshot, list[Decision]]:
    decisions = []
    for _ in range(cycles):
        decisions.append(decide(snapshot, POLICY))
        after = applied(snapshot, decisions[-1])
        prices = {pool.name: pool.price for pool in decisions[-1].pools}
        snapshot = replace(
            after, pools={name: replace(pool, priced=prices[name]) for name, pool in after.pools.items()}
        )
    return snapshot, decisions


def repriced(snapshot: Snapshot, per_hour: float) -> Snapshot:
    spot = snapshot.pools[SPOT]
    spot = replace(spot, spec=replace(spot.spec, price_per_hour=per_hour))
    return replace(snapshot, pools={**snapshot.pools, SPOT: spot})


def reasons(decisions: list[Decision]) -> list[ChangeReason]:
    return [change.reason for decision in decisions for own in decision.pipelines for change in own.changes]


class TestPrices:
    def test_a_price_rise_moves_the_work_and_is_the_reason(self) -> None:
        steady, _ = run(a_world(a_fleet(0.4)), 4)
        before = steady.pipelines[0].desired(STAGE, SPOT)
        assert before > 0
        moved, decisions = run(repriced(steady, 2.5), 6)
        assert moved.pipelines[0].desired(STAGE, SPOT) == 0
        assert moved.pipelines[0].desired(STAGE, ON_DEMAND) > 0
        assert set(reasons(decisions)) == {ChangeReason.PRICE}
        acted = next(own for each in decisions for own in each.pipelines if own.changes)
        assert "the price of a pool has changed" in " ".join(explain_pipeline(acted, decisions[0].now_s))

    def test_a_price_that_falls_is_the_reason_too(self) -> None:
        steady, _ = run(repriced(a_world(a_fleet(2.5), replicas=0), 2.5), 6)
        assert steady.pipelines[0].desired(STAGE, SPOT) == 0
        moved, decisions = run(repriced(steady, 0.3), 6)
        assert moved.pipelines[0].desired(STAGE, SPOT) > 0
        assert set(reasons(decisions)) == {ChangeReason.PRICE}

    def test_without_a_change_of_price_a_cheaper_plan_is_a_matter_of_cost(self) -> None:
        world = a_world(a_fleet(2.5))
        _, decisions = run(world, 6)
        assert ChangeReason.COST in reasons(decisions)
        assert ChangeReason.PRICE not in reasons(decisions)

    def test_a_change_long_ago_is_no_reason_any_more(self) -> None:
        fleet = a_fleet(2.5)
        long_ago = PriceMemory(per_hour=2.5, before_per_hour=0.4, changed_at_s=0.0)
        fleet = {**fleet, SPOT: replace(fleet[SPOT], priced=long_ago)}
        _, decisions = run(a_world(fleet), 6)
        assert reasons(decisions)
        assert ChangeReason.PRICE not in reasons(decisions)

    def test_the_price_before_the_last_change_is_remembered(self) -> None:
        steady, _ = run(a_world(a_fleet(0.4)), 1)
        _, (decision,) = run(repriced(steady, 0.5), 1)
        price = next(pool.price for pool in decision.pools if pool.name == SPOT)
        assert price == PriceMemory(
            per_hour=0.5,
            before_per_hour=0.4,
            changed_at_s=decision.now_s,
            counted_per_hour=0.4,
            risen_at_s=decision.now_s,
        )

    def test_nodes_cost_what_their_type_costs_in_their_zone(self) -> None:
        pool = a_pool("spot", price=0.9, nodes={"a": "g5.xlarge", "b": "g5.xlarge", "c": "g5.2xlarge", "d": ""})
        quote = PriceQuote(
            per_hour=0.9,
            origin=PriceOrigin.SPOT,
            as_of_s=0.0,
            by_node={"g5.xlarge/us-east-1a": 0.4, "g5.xlarge/us-east-1b": 0.9, "g5.2xlarge": 0.6},
        )
        pool = replace(
            pool,
            spec=replace(pool.spec, price=quote),
            node_zones={"a": "us-east-1a", "b": "us-east-1b", "c": "us-east-1a"},
        )
        assert [pool.node_price_per_hour(node) for node in "abcd"] == [0.4, 0.9, 0.6, 0.9]


def condition(pool: PoolState, kind: ConditionType, now_s: float = 10_000.0) -> tuple[str, str, str]:
    (found,) = [each for each in pool_conditions(pool, PoolMemory(), now_s) if each.type == kind.value]
    return found.status, found.reason, found.message


class TestPriceCondition:
    def quote(self, **changes: object) -> PoolState:
        pool = a_pool("gpu", price=0.52)
        quote = PriceQuote(
            per_hour=0.52,
            origin=PriceOrigin.SPOT,
            as_of_s=0.0,
            at="g5.xlarge/us-east-1b",
            day=PriceRange(low_per_hour=0.3, high_per_hour=0.52),
        )
        return replace(pool, spec=replace(pool.spec, price=replace(quote, **changes)))  # type: ignore[arg-type]

    def test_it_has_source_date_and_range(self) -> None:
        assert condition(self.quote(), ConditionType.PRICE_CURRENT) == (
            "True",
            "LookedUp",
            (
                "$0.52/h as of 1970-01-01T00:00:00Z (spot price of AWS, g5.xlarge/us-east-1b); "
                "$0.3/h to $0.52/h in the last day"
            ),
        )

    @pytest.mark.parametrize(
        ("changes", "status", "reason"),
        [
            ({"problem": "AWS gives an implausible price: 0"}, "False", "PriceRefused"),
            ({"problem": "no AWS credentials"}, "False", "PriceOutdated"),
            ({"origin": PriceOrigin.BUNDLED}, "Unknown", "NotLookedUp"),
            ({"origin": PriceOrigin.DECLARED, "as_of_s": None}, "Unknown", "NotLookedUp"),
        ],
    )
    def test_a_price_that_is_not_of_now_is_not_current(
        self, changes: dict[str, object], status: str, reason: str
    ) -> None:
        assert condition(self.quote(**changes), ConditionType.PRICE_CURRENT)[:2] == (status, reason)

    def test_a_pool_with_a_declared_price_has_no_such_condition(self) -> None:
        kinds = {each.type for each in pool_conditions(a_pool("gpu"), PoolMemory(), 0.0)}
        assert kinds == {"Available", "NodesExclusive", "ReplicasOwned", "GrowthOpen"}


class TestQuotas:
    def reading(self, limit: float | None, others: float | None = 0.0, problem: str = "") -> QuotaReading:
        return QuotaReading(limit_vcpus=limit, others_vcpus=others, as_of_s=0.0, problem=problem)

    def pool(self, reading: QuotaReading | None, **changes: object) -> PoolState:
        pool = a_pool("inf2", **changes)  # type: ignore[arg-type]
        return replace(pool, spec=replace(pool.spec, quota=INF), quota=reading)

    def test_what_others_use_is_not_for_the_pool(self) -> None:
        assert self.pool(self.reading(64.0, 20.0)).limit == 11
        assert self.pool(self.reading(64.0, 80.0)).limit == 0

    def test_a_larger_quota_leaves_the_declared_ceiling_firm(self) -> None:
        pool = self.pool(self.reading(1000.0))
        assert (pool.limit, pool.firm, pool.bound_by_quota) == (20, True, False)

    def test_a_quota_ends_no_instance_that_runs(self) -> None:
        pool = self.pool(self.reading(8.0))
        assert (pool.limit, pool.firm, pool.bound_by_quota) == (2, False, True)
        assert pool.limit_holding(5) == 5

    def test_a_quota_alone_bounds_a_pool_and_one_that_is_not_known_allows_nothing_new(self) -> None:
        assert self.pool(self.reading(64.0), instances=None).limit == 16
        unknown = self.pool(self.reading(None, problem="no AWS credentials"), instances=None)
        assert (unknown.limit, unknown.limit_holding(3)) == (0, 3)
        assert self.pool(None, instances=None).limit == 0

    def test_a_quota_that_is_not_known_leaves_the_other_bounds(self) -> None:
        assert self.pool(self.reading(None)).limit == 20

    def test_a_plan_that_a_quota_limits_says_which(self) -> None:
        spec = a_spec(a_stage("asr", a_placement("spot", bounds=(0, 40))), scaling=a_scaling(down_s=0.0))
        spot = a_pool("spot", price=0.5)
        spot = replace(spot, spec=replace(spot.spec, quota=INF), quota=self.reading(8.0))
        state = a_state(spec, demand=200.0, replicas={(STAGE, SPOT): 2})
        decision = decide(a_snapshot(state, fleet=pools(spot)), POLICY)
        plan = decision.pipelines[0].plan
        assert plan is not None
        assert plan.limited_by is not None
        assert (plan.limited_by.kind, str(plan.limited_by)) == (LimitKind.QUOTA, "Quota/L-1945791B")
        told = " ".join(explain_pipeline(decision.pipelines[0], decision.now_s))
        assert "limited by quota L-1945791B of the AWS account" in told
        assert "a higher quota L-1945791B" in told

    def test_a_limit_of_the_pool_itself_stays_the_pool_s(self) -> None:
        spec = a_spec(a_stage("asr", a_placement("spot", bounds=(0, 40))), scaling=a_scaling(down_s=0.0))
        spot = a_pool("spot", price=0.5, instances=2)
        spot = replace(spot, spec=replace(spot.spec, quota=INF), quota=self.reading(800.0))
        decision = decide(a_snapshot(a_state(spec, demand=200.0), fleet=pools(spot)), POLICY)
        plan = decision.pipelines[0].plan
        assert plan is not None
        assert str(plan.limited_by) == "Pool/spot"

    def test_with_a_quota_of_0_the_next_pool_serves_in_the_same_cycle_and_the_condition_says_so(self) -> None:
        fleet = a_fleet(0.1, quota=self.reading(0.0))
        decision = decide(a_world(fleet, replicas=0), POLICY)
        assert decision.pipelines[0].desired[STAGE, SPOT] == 0
        assert decision.pipelines[0].desired[STAGE, ON_DEMAND] > 0
        status, reason, message = condition(fleet[SPOT], ConditionType.QUOTA_SUFFICES)
        assert (status, reason) == ("False", "QuotaZero")
        assert "quota L-1945791B (Inf OnDemand, us-east-1) is 0 vCPUs" in message
        assert "a quota of 4 allows the first" in message

    @pytest.mark.parametrize(
        ("reading", "status", "reason"),
        [
            (QuotaReading(limit_vcpus=64.0, others_vcpus=0.0, as_of_s=0.0), "True", "QuotaAllows"),
            (QuotaReading(limit_vcpus=8.0, others_vcpus=6.0, as_of_s=0.0), "False", "QuotaUsedUp"),
            (QuotaReading(limit_vcpus=None, others_vcpus=None, as_of_s=None), "Unknown", "QuotaUnread"),
            (None, "Unknown", "QuotaUnread"),
        ],
    )
    def test_the_condition_of_other_quotas(self, reading: QuotaReading | None, status: str, reason: str) -> None:
        assert condition(self.pool(reading), ConditionType.QUOTA_SUFFICES)[:2] == (status, reason)


CAPACITY = "creating instance, insufficient capacity, with fleet error(s), InsufficientInstanceCapacity: none"
VCPUS = "creating instance, insufficient capacity, with fleet error(s), VcpuLimitExceeded: your limit is 0"
THROTTLE = "creating instance, RequestLimitExceeded: Request limit exceeded"


class TestErrors:
    NOW_S = 10_000.0

    def world(self, node_pool: NodePoolState, *, since_s: float = 120.0) -> Snapshot:
        spec = a_spec(a_stage("asr", a_placement("spot"), a_placement("on-demand")))
        waiting = PendingReplica(name="pod-0", since_s=self.NOW_S - since_s, reason="0/3 nodes are available")
        target = replace(a_target(1, ready=0), pending=(waiting,))
        fleet = pools(a_pool("spot", price=0.1, node_pool=node_pool), a_pool("on-demand"))
        return a_snapshot(a_state(spec, replicas={(STAGE, SPOT): target}), fleet=fleet, now_s=self.NOW_S)

    def memory(self, snapshot: Snapshot) -> PoolMemory:
        return next(pool.memory for pool in decide(snapshot, POLICY).pools if pool.name == SPOT)

    def fails(self, snapshot: Snapshot) -> bool:
        """Return whether the placement fails: that one replica has no node shows no failure of the pool."""
        return (STAGE, SPOT) in decide(snapshot, POLICY).pipelines[0].memory.failures

    def failed(self, text: str) -> NodePoolState:
        failures = tuple(
            LaunchFailure(claim=f"spot-{i}", at_s=self.NOW_S - 100 + 30 * i, reason=text) for i in range(2)
        )
        return NodePoolState(instances=9, failures=failures)

    def test_a_provider_without_capacity_fails_the_pool_at_once(self) -> None:
        memory = self.memory(self.world(self.failed(CAPACITY)))
        assert memory.unavailable_until_s is not None
        assert "InsufficientInstanceCapacity" in memory.reason

    def test_a_quota_does_too_and_is_said(self) -> None:
        memory = self.memory(self.world(self.failed(VCPUS)))
        assert memory.unavailable_until_s is not None
        assert "a quota of the account is used up" in memory.reason

    @pytest.mark.parametrize("text", [THROTTLE, "UnauthorizedOperation: You are not authorized"])
    def test_other_errors_say_nothing_of_the_nodes_that_there_are(self, text: str) -> None:
        assert self.memory(self.world(self.failed(text))).unavailable_until_s is None

    @pytest.mark.parametrize(("ago_s", "fails"), [(60.0, False), (299.0, False), (301.0, True)])
    def test_while_requests_are_throttled_the_deadline_waits(self, ago_s: float, fails: bool) -> None:
        error = ProviderError(kind=ErrorClass.THROTTLED, at_s=self.NOW_S - ago_s, text=THROTTLE)
        snapshot = self.world(NodePoolState(instances=9, errors=(error,)), since_s=400.0)  # the deadline is 300
        assert self.fails(snapshot) is fails

    def test_a_provider_that_throttles_for_ever_fails_the_placement_in_the_end(self) -> None:
        error = ProviderError(kind=ErrorClass.THROTTLED, at_s=self.NOW_S - 1, text=THROTTLE)
        assert self.fails(self.world(NodePoolState(instances=9, errors=(error,)), since_s=1801.0))

    @pytest.mark.parametrize(
        ("kind", "status"),
        [(ErrorClass.PERMISSION, "False"), (ErrorClass.QUOTA, "False"), (ErrorClass.THROTTLED, "Unknown")],
    )
    def test_what_the_autoscaler_may_not_do_is_a_condition(self, kind: ErrorClass, status: str) -> None:
        error = ProviderError(kind=kind, at_s=self.NOW_S - 10, text="the words of AWS")
        pool = a_pool("spot", node_pool=NodePoolState(instances=9, errors=(error,)))
        found = condition(pool, ConditionType.PROVIDER_PERMITS, self.NOW_S)
        assert found[:2] == (status, kind.value)
        assert "the words of AWS" in found[2]

    def test_an_old_error_is_no_condition(self) -> None:
        error = ProviderError(kind=ErrorClass.PERMISSION, at_s=self.NOW_S - 901, text="")
        pool = a_pool("spot", node_pool=NodePoolState(instances=9, errors=(error,)))
        assert condition(pool, ConditionType.PROVIDER_PERMITS, self.NOW_S)[:2] == ("True", "NoError")
