"""Counts replicas that a cycle cannot see, from the last state seen: they still cost money and occupy instances."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import PipelineSpec, PlacementKey
from optimizer.model import PipelineKey, PoolName

Targets = Mapping[tuple[PipelineKey, PlacementKey], TargetState | TargetMissing]


class UnaccountedReplicas:
    """Replicas that exist but are not in the Snapshot, by pool.

    Replicas of a workload that cannot be read count as last seen. Replicas of a pipeline that has become invalid count
    by its last valid spec. What was not seen since the operator started is not counted.
    """

    def __init__(self) -> None:
        self._valid: Mapping[str, PipelineSpec] = {}
        self._occupied: Mapping[tuple[str, PlacementKey], int] = {}

    def last_valid(self, uids: Collection[str]) -> tuple[PipelineSpec, ...]:
        """Return the last valid spec of each pipeline in `uids`, as far as one is known."""
        return tuple(self._valid[uid] for uid in uids if uid in self._valid)

    def valid_before(self, specs: Sequence[PipelineSpec], invalid_uids: Collection[str]) -> tuple[PipelineSpec, ...]:
        """Return the last valid spec of each pipeline in `invalid_uids`, as far as one is known, and remember `specs`.

        `specs` are those of all pipelines that are valid now. Pipelines in neither argument are forgotten.
        """
        before = {uid: self._valid[uid] for uid in invalid_uids if uid in self._valid}
        self._valid = {**{spec.uid: spec for spec in specs}, **before}
        return tuple(before.values())

    def count(
        self, specs: Sequence[PipelineSpec], invalid: Sequence[PipelineSpec], targets: Targets
    ) -> Mapping[PoolName, Mapping[int, int]]:
        """Return the unaccounted replicas of each pool, by the number of such replicas that fit an instance.

        `specs` are those of the pipelines in the Snapshot, `invalid` those of the others. `targets` has the workloads
        of all these pipelines. Those that can be read are remembered for cycles in which they cannot.
        """
        unaccounted: dict[PoolName, Counter[int]] = {}
        occupied: dict[tuple[str, PlacementKey], int] = {}
        for spec, in_snapshot in (*((spec, True) for spec in specs), *((spec, False) for spec in invalid)):
            for own, placement in spec.placements().items():
                key, target = (spec.uid, own), targets[spec.key, own]
                if target.owner is not None:  # counted there
                    continue
                if not isinstance(target, TargetMissing):
                    occupied[key] = target.occupied
                elif target.unreadable and key in self._occupied:
                    occupied[key] = self._occupied[key]
                else:
                    continue
                if isinstance(target, TargetMissing) or not in_snapshot:
                    unaccounted.setdefault(placement.pool, Counter())[placement.prior.per_instance] += occupied[key]
        self._occupied = occupied
        return unaccounted
