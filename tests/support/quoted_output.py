"""Commands that a document quotes with what they print: ```console blocks that begin with `$ sluice …`.

`PYTHONPATH=tests/support python -m quoted_output` runs those of all documents and writes what they print now.
"""

import contextlib
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner
from document_blocks import blocks, pages, prepared

from controller.__main__ import main

_BLOCK = re.compile(r"^```console\n\$ (?P<command>.+)\n(?P<output>(?:.*\n)*?)```$", re.MULTILINE)


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
    program, *arguments = shlex.split(command)
    assert program == "sluice", command
    return CliRunner().invoke(main, arguments, prog_name="sluice", catch_exceptions=False).output


def renewed(text: str) -> str:
    """Return the document with the outputs of now."""
    for quote in reversed(quotes(text)):
        start, end = quote.span
        text = text[:start] + printed(quote.command) + text[end:]
    return text


def renew(page: Path) -> None:
    """Write into `page` what its commands print now, run where the files of the page are."""
    text = page.read_text()
    if quotes(text):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(prepared(Path(folder), blocks(page, text))):
            page.write_text(renewed(text))


if __name__ == "__main__":
    for each in pages():
        renew(each)
