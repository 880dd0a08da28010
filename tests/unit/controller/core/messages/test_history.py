"""The lines about what happened to a pipeline."""

from controller.core.messages.history import History, PastEvent, history_lines, make_history

NOON_S = 1795608000.0  # 2026-11-25T12:00:00Z
SCALED = "vad 1→2 on cpu (demand); encoder 3→2 on gpu (lower cost): demand 10 → 20; p95 80 ms of 300 ms; spend $1/h"


def event(minutes: float, reason: str = "Scaled", message: str = SCALED, *, count: int = 1) -> PastEvent:
    at_s = NOON_S + 60 * minutes
    return PastEvent(at_s=at_s, until_s=at_s, reason=reason, message=message, count=count)


def a_history(*events: PastEvent, period_s: float | None = None, records_begin_s: float | None = None) -> History:
    return make_history(
        events, now_s=NOON_S, period_s=period_s, state="OK; vad:2 encoder:2", records_begin_s=records_begin_s
    )


def test_each_change_and_cause_has_a_line_the_oldest_first_and_the_state_last() -> None:
    missed = event(-5, "SLAMissed", "p95 310 ms of 300 ms")
    assert history_lines(a_history(event(-1), missed)) == [
        "Changes: 2 events, times in UTC",
        (
            "  from Events: they reach back to 2026-11-25T11:55:00Z; the API server keeps them for 1 h by default "
            "(--from-record FILE for more)"
        ),
        "  11:55:00  SLAMissed: p95 310 ms of 300 ms",
        "  11:59:00  vad 1→2 on cpu (demand)",
        "  11:59:00  encoder 3→2 on gpu (lower cost)",
        "  12:00:00  now OK; vad:2 encoder:2",
    ]


def test_a_change_while_the_sla_is_missed_has_a_line_for_each_cause_and_none_for_the_miss() -> None:
    message = (
        "SLA missed since 2026-11-25T11:50:00Z: p95 640 ms of 500 ms; vad 1→2 on cpu (demand); "
        "enc 2→4 on gpu (SLA at risk); 3 replicas starting on gpu (enc), ready in about 40 s (start-up 60 s, measured)"
    )
    assert [line[2:] for line in history_lines(a_history(event(-1, message=message)))[2:-1]] == [
        "11:59:00  vad 1→2 on cpu (demand)",
        "11:59:00  enc 2→4 on gpu (SLA at risk)",
    ]


def test_repeats_in_a_row_are_one_line_with_their_number() -> None:
    same = [event(-9, "ScaleFailed", "refused"), event(-8, "ScaleFailed", "refused", count=3)]
    history = a_history(*same, event(-7, "SLAMet", "fine"), event(-6, "ScaleFailed", "refused"))
    assert [line[2:] for line in history_lines(history)[2:5]] == [
        "11:51:00  ScaleFailed: refused (4 times until 11:52:00)",
        "11:53:00  SLAMet: fine",
        "11:54:00  ScaleFailed: refused",
    ]


def test_events_before_the_period_are_left_out_but_tell_how_far_the_source_reaches() -> None:
    lines = history_lines(a_history(event(-50), event(-10), period_s=1800.0))
    assert lines[0] == "Changes since 2026-11-25T11:30:00Z: 1 event, times in UTC"
    assert "reach back to 2026-11-25T11:10:00Z" in lines[1]
    assert len(lines) == 5


def test_without_events_the_list_says_that_they_may_be_gone() -> None:
    lines = history_lines(a_history())
    assert lines[0] == "Changes: 0 events, times in UTC"
    assert "there are none; the API server keeps them for 1 h" in lines[1]


def test_times_of_other_days_have_the_date() -> None:
    assert any(line.startswith("  11-24 11:00:00  vad") for line in history_lines(a_history(event(-25 * 60))))


def test_records_say_when_they_begin() -> None:
    lines = history_lines(a_history(event(-1), records_begin_s=NOON_S - 7200))
    assert lines[1] == "  the records begin at 2026-11-25T10:00:00Z"
