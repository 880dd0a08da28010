"""docs/planning.md quotes every way to ask. That the outputs are those of now is tested with all documents."""

from pathlib import Path

import pytest
from corpus import ROOT
from quoted_output import quotes, renewed

DOCUMENT = ROOT / "docs" / "planning.md"
TEXT = DOCUMENT.read_text()


def test_the_document_quotes_every_way_to_ask() -> None:
    commands = [quote.command for quote in quotes(TEXT)]
    assert TEXT.count("$ sluice") == len(commands)
    for option in ("--demand", "--frontier", ":"):
        assert any(option in command for command in commands), option


def test_the_part_about_what_cannot_be_done_shows_something_that_cannot() -> None:
    part = TEXT.split("## When it cannot be done")[1].split("\n## ")[0]
    (quote,) = quotes(part)
    for words in (
        "the SLA cannot be met for the whole load",
        "can be served within",
        "no budget is enough",
        "best latency",
    ):
        assert words in quote.output, words


def test_a_stale_quote_is_noticed_and_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stale = "a\n```console\n$ sluice plan --demand a/b=1\nold\n```\nb\n"
    fresh = renewed(stale)
    assert "old" not in fresh
    assert "Missing argument 'FILE...'" in fresh
    assert renewed(fresh) == fresh
