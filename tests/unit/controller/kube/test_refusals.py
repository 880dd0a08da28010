from controller.kube.refusals import Refusals


def test_a_refusal_lasts_until_the_status_is_written_or_the_resource_is_gone() -> None:
    refusals = Refusals()
    refusals.begin({"a", "b", "c"})
    for uid in "abc":
        refusals.refused(uid, f"{uid}: denied")
    refusals.begin({"a", "b"})
    assert [refusals.why(uid) for uid in "abc"] == ["a: denied", "b: denied", None]
    refusals.over("a", written=True)
    refusals.over("b", written=False)
    assert (refusals.why("a"), refusals.why("b"), set(refusals.written)) == (None, None, {"a"})
    refusals.begin({"a", "b"})
    assert not refusals.written


def test_the_latest_failure_is_known_also_where_the_server_did_not_answer() -> None:
    refusals = Refusals()
    refusals.begin({"a", "b"})
    refusals.refused("a", "denied")
    refusals.begin({"a", "b"})
    refusals.unanswered("b")
    assert [refusals.last_failure(uid) for uid in "abc"] == [1, 2, 0]
    assert refusals.why("b") is None


def test_why_a_pipeline_is_withheld_holds_for_one_cycle() -> None:
    refusals = Refusals()
    refusals.begin({"a"})
    refusals.withheld("a", "no Lease")
    assert refusals.why_withheld("a") == "no Lease"
    refusals.begin({"a"})
    assert refusals.why_withheld("a") is None
