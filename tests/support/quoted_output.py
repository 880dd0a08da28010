"""Commands that a document quotes with what they print: ```console blocks that begin with `$ sluice …`.

`PYTHONPATH=tests/support python -m quoted_output docs/planning.md` runs them and writes what they print now.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from click.testing import CliRunner

from controller.commands.plan import plan

_BLOCK = re.compile(r"^```console\n\$ (?P<command>.+)\n(?P<output>(?:.*\n)*?)```$", re.MULTILINE)
_COMMANDS: dict[str, click.Command] = {"plan": plan}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A command, what the document says it prints, and where in the text that begins and ends."""

    command: str
    output: str
    span: tuple[int, int]


def quotes(text: str) -> list[Quote]:
    return [
        Quote(command=found["command"], output=found["output"], span=found.span("output"))
        for found in _BLOCK.finditer(text)
    ]


def printed(command: str) -> str:
    """Run `sluice …` in this process, in the present directory, and return what it prints on both streams."""
    program, name, *arguments = shlex.split(command)
    assert program == "sluice", command
    return CliRunner().invoke(_COMMANDS[name], arguments, prog_name=f"sluice {name}", catch_exceptions=False).output


def renewed(text: str) -> str:
    """Return the document with the outputs of now."""
    for quote in reversed(quotes(text)):
        start, end = quote.span
        text = text[:start] + printed(quote.command) + text[end:]
    return text


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text()))
