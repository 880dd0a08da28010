"""The documents of `docs/reference/`, made from the code: `PYTHONPATH=tests/support python -m reference_documents`.

`controller` and `simulations` are described by the same models, settings, commands and metrics that run.
"""

import ast
import inspect
from collections.abc import Iterable, Mapping

from corpus import ROOT
from field_tables import mappings, part_in, types_table
from program_tables import command_section, commands, exit_table, leaves, metrics_table, settings_table

from controller.resources.schema import CRDS, GROUP, VERSION, Crd, structural, structural_schema
from simulations.policies.catalogue import POLICIES
from simulations.regions.scenario import RegionsFile
from simulations.scenario.recordings import GAPS, TIME_COLUMNS
from simulations.scenario.scenario import ScenarioFile
from simulations.scenario.traces import Column, bundled_names

FOLDER = ROOT / "docs" / "reference"
_GENERATED = "<!-- Generated from the code by `make docs-renew`. Do not edit. -->\n\n"


def documents() -> Mapping[str, str]:
    """Return the text of every generated document by its file name."""
    texts = {f"{crd.kind.lower()}.md": _resource(crd) for crd in CRDS}
    texts |= {
        "operator.md": _operator(),
        "commands.md": _commands(),
        "metrics.md": _metrics(),
        "scenario.md": _scenario(),
        "regions.md": _regions(),
        "types.md": _types(),
    }
    return {name: _GENERATED + text for name, text in texts.items()}


def _page(*parts: str) -> str:
    return "\n".join(parts)


def _resource(crd: Crd) -> str:
    schema = structural_schema(crd.model)
    scope = "It belongs to a namespace." if crd.namespaced else "It belongs to the cluster."
    columns = "".join(f"| {name} | `{path}` | {text} |\n" for name, path, text in crd.columns)
    columns += "".join(f"| {name} (`-o wide`) | `{path}` | {text} |\n" for name, path, text in crd.wide)
    sections = []
    for part in ("spec", "status"):
        model = part_in(crd.model.model_fields[part].annotation)
        assert model is not None
        sections += [each.section() for each in mappings(schema["properties"][part], model, part)]
    return _page(
        f"# {crd.kind}\n",
        f"{schema['description']} {scope} API version `{GROUP}/{VERSION}`, resource `{crd.plural}`, short name "
        f"`{crd.short_name}`.\n",
        f"`kubectl explain {crd.singular}.spec` shows the same fields. `[]` in a heading is a list.\n",
        f"## Columns of kubectl get\n\n| column | path | meaning |\n|---|---|---|\n{columns}",
        *sections,
    )


def _operator() -> str:
    return _page(
        "# Settings of the operator\n",
        "`sluice operator` reads each setting from its flag, or else from the environment. Lists are separated by "
        "commas. Durations are such as `15s` or `1m30s`.\n",
        settings_table(),
    )


def _commands() -> str:
    sections = [
        command_section(name, leaf) for top, command in commands().items() for name, leaf in leaves(command, top)
    ]
    return _page(
        "# Commands\n",
        "Every command has `--help`; where that leaves out options, `--help-all` has them. Tables are for people; "
        "`-o json` prints JSON and nothing else on standard output.\n",
        *sections,
        f"## Exit status\n\n{exit_table()}",
    )


def _metrics() -> str:
    return _page(
        "# Metrics of the operator\n",
        "Served at `/metrics`. A value that is unknown has no series. The gauges of a deleted pipeline disappear. "
        "Metrics of the pods, which the operator reads, are in [Metrics](../metrics.md).\n",
        metrics_table(),
    )


def _scenario() -> str:
    schema = ScenarioFile.model_json_schema()
    sections = [each.section() for each in mappings(structural(schema, schema["$defs"]), ScenarioFile, "")]
    columns = "".join(f"| `{name}` | {text} |\n" for name, text in _texts_of(Column).items())
    return _page(
        "# Scenario files\n",
        "`sluice simulate` and `sluice lab run` read the same file. [Simulation](../simulation.md) shows how to use "
        'it. Write fractions in quotes, such as `"0.2"`. `[]` in a heading is a list.\n',
        "\n".join(sections).replace("## \n", "## Fields of the file\n"),
        "## Traces\n",
        "A trace is a CSV file, the JSON of a range query of Prometheus, or what `promtool query range` prints; or one "
        "of them in a gzip file whose name ends in `.gz`. [Simulation](../simulation.md#traces) says how gaps and "
        "uneven times are read.\n",
        "| column of a CSV file | meaning |\n|---|---|\n"
        "| the first, `t_s` | The begin of a bin, in seconds from that of the recording. |\n"
        f"| the first, {_in_code(TIME_COLUMNS[1:])}, in any case | The time of the values: a date with or without a "
        "zone (UTC), or seconds or milliseconds since 1970. |\n"
        "| each other one | A series. `load[].series` names it; it is not needed where the file has one, or one named "
        "as `load[].column`. Numbers of at least 0. |\n",
        f"A value that is missing is empty, or {_in_code(filter(None, GAPS))}, in any case.\n",
        "`load[].column` says what the numbers are:\n",
        f"| quantity | meaning |\n|---|---|\n{columns}",
        f"Bundled traces: {_in_code(bundled_names())}.\n",
        "## Policies\n",
        f"{', '.join(f'`{name}`' for name in POLICIES)}.\n",
    )


def _regions() -> str:
    schema = RegionsFile.model_json_schema()
    sections = [each.section() for each in mappings(structural(schema, schema["$defs"]), RegionsFile, "")]
    return _page(
        "# Files of regions\n",
        "`sluice regions` reads them; [Several regions](../regions.md) shows how to use one. Write fractions in "
        'quotes, such as `"0.2"`. `[]` in a heading is a list. Traces are as in '
        "[Scenario files](scenario.md#traces).\n",
        "\n".join(sections).replace("## \n", "## Fields of the file\n"),
    )


def _in_code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _types() -> str:
    return _page(
        "# Types of strings\n",
        "Durations, amounts of money, ratios and memory are strings, so that no float is rounded on the way. Put "
        "numbers in quotes.\n",
        types_table(),
    )


def _texts_of(kind: type[Column]) -> dict[str, str]:
    """Return the values of an enum with the strings written below them."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr):
            texts[ast.literal_eval(before.value)] = ast.literal_eval(after.value)
    return texts


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in documents().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
