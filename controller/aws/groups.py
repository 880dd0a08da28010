"""Auto Scaling groups: as the maker of a pool's nodes, and as a workload of plain instances that is scaled itself.

`GroupApi` is the port; `AwsGroups` asks AWS. `target_of` and `node_pool_of` are pure: they make of a group what the
cycle knows of other workloads and of other makers of nodes.

An instance is ready when its lifecycle state is InService and the group takes it for healthy. Instances of a warm pool
are not there yet. One in a Terminating state drains: a lifecycle hook of the user may hold it there. One that is
protected from scale-in is not chosen to go, and the group keeps it until the protection ends, even beyond the desired
capacity: so does a worker that protects its instance while it has sessions.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.aws.clients import Make, failures
from controller.aws.failure import AwsFailure
from controller.core.state.provider_errors import ErrorClass, ProviderError, classify
from controller.core.state.snapshot import (
    ExpectedNode,
    LaunchFailure,
    NodePoolProblem,
    NodePoolState,
    PendingReplica,
    ServingReplica,
    TargetState,
)

NAMESPACE_TAG = "sluice.dev/namespace"
"""The tag of a group whose value is the namespace of the pipelines that may scale it."""
_REFRESHING = frozenset({"Pending", "InProgress", "Cancelling", "Baking", "RollbackInProgress"})
_FAILED = frozenset({"Failed", "Cancelled"})
_NO_ANSWER = re.compile("Timeout|ConnectionError|ConnectionClosed|ServiceUnavailable|InternalFailure")
_ACTIVITIES = 20
_IN_SERVICE, _HEALTHY = "InService", "Healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInstance:
    """An instance of a group, in the `lifecycle` state that Auto Scaling gives it."""

    name: str
    instance_type: str
    zone: str
    lifecycle: str
    healthy: bool = True
    protected: bool = False

    @property
    def ready(self) -> bool:
        """Whether the instance serves."""
        return self.lifecycle == _IN_SERVICE and self.healthy

    @property
    def leaves(self) -> bool:
        """Whether the instance no longer counts for the desired capacity: it is being terminated, or set aside.

        It may drain, and it still costs.
        """
        return self.lifecycle.startswith(("Terminating", "Terminated", "Detach", "Standby", "EnteringStandby"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedActivity:
    """An activity of a group that failed at `at_s`, with the words of Auto Scaling."""

    name: str
    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An Auto Scaling group as of `as_of_s`. `refreshing` says that an instance refresh replaces its instances."""

    name: str
    min_size: int
    max_size: int
    desired: int
    zones: tuple[str, ...]
    instances: tuple[GroupInstance, ...]
    as_of_s: float
    namespace: str | None = None
    refreshing: bool = False
    failed: tuple[FailedActivity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGroup:
    """A group with what only an observer knows: since when each instance is in its state, and since when some lack."""

    group: Group
    since_s: Mapping[str, float]
    short_since_s: float | None


class GroupApi(Protocol):
    """Reads and scales groups. Calls block, for seconds at most, and raise `AwsFailure`."""

    def read(self, name: str, now_s: float) -> Group:
        """Return the group."""
        ...

    def set_desired(self, name: str, desired: int) -> None:
        """Set the desired capacity. The group chooses what to terminate, and spares protected instances."""
        ...

    def terminate(self, name: str, instances: Collection[str]) -> None:
        """Terminate these instances of the group, and lower the desired capacity by as many."""
        ...


class AwsGroups:
    """Asks AWS, in one region."""

    def __init__(self, client: Make, region: str) -> None:
        """`client` makes the clients."""
        self._client, self._region = client, region

    def read(self, name: str, now_s: float) -> Group:
        """Return the group."""
        client, what = self._client("autoscaling", self._region), f"Auto Scaling group {name}"
        with failures(what):
            found = client.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        if not found:
            raise GroupNotFound(f"there is no Auto Scaling group {name} in {self._region}")
        with failures(what):
            activities = client.describe_scaling_activities(AutoScalingGroupName=name, MaxRecords=_ACTIVITIES)
            return _group(found[0], activities["Activities"], refreshing=self._refreshing(client, name), now_s=now_s)

    def _refreshing(self, client: Any, name: str) -> bool:
        try:
            with failures(f"instance refreshes of {name}"):
                found = client.describe_instance_refreshes(AutoScalingGroupName=name, MaxRecords=1)
        except AwsFailure as failure:
            if failure.kind is ErrorClass.THROTTLED or _NO_ANSWER.search(str(failure)):
                raise  # a refresh may be running: its instances must not be taken away
            return False  # a right that is not needed for anything else, or a service without refreshes
        return any(each.get("Status") in _REFRESHING for each in found.get("InstanceRefreshes", ()))

    def set_desired(self, name: str, desired: int) -> None:
        """Set the desired capacity."""
        with failures(f"Auto Scaling group {name}"):
            self._client("autoscaling", self._region).set_desired_capacity(
                AutoScalingGroupName=name, DesiredCapacity=desired, HonorCooldown=False
            )

    def terminate(self, name: str, instances: Collection[str]) -> None:
        """Terminate these instances of the group, and lower the desired capacity by as many."""
        client = self._client("autoscaling", self._region)
        for instance in sorted(instances):
            with failures(f"Auto Scaling group {name}"):
                client.terminate_instance_in_auto_scaling_group(
                    InstanceId=instance, ShouldDecrementDesiredCapacity=True
                )


class GroupNotFound(AwsFailure):
    """There is no group of this name."""


def _group(
    document: Mapping[str, Any], activities: Sequence[Mapping[str, Any]], *, refreshing: bool, now_s: float
) -> Group:
    tags = {tag["Key"]: tag.get("Value", "") for tag in document.get("Tags", ())}
    return Group(
        name=document["AutoScalingGroupName"],
        min_size=document["MinSize"],
        max_size=document["MaxSize"],
        desired=document["DesiredCapacity"],
        zones=tuple(document.get("AvailabilityZones", ())),
        instances=tuple(
            GroupInstance(
                name=each["InstanceId"],
                instance_type=each.get("InstanceType", ""),
                zone=each.get("AvailabilityZone", ""),
                lifecycle=each["LifecycleState"],
                healthy=str(each.get("HealthStatus", _HEALTHY)).casefold() == _HEALTHY.casefold(),
                protected=bool(each.get("ProtectedFromScaleIn")),
            )
            for each in document.get("Instances", ())
            if not each["LifecycleState"].startswith("Warmed")
        ),
        as_of_s=now_s,
        namespace=tags.get(NAMESPACE_TAG),
        refreshing=refreshing,
        failed=tuple(
            sorted(
                (
                    FailedActivity(
                        name=str(each["ActivityId"]),
                        at_s=(each.get("EndTime") or each["StartTime"]).timestamp(),
                        text=str(each.get("StatusMessage") or each.get("Description") or ""),
                    )
                    for each in activities
                    if each.get("StatusCode") in _FAILED
                ),
                key=lambda each: each.at_s,
            )
        ),
    )


def observed(group: Group, before: SeenGroup | None) -> SeenGroup:
    """Return `group` with since when its instances are in their states, as far as `before` or this reading shows."""
    states = {} if before is None else {each.name: each.lifecycle for each in before.group.instances}
    since_s = {
        # Not after this reading: the clock may have been set back since the one before.
        each.name: min(before.since_s[each.name], group.as_of_s)
        if before is not None and states.get(each.name) == each.lifecycle
        else group.as_of_s
        for each in group.instances
    }
    lacks = sum(not each.leaves for each in group.instances) < group.desired
    earlier = None if before is None else before.short_since_s
    short_since_s = min(group.as_of_s, group.as_of_s if earlier is None else earlier) if lacks else None
    return SeenGroup(group=group, since_s=since_s, short_since_s=short_since_s)


def target_of(seen: SeenGroup) -> TargetState:
    """Return the group as a workload whose replicas are its instances.

    An instance that is desired and not launched yet is pending, with the last words of Auto Scaling about it.
    """
    group = seen.group
    staying = sorted((each for each in group.instances if not each.leaves), key=lambda each: each.name)
    lacking = max(0, group.desired - len(staying))
    since_s = group.as_of_s if seen.short_since_s is None else seen.short_since_s
    words = next((each.text for each in reversed(group.failed) if each.at_s >= since_s), "not launched yet")
    return TargetState(
        desired=group.desired,
        existing=len(staying) + lacking,
        ready=sum(each.ready for each in staying),
        terminating=len(group.instances) - len(staying),
        pending=tuple(PendingReplica(name=f"{group.name}#{i}", since_s=since_s, reason=words) for i in range(lacking)),
        starting=tuple(
            PendingReplica(
                name=each.name,
                since_s=seen.since_s[each.name],
                reason=each.lifecycle if each.healthy else f"{each.lifecycle}, not healthy",
                updated=group.refreshing,
            )
            for each in staying
            if not each.ready
        ),
        serving=tuple(ServingReplica(name=each.name, protected=each.protected) for each in staying if each.ready),
        resource_version=str(group.desired),
        rolling=group.refreshing,
    )


def node_pool_of(seen: SeenGroup, nodes: Collection[str], scale_ups: Sequence[LaunchFailure] = ()) -> NodePoolState:
    """Return the group as the maker of the nodes of a pool; `nodes` are the instance IDs of the nodes that exist.

    `scale_ups` are those that the cluster autoscaler reports as failed. A group that has failed activities tells the
    same failures itself, so they then count for the class of error only.
    """
    group = seen.group
    failed = tuple(LaunchFailure(claim=each.name, at_s=each.at_s, reason=each.text) for each in group.failed)
    errors = sorted(((each, classify(each.reason)) for each in (*failed, *scale_ups)), key=lambda each: each[0].at_s)
    return NodePoolState(
        instances=group.max_size,
        claims=tuple(
            ExpectedNode(name=each.name, since_s=seen.since_s[each.name])
            for each in group.instances
            if each.name not in nodes and not each.leaves and each.lifecycle != _IN_SERVICE
        ),
        failures=failed or tuple(scale_ups),
        errors=tuple(
            ProviderError(kind=kind, at_s=each.at_s, text=each.reason) for each, kind in errors if kind is not None
        ),
    )


def unknown_node_pool(problem: str, *, missing: bool) -> NodePoolState:
    """Return what is known of the maker of a pool's nodes while its group does not exist, or cannot be read."""
    kind = NodePoolProblem.GROUP_NOT_FOUND if missing else NodePoolProblem.GROUP_UNREADABLE
    return NodePoolState(problem=kind, detail=problem)
