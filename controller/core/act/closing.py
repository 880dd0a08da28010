"""Replicas that are to go and have sessions: they get no new ones, and wait while that costs less than cuts.

A terminating replica cuts the sessions that last longer than its drain. `scaling.sessionCutCost` is the price of a cut.
How long sessions still last is not known, so a replica that could go stays until it has cost as much as the cuts of the
sessions that it still has: never more than twice what the better of both choices costs (ski rental; Karlin, Manasse,
Rudolph and Sleator 1988). A pod with the label `sluice.dev/sessions` is closed meanwhile: the Service selects `open`,
so that its sessions become fewer. If the demand rises again, it is opened, and takes sessions at once.

Replicas that only the scale-down window keeps are closed too: their sessions end while the window lasts, and the wait
after it is short. Those that stay open carry the forecast with its headroom.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.core.assess.assessment import Assessment
from controller.core.state.carry_over import FURTHEST_S
from controller.core.state.decision import Closing
from controller.core.state.snapshot import ServingReplica, TargetMissing, TargetState
from optimizer.model import PlacementKey, Routing

EMPTY = 0.5
"""A replica with fewer sessions than this has none: counts are means over a window."""

_Held = tuple[ServingReplica, float]
"""A ready replica and its sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closings:
    """The replicas of a pipeline that are to go.

    `waiting` are those whose sessions are worth the wait, `done` has the pods that wait no longer and go first. `shut`
    has the pods that get no new sessions. `since_s` is for the memory: since when each of these waits.
    """

    waiting: tuple[Closing, ...] = ()
    done: frozenset[str] = frozenset()
    shut: frozenset[str] = frozenset()
    since_s: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: "Closings") -> "Closings":
        return Closings(
            waiting=(*self.waiting, *other.waiting),
            done=self.done | other.done,
            shut=self.shut | other.shut,
            since_s={**self.since_s, **other.since_s},
        )


NO_CLOSINGS = Closings()


def closings(
    assessment: Assessment, key: PlacementKey, after: int, *, price_per_hour: float, now_s: float, settled: bool
) -> Closings:
    """Return the replicas of a placement that wait, if it is to have `after`, and those that get no new sessions.

    Cuts have a price. Only stages with sticky sessions cut any. There is nothing to wait for where the controller of
    the workload does not remove a chosen replica. `price_per_hour` is that of a replica, in USD.
    `settled` says that all replicas of the pipeline's goal are ready: only then those are closed that the scale-down
    window keeps.
    """
    cut_cost, target = assessment.spec.scaling.session_cut_cost, assessment.state.target(*key)
    stage = next(own for own in assessment.spec.stages if own.name == key[0])
    heeds = assessment.spec.placements()[key].target.heeds_costs
    if stage.routing is not Routing.STICKY or not heeds:
        return NO_CLOSINGS
    if isinstance(target, TargetMissing) or target.rolling or not assessment.acting:
        return NO_CLOSINGS
    before, order = assessment.state.memory.closings, _first_to_go(assessment, key, target)
    going, kept = order[: max(0, target.ready - after)], order[max(0, target.ready - after) :]
    # The wait of those that the scale-down window keeps begins with its end.
    early = _not_needed(assessment, kept, after) if settled and not going else set[str]()
    since, waiting, done = dict.fromkeys(early, now_s), list[Closing](), set[str]()
    for pod, sessions in going:
        since_s = since[pod.name] = min(before.get(pod.name, now_s), now_s)
        # What costs nothing may wait for as long as its sessions last.
        worth_s = sessions * cut_cost / price_per_hour * 3600 if price_per_hour > 0 else FURTHEST_S
        if sessions < EMPTY or pod.leaving or now_s - since_s >= worth_s:
            done.add(pod.name)
            continue
        waiting.append(
            Closing(
                stage=key[0],
                placement=key[1],
                pod=pod.name,
                sessions=sessions,
                since_s=since_s,
                until_s=min(FURTHEST_S, since_s + worth_s),
                closes=pod.takes_sessions is not None,
            )
        )
    shut = early | {pod.name for pod, _ in going if pod.takes_sessions is not None}
    return Closings(waiting=tuple(waiting), done=frozenset(done), shut=frozenset(shut), since_s=since)


def _first_to_go(assessment: Assessment, key: PlacementKey, target: TargetState) -> list[_Held]:
    """Return the ready replicas with their sessions: those that go first, those of the last cycle, then the emptiest.

    A replica that does not report its sessions counts as having its share of the streams, and none has more than these.
    """
    before, reported = assessment.state.memory.closings, assessment.state.samples_of(*key).sessions
    streams = assessment.demand.demand or 0.0
    share = streams / max(1, len(target.serving))
    sessions = {pod.name: min(reported.get(pod.name, share), streams) for pod in target.serving}

    def rank(pod: ServingReplica) -> tuple[bool, bool, bool, float, str]:
        return (pod.protected, not pod.leaving, pod.name not in before, sessions[pod.name], pod.name)

    return [(pod, sessions[pod.name]) for pod in sorted(target.serving, key=rank)]


def _not_needed(assessment: Assessment, kept: Sequence[_Held], after: int) -> set[str]:
    """Return those of the replicas `kept` by the scale-down window that the forecast does not need.

    One is closed where the forecast is lower by the tolerance, and opened where the forecast needs it: noise of the
    forecast changes no label. One of a placement stays open.
    """
    demand, forecast = assessment.demand.demand, assessment.demand.forecast
    if assessment.demand.falls_at_s is None or not demand or forecast is None:
        return set()
    tolerance, before = assessment.spec.scaling.tolerance, assessment.state.memory.closings
    needed, clearly = (
        max(1, math.ceil(after * min(1.0, forecast * factor / demand) - 1e-9)) for factor in (1.0, 1 + tolerance)
    )
    return {
        pod.name
        for place, (pod, _) in enumerate(kept)
        if pod.takes_sessions is not None and place < after - (needed if pod.name in before else clearly)
    }
