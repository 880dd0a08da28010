"""What `sluice plan -o json` answers to the random questions, asked through the entry point of the command."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import yaml
from click.testing import CliRunner
from golden_files import without
from golden_problems import Question

NAME = "plans"
WALL_TIMES = frozenset({"solve_s"})

Answer = dict[str, Any]


def command(name: str) -> click.Command:
    """Return a command of `sluice`, wherever its module is."""
    (entry,) = metadata.entry_points(group="sluice.commands", name=name)
    found = entry.load()
    assert isinstance(found, click.Command)
    return found


def answer(question: Question) -> Answer:
    """Return the exit status and the document, or what was said instead of it."""
    with tempfile.TemporaryDirectory() as folder:
        manifests = Path(folder) / "manifests.yaml"
        manifests.write_text(yaml.safe_dump_all(question.documents, sort_keys=False))
        options = list(question.options)
        if question.before:
            others = [option for option in options if not option.startswith("--demand")]
            current = Path(folder) / "current.json"
            current.write_text(_output([str(manifests), *question.before, *others])[1])
            options.append(f"--current={current}")
        status, output = _output([str(manifests), *options])
    try:
        document = json.loads(output)
    except json.JSONDecodeError:
        return {"status": status, "said": output}
    return {"status": status, "document": without(document, WALL_TIMES)}


def compared(expected: dict[str, Answer], actual: dict[str, Answer]) -> Iterator[tuple[str, str, float, float]]:
    """Yield for each plan that both have: name, what became of feasibility, cost (%), least served share (points)."""
    for name, was, now in _plans(expected, actual):
        feasible = "same" if was["feasible"] == now["feasible"] else f"{was['feasible']} -> {now['feasible']}"
        cost = 100 * (now["cost_per_hour"] / was["cost_per_hour"] - 1) if was["cost_per_hour"] else 0.0
        if not was["cost_per_hour"] and now["cost_per_hour"]:
            cost = float("inf")
        before = {(each["namespace"], each["name"]): each["served_fraction"] for each in was["pipelines"]}
        served = min(
            (100 * (each["served_fraction"] - before[each["namespace"], each["name"]]) for each in now["pipelines"]),
            default=0.0,
        )
        yield name, feasible, cost, served


def _plans(expected: dict[str, Answer], actual: dict[str, Answer]) -> Iterator[tuple[str, Answer, Answer]]:
    for name in sorted(expected.keys() & actual.keys()):
        was, now = expected[name].get("document"), actual[name].get("document")
        if was is not None and now is not None:
            yield from _plans_in(name, was, now)


def _plans_in(name: str, was: Any, now: Any) -> Iterable[tuple[str, Answer, Answer]]:
    """The plan of a document, or each of those that a frontier or a range has."""
    if "pipelines" in was and "pipelines" in now:
        yield name, was, now


def _output(arguments: list[str]) -> tuple[int, str]:
    result = CliRunner().invoke(command("plan"), [*arguments, "--output=json"], catch_exceptions=False)
    return result.exit_code, result.output
