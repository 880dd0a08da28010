"""Decides without the pipelines on which `decide` fails, so that an internal error stops one pipeline, not all."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.cycle import decide
from controller.core.plan.ledger import entries
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot
from controller.core.state.spec import live_pools
from optimizer.model import PipelineKey, PoolName, Size, pool_of

_MOST = 16
"""The most pipelines to leave out. If more fail, the error is not caused by single pipelines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contained:
    """A decision with its snapshot, and the pipelines that were left out (`failed`), each with its exception."""

    snapshot: Snapshot
    decision: Decision
    failed: Mapping[PipelineKey, Exception]


def decide_contained(snapshot: Snapshot, policy: Policy, beat: Callable[[], None] | None = None) -> Contained:
    """Return the decision for `snapshot`, without the pipelines on which `decide` fails even alone.

    The replicas of these pipelines stay unchanged, and count as unaccounted. `beat` is called while plans are searched.

    Raises:
        Exception: the error of `decide`, if no pipeline fails alone, if more than `_MOST` do, or if the rest fails.
    """
    try:
        return Contained(snapshot=snapshot, decision=decide(snapshot, policy, beat=beat), failed={})
    except Exception as error:
        failed = _failing(snapshot, snapshot.pipelines, policy, error, beat)
        if not failed or len(failed) > _MOST:
            raise
    rest = _only(snapshot, [state for state in snapshot.pipelines if state.spec.key not in failed])
    return Contained(snapshot=rest, decision=decide(rest, policy, beat=beat), failed=failed)


def _failing(
    snapshot: Snapshot,
    states: Sequence[PipelineState],
    policy: Policy,
    error: Exception,
    beat: Callable[[], None] | None,
) -> dict[PipelineKey, Exception]:
    """Return the pipelines of `states` that fail alone; together they raised `error`. Stops soon after `_MOST`."""
    if len(states) == 1:
        return {states[0].spec.key: error}
    failed: dict[PipelineKey, Exception] = {}
    middle = len(states) // 2
    for half in (states[:middle], states[middle:]):
        if half and len(failed) <= _MOST:
            try:
                decide(_only(snapshot, half), policy, beat=beat)
            except Exception as own:  # noqa: BLE001 -- any error is attributed and reported
                failed |= _failing(snapshot, half, policy, own, beat)
    return failed


def _only(snapshot: Snapshot, states: Sequence[PipelineState]) -> Snapshot:
    """Return the snapshot with only the pipelines `states`; the replicas of all others count as unaccounted."""
    kept = {state.spec.key for state in states}
    named = live_pools(state.spec for state in snapshot.pipelines if state.spec.key not in kept)
    unaccounted: dict[PoolName, Counter[Size]] = {
        name: Counter(pool.unaccounted) for name, pool in snapshot.pools.items()
    }
    for state in snapshot.pipelines:
        if state.spec.key not in kept:
            for (_, placement), entry in entries(state, snapshot.pools).items():
                unaccounted[pool_of(placement)][entry.per_instance] += entry.occupied(entry.desired)
    pools = {name: replace(pool, unaccounted=unaccounted[name]) for name, pool in snapshot.pools.items()}
    return replace(snapshot, pipelines=tuple(states), pools=pools, named_by_others=snapshot.named_by_others | named)
