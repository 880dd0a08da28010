"""Which batch settings servers may have, from what the ConfigMap key had lately."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import a_placement, a_snapshot, a_spec, a_stage, a_state

from controller.core.assess.batching import SYNC_S, with_batching
from controller.core.state.carry_over import BatchMemory, FeedbackFloor, FeedbackMemory, PipelineMemory
from controller.core.state.snapshot import BatchingState, PipelineState
from controller.core.state.spec import AppliedBatching, ConfigKey, Mode
from optimizer.model import BatchSettings, PlacementKey, PoolName, StageName

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
ONE, FOUR, EIGHT = (BatchSettings(limit=limit) for limit in (1, 4, 8))
FOREIGN = BatchSettings(limit=64, wait_s=1.0)
NOW_S = 10_000.0
FLOOR = FeedbackFloor(replicas=9.0, demand=100.0, planned=7.0)


def after(
    found: BatchingState,
    *,
    decided: BatchSettings | None = None,
    seen: Sequence[tuple[BatchSettings, float]] = (),
    mode: Mode = Mode.AUTO,
) -> PipelineState:
    """Return the pipeline as a cycle sees it; `seen` has settings with their age in seconds."""
    own = a_placement("gpu")
    applied = AppliedBatching(at=ConfigKey(config_map="batching", key="asr"), sizes=(1, 4, 8), waits_s=(0.0, 0.01))
    own = replace(own, prior=applied.free(own.prior), applied=applied)
    ages = tuple((settings, NOW_S - age_s) for settings, age_s in seen)
    memory = PipelineMemory(
        batching={ASR: BatchMemory(decided=decided, seen=ages)} if seen or decided else {},
        feedback=FeedbackMemory(floors={ASR[0]: FLOOR}),
    )
    spec = replace(a_spec(a_stage("asr", own)), mode=mode)
    state = replace(a_state(spec, memory=memory), batching={ASR: found})
    (state,) = with_batching(a_snapshot(state, now_s=NOW_S)).pipelines
    return state


def may_have(state: PipelineState) -> set[BatchSettings]:
    """Return the settings that plans count with."""
    prior = state.spec.placements()[ASR].prior
    alone = BatchSettings(limit=prior.batch_sizes[0], wait_s=prior.batch_wait_s)
    return set(prior.in_force or (alone,))


@pytest.mark.parametrize(
    ("found", "decided", "seen", "expected"),
    [
        (ONE, None, (), {ONE}),
        (None, None, (), {EIGHT}),
        (FOREIGN, None, (), {FOREIGN}),
        (EIGHT, EIGHT, ((ONE, SYNC_S - 1), (EIGHT, 10)), {ONE, EIGHT}),
        (EIGHT, EIGHT, ((ONE, SYNC_S), (EIGHT, 10)), {EIGHT}),
        (ONE, EIGHT, ((ONE, 10),), {ONE, EIGHT}),
        (FOREIGN, EIGHT, ((EIGHT, 10), (FOUR, 60)), {FOREIGN, EIGHT, FOUR}),
    ],
)
def test_servers_may_have_what_the_key_had_within_the_sync_time_and_what_will_be_written(
    found: BatchSettings | None,
    decided: BatchSettings | None,
    seen: Sequence[tuple[BatchSettings, float]],
    expected: set[BatchSettings],
) -> None:
    assert may_have(after(BatchingState(settings=found), decided=decided, seen=seen)) == expected


def test_what_cannot_be_written_is_not_counted_on() -> None:
    refused = BatchingState(settings=ONE, refused="forbidden")
    assert may_have(after(refused, decided=EIGHT, seen=((ONE, 10),))) == {ONE}
    recommends = after(BatchingState(settings=ONE), decided=EIGHT, seen=((ONE, 10),), mode=Mode.RECOMMEND)
    assert may_have(recommends) == {ONE}


def test_while_the_key_cannot_be_read_what_was_seen_last_stays_for_as_long_as_it_takes() -> None:
    unread = BatchingState(problem="forbidden")
    assert may_have(after(unread, decided=ONE, seen=((ONE, 10 * SYNC_S),))) == {ONE}
    assert may_have(after(unread)) == {EIGHT}


def test_a_clock_that_was_set_back_keeps_no_settings_for_ever() -> None:
    state = after(BatchingState(settings=EIGHT), decided=EIGHT, seen=((ONE, -1e6), (EIGHT, 0)))
    assert dict(state.memory.batching[ASR].seen)[ONE] == NOW_S


def test_floors_that_other_settings_needed_end_with_them() -> None:
    during = after(BatchingState(settings=EIGHT), decided=EIGHT, seen=((ONE, SYNC_S - 1), (EIGHT, 10)))
    assert during.memory.feedback.floors == {ASR[0]: FLOOR}
    done = after(BatchingState(settings=EIGHT), decided=EIGHT, seen=((ONE, SYNC_S), (EIGHT, 10)))
    assert done.memory.feedback.floors == {}
    later = after(BatchingState(settings=EIGHT), decided=EIGHT, seen=((EIGHT, 10),))
    assert later.memory.feedback.floors == {ASR[0]: FLOOR}
