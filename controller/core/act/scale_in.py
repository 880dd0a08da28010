"""Which replicas go when a workload is scaled down: deletion costs, for controllers that respect them."""

import math
from collections.abc import Collection, Mapping

from controller.core.state.snapshot import ServingReplica, TargetState
from controller.core.state.spec import Target

FIRST_TO_GO = -1_000_000_000
"""The deletion cost of pods to remove first: far below any value that another controller writes."""


def deletion_costs(
    state: TargetState, target: Target, sessions: Mapping[str, float], after: int, drained: Collection[str] = ()
) -> Mapping[str, int]:
    """Return the deletion costs to write before `target` is scaled down to `after` replicas, by pod.

    Those that are to be `drained` go first, then those on leaving nodes, then those with the fewest `sessions`; a pod
    with unknown sessions counts as the busiest. Instances that are protected from scale-in stay as long as others can
    go. Pods that are not ready need no cost: Kubernetes removes them first. The result is empty where nothing
    distinguishes the pods. Costs that other controllers wrote are replaced only on the pods to remove.
    """
    goes = state.ready - after
    if not target.heeds_costs or goes <= 0 or not (sessions or state.leaving or drained):
        return {}

    def rank(replica: ServingReplica) -> tuple[bool, bool, bool, float, str]:
        stays = replica.name not in drained
        return replica.protected, stays, not replica.leaving, sessions.get(replica.name, math.inf), replica.name

    chosen = {replica.name for replica in sorted(state.serving, key=rank)[:goes]}
    costs: dict[str, int] = {}
    for replica in state.serving:
        if replica.name in chosen:
            if replica.deletion_cost != FIRST_TO_GO:
                costs[replica.name] = FIRST_TO_GO
        elif replica.deletion_cost == FIRST_TO_GO:
            costs[replica.name] = 0
    return costs
