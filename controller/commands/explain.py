"""`sluice explain`: the last decision about a pipeline and its reasons, from the status or from records."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.commands.connections import (
    NAMESPACE_HELP,
    duration_option,
    errors_about,
    kubeconfig_option,
    pipeline_key,
)
from controller.commands.help_page import examples
from controller.commands.watching import versions
from optimizer.model import PlacementKey

if TYPE_CHECKING:
    from controller.core.messages.history import History
    from controller.kube.gateway import Gateway

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ends."""


@click.command(
    epilog=examples(
        "sluice explain speech/captions",
        "sluice explain speech/captions --changes --since 1h",
        "sluice explain speech/captions --from-record operator.log",
    )
)
@click.argument("pipeline", required=False)
@click.option("-n", "--namespace", metavar="NAMESPACE", help=NAMESPACE_HELP)
@kubeconfig_option
@click.option(
    "--from-record",
    "record",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    metavar="FILE",
    help="Repeat the decisions recorded in FILE (the operator's log as JSON lines, or one record; - is standard input) "
    "and compare them with the record. With PIPELINE, explain those about it. Needs no cluster.",
)
@click.option(
    "--without",
    metavar="NAME",
    help="With --from-record and PIPELINE: also what would be decided without the mechanism NAME, such as "
    "'threshold rule'. The explanation names those with bounds in force.",
)
@click.option("--changes", is_flag=True, help="Show what happened instead: one line per change and cause.")
@duration_option("--since", "period_s", "Show the changes in this time, such as 1h, as well.")
@click.option("--watch", is_flag=True, help="Print again after each change, until Ctrl-C or the pipeline is deleted.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json also has what was learned about each placement, for `sluice plan --learned`.",
)
def explain(
    pipeline: str | None,
    namespace: str | None,
    kubeconfig: Path | None,
    record: Path | None,
    without: str | None,
    changes: bool,
    period_s: float | None,
    watch: bool,
    output: str,
) -> None:
    """Explain the last decision about PIPELINE: what, why, why not more, why not now, and what would change it.

    Changes are from Events, which the API server keeps for 1 h by default, or with --from-record from the records,
    back from the last one.
    """
    key = None if pipeline is None else pipeline_key(pipeline, namespace)
    _check_without(without, record, key)
    if watch and (output == "json" or record is not None):
        raise click.UsageError("--watch: not available with -o json and --from-record")
    if record is not None:
        if output == "json":
            raise click.UsageError("-o json: needs a pipeline of a cluster; not available with --from-record")
        _explain_records(record, key, without, changes=changes, period_s=period_s)
        return
    if key is None:
        raise click.UsageError("PIPELINE: is missing; name a pipeline, or use --from-record FILE")
    from controller.kube.gateway import PIPELINES, Gateway

    where, _, name = key.partition("/")
    with errors_about(key), Gateway(kubeconfig) as gateway:
        view = _View(gateway=gateway, key=key, changes=changes, period_s=period_s)
        if watch:
            _follow(view, versions(gateway, PIPELINES, where, name))
            return
        _print_once(view, gateway.get(PIPELINES, where, name), output)


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What of a pipeline is shown: the explanation unless `changes`, and with a period the changes in it as well."""

    gateway: "Gateway"
    key: str
    changes: bool
    period_s: float | None

    def history(self, resource: dict[str, Any]) -> "History | None":
        """Return what happened to the pipeline, None where that is not shown."""
        from controller.commands.history import history_in_cluster

        if not self.changes and self.period_s is None:
            return None
        return history_in_cluster(self.gateway, resource, self.period_s)

    def shown(self, resource: dict[str, Any]) -> "tuple[list[str], object] | None":
        """Return the lines to show, and what is new in them if it changes: all but the times of the reading.

        None where there is no decision to explain.
        """
        from controller.core.messages.history import history_lines

        explanation = [f"{self.key}:"] if self.changes else rendered(resource, datetime.now(UTC))
        if explanation is None:
            return None
        history, summary = self.history(resource), (resource.get("status") or {}).get("summary") or {}
        news = explanation[1:], summary.get("health"), summary.get("replicas"), history and history.events
        return [*explanation, *([] if history is None else history_lines(history))], news


def _print_once(view: _View, resource: dict[str, Any], output: str) -> None:
    from controller.commands.terminal import show

    if output == "json":
        explanation = rendered(resource, datetime.now(UTC))
        if explanation is None and not view.changes:
            raise _no_decision(view.key)
        answer = document(resource, explanation or [])
        if (history := view.history(resource)) is not None:
            from controller.commands.history import history_document

            answer["changes"] = history_document(history)
        click.echo(json.dumps(answer, indent=2))
        return
    shown = view.shown(resource)
    if shown is None:
        raise _no_decision(view.key)
    show(shown[0])


def _follow(view: _View, resources: Iterator[dict[str, Any]]) -> None:
    """Show the pipeline again whenever what is shown changes, until it is deleted, or interrupted (exit status 130)."""
    from controller.commands.terminal import COLUMNS, show

    before: object = None
    redraws = sys.stdout.isatty()
    try:
        for resource in resources:
            lines, now = view.shown(resource) or ([f"{view.key}: no decision yet; waiting for the operator"], "none")
            if now == before:
                continue
            if redraws:
                click.clear()
            elif before is not None:
                click.echo("-" * COLUMNS)
            show(lines)
            before = now
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    click.echo(f"{view.key}: deleted")


def _check_without(without: str | None, record: Path | None, key: str | None) -> None:
    """Raise a usage error unless `without` is None, or the name of a mechanism and there is what it needs."""
    if without is None:
        return
    from controller.core.bounds.mechanisms import MECHANISMS

    names = [mechanism.name for mechanism in MECHANISMS]
    if without not in names:
        raise click.UsageError(f"--without: {without!r}: must be one of: {'; '.join(names)}")
    if record is None or key is None:
        raise click.UsageError("--without: needs --from-record and PIPELINE: a plan is made again from a record")


def _explain_records(
    record: Path, key: str | None, without: str | None, *, changes: bool, period_s: float | None
) -> None:
    from controller.commands.from_record import print_from_record

    if not changes and period_s is None:
        print_from_record(record, key, without)
        return
    if key is None:
        raise click.UsageError("PIPELINE: is missing; --changes and --since are about one pipeline")
    from controller.commands.history import history_in_records
    from controller.commands.terminal import show
    from controller.core.messages.history import history_lines

    if str(record) == "-" and not changes:
        raise click.UsageError("--since: not available with --from-record - (the records are read twice); use a file")
    if not changes:
        print_from_record(record, key)
    show([f"{key}:", *history_lines(history_in_records(record, key, period_s))])


def _no_decision(key: str) -> click.ClickException:
    return click.ClickException(f"{key} has no decision yet; check that the operator is running")


def rendered(resource: dict[str, Any], now: datetime) -> list[str] | None:
    """Return the explanation in the status of a SpeechPipeline as lines, the first with its age at `now`.

    For a pipeline that cannot be used, return the problem instead. None where there is no decision yet.
    """
    from controller.core.messages.reasons import ConditionReason

    metadata, status = resource["metadata"], resource.get("status") or {}
    key = f"{metadata['namespace']}/{metadata['name']}"
    unusable = [
        condition
        for condition in status.get("conditions", [])
        if condition["reason"] in {ConditionReason.INVALID_SPEC.value, ConditionReason.INTERNAL_ERROR.value}
    ]
    if unusable:
        head = f"{key}: {unusable[0]['reason']}; replicas left unchanged:"
        return [head, *(f"  {condition['message']}" for condition in unusable)]
    explanation = (status.get("memory") or {}).get("explanation")
    if explanation is None:
        return None
    age_s = max(0.0, (now - datetime.fromisoformat(explanation["time"])).total_seconds())
    lines = [f"{key}: {status['summary']['health']}, as of {explanation['time']} ({age_s:.0f} s ago)"]
    if status.get("observedGeneration") != metadata["generation"]:
        lines.append("The spec has changed since then; the operator has not processed the change yet.")
    return [*lines, *explanation["lines"]]


def document(resource: dict[str, Any], explanation: list[str]) -> dict[str, Any]:
    """Return the JSON of `sluice explain -o json` for a SpeechPipeline: `explanation` and what was learned.

    A placement's `learned` is null where nothing is known, and everywhere until the operator has processed the present
    spec: what it has learned is relative to the spec that it has seen.
    """
    from controller.core.state.learned import LearnedPlacement, learned_placements, stages_document
    from controller.kube.durable import memory_from
    from controller.resources.parsing import InvalidResource, parse
    from controller.resources.pipeline import SpeechPipeline
    from controller.resources.translate import pipeline_spec
    from optimizer.model import InvalidProblem

    metadata, status = resource["metadata"], resource.get("status") or {}
    head = {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "health": (status.get("summary") or {}).get("health"),
        "explanation": explanation,
    }
    try:
        spec = pipeline_spec(parse(SpeechPipeline, {key: part for key, part in resource.items() if key != "status"}))
    except (InvalidResource, InvalidProblem):
        return {**head, "stages": []}
    learned: dict[PlacementKey, LearnedPlacement] = {}
    if status.get("observedGeneration") == metadata["generation"]:
        recalled = memory_from(status.get("memory"))
        learned = {} if recalled.lost else learned_placements(spec, recalled.memory.learned)
    return {**head, "stages": stages_document(spec, learned)}
