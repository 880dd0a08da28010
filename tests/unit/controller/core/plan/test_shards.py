"""What shards agree to, and how they are divided, case by case; `tests/property/test_shards.py` has every order."""

from dataclasses import replace

import pytest

from controller.core.plan.shards import (
    PATIENCE_S,
    REMEMBERED_S,
    SEEN_S,
    STALE_S,
    Divided,
    Memory,
    Use,
    agreed,
    allowance,
    divided,
    without_gone,
    worth_writing,
)
from controller.core.state.shards import Allowance, Entry, Shard, Want, committed

NOW_S = 10_000.0
FIRST = Shard(index=0, count=2)
QUIET = Want(least_priority=0)


def an_entry(
    shard: int, used: int, allowed: int | None = None, *, want: Want | None = QUIET, count: int = 2, **more: object
) -> Entry:
    own = used if allowed is None else max(used, allowed)
    entry = Entry(shard=shard, of=count, used=used, agreed=own, allowed=allowed, users=1, want=want, renewed_at_s=NOW_S)
    return replace(entry, **more)  # type: ignore[arg-type]


def allowed(found: Divided) -> list[int | None]:
    return [each.allowed for each in found.entries]


def follow(found: Divided) -> tuple[Entry, ...]:
    """Return the entries after every shard has agreed, and has given back what it has to."""
    return tuple(
        replace(each, used=used, agreed=max(used, each.allowed or 0))
        for each in found.entries
        for used in (min(each.used, each.allowed or 0) if each.reduce else each.used,)
    )


class TestAgreed:
    def test_without_an_allowance_a_shard_keeps_what_it_uses(self) -> None:
        entry = agreed(None, FIRST, Use(used=7), NOW_S)
        assert (entry.agreed, entry.allowed) == (7, None)
        assert allowance(entry, written=entry) == Allowance(amount=7, granted=False, entry=entry)

    def test_it_agrees_to_what_is_allowed_but_gives_nothing_back_unasked(self) -> None:
        assert agreed(an_entry(0, 3, 9), FIRST, Use(used=3), NOW_S).agreed == 9
        assert agreed(an_entry(0, 9, 5), FIRST, Use(used=9), NOW_S).agreed == 9
        late = agreed(an_entry(0, 9, 5), FIRST, Use(used=9), NOW_S)
        found = allowance(late, written=late)
        assert (found.amount, found.firm) == (5, False)

    def test_asked_to_it_gives_back(self) -> None:
        entry = agreed(an_entry(0, 9, 5, reduce=True), FIRST, Use(used=9), NOW_S)
        found = allowance(entry, written=entry)
        assert (found.amount, found.firm) == (5, True)

    def test_an_allowance_for_another_number_of_shards_is_none(self) -> None:
        entry = agreed(an_entry(0, 3, 9, count=4), FIRST, Use(used=3), NOW_S)
        assert (entry.of, entry.agreed, entry.allowed) == (2, 3, None)

    def test_while_pipelines_leave_nothing_is_allowed_and_what_was_agreed_stays_committed(self) -> None:
        entry = agreed(an_entry(0, 9, 9), FIRST, Use(used=5, leaving=2), NOW_S)
        assert (entry.agreed, entry.allowed, entry.awaiting) == (9, None, 2)
        assert allowance(entry, written=entry).amount == 5

    def test_until_the_server_has_confirmed_a_higher_number_the_lower_one_counts(self) -> None:
        before = an_entry(0, 3, 9, agreed=4)
        entry = agreed(before, FIRST, Use(used=3), NOW_S)
        assert allowance(entry, written=entry).amount == 9
        assert allowance(entry, written=before).amount == 4
        assert allowance(entry, written=None).amount == 0


