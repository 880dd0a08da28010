"""Markdown of what the program has: settings of the operator, commands with their options, exported metrics."""

import re
import tomllib
from collections.abc import Iterator
from importlib import import_module

import click
from corpus import ROOT
from prometheus_client.parser import text_string_to_metric_families

from controller.settings import OperatorSettings
from controller.telemetry import COUNTERS, FAMILIES, PARTS, Telemetry

_SERIES = {"counter": "_total", "info": "_info"}
EXIT_STATUS = "Exit status"


def commands() -> dict[str, click.Command]:
    """Return the commands of `sluice` by name, as `pyproject.toml` declares them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, click.Command] = {}
    for name, place in sorted(project["entry-points"]["sluice.commands"].items()):
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        found[name] = command
    return found


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands that do something, each with its full name: `command` itself, or its subcommands."""
    if isinstance(command, click.Group):
        for inside in sorted(command.commands):
            yield from leaves(command.commands[inside], f"{name} {inside}")
    else:
        yield name, command


def settings_table() -> str:
    """Return the table of the settings of `sluice operator`."""
    rows = []
    for name, field in OperatorSettings.model_fields.items():
        flag = name.replace("_", "-")
        written = f"--{flag}`, `--no-{flag}" if field.annotation is bool else f"--{flag}"
        rows.append(
            f"| `{written}` | `SLUICE_{name.upper()}` | {_default(field.default)} | {_cell(field.description)} |"
        )
    return "\n".join(["| flag | environment | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def command_section(name: str, command: click.Command) -> str:
    """Return the section of one command: usage, text, options."""
    context = click.Context(command, info_name=f"sluice {name}")
    usage = " ".join([f"sluice {name}", *command.collect_usage_pieces(context)])
    text = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    parts = [f"## sluice {name}\n", f"```text\n{usage}\n```\n", f"{text}\n"]
    options = [each for each in command.params if isinstance(each, click.Option)]
    if name == "operator":
        parts.append("Its flags are the [settings of the operator](operator.md).\n")
    elif options:
        rows = "".join(_option(each, context) for each in options)
        parts.append(f"| option | value | default | meaning |\n|---|---|---|---|\n{rows}")
    return "\n".join(parts)


def exit_table() -> str:
    """Return the table of exit statuses: the general ones, then what each command says of its own."""
    rows = [
        ("any", "0: done."),
        ("any", f"{click.ClickException.exit_code}: the answer is no, or something is missing. Standard error has it."),
        ("any", f"{click.UsageError.exit_code}: wrong usage: an unknown option, a missing argument, a bad value."),
    ]
    for top, command in commands().items():
        for name, leaf in leaves(command, top):
            text = " ".join((leaf.help or "").split())
            if EXIT_STATUS in text:
                said = text[text.index(EXIT_STATUS) + len(EXIT_STATUS) :].lstrip(": ")
                rows.append((f"`{name}`", said))
    return "| command | exit status |\n|---|---|\n" + "".join(f"| {name} | {_cell(text)} |\n" for name, text in rows)


def metrics_table() -> str:
    """Return the table of the metrics that the operator exports."""
    rows = [
        f"| `sluice_{name}` | gauge | {', '.join(f'`{label}`' for label in labels) or '–'} | {_cell(text)} |"
        for name, text, labels in FAMILIES
    ]
    rows += [
        f"| `sluice_{name}_total` | counter | {', '.join(f'`{label}`' for label in labels)} | {_cell(text)} |"
        for name, text, labels in COUNTERS
    ]
    rows += [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '–'} | {_cell(text)} |"
        for name, kind, labels, text in process_metrics()
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *sorted(rows)]) + "\n"


def process_metrics() -> Iterator[tuple[str, str, list[str], str]]:
    """Yield name, type, labels and text of the metrics of the process, which do not come from a decision."""
    telemetry = Telemetry()
    telemetry.wrote("outcome")
    telemetry.requested("GET")
    telemetry.took(PARTS[0], 0.0)
    telemetry.failed(0.0)
    for family in text_string_to_metric_families(telemetry.exposition().decode()):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = family.name.removesuffix("_info") if family.type == "info" else family.name
        yield f"{name}{_SERIES.get(family.type, '')}", family.type, labels, family.documentation


def exported() -> set[str]:
    """Return the names of all metrics that the operator exports."""
    decisions = {f"sluice_{name}" for name, _, _ in FAMILIES} | {f"sluice_{name}_total" for name, _, _ in COUNTERS}
    return decisions | {name for name, *_ in process_metrics()}


def _option(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "–" if option.is_flag else f"`{option.make_metavar(context)}`"
    return f"| {names} | {_cell(value)} | {_default(option.default)} | {_cell(option.help)} |\n"


def _default(value: object) -> str:
    match value:
        case None | () | "" | False:
            return "–"
        case True:
            return "on"
        case tuple():
            return f"`{','.join(map(str, value))}`"
        case str() | int() | float():
            return f"`{value}`"
        case _:
            return "–"


def _cell(text: str | None) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join((text or "").split()))
