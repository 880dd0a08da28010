import re

import pytest

from controller.commands.terminal import Page


def test_elsewhere_than_on_a_terminal_lines_are_whole_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page()
    page.say("word " * 60, indent=1, style="bold red")
    page.table(("name", ">count"), [("[a]", "1"), ("b", "1,000")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["  " + ("word " * 60).rstrip(), "name  count", "[a]       1", "b     1,000"]


def test_a_terminal_wraps_between_words_and_indents_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "20"}.items():
        monkeypatch.setenv(name, value)
    Page().say("one-two three four five six", indent=1)
    assert capsys.readouterr().out.splitlines() == ["  one-two three four", "      five six"]


def test_where_a_table_is_too_wide_for_whole_names_each_row_is_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    rows = [("speech-recognizer-with-long-name", "12", "inferentia × 3"), ("vad", "1", "cpu × 1")]
    Page().table(("stage", ">items/s", "replicas"), rows)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert lines[:3] == ["stage speech-recognizer-with-long-name", "  items/s: 12", "  replicas: inferentia × 3"]
    assert "…" not in "".join(lines)
