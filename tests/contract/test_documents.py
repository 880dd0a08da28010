"""What the documents show works: every command and manifest that is not marked `not run here`."""

import copy
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from corpus import CONTRACT, ROOT, parse_path
from document_blocks import Block, blocks, pages, prepared, words
from program_tables import commands, exported, leaves
from quoted_output import quotes
from reasons_document import listed_reasons

from controller.__main__ import main
from controller.core.state.decision import ChangeReason, HoldReason
from controller.resources.manifests import load_documents
from controller.resources.parsing import inspect_strictly
from controller.resources.pipeline import SpeechPipeline
from controller.resources.validation import validate_files
from simulations.policies.catalogue import POLICIES
from simulations.scenario.scenario import load_scenario

PAGES = {page: blocks(page, page.read_text()) for page in pages()}
BLOCKS = [block for of in PAGES.values() for block in of]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_OTHERS = {"sluice_ingress_active_streams", "sluice_ingress_latency_seconds", "sluice_ingress_requests_total"}
_SHELLS = {"sh", "console"}
LEAVES = {name: leaf for top, command in commands().items() for name, leaf in leaves(command, top)}
_PROGRAMS = {"sluice", "kubectl", "make", "promtool", "helm", "curl"}


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and block.runs]


def runs(page: Path) -> bool:
    return any(block.language in _SHELLS and block.runs for block in PAGES[page])


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared(tmp_path, PAGES[page]))
    for block in PAGES[page]:
        if block.language not in _SHELLS or not block.runs:
            continue
        quoted = {quote.command: quote.output for quote in quotes(f"```console\n{block.text}```\n")}
        for command in block.commands():
            program, *arguments = words(command)
            assert program == "sluice", f"{block}: {command}: cannot run here; mark it"
            result = CliRunner().invoke(main, arguments, prog_name="sluice", catch_exceptions=False)
            if block.language == "console":
                assert result.output == quoted[command], f"{block}: make docs-renew"
            else:
                assert result.exit_code == 0, f"{block}: {command}: {result.output}"


@pytest.mark.parametrize("block", [block for block in of("yaml") if block.place is None], ids=str)
def test_a_manifest_is_valid(block: Block, tmp_path: Path) -> None:
    folder = prepared(tmp_path, PAGES[block.page])
    path = folder / (block.file or "manifest.yaml")
    path.write_text(block.text)
    kinds = [document.data.get("kind") for document in load_documents(path)]
    if kinds == [None]:
        load_scenario(path, policies=POLICIES)
        return
    assert set(kinds) <= {"SpeechPipeline", "ComputePool", "ComputeBudget"}, f"{block}: mark it"
    assert validate_files([path]).findings == ()


@pytest.mark.parametrize("block", [block for block in of("yaml") if block.place is not None], ids=str)
def test_a_part_of_a_manifest_is_valid_at_its_place(block: Block, tmp_path: Path) -> None:
    assert block.place is not None
    pipeline = copy.deepcopy(next(each.data for each in load_documents(CONTRACT[1])))
    part: Any = pipeline
    for key in parse_path(block.place.replace("[]", "[1]")):  # the encoder, which is served by Triton
        part = part[key]
    (tmp_path / "part.yaml").write_text(block.text)
    (fields,) = load_documents(tmp_path / "part.yaml")
    part.update(fields.data)
    _, found = inspect_strictly(SpeechPipeline, pipeline)
    assert found == []


def called(line: str) -> tuple[str, click.Command] | None:
    """Return the command of `sluice` that a line calls, with its name; None for a line that is no command."""
    match = re.match(r"(?:\$ )?sluice ([a-z][a-z-]*)(?: ([a-z]+))?", line)
    if match is None:
        return None
    name = match[1] if match[1] in LEAVES else f"{match[1]} {match[2]}"
    assert name in LEAVES, f"{line}: no such command"
    return name, LEAVES[name]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in _SHELLS | {"text"}], ids=str)
def test_every_command_option_and_target_exists(block: Block) -> None:
    for line in block.text.replace("\\\n", "").splitlines():
        command = re.split(r"\s{3,}", line.strip())[0]  # without the text beside it
        if (found := called(command)) is not None:
            _, leaf = found
            known = {flag for each in leaf.params for flag in (*each.opts, *each.secondary_opts)}
            assert set(re.findall(r"(?<![\w-])--[a-z-]+", command)) <= known, f"{block}: {command}"
        if (match := re.match(r"make ([a-z-]+)", command)) is not None:
            assert match[1] in TARGETS, f"{block}: {command}"


def test_a_wrong_command_is_noticed() -> None:
    assert called("no command") is None
    with pytest.raises(AssertionError, match="no such command"):
        called("sluice plann FILE")


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_that_is_a_command_says_so(block: Block) -> None:
    first = block.text.split(maxsplit=1)[0] if block.text.strip() else ""
    if first in _PROGRAMS | {"$"}:
        assert block.language in _SHELLS | {"text"}, f"{block}: not marked as a command"
    if block.language in _SHELLS and block.runs:
        assert all(words(command)[0] == "sluice" for command in block.commands()), f"{block}: mark it as not run here"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_metric_that_a_page_names_is_exported(page: Path) -> None:
    named = set(re.findall(r"(?<!:)\bsluice_[a-z_]+[a-z]\b", page.read_text()))  # after a colon: a recording rule
    known = exported() | _OTHERS
    assert {name for name in named if name not in known and not name.startswith("sluice_ingress_")} == set()


def test_the_reasons_that_troubleshooting_names_exist() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = re.findall(r"(?:hold|reason|health|condition|with) `([A-Z]\w+)`", page)
    known = {each.reason for each in listed_reasons()} | {each.type for each in listed_reasons()}
    assert len(named) > 10
    assert set(named) <= known | {each.value for each in (*HoldReason, *ChangeReason)}


def test_a_block_is_read_with_its_place_and_its_mark() -> None:
    page = ROOT / "docs" / "x.md"
    text = 'a\n```sh title="not run here: a cluster"\nsluice operator \\\n  --metrics direct  # why\n```\n'
    text += "```text\nb\n```\n"
    first, second = blocks(page, text)
    assert (str(first), first.runs, list(first.commands())) == (
        "docs/x.md:2",
        False,
        ["sluice operator    --metrics direct"],
    )
    assert (second.language, second.runs, second.file) == ("text", True, None)
    with pytest.raises(ValueError, match="not a fence"):
        blocks(page, "```ruby\n```\n")
    with pytest.raises(ValueError, match="not closed"):
        blocks(page, "```sh\n")
