import sys

import click
import pytest
from click.testing import CliRunner

from controller.commands.operator import external_scaler, operating_policy, operator
from controller.core.codec import decode, encode
from controller.core.state.policy import Policy
from controller.health import Health
from controller.keda.external_scaler import ExternalScaler, NoAnswer
from controller.keda.messages import ScaledObjectRef
from controller.kube.store import ResourceStore
from controller.settings import OperatorSettings, load_settings
from optimizer.model import Composition


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--interval", "1d"], "--interval (SLUICE_INTERVAL): '1d'"),
        ([], "--prometheus-url (SLUICE_PROMETHEUS_URL) is required"),
        (
            ["--metrics", "direct", "--keda-address", "9090"],
            "--keda-address (SLUICE_KEDA_ADDRESS): '9090': must be host",
        ),
        (["--metrics", "direct", "--keda-key-file", "tls.key"], "need each other"),
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


def the_scaler(settings: OperatorSettings, died: list[str]) -> ExternalScaler:
    store = ResourceStore()
    return external_scaler(
        settings,
        "127.0.0.1:0",
        pipelines=store,
        listed=lambda: True,
        health=Health(),
        died=died.append,
        clock=lambda: 0.0,
    )


def test_keda_is_answered_from_the_operators_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings({"metrics": "direct", "keda_address": "127.0.0.1:0"})
    died: list[str] = []
    with the_scaler(settings, died) as scaler, pytest.raises(NoAnswer, match="no SpeechPipeline"):
        scaler.replicas(
            ScaledObjectRef(name="asr", namespace="speech", metadata={"pipeline": "captions", "stage": "asr"})
        )
    assert not died


def test_without_the_extra_the_address_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "controller.keda.external_scaler", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(click.UsageError, match=r"pip install 'sluice-operator\[keda\]'"):
        the_scaler(load_settings({"metrics": "direct", "keda_address": "[::]:9090"}), [])
