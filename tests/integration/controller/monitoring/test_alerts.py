"""The committed rule file in promtool: valid, and each alert fires and is silent."""

import subprocess
from pathlib import Path

import pytest
import yaml

from controller.monitoring.alerts import ALERTS, BURN_RECORDS
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

CASES = Path(__file__).parent / "alerts.yaml"
RULES = Path(__file__).parents[4] / "charts" / "sluice" / "rules.yaml"


def promtool(binaries: Binaries, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([binaries.promtool, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_prometheus_accepts_the_rules(binaries: Binaries) -> None:
    result = promtool(binaries, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(ALERTS) + len(BURN_RECORDS)} rules found" in result.stdout


def test_every_alert_fires_with_its_texts_and_is_silent_otherwise(binaries: Binaries) -> None:
    result = promtool(binaries, "test", "rules", CASES)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_cases_have_every_alert_both_ways() -> None:
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    for fires in (True, False):
        assert {case["alertname"] for case in cases if bool(case["exp_alerts"]) is fires} == {a.name for a in ALERTS}
