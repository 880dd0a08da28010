"""The reference in docs/reference/ is what the code says."""

import re

import pytest
from field_tables import TYPES, mappings
from program_tables import command_section, commands, exported, leaves, settings_table
from reference_documents import FOLDER, documents

from controller.resources.fields import PATTERN_RULES
from controller.resources.pool import PoolSpec
from controller.resources.schema import structural
from controller.settings import OperatorSettings
from controller.telemetry import FAMILIES
from simulations.scenario.scenario import ScenarioFile

DOCUMENTS = documents()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_committed_document_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == DOCUMENTS[name], "make docs-renew"


def test_no_other_document_is_in_the_folder() -> None:
    assert {path.name for path in FOLDER.iterdir()} == DOCUMENTS.keys()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_row_has_a_meaning(name: str) -> None:
    rows = re.findall(r"^\| (.*) \|$", DOCUMENTS[name], re.MULTILINE)
    assert not [row for row in rows if not re.split(r" \| ", row)[-1].strip("- ")]


def test_a_field_has_its_type_default_and_rules() -> None:
    schema = PoolSpec.model_json_schema()
    found = {each.path: each for each in mappings(structural(schema, schema["$defs"]), PoolSpec, "spec")}
    backoff = found["spec.unavailable.backoff"]
    assert [field.row() for field in backoff.fields] == [
        "| `initial` | [duration](types.md) | `5m` | Time after the first failure. Must be longer than 0s. |\n",
        "| `max` | [duration](types.md) | `1h` | Maximum time. Must be longer than 0s. |\n",
    ]
    assert backoff.rules == ("`max`: must be at least initial.",)
    assert "required" in next(field for field in found["spec"].fields if field.name == "price").row()


def test_numbers_of_scenarios_have_the_bounds_that_are_checked() -> None:
    schema = ScenarioFile.model_json_schema()
    found = {each.path: each for each in mappings(structural(schema, schema["$defs"]), ScenarioFile, "")}
    rules = {
        f"{path}.{field.name}": field.rules for path, each in found.items() for field in each.fields if field.rules
    }
    assert rules["faults[].metricsPartial.share"] == ("at least 0", "at most 1")
    assert rules["faults[].spike.factor"] == ("at least 1",)
    assert rules["load[].speed"] == ("above 0",)
    assert rules[".firstToken"] == ("each entry: above 0", "each entry: at most 1")


def test_every_setting_has_its_flag_and_its_variable() -> None:
    table = settings_table()
    for name in OperatorSettings.model_fields:
        assert f"`--{name.replace('_', '-')}`" in table
        assert f"`SLUICE_{name.upper()}`" in table


def test_every_option_of_every_command_is_listed() -> None:
    found = [(name, leaf) for top, command in commands().items() for name, leaf in leaves(command, top)]
    assert {"plan", "explain", "lab run"} <= {name for name, _ in found}
    for name, leaf in found:
        section = command_section(name, leaf)
        flags = [] if name == "operator" else [flag for each in leaf.params for flag in each.opts if flag[0] == "-"]
        assert [flag for flag in flags if f"`{flag}`" not in section] == []


def test_the_metrics_are_those_that_are_exported() -> None:
    assert {f"sluice_{name}" for name, *_ in FAMILIES} < exported()
    assert {"sluice_cycles_total", "sluice_build_info", "sluice_cycle_duration_seconds"} < exported()


def test_every_pattern_of_the_rules_has_a_name() -> None:
    # The operator's URLs are no fields of a resource.
    assert {rule for pattern, rule in PATTERN_RULES.items() if pattern not in TYPES} == {
        "must be a URL such as http://prometheus:9090"
    }
