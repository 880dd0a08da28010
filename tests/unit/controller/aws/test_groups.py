"""What the cycle makes of an Auto Scaling group: replicas, pending ones, drains, and why launches fail."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from aws_answers import StubbedAws
from builders import a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, pools

from controller.aws.account import AwsAccount, GroupChanged
from controller.aws.failure import AwsFailure
from controller.aws.groups import (
    AwsGroups,
    FailedActivity,
    Group,
    GroupInstance,
    GroupNotFound,
    node_pool_of,
    observed,
    target_of,
    unknown_node_pool,
)
from controller.core.act.scale_in import FIRST_TO_GO
from controller.core.cycle import decide
from controller.core.state.decision import ChangeReason, ReplicaChange
from controller.core.state.policy import Policy
from controller.core.state.provider_errors import ErrorClass
from controller.core.state.snapshot import LaunchFailure, NodePoolProblem
from controller.core.state.spec import Target
from controller.kube.auto_scaling import GroupActuator, group_names, within_groups
from controller.kube.gateway import Conflict, Failed, Forbidden, NotFound
from optimizer.model import PoolName, StageName

NOW_S = 10_000.0
QUOTA_TEXT = (
    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket. "
    "Launching EC2 instance failed."
)


def an_instance(name: str, lifecycle: str = "InService", **changes: Any) -> GroupInstance:
    return GroupInstance(name=name, instance_type="c7i.xlarge", zone="us-east-1a", lifecycle=lifecycle, **changes)


def a_group(*instances: GroupInstance, desired: int | None = None, **changes: Any) -> Group:
    group = Group(
        name="vad",
        min_size=1,
        max_size=8,
        desired=len(instances) if desired is None else desired,
        zones=("us-east-1a", "us-east-1b"),
        instances=instances,
        as_of_s=NOW_S,
        namespace="speech",
    )
    return replace(group, **changes)


class TestTarget:
    def test_the_lifecycle_says_what_serves_starts_and_drains(self) -> None:
        group = a_group(
            an_instance("i-1"),
            an_instance("i-2", healthy=False),
            an_instance("i-3", "Pending:Wait"),
            an_instance("i-4", "Terminating:Wait"),
            desired=3,
        )
        state = target_of(observed(group, None))
        assert (state.existing, state.ready, state.terminating, state.pending) == (3, 1, 1, ())
        assert [(each.name, each.reason) for each in state.starting] == [
            ("i-2", "InService, not healthy"),
            ("i-3", "Pending:Wait"),
        ]

    def test_instances_that_are_not_launched_are_pending_since_they_lack(self) -> None:
        first = observed(a_group(an_instance("i-1"), desired=3), None)
        later = observed(a_group(an_instance("i-1"), desired=3, as_of_s=NOW_S + 60), first)
        state = target_of(later)
        assert [(each.name, each.since_s, each.reason) for each in state.pending] == [
            ("vad#0", NOW_S, "not launched yet"),
            ("vad#1", NOW_S, "not launched yet"),
        ]
        assert state.existing == 3
        assert observed(a_group(an_instance("i-1")), later).short_since_s is None

    def test_the_last_failed_activity_is_the_reason(self) -> None:
        failed = (FailedActivity(name="a", at_s=NOW_S + 5, text=QUOTA_TEXT),)
        first = observed(a_group(desired=1), None)
        (pending,) = target_of(observed(a_group(desired=1, as_of_s=NOW_S + 10, failed=failed), first)).pending
        assert pending.reason == QUOTA_TEXT

    def test_a_state_lasts_since_it_was_first_seen(self) -> None:
        first = observed(a_group(an_instance("i-1", "Pending")), None)
        second = observed(a_group(an_instance("i-1", "Pending"), as_of_s=NOW_S + 30), first)
        third = observed(a_group(an_instance("i-1"), as_of_s=NOW_S + 60), second)
        assert [each.since_s["i-1"] for each in (first, second, third)] == [NOW_S, NOW_S, NOW_S + 60]

    def test_an_instance_on_standby_is_no_replica_and_still_costs(self) -> None:
        state = target_of(observed(a_group(an_instance("i-1"), an_instance("i-2", "Standby"), desired=1), None))
        assert (state.existing, state.ready, state.terminating, state.starting, state.pending) == (1, 1, 1, (), ())

    def test_a_protected_instance_stays_beyond_the_desired_capacity_and_is_no_choice(self) -> None:
        state = target_of(observed(a_group(an_instance("i-1", protected=True), an_instance("i-2"), desired=1), None))
        assert (state.desired, state.existing) == (1, 2)
        assert [(each.name, each.protected) for each in state.serving] == [("i-1", True), ("i-2", False)]

    def test_an_instance_refresh_is_a_roll_out(self) -> None:
        state = target_of(observed(a_group(an_instance("i-1", "Pending"), refreshing=True), None))
        assert state.rolling
        assert state.starting[0].updated


class TestNodePool:
    def test_its_maximum_bounds_the_pool_and_what_is_no_node_yet_is_on_its_way(self) -> None:
        group = a_group(an_instance("i-1"), an_instance("i-2", "Pending"), an_instance("i-3", "Pending"))
        state = node_pool_of(observed(group, None), {"i-3"})
        assert (state.instances, [claim.name for claim in state.claims]) == (8, ["i-2"])

    def test_failed_activities_are_failures_and_errors_with_their_class(self) -> None:
        failed = (
            FailedActivity(name="a", at_s=1.0, text=QUOTA_TEXT),
            FailedActivity(name="b", at_s=2.0, text="Instance failed to complete user's Lifecycle Action"),
        )
        state = node_pool_of(observed(a_group(failed=failed), None), ())
        assert [failure.claim for failure in state.failures] == ["a", "b"]
        assert [error.kind for error in state.errors] == [ErrorClass.QUOTA]

    def test_without_failed_activities_the_words_of_the_cluster_autoscaler_count(self) -> None:
        denied = LaunchFailure(claim="e", at_s=3.0, reason="Scale-up failed for group vad: AccessDenied: no")
        state = node_pool_of(observed(a_group(), None), (), [denied])
        assert state.failures == (denied,)
        assert [error.kind for error in state.errors] == [ErrorClass.PERMISSION]

    def test_a_failure_that_the_group_tells_itself_is_counted_once(self) -> None:
        failed = (FailedActivity(name="a", at_s=1.0, text=QUOTA_TEXT),)
        again = LaunchFailure(claim="e", at_s=0.5, reason="Failed adding 1 nodes to group vad due to OutOfQuota; x")
        state = node_pool_of(observed(a_group(failed=failed), None), (), [again])
        assert [failure.claim for failure in state.failures] == ["a"]
        assert [error.at_s for error in state.errors] == [0.5, 1.0]

    def test_a_group_that_is_not_known_says_which_way(self) -> None:
        assert unknown_node_pool("none", missing=True).problem is NodePoolProblem.GROUP_NOT_FOUND
        assert unknown_node_pool("none", missing=False).problem is NodePoolProblem.GROUP_UNREADABLE

    def test_a_group_without_capacity_fails_its_pool_and_the_next_pool_serves(self) -> None:
        failed = tuple(FailedActivity(name=str(i), at_s=NOW_S - 90 + 30 * i, text=QUOTA_TEXT) for i in range(2))
        group = a_group(desired=1, failed=failed, as_of_s=NOW_S)
        seen = replace(observed(group, None), short_since_s=NOW_S - 100)
        plain, other = PoolName("vad"), PoolName("cpu")
        spec = a_spec(a_stage("asr", a_placement("vad"), a_placement("cpu")))
        fleet = pools(a_pool("vad", price=0.1, node_pool=node_pool_of(seen, ())), a_pool("cpu"))
        state = a_state(spec, replicas={(StageName("asr"), plain): target_of(seen)})
        decision = decide(a_snapshot(state, fleet=fleet, now_s=NOW_S), Policy())
        memory = next(pool.memory for pool in decision.pools if pool.name == plain)
        assert memory.unavailable_until_s is not None
        assert "a quota of the account is used up" in memory.reason
        assert decision.pipelines[0].desired[StageName("asr"), other] > 0


def a_document(**changes: Any) -> dict[str, Any]:
    instances = [
        {"InstanceId": "i-1", "LifecycleState": "InService", "HealthStatus": "Healthy", "ProtectedFromScaleIn": True},
        {
            "InstanceId": "i-2",
            "LifecycleState": "Warmed:Stopped",
            "HealthStatus": "Healthy",
            "ProtectedFromScaleIn": False,
        },
    ]
    for each in instances:
        each |= {"AvailabilityZone": "us-east-1a"}
    document = {
        "AutoScalingGroupName": "vad",
        "MinSize": 1,
        "MaxSize": 8,
        "DesiredCapacity": 1,
        "DefaultCooldown": 300,
        "AvailabilityZones": ["us-east-1a"],
        "HealthCheckType": "EC2",
        "CreatedTime": datetime(2026, 1, 1, tzinfo=UTC),
        "Instances": instances,
        "Tags": [{"Key": "sluice.dev/namespace", "Value": "speech"}, {"Key": "team", "Value": "x"}],
    }
    return {**document, **changes}


class TestReading:
    def read(self, aws: StubbedAws, activities: list[dict[str, Any]], refreshes: list[dict[str, Any]] | str) -> Group:
        stub = aws.stub("autoscaling")
        stub.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": [a_document()]})
        stub.add_response("describe_scaling_activities", {"Activities": activities})
        if isinstance(refreshes, str):
            stub.add_client_error("describe_instance_refreshes", refreshes)
        else:
            stub.add_response("describe_instance_refreshes", {"InstanceRefreshes": refreshes})
        return AwsGroups(aws.client, "us-east-1").read("vad", NOW_S)

    def test_a_warm_pool_is_not_there_yet_and_protection_and_tags_are_read(self) -> None:
        group = self.read(StubbedAws(), [], [])
        assert [(each.name, each.protected) for each in group.instances] == [("i-1", True)]
        assert (group.namespace, group.refreshing) == ("speech", False)

    @pytest.mark.parametrize(("status", "refreshing"), [("InProgress", True), ("Baking", True), ("Successful", False)])
    def test_an_instance_refresh_is_seen(self, status: str, refreshing: bool) -> None:
        assert self.read(StubbedAws(), [], [{"Status": status}]).refreshing is refreshing

    def test_without_the_right_to_see_refreshes_there_is_none(self) -> None:
        assert not self.read(StubbedAws(), [], "AccessDenied").refreshing

    @pytest.mark.parametrize("code", ["Throttling", "ServiceUnavailable"])
    def test_while_refreshes_cannot_be_read_the_group_is_not_read_either(self, code: str) -> None:
        with pytest.raises(AwsFailure, match=code):
            self.read(StubbedAws(), [], code)

    def test_failed_activities_are_kept_in_their_order(self) -> None:
        def activity(name: str, minute: int, status: str, message: str = "") -> dict[str, Any]:
            return {
                "ActivityId": name,
                "AutoScalingGroupName": "vad",
                "Cause": "a difference between desired and actual capacity",
                "StartTime": datetime(2026, 1, 1, 0, minute, tzinfo=UTC),
                "EndTime": datetime(2026, 1, 1, 0, minute, 5, tzinfo=UTC),
                "StatusCode": status,
                **({"StatusMessage": message} if message else {}),
            }

        group = self.read(
            StubbedAws(),
            [activity("b", 2, "Failed", QUOTA_TEXT), activity("ok", 3, "Successful"), activity("a", 1, "Failed", "x")],
            [],
        )
        assert [(each.name, each.text) for each in group.failed] == [("a", "x"), ("b", QUOTA_TEXT)]


@dataclass
class Groups:
    """A port with one group, which keeps what it was told."""

    group: Group
    told: list[tuple[str, object]] = field(default_factory=list)
    failure: AwsFailure | None = None

    def read(self, name: str, now_s: float) -> Group:
        if self.failure is not None:
            raise self.failure
        return replace(self.group, name=name, as_of_s=now_s)

    def set_desired(self, name: str, desired: int) -> None:
        del name
        self.told.append(("desired", desired))

    def terminate(self, name: str, instances: Collection[str]) -> None:
        del name
        self.told.append(("terminate", sorted(instances)))


def an_account(groups: Groups, now_s: float = NOW_S) -> AwsAccount:
    return AwsAccount(cast("Any", None), cast("Any", None), lambda: groups, clock=lambda: now_s)


def test_a_reading_of_before_the_clock_was_set_back_is_none_of_now() -> None:
    now = [NOW_S]
    account = AwsAccount(
        cast("Any", None), cast("Any", None), lambda: Groups(a_group(an_instance("i-0"))), clock=lambda: now[0]
    )
    account.close()
    account.watch({}, (), ["vad"])
    account.refresh()
    now[0] -= 10_000.0
    with pytest.raises(AwsFailure, match="no answer for 90 s"):
        account.group("vad")
    account.refresh()
    assert account.group("vad").since_s == {"i-0": now[0]}


class TestScaling:
    def test_chosen_instances_are_terminated_and_the_rest_is_left_to_the_group(self) -> None:
        groups = Groups(a_group(*(an_instance(f"i-{i}", protected=i == 2) for i in range(5))))
        an_account(groups).scale("vad", 5, 2, first=["i-1", "i-2"])
        assert groups.told == [("terminate", ["i-1"]), ("desired", 2)]

    def test_no_more_are_terminated_than_decided(self) -> None:
        groups = Groups(a_group(*(an_instance(f"i-{i}") for i in range(3))))
        an_account(groups).scale("vad", 3, 2, first=["i-0", "i-1"])
        assert groups.told == [("terminate", ["i-0"])]

    def test_instances_that_are_not_ready_go_before_those_that_serve(self) -> None:
        group = a_group(
            *(an_instance(f"i-{i}") for i in range(3)),
            an_instance("i-3", "Pending"),
            an_instance("i-4", healthy=False),
            desired=6,
        )
        groups = Groups(group)
        an_account(groups).scale("vad", 6, 4)
        assert groups.told == [("terminate", ["i-3"]), ("desired", 4)], "one of the two was not launched yet"
        groups.told.clear()
        an_account(groups).scale("vad", 6, 2, first=["i-1"])
        assert groups.told == [("terminate", ["i-1", "i-3", "i-4"]), ("desired", 2)]

    def test_an_instance_that_was_not_launched_yet_goes_before_one_that_serves(self) -> None:
        groups = Groups(a_group(an_instance("i-0"), an_instance("i-1"), desired=3))
        an_account(groups).scale("vad", 3, 2, first=["i-0"])
        assert groups.told == [("desired", 2)]

    def test_scaling_up_terminates_nothing(self) -> None:
        groups = Groups(a_group(an_instance("i-0")))
        an_account(groups).scale("vad", 1, 4, first=["i-0"])
        assert groups.told == [("desired", 4)]

    def test_a_group_that_is_scaled_while_it_is_read_is_read_again(self) -> None:
        groups, now = Groups(a_group(an_instance("i-0"))), [NOW_S]
        account = AwsAccount(cast("Any", None), cast("Any", None), lambda: groups, clock=lambda: now[0])
        account.close()
        account.watch({}, (), ["vad"])
        read, during = groups.read, [lambda: account.scale("vad", 1, 4)]

        def reading(name: str, now_s: float) -> Group:
            before = read(name, now_s)
            if during:
                now[0] += 1.0
                during.pop()()
                groups.group = replace(groups.group, desired=4)
            return before

        groups.read = reading  # type: ignore[method-assign]
        account.refresh()
        assert account.group("vad").group.desired == 1
        account.refresh()
        assert account.group("vad").group.desired == 4

    def change(self, before: int, after: int) -> ReplicaChange:
        return ReplicaChange(
            stage=StageName("asr"),
            placement=PoolName("vad"),
            target=Target(api_version="sluice.dev/v1alpha1", kind="AutoScalingGroup", name="vad"),
            before=before,
            after=after,
            reason=ChangeReason.DEMAND,
            resource_version=str(before),
            deletion_costs={"i-0": FIRST_TO_GO, "i-1": 0},
        )

    def test_the_actuator_passes_on_what_is_first_to_go_and_asks_for_leave_before(self) -> None:
        asked: list[str] = []
        groups = Groups(a_group(an_instance("i-0"), an_instance("i-1")))
        GroupActuator(an_account(groups), lambda: asked.append("leave")).scale(self.change(2, 1))
        assert (asked, groups.told) == (["leave"], [("terminate", ["i-0"])])

    def test_a_replica_that_may_not_write_scales_nothing(self) -> None:
        def refused() -> None:
            raise Forbidden("not leading")

        groups = Groups(a_group(an_instance("i-0")))
        with pytest.raises(Forbidden):
            GroupActuator(an_account(groups), refused).scale(self.change(1, 2))
        assert groups.told == []

    @pytest.mark.parametrize(
        ("failure", "error"),
        [
            (AwsFailure("AccessDenied: not authorized"), Forbidden),
            (AwsFailure("Throttling: Rate exceeded"), Failed),
            (GroupNotFound("there is no Auto Scaling group vad"), NotFound),
            (GroupChanged("was set to 3"), Conflict),
        ],
    )
    def test_failures_are_those_of_other_workloads(self, failure: AwsFailure, error: type[Exception]) -> None:
        actuator = GroupActuator(an_account(Groups(a_group(), failure=failure)), lambda: None)
        with pytest.raises(error, match=str(failure)[:8]):
            actuator.scale(self.change(0, 2))


class TestReader:
    def spec(self, least: int = 0, most: int = 20) -> Any:
        placement = a_placement("vad", bounds=(least, most))
        spec = a_spec(a_stage("asr", placement))
        stage = spec.stages[0]
        group = replace(
            stage.placements[0],
            target=Target(api_version="sluice.dev/v1alpha1", kind="AutoScalingGroup", name="vad"),
        )
        return replace(spec, stages=(replace(stage, placements=(group,)),))

    def test_the_groups_of_targets_and_pools_are_read_once(self) -> None:
        pool = a_pool("vad").spec
        named = [replace(pool, auto_scaling_group=name) for name in ("vad", "nodes")]
        assert group_names([self.spec()], [pool, *named]) == ["vad", "nodes"]

    @pytest.mark.parametrize(
        ("declared", "bounds"), [((0, 20), (1, 8)), ((2, 5), (2, 5)), ((9, 20), (8, 8)), ((0, 0), (0, 0))]
    )
    def test_bounds_are_within_those_of_the_group(self, declared: tuple[int, int], bounds: tuple[int, int]) -> None:
        account = an_account(Groups(a_group(an_instance("i-0"))))
        account.watch({}, (), ["vad"])
        account.close()
        prior = within_groups(self.spec(*declared), account).stages[0].placements[0].prior
        assert (prior.min_replicas, prior.max_replicas) == bounds

    @pytest.mark.parametrize(("refreshing", "bounds"), [(True, (5, 8)), (False, (1, 8))])
    def test_while_instances_are_refreshed_none_is_taken_away(self, refreshing: bool, bounds: tuple[int, int]) -> None:
        account = an_account(Groups(a_group(*(an_instance(f"i-{i}") for i in range(5)), refreshing=refreshing)))
        account.watch({}, (), ["vad"])
        account.close()
        prior = within_groups(self.spec(), account).stages[0].placements[0].prior
        assert (prior.min_replicas, prior.max_replicas) == bounds

    def test_a_group_that_cannot_be_read_leaves_the_declared_bounds(self) -> None:
        account = an_account(Groups(a_group(), failure=AwsFailure("no answer")))
        assert within_groups(self.spec(), account) == self.spec()

    def test_an_old_reading_says_nothing_of_the_present(self) -> None:
        now = [NOW_S]
        groups = Groups(a_group(an_instance("i-0")))
        account = AwsAccount(cast("Any", None), cast("Any", None), lambda: groups, clock=lambda: now[0])
        account.watch({}, (), ["vad"])
        account.close()
        assert account.group("vad").group.desired == 1
        now[0] += 91
        with pytest.raises(AwsFailure, match="no answer for 90 s"):
            account.group("vad")
