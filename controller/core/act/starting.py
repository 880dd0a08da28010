"""Replicas that are desired and not ready: how many there are on each pool, and when the last one is expected."""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.state.decision import StartingReplicas
from controller.core.state.snapshot import TargetState
from optimizer.model import PlacementKey, PoolName, pool_of


def starting_replicas(
    assessment: Assessment, desired: Mapping[PlacementKey, int], launches_s: Mapping[PoolName, float], now_s: float
) -> Iterator[StartingReplicas]:
    """Yield the replicas of each placement that are not ready, of those `desired` after this cycle.

    `launches_s` has how long a new node of each elastic pool takes.
    """
    placements = assessment.spec.placements()
    for key, target in assessment.state.found():
        count = desired.get(key, target.desired) - target.ready
        if count > 0:
            measured_s = _measured_startup_s(assessment, key, target)
            startup_s = placements[key].startup_s if measured_s is None else measured_s
            ready_at_s = _ready_at_s(target, count, startup_s, launches_s.get(pool_of(key[1])), now_s)
            yield StartingReplicas(
                stage=key[0],
                placement=key[1],
                count=count,
                ready_in_s=None if ready_at_s is None or ready_at_s < now_s else ready_at_s - now_s,
                startup_s=startup_s,
                measured=measured_s is not None,
            )


def _measured_startup_s(assessment: Assessment, key: PlacementKey, target: TargetState) -> float | None:
    """Return how long replicas of a placement take from their node until they are ready, None if not measured yet."""
    learned_s = assessment.learned.startups_s.get(key)
    measured_s = target.startup_s(learned_s)
    return learned_s if measured_s is None else measured_s


def _ready_at_s(
    target: TargetState, count: int, startup_s: float, launch_s: float | None, now_s: float
) -> float | None:
    """Return when the last of `count` replicas is expected to be ready, None where one has no node that is known of.

    `launch_s` is how long a new node takes, None on a pool whose nodes are there or not. Replicas that do not exist yet
    are taken to get a node at once where the pool is not elastic.
    """
    known_s = [replica.since_s + startup_s for replica in target.starting]
    if (target.pending and launch_s is None) or target.stranded:
        return None
    known_s += [replica.since_s + (launch_s or 0.0) + startup_s for replica in target.pending]
    if count > len(known_s):
        known_s.append(now_s + (launch_s or 0.0) + startup_s)
    return max(known_s)
