"""Counts replicas that a cycle cannot see, from the last state seen: they still cost money and occupy instances."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.core.state.snapshot import Orphan, TargetMissing, TargetState
from controller.core.state.spec import PipelineSpec
from controller.kube.orphans import Orphans
from optimizer.model import PipelineKey, PlacementKey, PoolName, Size

Targets = Mapping[tuple[PipelineKey, PlacementKey], TargetState | TargetMissing]


@dataclass(slots=True)
class Counted:
    """Replicas on one pool, by the number of such replicas that fit an instance: with a node, and only desired."""

    placed: Counter[Size] = field(default_factory=Counter)
    claimed: Counter[Size] = field(default_factory=Counter)


class _Seen(NamedTuple):
    """How many replicas of a workload were on nodes when it was last read, and how many there were in all."""

    placed: int
    observed: int


class UnaccountedReplicas:
    """Replicas that exist but are not in the Snapshot, by pool.

    Replicas of a workload that cannot be read count as last seen. Replicas of a pipeline that has become invalid count
    by its last valid spec. What was not seen since the operator started is not counted.
    """

    def __init__(self) -> None:
        self._valid: Mapping[str, PipelineSpec] = {}
        self._seen: Mapping[tuple[str, PlacementKey], _Seen] = {}
        self.orphans = Orphans()

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
        self,
        specs: Sequence[PipelineSpec],
        invalid: Sequence[PipelineSpec],
        targets: Targets,
        orphans: Iterable[Orphan] = (),
        unread: Collection[str] = frozenset(),
    ) -> Mapping[PoolName, Counted]:
        """Return the unaccounted replicas of each pool, `orphans` included.

        `specs` are those of the pipelines in the Snapshot, `invalid` those of the others. `targets` has the workloads
        of all these pipelines. Those that can be read are remembered for cycles in which they cannot. Those of the
        pipelines with the UIDs `unread`, which are not read in this cycle, stay as they were.
        """
        unaccounted: dict[PoolName, Counted] = {}
        seen = {key: last for key, last in self._seen.items() if key[0] in unread} if unread else {}
        for spec, in_snapshot in (*((spec, True) for spec in specs), *((spec, False) for spec in invalid)):
            for own, placement in spec.placements().items():
                key, target = (spec.uid, own), targets[spec.key, own]
                if target.owner is not None:  # counted there
                    continue
                if not isinstance(target, TargetMissing):
                    seen[key] = _Seen(target.placed, target.observed)
                elif target.unreadable and key in self._seen:
                    seen[key] = self._seen[key]
                else:
                    continue
                if isinstance(target, TargetMissing) or not in_snapshot:
                    there, last = unaccounted.setdefault(placement.pool, Counted()), seen[key]
                    there.placed[placement.prior.per_instance] += last.placed
                    there.claimed[placement.prior.per_instance] += max(0, last.observed - last.placed)
        for orphan in orphans:
            there = unaccounted.setdefault(orphan.pool, Counted())
            there.placed[orphan.per_instance] += orphan.placed
            there.claimed[orphan.per_instance] += orphan.claimed
        self._seen = seen
        return {
            pool: Counted(placed=+counted.placed, claimed=+counted.claimed) for pool, counted in unaccounted.items()
        }