class TestDivision:
    def test_what_is_free_is_divided_equally_as_room(self) -> None:
        assert allowed(divided([an_entry(0, 2), an_entry(1, 4)], 2, 20, NOW_S, Memory())) == [9, 11]

    def test_a_shard_without_pipelines_for_it_gets_no_room(self) -> None:
        assert allowed(divided([an_entry(0, 2), an_entry(1, 0, users=0)], 2, 20, NOW_S, Memory())) == [20, 0]

    @pytest.mark.parametrize(
        "second",
        [
            an_entry(1, 2, count=3),
            an_entry(1, 2, awaiting=1),
            an_entry(1, 2, want=None),
        ],
    )
    def test_nothing_is_divided_until_all_have_reported_and_planned_and_wait_for_none(self, second: Entry) -> None:
        entries = (an_entry(0, 2), second)
        assert divided(entries, 2, 20, NOW_S, Memory()).entries == entries
        assert divided(entries[:1], 2, 20, NOW_S, Memory()).entries == entries[:1]

    def test_who_lacks_comes_before_room_and_the_dearest_lack_first(self) -> None:
        saves = Want(lacking=4, price_per_hour=2.0, least_priority=0)
        short = Want(lacking=6, unserved=0.5, least_priority=0)
        entries = [an_entry(0, 2, want=saves), an_entry(1, 2, want=short)]
        assert allowed(divided(entries, 2, 11, NOW_S, Memory())) == [3, 8]

    def test_who_lacks_for_the_same_priority_gets_a_part_in_proportion(self) -> None:
        def short(lacking: int, priority: int = 0) -> Want:
            return Want(lacking=lacking, unserved=0.5, priority=priority, least_priority=0)

        entries = [an_entry(0, 1, want=short(12)), an_entry(1, 1, want=short(4))]
        assert allowed(divided(entries, 2, 11, NOW_S, Memory())) == [8, 3]
        entries = [an_entry(0, 1, want=short(12)), an_entry(1, 1, want=short(4, priority=1))]
        assert allowed(divided(entries, 2, 11, NOW_S, Memory())) == [6, 5]

    def test_room_of_one_goes_to_the_lack_of_another_only_once_it_has_agreed_to_less(self) -> None:
        entries = [an_entry(0, 2, 12), an_entry(1, 8, 8, want=Want(lacking=8, unserved=0.5, least_priority=0))]
        first = divided(entries, 2, 20, NOW_S, Memory())
        assert allowed(first) == [3, 8]
        assert committed(first.entries) == 20
        assert allowed(divided(follow(first), 2, 20, NOW_S, first.memory)) == [3, 17]

    def test_a_little_less_room_than_equal_changes_nothing(self) -> None:
        entries = (an_entry(0, 2, 10), an_entry(1, 6, 10))
        assert divided(entries, 2, 20, NOW_S, Memory()).entries == entries

    def test_who_is_away_keeps_what_it_has_agreed_to_and_gets_no_more(self) -> None:
        away = an_entry(1, 2, 6, renewed_at_s=NOW_S - STALE_S - 1, want=Want(lacking=9, unserved=0.9))
        found = divided([an_entry(0, 3, 3), away], 2, 20, NOW_S, Memory())
        assert allowed(found) == [14, 6]

    @pytest.mark.parametrize(("firm", "numbers"), [(True, [2, 2]), (False, [4, 4])])
    def test_a_limit_that_falls_is_shared_if_nothing_may_stay_above_it(self, firm: bool, numbers: list[int]) -> None:
        entries = [an_entry(0, 4, 10), an_entry(1, 4, 10)]
        found = divided(entries, 2, 4 if not firm else 2, NOW_S, Memory(), firm=firm)
        assert sum(each.allowed or 0 for each in found.entries) == (2 if firm else 8)
        assert [each.reduce for each in found.entries].count(True) == (2 if firm else 0)


