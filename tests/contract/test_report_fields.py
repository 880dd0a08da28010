"""The JSON report of a live run has the fields that the interface promises: these, of these types, and no others."""

import json
from typing import Any

import pytest
from live_runs import CAPTIONS, CPU, a_cause, a_decision, a_run, a_run_with_a_backlog, items, report_of

from simulations.results.scoring import Outcome

NUMBER, TEXT, SHARE, YES_NO_OR_NULL = object(), object(), object(), object()


class OrNull:
    """A number that may be missing."""


class TextOrNull:
    """A text that may be missing."""


REPORT = {
    "scenario": TEXT,
    "kubernetes": TEXT,
    "windows": [
        {
            "t_s": NUMBER,
            "offered_rps": NUMBER,
            "served_rps": NUMBER,
            "p95_s": OrNull,
            "spend_per_hour": NUMBER,
            "replicas": {
                "asr": {"cpu": {"desired": NUMBER, "ready": NUMBER}, "gpu": {"desired": NUMBER, "ready": NUMBER}}
            },
        }
    ],
    "decisions": [
        {
            "t_s": NUMBER,
            "pipeline": TEXT,
            "changes": [{"stage": TEXT, "pool": TEXT, "replicas": (NUMBER, NUMBER)}],
            "reason": TEXT,
        }
    ],
    "diagnosis": [
        {
            "pipeline": TEXT,
            "from_s": NUMBER,
            "until_s": NUMBER,
            "cause": TEXT,
            "because": TextOrNull,
            "stage": TextOrNull,
            "confidence": SHARE,
            "evidence": [TEXT],
            "remedy": TEXT,
            "cost_per_hour": OrNull,
        }
    ],
    "users": [
        {
            "pipeline": TEXT,
            "unit": TEXT,
            "promised_share": SHARE,
            "offered": NUMBER,
            "as_promised": NUMBER,
            "refused": NUMBER,
            "late": NUMBER,
            "lost": NUMBER,
            "share": OrNull,
            "kept": YES_NO_OR_NULL,
        }
    ],
    "backlogs": [
        {
            "pipeline": TEXT,
            "items": NUMBER,
            "done": NUMBER,
            "last_done_s": OrNull,
            "due_s": OrNull,
            "met": YES_NO_OR_NULL,
            "cost": NUMBER,
        }
    ],
    "summary": {
        "sla_windows_met": SHARE,
        "sla_windows_met_calm": SHARE,
        "sla_windows_met_admitted": SHARE,
        "windows": NUMBER,
        "offered": NUMBER,
        "served": NUMBER,
        "late": NUMBER,
        "filtered": NUMBER,
        "shed": NUMBER,
        "refused": NUMBER,
        "lost": NUMBER,
        "in_flight": NUMBER,
        "sessions_cut": NUMBER,
        "retries": NUMBER,
        "cost": NUMBER,
        "static_peak_cost": NUMBER,
        "replica_changes": NUMBER,
        "cap_violations": NUMBER,
        "generator_lag_p99_s": NUMBER,
    },
}


def differences(found: Any, promised: Any, path: str = "report") -> list[str]:
    match promised:
        case dict():
            if not isinstance(found, dict) or found.keys() != promised.keys():
                return [f"{path}: {found} has not exactly the fields {list(promised)}"]
            return [line for key in promised for line in differences(found[key], promised[key], f"{path}.{key}")]
        case [each]:
            assert isinstance(found, list)
            return [line for index, item in enumerate(found) for line in differences(item, each, f"{path}[{index}]")]
        case (first, second):
            if not isinstance(found, list) or len(found) != 2:
                return [f"{path}: {found} is no pair"]
            return [*differences(found[0], first, f"{path}[0]"), *differences(found[1], second, f"{path}[1]")]
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    holds = {
        NUMBER: is_number,
        OrNull: is_number or found is None,
        TextOrNull: isinstance(found, str) or found is None,
        TEXT: isinstance(found, str),
        SHARE: is_number and 0 <= found <= 1,
        YES_NO_OR_NULL: isinstance(found, bool) or found is None,
    }[promised]
    return [] if holds else [f"{path}: {found!r} is of another type"]


@pytest.mark.parametrize("outcome", Outcome)
def test_the_report_has_exactly_the_promised_fields(outcome: Outcome) -> None:
    causes = (a_cause(), a_cause(because=None, stage=None))
    run = a_run(
        items_of={CAPTIONS: items(outcome)},
        decisions=[a_decision(now_s=1_000_001.0, causes=causes)],
        peak_instances={CPU: 1.0},
    )
    report = json.loads(json.dumps(report_of(run), allow_nan=False))
    shares = {"sla_windows_met", "sla_windows_met_calm", "sla_windows_met_admitted"}
    if outcome is Outcome.SHED:  # of what was admitted, there is nothing to score
        shares = {"sla_windows_met_admitted"}
    elif outcome not in {Outcome.FILTERED, Outcome.IN_FLIGHT}:
        shares = set()
    assert {report["summary"].pop(name) for name in shares} <= {None}
    promised = {**REPORT, "summary": {k: v for k, v in REPORT["summary"].items() if k not in shares}}  # type: ignore[attr-defined]

    assert differences(report, promised) == []
    assert report["windows"]
    assert report["decisions"]
    assert len(report["diagnosis"]) == 2


def test_the_entry_of_a_backlog_has_exactly_the_promised_fields() -> None:
    (found,) = report_of(a_run_with_a_backlog())["backlogs"]
    assert differences(found, REPORT["backlogs"][0]) == []  # type: ignore[index]


def test_a_missing_field_and_one_too_many_are_noticed() -> None:
    report = report_of(a_run(peak_instances={CPU: 1.0}))
    assert differences({**report, "extra": 1}, REPORT)
    assert differences({**report, "summary": {**report["summary"], "lost": None}}, REPORT) == [
        "report.summary.lost: None is of another type"
    ]
