import numpy as np
import pytest
from set_clock import Clock

from simulations.speech.recognition.encoder import BLANK, VARIANTS
from simulations.speech.recognition.state_cache import StateCache


@pytest.fixture
def clock() -> Clock:
    return Clock()


def cache(clock: Clock, slots: int = 2, variant: str = "tiny", idle_s: float = 10.0) -> StateCache:
    return StateCache(VARIANTS[variant], slots, idle_s=idle_s, clock=clock)


def test_a_session_has_a_slot_until_it_closes(clock: Clock) -> None:
    found = cache(clock)
    assert found.open("a")
    assert found.open("b")
    assert not found.open("c")
    found.close("a")
    assert found.open("c")
    assert (len(found), "a" in found, found.counts.refused, found.counts.closed) == (2, False, 1, 1)
    found.close("a")  # a second time, or after its eviction
    assert found.counts.closed == 1


def test_the_session_that_was_idle_for_longest_makes_room(clock: Clock) -> None:
    found = cache(clock)
    found.open("a")
    found.open("b")
    clock.now_s = 9.0
    found.slots(["a"])
    clock.now_s = 10.0
    assert found.open("c"), "b has been idle for 10 s"
    assert ("a" in found, "b" in found, found.counts.evicted) == (True, False, 1)
    assert not found.open("d"), "a is used"
    with pytest.raises(KeyError):
        found.slots(["b"])


def test_a_slot_is_empty_for_its_next_session(clock: Clock) -> None:
    found = cache(clock, slots=1)
    found.open("a")
    (slot,) = found.slots(["a"])
    found.state[slot], found.overlap[slot], found.last[slot] = 1, 1, (7, 7)
    found.close("a")
    found.open("b")
    (slot,) = found.slots(["b"])
    assert not found.state[slot].any()
    assert not found.overlap[slot].any()
    assert (found.last[slot] == BLANK).all()


def test_a_session_moves_to_another_replica_with_its_state(clock: Clock) -> None:
    here, there = cache(clock), cache(clock)
    here.open("a")
    (slot,) = here.slots(["a"])
    chance = np.random.default_rng(1)
    here.state[slot] = state = chance.random(here.state.shape[1:])
    here.overlap[slot] = overlap = chance.random(here.overlap.shape[1:])
    here.last[slot] = 5, 6
    there.open("b")
    assert there.restore("a", here.export("a"))
    assert ("a" in here, here.counts.exported, there.counts.imported) == (False, 1, 1)
    (slot,) = there.slots(["a"])
    assert np.array_equal(there.state[slot], state.astype(np.float32))
    assert np.array_equal(there.overlap[slot], overlap.astype(np.float32))
    assert there.last[slot].tolist() == [5, 6]


def test_a_session_finds_no_slot_where_it_moves_to(clock: Clock) -> None:
    here, there = cache(clock), cache(clock, slots=1)
    here.open("a")
    there.open("b")
    assert not there.restore("a", here.export("a"))
    assert (there.counts.refused, there.counts.imported) == (1, 0)


def test_state_of_another_variant_or_cut_short_is_refused(clock: Clock) -> None:
    small, tiny = cache(clock, variant="small"), cache(clock)
    small.open("a")
    carried = small.export("a")
    with pytest.raises(ValueError, match=f"state: {len(carried)} bytes, must be"):
        tiny.restore("a", carried)
    small.open("b")
    wrong = b"XXXX" + small.export("b")[4:]
    with pytest.raises(ValueError, match="state: of a model of shape"):
        small.restore("b", wrong)
    assert len(small) == 0


def test_the_memory_of_a_session_is_known(clock: Clock) -> None:
    assert [cache(clock, variant=name).bytes_per_session for name in VARIANTS] == [5_000, 30_920, 157_640]


@pytest.mark.parametrize(
    ("wrong", "message"), [({"slots": 0}, "slots: 0, must be at least 1"), ({"idle_s": -1.0}, "idle_s: -1.0")]
)
def test_wrong_limits_are_refused(clock: Clock, wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cache(clock, **wrong)  # type: ignore[arg-type]


def test_a_session_is_opened_once(clock: Clock) -> None:
    found = cache(clock)
    found.open("a")
    with pytest.raises(ValueError, match="session: 'a' is open"):
        found.open("a")
