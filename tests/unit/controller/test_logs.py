import json
import logging
import sys

from controller.logs import JsonFormatter


def formatted(**fields: object) -> dict[str, object]:
    record = logging.LogRecord("sluice.decision", logging.INFO, "", 0, "decided for %s", ("speech/captions",), None)
    record.__dict__.update(fields)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    parsed: dict[str, object] = json.loads(line)
    return parsed


def test_a_line_is_one_json_object() -> None:
    line = formatted(created=1767225600.25)
    assert line == {
        "time": "2026-01-01T00:00:00.250+00:00",
        "level": "info",
        "logger": "sluice.decision",
        "message": "decided for speech/captions",
    }


def test_a_record_is_carried_as_data() -> None:
    assert formatted(record={"version": 1})["record"] == {"version": 1}


def test_an_exception_stays_on_the_line() -> None:
    try:
        dict[str, int]()["vad"]
    except KeyError:
        assert "KeyError: 'vad'" in str(formatted(exc_info=sys.exc_info())["exception"])
