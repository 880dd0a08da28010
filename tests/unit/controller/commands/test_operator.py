import pytest
from click.testing import CliRunner

from controller.commands.operator import operating_policy, operator
from controller.core.codec import decode, encode
from controller.core.state.policy import Policy
from controller.settings import load_settings
from optimizer.model import Composition


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--interval", "1d"], "--interval (SLUICE_INTERVAL): '1d'"),
        ([], "--prometheus-url (SLUICE_PROMETHEUS_URL) is required"),
        (["--metrics", "prometheus,direct"], "--prometheus-url (SLUICE_PROMETHEUS_URL) is required"),
    ],
)
def test_the_operator_refuses_wrong_settings_as_wrong_usage(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_PROMETHEUS_URL", raising=False)
    result = CliRunner().invoke(operator, flags)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(("setting", "composition"), [("sum", Composition.SUM), ("rss", Composition.RSS)])
def test_the_settings_of_decisions_become_a_policy_that_a_record_keeps(
    setting: str, composition: Composition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PROMETHEUS_URL", "http://prometheus:9090")
    policy = operating_policy(load_settings({"composition": setting, "fleet_budget": "40", "interval": "30s"}))
    assert policy == Policy(interval_s=30.0, budget_per_hour=40.0, composition=composition)
    assert decode(Policy, encode(policy)) == policy
