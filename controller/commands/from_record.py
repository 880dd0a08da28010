"""`sluice explain --from-record`: repeats recorded decisions and compares them with the records."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from controller.commands.terminal import show
from controller.core.codec import InvalidRecord, Json
from controller.core.cycle import decide
from controller.core.messages.explain import explain_pipeline, without_bound
from controller.core.messages.phrases import count_of
from controller.core.record import differences, recorded_inputs
from controller.core.state.decision import Decision

_SHOWN = 20
"""At most this many differences of one record are printed."""


def print_from_record(path: Path, pipeline: str | None, without: str | None = None) -> None:
    """Repeat the decisions recorded in the file `path` (`-`: standard input) and print how they compare.

    Prints a line per record, its differences, and, if `pipeline` is given, the explanation of the decision about it,
    and what would be decided about it without the mechanism `without`.

    Raises:
        click.ClickException: the file has no record, an invalid one, or none about `pipeline`.
        SystemExit: with status 1, when a decision differs from its record.
    """
    count = differing = 0
    seen = False
    for number, record in records(path):
        try:
            inputs = recorded_inputs(record)
            decision = decide(*inputs)
        except InvalidRecord as error:
            raise click.ClickException(f"{path}:{number}: {error}") from None
        count += 1
        differs = differences(record, decision)
        differing += bool(differs)
        lines = [f"{_time(decision)}  {_words(decision)}: {'DIFFERS' if differs else 'same decision'}"]
        lines += [f"  {line}" for line in differs[:_SHOWN]]
        if len(differs) > _SHOWN:
            lines.append(f"  and {len(differs) - _SHOWN} more differences")
        for answer in decision.pipelines:
            if answer.key == pipeline:
                seen = True
                lines += [f"  {line}" for line in explain_pipeline(answer, decision.now_s)]
                if without is not None:
                    other = decide(*inputs, without=without)
                    lines += [f"  {line}" for line in without_bound(answer, other, without)]
        show(lines)
    if not count:
        raise click.ClickException(
            f"{path}: has no decision record; the operator writes records with --log-format json"
        )
    if pipeline is not None and not seen:
        raise click.ClickException(f"{path}: no record is about {pipeline}")
    if count > 1:
        click.echo(f"{count} records, {differing} differ")
    if differing:
        raise SystemExit(1)


def records(path: Path) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield (line number, record); lines of a log without a record are skipped."""
    text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8", errors="replace")
    whole = _json(text)
    lines = (
        [(1, whole)] if isinstance(whole, dict) else [(n, _json(line)) for n, line in enumerate(text.splitlines(), 1)]
    )
    for number, line in lines:
        if isinstance(line, dict):
            record = line if "schema" in line else line.get("record")
            if isinstance(record, dict):
                yield number, record


def _json(text: str) -> Json:
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError:
        return None


def _time(decision: Decision) -> str:
    try:
        return datetime.fromtimestamp(decision.now_s, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{decision.now_s:g} s"


def _words(decision: Decision) -> str:
    changes = sum(len(answer.changes) for answer in decision.pipelines)
    pipelines = (
        ", ".join(answer.key for answer in decision.pipelines)
        if len(decision.pipelines) <= 3
        else f"{len(decision.pipelines)} pipelines"
    )
    return f"{pipelines}: {count_of(changes, 'change')}"
