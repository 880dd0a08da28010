"""The fenced blocks of README.md and docs/: which of them are commands, manifests and parts of manifests.

The title of a block says what it is (```yaml title="…"):

* `not run here: REASON`: no test runs it. Its commands, options and targets must exist all the same.
* `on a cluster`: `tests/install/test_quick_start.py` runs it, where containers can be run.
* a file name: the block is the content of that file, for the commands further down on the page.
* `in spec.stages[]` or another path of a SpeechPipeline: a part of one, at this path.

A block without a title is run: `sluice` commands exit with 0, and manifests are valid. After a line `$ sluice …` in a
`console` block comes exactly what the command prints. Blocks in `text` are no commands; those in `python`, `go` and
`nginx` have tests of their own.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corpus import ROOT

_FENCE = re.compile(r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?$')
_FILE = re.compile(r"[\w.-]+\.(yaml|csv)")
LANGUAGES = {"sh", "console", "yaml", "csv", "promql", "text", "toml", "python", "go", "nginx", ""}
LINKED = ("crds", "simulations", "tests")
"""Folders of the repository that the commands of a page may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: its place (`line` counts from 1), language, title ("" for none) and text."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Return whether the tests of the documents run or validate the block."""
        return not self.title.startswith("not run here: ") and not self.on_a_cluster

    @property
    def on_a_cluster(self) -> bool:
        """Return whether the block is run with containers, on a cluster without Sluice."""
        return self.title == "on a cluster"

    @property
    def file(self) -> str | None:
        """Return the name of the file whose content the block is, if it is one."""
        return self.title if _FILE.fullmatch(self.title) else None

    @property
    def place(self) -> str | None:
        """Return the path at which the block is a part of a SpeechPipeline, if it is one."""
        return self.title.removeprefix("in ") if self.title.startswith("in ") else None

    def commands(self) -> Iterator[str]:
        """Yield the commands of the block, without prompts and comments."""
        joined = self.text.replace("\\\n", " ")
        for line in joined.splitlines():
            if self.language == "console" and not line.startswith("$ "):
                continue
            command = line.removeprefix("$ ").split("  #")[0].strip()
            if command and not command.startswith("#"):
                yield command


def pages() -> list[Path]:
    """Return the README and all pages of the site."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, text: str) -> list[Block]:
    """Return the fenced blocks of a page.

    Raises:
        ValueError: a fence is not understood, or is not closed.
    """
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is not None and line == "```":
            begin, language, title = opened
            body = "".join(f"{each}\n" for each in inside)
            found.append(Block(page=page, line=begin, language=language, title=title, text=body))
            opened = None
        elif opened is not None:
            inside.append(line)
        elif line.lstrip().startswith("```"):
            fence = _FENCE.match(line)
            if fence is None or fence["language"] not in LANGUAGES:
                raise ValueError(f"{page}:{number}: {line}: not a fence of the form ```LANGUAGE title")
            opened, inside = (number, fence["language"], fence["title"] or ""), []
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: the block is not closed")
    return found


def prepared(folder: Path, of: list[Block]) -> Path:
    """Return `folder` with the files of a page, and with links to the folders that its commands may name."""
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for block in of:
        if block.file is not None:
            (folder / block.file).write_text(block.text)
    return folder


def words(command: str) -> list[str]:
    """Return the words of a command."""
    return shlex.split(command)
