"""What bounds come to together: the strongest first, and what is not kept is named."""

from controller.core.bounds.declared import REPLICAS
from controller.core.bounds.idle import IDLE
from controller.core.bounds.missing_data import NEVER_DOWN
from controller.core.bounds.outages import OUTAGE
from controller.core.bounds.pins import PIN
from controller.core.bounds.resolution import resolve
from controller.core.bounds.rules import RULE
from controller.core.state.bound import Bound, Limits, Mechanism
from optimizer.model import PlacementKey, PoolName, StageName

VAD: PlacementKey = (StageName("vad"), PoolName("cpu"))
VAD_GPU: PlacementKey = (StageName("vad"), PoolName("gpu"))


def bound(mechanism: Mechanism, least: int | None = None, most: int | None = None) -> Bound:
    return Bound(mechanism=mechanism, stage=VAD[0], placement=VAD[1], least=least, most=most)


def sides(limits: Limits) -> tuple[int, float]:
    return limits.least(VAD), limits.most(VAD)


def test_bounds_that_agree_are_all_kept() -> None:
    limits = resolve([bound(REPLICAS, 1, 9), bound(OUTAGE, most=4), bound(NEVER_DOWN, least=3)], [VAD])
    assert sides(limits) == (3, 4)
    assert not limits.lost


def test_what_outranks_a_bound_limits_it_and_is_named() -> None:
    out, kept = bound(OUTAGE, most=2), bound(NEVER_DOWN, least=5)
    limits = resolve([kept, out], [VAD])
    assert sides(limits) == (2, 2)
    assert [(lost.bound, lost.to) for lost in limits.lost] == [(kept, out)]


def test_missing_data_outranks_the_declared_maximum_and_a_pin_outranks_missing_data() -> None:
    declared, kept, pin = bound(REPLICAS, 0, 3), bound(NEVER_DOWN, least=5), bound(PIN, 2, 2)
    assert sides(resolve([declared, kept], [VAD])) == (5, 5)
    assert sides(resolve([declared, kept, pin], [VAD])) == (2, 2)


def test_a_count_outside_the_limits_becomes_the_nearest_inside() -> None:
    limits = resolve([bound(REPLICAS, 2, 4)], [VAD])
    assert [limits.clamped(VAD, count) for count in (0, 2, 3, 4, 9)] == [2, 2, 3, 4, 4]
    assert limits.clamped(VAD_GPU, 7) == 7


def test_a_floor_of_a_stage_is_as_high_as_its_placements_allow() -> None:
    floor = Bound(mechanism=RULE, stage=VAD[0], least=9)
    limits = resolve(
        [floor, bound(REPLICAS, 0, 3), Bound(mechanism=OUTAGE, stage=VAD[0], placement=VAD_GPU[1], most=2)],
        [VAD, VAD_GPU],
    )
    assert limits.floors[VAD[0]].count == 5
    assert [lost.bound for lost in limits.lost] == [floor]


def test_a_stage_without_replicas_has_none_on_any_pool() -> None:
    limits = resolve([Bound(mechanism=IDLE, stage=VAD[0], most=0)], [VAD, VAD_GPU])
    assert [limits.most(key) for key in (VAD, VAD_GPU)] == [0, 0]
