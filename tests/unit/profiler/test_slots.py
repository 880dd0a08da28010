"""Slots of a replica are as many as it held without a refusal: learned when sessions are refused, and only then."""

from dataclasses import replace

import pytest

from optimizer.model import Demand, Placement, PlacementKey, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity, Reading
from profiler.slots import MOST_SLOTS, learned_slots
from profiler.stages import Learned, PipelineInput, PlacementInput, StageInput

ASR, GPU, CPU = StageName("asr"), PoolName("gpu"), PoolName("cpu")
KEY: PlacementKey = (ASR, GPU)
MISSING = Absence(reason=AbsenceReason.MISSING)


def on(
    pool: PoolName = GPU, *, held: Reading = 40.0, refused: Reading = 0.5, replicas: int = 4, declared: bool = False
) -> PlacementInput:
    return PlacementInput(
        prior=Placement(pool=pool, service=ServiceLaw(fixed_s=0.05)),
        replicas=replicas,
        batch=1,
        samples=PlacementSamples(readings={Quantity.SESSIONS: held, Quantity.SESSION_REFUSALS: refused}),
        memory_declared=declared,
    )


def pipeline(*placements: PlacementInput, streams: float | None = 100.0, settled: bool = True) -> PipelineInput:
    stage = StageInput(
        name=ASR,
        after=(),
        pass_ratio=1.0,
        routing=Routing.STICKY,
        window_s=60.0,
        placements=placements or (on(),),
        settled=settled,
    )
    demand = Demand(entry_rate_rps=100.0, sessions=streams)
    return PipelineInput(stages=(stage,), sla=Sla(latency_s=0.5), latency_s=None, demand=demand)


def learned(
    pipeline: PipelineInput, slots: int | None = None, held: int | None = None
) -> tuple[int | None, int | None]:
    """Return slots and most sessions held, of a placement for which `slots` and `held` were learned before."""
    before = Learned(
        session_slots={} if slots is None else {KEY: slots}, sessions_held={} if held is None else {KEY: held}
    )
    limits, most = learned_slots(pipeline, before)
    return limits.get(KEY), most.get(KEY)


def test_replicas_that_refuse_hold_as_many_as_they_can() -> None:
    assert learned(pipeline()) == (10, 10)
    assert learned(pipeline(on(held=43.0))) == (10, 10)


@pytest.mark.parametrize("settled", [True, False])
def test_refusals_while_all_streams_are_held_are_somebody_elses(settled: bool) -> None:
    """Three streams at night and one bad client: three slots a replica would be planned for the day."""
    assert learned(pipeline(on(held=3.0, replicas=1), streams=3.0, settled=settled)) == (None, 3)
    assert learned(pipeline(on(held=40.0), streams=40.0, settled=settled), 12, 12) == (12, 12)


def test_without_a_refusal_there_is_no_limit() -> None:
    assert learned(pipeline(on(refused=0.0))) == (None, 10)
    assert learned(pipeline(on(refused=0.0, held=0.0))) == (None, None)


def test_replicas_that_hold_more_without_a_refusal_have_more_slots() -> None:
    assert learned(pipeline(on(held=48.0, refused=0.0)), 10, 10) == (12, 12)
    assert learned(pipeline(on(held=8.0, refused=0.0)), 10, 10) == (10, 10)


def test_a_release_that_holds_fewer_is_noticed_by_its_refusals() -> None:
    assert learned(pipeline(on(held=20.0)), 10, 10) == (5, 5)
    assert learned(pipeline(on(held=20.0)), None, 10) == (5, 5)


def test_streams_that_left_since_the_refusal_do_not_lower_the_limit() -> None:
    """The refusals are of the whole window; by now all streams offered are held."""
    assert learned(pipeline(on(held=20.0), streams=20.0), 10, 10) == (10, 10)


def test_while_replicas_start_or_stop_the_limit_is_what_they_were_seen_to_hold_before() -> None:
    assert learned(pipeline(on(held=20.0), settled=False), None, 12) == (12, 12)
    assert learned(pipeline(on(held=20.0), settled=False), None, None) == (5, 5)
    assert learned(pipeline(on(held=40.0), settled=False), 5, 5) == (10, 10), "a mean is never above the limit"


def test_requests_leave_slots_free_in_between_and_only_raise_the_limit() -> None:
    assert learned(pipeline(on(held=20.0), streams=None), 10, 10) == (10, 10)
    assert learned(pipeline(on(held=60.0), streams=None), 10, 10) == (15, 15)


def test_a_replica_has_at_least_one_slot_and_no_absurd_number() -> None:
    assert learned(pipeline(on(held=0.0))) == (1, 1)
    assert learned(pipeline(on(held=1e24), streams=None)) == (MOST_SLOTS, MOST_SLOTS)


@pytest.mark.parametrize("before", [(None, None), (None, 7), (7, 7)])
@pytest.mark.parametrize(
    "silent",
    [pipeline(on(held=MISSING)), pipeline(on(refused=MISSING)), pipeline(on(replicas=0))],
    ids=["no sessions", "no refusals", "no replicas"],
)
def test_what_cannot_be_seen_teaches_nothing(silent: PipelineInput, before: tuple[int | None, int | None]) -> None:
    assert learned(silent, *before) == before


def test_declared_memory_is_not_learned() -> None:
    limits, most = learned_slots(pipeline(on(declared=True), on(CPU)), Learned(session_slots={KEY: 7}))
    assert (limits, most) == ({(ASR, CPU): 10}, {(ASR, CPU): 10})


def test_a_placement_that_does_not_report_keeps_the_limit_of_its_sibling() -> None:
    silent = replace(on(CPU), samples=PlacementSamples(readings={}))
    assert learned(pipeline(on(held=20.0), silent), 10, 10) == (10, 10)
