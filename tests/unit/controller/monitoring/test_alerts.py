"""The rule file, and the runbook that its alerts point to."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.monitoring.alerts import ALERTS, RUNBOOK, Alert, rule_file

ROOT = Path(__file__).parents[4]
RUNBOOK_TEXT = (ROOT / "docs" / "runbook.md").read_text()
of_every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


def rules() -> list[dict[str, Any]]:
    group, _ = yaml.safe_load(rule_file())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def section(alert: Alert) -> str:
    """The text below the heading of an alert in the runbook."""
    found = re.search(rf"^## {alert.name}\n(.*?)(?=^## |\Z)", RUNBOOK_TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/runbook.md has no section for {alert.name}"
    return found[1]


def test_every_rule_says_what_happens_how_bad_it_is_and_where_to_read_on() -> None:
    assert [rule["alert"] for rule in rules()] == [alert.name for alert in ALERTS]
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert all(rule["annotations"].values())
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{rule['alert'].lower()}"


@of_every_alert
def test_the_runbook_has_meaning_first_look_and_remedy(alert: Alert) -> None:
    text = section(alert)
    for part in ("**Meaning.**", "**First look.**", "**Remedy.**"):
        assert part in text
    assert "```" in text, "commands to run"


def test_the_runbook_has_no_section_of_another_alert() -> None:
    headings = re.findall(r"^## (Sluice\w+)$", RUNBOOK_TEXT, re.MULTILINE)
    assert headings == [alert.name for alert in ALERTS]


@of_every_alert
def test_the_labels_in_the_texts_are_those_of_the_expression(alert: Alert) -> None:
    """A label that the result of the expression does not have would be an empty word in the message."""
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    kept = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", alert.expr) for label in labels.split(",")}
    assert used <= kept


def test_the_burn_of_the_error_budget_is_recorded_as_the_alerts_compute_it() -> None:
    _, group = yaml.safe_load(rule_file())["groups"]
    recorded = {rule["record"]: rule["expr"] for rule in group["rules"]}
    fast = next(alert for alert in ALERTS if alert.name == "SluiceSLAFastBurn")
    assert f"{recorded['pipeline:sluice_error_budget_burn:1h']} > " in fast.expr
    assert "[6h]" in recorded["pipeline:sluice_error_budget_burn:6h"]