class TestExchange:
    """In a full pool, what one uses goes to another for which it is worth more."""

    GIVER, TAKER = QUIET, Want(lacking=5, unserved=0.5, least_priority=0)

    def exchanged(self, giver: Want, taker: Want, memory: Memory | None = None) -> Divided:
        entries = [an_entry(0, 20, 20, want=giver), an_entry(1, 20, 20, want=taker)]
        return divided(entries, 2, 40, NOW_S, memory or Memory())

    def test_it_goes_in_steps_of_a_twentieth_and_one_at_a_time(self) -> None:
        first = self.exchanged(self.GIVER, self.TAKER)
        assert (allowed(first), [each.reduce for each in first.entries]) == ([18, 20], [True, False])
        assert divided(first.entries, 2, 40, NOW_S, first.memory).entries == first.entries
        then = divided(follow(first), 2, 40, NOW_S, first.memory)
        assert (allowed(then), [each.reduce for each in then.entries]) == ([18, 22], [False, False])

    @pytest.mark.parametrize(
        ("giver", "taker", "happens"),
        [
            (QUIET, Want(lacking=5, price_per_hour=0.5, least_priority=0), True),
            (QUIET, Want(lacking=5, least_priority=0), False),  # what it would save is not known
            (Want(lacking=2, price_per_hour=1.0, least_priority=0), Want(lacking=5, price_per_hour=1.2), False),
            (Want(lacking=2, price_per_hour=1.0, least_priority=0), Want(lacking=5, price_per_hour=1.3), True),
            (Want(lacking=2, unserved=0.1, least_priority=0), Want(lacking=5, price_per_hour=9.0), False),
            (Want(lacking=2, unserved=0.4, least_priority=0), Want(lacking=5, unserved=0.5), False),
            (Want(lacking=2, unserved=0.3, least_priority=0), Want(lacking=5, unserved=0.5), True),
            (Want(least_priority=5), Want(lacking=5, unserved=0.5), False),
            (Want(lacking=2, unserved=0.9, least_priority=0), Want(lacking=5, unserved=0.1, priority=5), True),
            (Want(), Want(lacking=5, unserved=0.5), False),  # what it uses is of no pipeline that acts
        ],
    )
    def test_it_needs_a_clear_difference(self, giver: Want, taker: Want, happens: bool) -> None:
        assert (allowed(self.exchanged(giver, taker)) != [20, 20]) is happens

    def test_what_was_lost_by_an_exchange_is_remembered_and_not_tried_again(self) -> None:
        first = self.exchanged(self.GIVER, Want(lacking=5, price_per_hour=2.0, least_priority=0))
        # The giver needed them more than it had said, and they go back.
        entries = (
            replace(follow(first)[0], want=Want(lacking=2, price_per_hour=9.0, least_priority=0)),
            replace(follow(first)[1], allowed=22, used=22, agreed=22),
        )
        back = divided(entries, 2, 40, NOW_S, first.memory)
        assert allowed(back)[1] == 20
        again = self.exchanged(self.GIVER, Want(lacking=5, price_per_hour=2.0, least_priority=0), back.memory)
        assert allowed(again) == [20, 20]
        later = [replace(each, renewed_at_s=NOW_S + REMEMBERED_S + 1) for each in again.entries]
        assert allowed(divided(later, 2, 40, NOW_S + REMEMBERED_S + 1, again.memory)) == [18, 20]

    def test_a_shard_that_does_not_give_back_in_time_keeps_it(self) -> None:
        first = self.exchanged(self.GIVER, self.TAKER)
        late_s = NOW_S + PATIENCE_S + 1
        stuck = [replace(each, renewed_at_s=late_s) for each in first.entries]
        found = divided(stuck, 2, 40, late_s, first.memory)
        assert (allowed(found), found.entries[0].reduce) == ([20, 20], False)


def test_an_entry_of_an_earlier_number_goes_once_all_have_reported_since_its_operator_ended() -> None:
    entries = (an_entry(0, 2), an_entry(1, 2), an_entry(2, 5, count=3))
    assert without_gone(entries, 2, {}) == entries
    assert without_gone(entries, 2, {2: NOW_S}) == entries
    assert without_gone(entries, 2, {2: NOW_S - SEEN_S - 1}) == entries[:2]
    assert without_gone(entries[1:], 2, {2: NOW_S - SEEN_S - 1}) == entries[1:]


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ({"agreed": 21}, True),
        ({"reduce": True}, True),
        ({"awaiting": 1}, True),
        ({"used": 19}, False),
        ({"used": 10}, True),
        ({"want": None}, True),
        ({"want": Want(lacking=1, least_priority=0)}, True),
        ({"renewed_at_s": NOW_S + 59}, False),
        ({"renewed_at_s": NOW_S + 60}, True),
    ],
)
def test_an_entry_is_written_when_it_has_changed_and_once_a_minute(change: dict[str, object], written: bool) -> None:
    before = an_entry(0, 18, 20)
    assert worth_writing(before, replace(before, **change)) is written  # type: ignore[arg-type]
