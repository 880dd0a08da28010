import pytest
from click.testing import CliRunner

from controller.commands.operator import operator


@pytest.mark.parametrize("flags", [["--interval", "1d"], []])
def test_the_operator_refuses_wrong_settings_as_wrong_usage(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_PROMETHEUS_URL", raising=False)
    result = CliRunner().invoke(operator, flags)
    assert result.exit_code == 2
    assert "--prometheus-url (SLUICE_PROMETHEUS_URL) is required" in result.output
