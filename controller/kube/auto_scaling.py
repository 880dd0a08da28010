"""Auto Scaling groups as targets of placements: which are read, what bounds them, and how they are scaled."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from controller.aws.account import Account, GroupChanged
from controller.aws.failure import AwsFailure
from controller.aws.groups import GroupNotFound
from controller.core.act.scale_in import FIRST_TO_GO
from controller.core.state.decision import ReplicaChange
from controller.core.state.provider_errors import ErrorClass
from controller.core.state.spec import PipelineSpec, PlacementSpec, PoolSpec
from controller.kube.gateway import Conflict, Failed, Forbidden, NotFound


class Scales(Protocol):
    """Scales Auto Scaling groups; `controller.aws.account.AwsAccount` does."""

    def scale(self, name: str, before: int, after: int, first: Collection[str] = ()) -> None:
        """Set the desired capacity of a group to `after`, if it still is `before`; `first` are instances to remove."""
        ...


class GroupActuator:
    """Makes the decided changes of Auto Scaling groups, with the errors of the Kubernetes client.

    AWS does not know the Lease, so it is checked right before the change.
    """

    def __init__(self, groups: Scales, permit: Callable[[], None]) -> None:
        """`permit` raises a `KubeError` while this replica of the operator may not write."""
        self._groups, self._permit = groups, permit

    def scale(self, change: ReplicaChange) -> None:
        """Make a change.

        Raises:
            KubeError: the group is not scaled, or only in part.
        """
        self._permit()
        first = [name for name, cost in change.deletion_costs.items() if cost == FIRST_TO_GO]
        with _as_kube_errors():
            self._groups.scale(change.target.name, change.before, change.after, first)


@contextmanager
def _as_kube_errors() -> Iterator[None]:
    try:
        yield
    except GroupChanged as error:
        raise Conflict(str(error)) from error
    except GroupNotFound as error:
        raise NotFound(str(error)) from error
    except AwsFailure as error:
        if error.kind is ErrorClass.PERMISSION:
            raise Forbidden(str(error)) from error
        raise Failed(str(error)) from error


def group_names(specs: Iterable[PipelineSpec], pools: Iterable[PoolSpec]) -> list[str]:
    """Return the names of the groups that pipelines scale or that make the nodes of pools, each once."""
    targets = (placement.target for spec in specs for placement in spec.placements().values())
    names = [target.name for target in targets if target.is_group]
    return list(dict.fromkeys([*names, *made_by_groups(pools)]))


def made_by_groups(pools: Iterable[PoolSpec]) -> list[str]:
    """Return the names of the groups that make the nodes of `pools`, each once."""
    return list(dict.fromkeys(pool.auto_scaling_group for pool in pools if pool.auto_scaling_group is not None))


def groups_of(pool: PoolSpec, specs: Iterable[PipelineSpec]) -> list[str]:
    """Return the names of the groups whose instances are of `pool`: its own, and those that pipelines scale there."""
    placed = (placement for spec in specs for placement in spec.placements().values() if placement.pool == pool.name)
    targets = [placement.target.name for placement in placed if placement.target.is_group]
    return list(dict.fromkeys([*made_by_groups([pool]), *targets]))


def within_groups(spec: PipelineSpec, account: Account) -> PipelineSpec:
    """Return `spec` with the bounds of placements on groups within the MinSize and the MaxSize of the group.

    While an instance refresh replaces instances of a group, none of them is taken away.
    """
    if not any(placement.target.is_group for placement in spec.placements().values()):
        return spec
    stages = tuple(
        replace(stage, placements=tuple(_within_group(placement, account) for placement in stage.placements))
        for stage in spec.stages
    )
    return replace(spec, stages=stages)


def _within_group(placement: PlacementSpec, account: Account) -> PlacementSpec:
    if not placement.target.is_group:
        return placement
    try:
        group = account.group(placement.target.name).group
    except AwsFailure:
        return placement
    most = min(placement.prior.max_replicas, group.max_size)
    stays = max(group.min_size, group.desired if group.refreshing else 0)
    least = min(most, max(placement.prior.min_replicas, stays))
    return replace(placement, prior=replace(placement.prior, min_replicas=least, max_replicas=most))
