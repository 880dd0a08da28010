"""The lease as a value: what is asked next, and when writing is allowed, by the times that are given."""

from dataclasses import replace

import pytest

from controller.kube.lease import Candidate, LeaseRecord, Request, Terms

TERMS = Terms(duration_s=10.0)
ME, OTHER = "me_1", "other_2"


def held_by(holder: str | None, version: str = "7", duration_s: float = 10.0) -> LeaseRecord:
    return LeaseRecord(holder=holder, duration_s=duration_s, transitions=3, version=version)


def a_candidate() -> Candidate:
    return Candidate(identity=ME, terms=TERMS)


def a_leader(*, sent_s: float = 100.0, at_s: float = 100.1) -> Candidate:
    """A replica that took a released lease with a request sent at `sent_s` and answered at `at_s`."""
    return a_candidate().read(held_by(None, "6"), at_s - 1).granted(held_by(ME), sent_s, at_s)


def test_it_looks_first_and_takes_a_lease_that_nobody_holds_at_once() -> None:
    candidate = a_candidate()
    assert candidate.next()[0] is Request.READ
    assert candidate.read(held_by(None), 50.0).next() == (Request.TAKE, float("-inf"))


def test_a_lease_that_another_keeps_renewing_is_never_taken() -> None:
    candidate = a_candidate()
    for renewal in range(20):
        at_s = 50.0 + 5.0 * renewal
        candidate = candidate.read(held_by(OTHER, str(renewal)), at_s)
        assert candidate.next() == (Request.READ, at_s + TERMS.poll_s)
        assert not candidate.may_write(at_s)


def test_a_lease_is_taken_when_it_was_seen_unchanged_for_its_whole_duration() -> None:
    candidate = a_candidate().read(held_by(OTHER), 50.0)
    assert candidate.read(held_by(OTHER), 58.0).next()[0] is Request.READ
    assert candidate.read(held_by(OTHER), 59.5).next() == (Request.TAKE, 60.0)


def test_the_holders_duration_is_waited_for_where_it_is_longer_than_ones_own() -> None:
    candidate = a_candidate().read(held_by(OTHER, duration_s=30.0), 50.0)
    assert candidate.read(held_by(OTHER, duration_s=30.0), 65.0).next()[0] is Request.READ
    assert candidate.read(held_by(OTHER, duration_s=30.0), 79.0).next() == (Request.TAKE, 80.0)


def test_a_lease_that_is_not_there_may_have_been_deleted_under_its_holder() -> None:
    candidate = a_candidate().read(None, 50.0)
    assert candidate.next()[0] is Request.READ
    assert candidate.read(None, 59.5).next() == (Request.CREATE, 60.0)
    assert candidate.read(held_by(OTHER), 55.0).read(None, 59.5).read(None, 60.5).next()[0] is Request.READ


def test_a_lease_that_was_taken_by_a_request_whose_answer_was_lost_is_asked_for_again() -> None:
    candidate = a_candidate().read(held_by(OTHER), 50.0).failed(60.0).read(held_by(ME, "8"), 60.5)
    assert candidate.next() == (Request.TAKE, 60.0 + TERMS.retry_s)
    assert not candidate.may_write(60.6)


def test_a_new_holder_writes_after_the_policy_has_heard_of_it_and_until_the_margin() -> None:
    leader = a_leader(sent_s=100.0, at_s=100.4)
    assert not leader.may_write(100.4)
    assert not leader.may_write(101.3)
    assert leader.may_write(101.4)
    assert leader.may_write(107.9)
    assert not leader.may_write(108.0), "8 s after the request was sent, not after it was answered"


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    leader = a_leader().granted(held_by(ME, "8"), sent_s=102.0, at_s=105.0)
    assert leader.may_write(109.9)
    assert not leader.may_write(110.0)


def test_an_answer_that_comes_after_its_own_lease_has_run_out_permits_nothing() -> None:
    leader = a_leader().granted(held_by(ME, "8"), sent_s=102.0, at_s=140.0)
    assert not leader.may_write(140.0)
    assert leader.next() == (Request.RENEW, 102.0 + TERMS.renew_s)


def test_a_holder_that_cannot_renew_stops_and_goes_on_when_it_can_again_and_nobody_came() -> None:
    leader = a_leader()
    for attempt in range(30):
        leader = leader.failed(102.0 + attempt)
    assert not leader.may_write(132.0)
    assert leader.next()[0] is Request.RENEW

    leader = leader.granted(held_by(ME, "8"), sent_s=133.0, at_s=133.1)

    assert leader.may_write(133.1), "the policy knows it already"


@pytest.mark.parametrize("holder", [OTHER, None], ids=["another", "nobody"])
def test_a_holder_that_sees_another_has_lost_for_good(holder: str | None) -> None:
    leader = a_leader().refused()
    assert leader.next()[0] is Request.READ
    leader = leader.read(held_by(holder, "9"), 103.0)
    assert leader.lost
    assert not leader.may_write(103.0)


def test_a_refusal_because_somebody_labelled_the_lease_costs_a_look_and_nothing_else() -> None:
    leader = a_leader().refused().read(held_by(ME, "9"), 102.1)
    assert not leader.lost
    assert leader.next() == (Request.RENEW, 102.0)
    assert leader.may_write(102.1)


def test_a_lease_deleted_under_its_holder_is_made_again_while_it_lasts_and_lost_after() -> None:
    assert a_leader().refused().read(None, 109.0).next()[0] is Request.CREATE
    assert a_leader().refused().read(None, 110.0).lost, "another may have made it, led, and lost it since"
    assert a_leader().refused().read(None, 109.0).failed(110.0).lost


def test_no_two_replicas_may_write_at_once_however_slow_requests_and_looks_are() -> None:
    """The standby asks no sooner than its rule allows; the holder's right to write has ended by then."""
    for renewal_took_s in (0.0, 0.5, 3.0):
        for look_took_s in (0.0, 0.5, 3.0):
            sent_s, applied_s = 100.0, 100.0 + renewal_took_s  # the server may apply it at the very end
            holder = a_leader(sent_s=90.0).granted(held_by(ME, "8"), sent_s, applied_s)
            standby = replace(a_candidate(), identity=OTHER).read(held_by(ME, "8"), applied_s + look_took_s)
            request, at_s = standby.read(held_by(ME, "8"), applied_s + look_took_s + 9.9).next()
            assert request is Request.TAKE
            assert not holder.may_write(at_s - TERMS.margin_s)


def test_a_takeover_after_a_crash_takes_a_quarter_longer_than_the_lease() -> None:
    terms = Terms(duration_s=10.0)
    assert terms.poll_s + terms.duration_s + terms.settle_s < 1.25 * terms.duration_s < 15.0
    assert 2 * sum(terms.timeout_s) < terms.duration_s - terms.margin_s
