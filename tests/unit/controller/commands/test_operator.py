import pytest
from click.testing import CliRunner

from controller.commands.operator import operating_policy, operator
from controller.core.codec import decode, encode
from controller.core.state.policy import Policy
from controller.settings import OperatorSettings, load_settings
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


@pytest.mark.parametrize(
    ("flags", "environment", "setting", "value"),
    [
        ([], {}, "restrict_queries", None),
        (["--restrict-queries"], {}, "restrict_queries", True),
        ([], {"SLUICE_RESTRICT_QUERIES": "true"}, "restrict_queries", True),
        (["--no-restrict-queries"], {"SLUICE_RESTRICT_QUERIES": "true"}, "restrict_queries", False),
        ([], {}, "leader_elect", True),
        (["--no-leader-elect"], {}, "leader_elect", False),
        ([], {"SLUICE_LEADER_ELECT": "false"}, "leader_elect", False),
        (["--leader-elect"], {"SLUICE_LEADER_ELECT": "false"}, "leader_elect", True),
    ],
)
def test_boolean_flags_win_over_the_environment(
    flags: list[str], environment: dict[str, str], setting: str, value: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[OperatorSettings] = []
    monkeypatch.setattr("controller.commands.operator.run", lambda settings, _stop: started.append(settings))
    result = CliRunner().invoke(operator, flags, env={"SLUICE_PROMETHEUS_URL": "http://prometheus:9090", **environment})
    assert result.exit_code == 0, result.output
    assert getattr(started[0], setting) is value


@pytest.mark.parametrize(("setting", "composition"), [("sum", Composition.SUM), ("rss", Composition.RSS)])
def test_the_settings_of_decisions_become_a_policy_that_a_record_keeps(
    setting: str, composition: Composition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PROMETHEUS_URL", "http://prometheus:9090")
    flags: dict[str, object] = {"fleet_budget": "40", "interval": "30s", "scrape_interval": "20s"}
    policy = operating_policy(load_settings({"composition": setting, **flags}))
    assert policy == Policy(interval_s=30.0, scrape_interval_s=20.0, budget_per_hour=40.0, composition=composition)
    assert decode(Policy, encode(policy)) == policy
