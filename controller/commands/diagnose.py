"""`sluice diagnose`: why the SLA of a pipeline is missed, from its status or from a record."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from controller.commands.connections import NAMESPACE_HELP, errors_about, kubeconfig_option, pipeline_key
from controller.commands.help_page import examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The diagnosis of a pipeline: `head` says of when it is, `causes` are those of `status.diagnosis`."""

    key: str
    head: str
    causes: Sequence[Mapping[str, Any]]

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"pipeline": self.key, "causes": [_document(each) for each in self.causes]}

    def lines(self) -> list[str]:
        """Return it as text."""
        if not self.causes:
            return [f"{self.key}: {self.head}", "  no cause found"]
        from controller.core.messages.diagnosis import cost_words

        lines = [f"{self.key}: {self.head}"]
        for each in self.causes:
            where = f" at {each['stage']}" if each.get("stage") else ""
            form = f" ({each['because']})" if each.get("because") else ""
            lines.append(f"  {each['cause']}{where}{form}, {float(each['confidence']):.0%} certain")
            lines += [f"    {words}" for words in each.get("evidence", [])]
            lines.append(f"    would help: {each['remedy']}{cost_words(_cost(each))}")
        return lines


@click.command(
    short_help="Why a pipeline misses its SLA, and what would help",
    epilog=examples(
        "sluice diagnose speech/captions",
        "sluice diagnose speech/captions -o json",
        "sluice diagnose speech/captions --from-record operator.log",
    ),
)
@click.argument("pipeline")
@click.option("-n", "--namespace", metavar="NAMESPACE", help=NAMESPACE_HELP)
@kubeconfig_option
@click.option(
    "--from-record",
    "record",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    metavar="FILE",
    help="Diagnose the last decision recorded in FILE (the operator's log as JSON lines; - is standard input). Needs "
    "no cluster.",
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer."
)
def diagnose(pipeline: str, namespace: str | None, kubeconfig: Path | None, record: Path | None, output: str) -> None:
    """Say why PIPELINE misses its SLA: each cause with its evidence, how certain it is, what would help and its cost.

    Nothing is said of a pipeline that is well. The same causes are in status.diagnosis and the condition Diagnosis.
    """
    key = pipeline_key(pipeline, namespace)
    answer = _of_cluster(key, kubeconfig) if record is None else _of_record(key, record)
    if output == "json":
        click.echo(json.dumps(answer.document(), indent=2))
        return
    from controller.commands.terminal import show

    show(answer.lines())


def _document(cause: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cause": cause["cause"],
        "because": cause.get("because"),
        "stage": cause.get("stage"),
        "confidence": float(cause["confidence"]),
        "evidence": list(cause.get("evidence", [])),
        "remedy": cause["remedy"],
        "cost_per_hour": _cost(cause),
    }


def _cost(cause: Mapping[str, Any]) -> float | None:
    cost = cause.get("costPerHour")
    return None if cost is None else float(cost)


def _of_cluster(key: str, kubeconfig: Path | None) -> Answer:
    from controller.kube.gateway import PIPELINES, Gateway

    namespace, _, name = key.partition("/")
    with errors_about(key), Gateway(kubeconfig) as gateway:
        resource = gateway.get(PIPELINES, namespace, name)
    status = resource.get("status") or {}
    explanation = (status.get("memory") or {}).get("explanation")
    if explanation is None:
        raise click.ClickException(f"{key} has no decision yet; check that the operator is running")
    age_s = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(explanation["time"])).total_seconds())
    head = f"{status['summary']['health']}, as of {explanation['time']} ({age_s:.0f} s ago)"
    return Answer(key=key, head=head, causes=status.get("diagnosis") or ())


def _of_record(key: str, path: Path) -> Answer:
    from controller.commands.from_record import records
    from controller.core.codec import InvalidRecord
    from controller.core.cycle import decide
    from controller.core.messages.phrases import timestamp
    from controller.core.messages.summary import health
    from controller.core.record import recorded_inputs
    from controller.kube.status import causes

    found: Answer | None = None
    for number, record in records(path):
        try:
            decision = decide(*recorded_inputs(record))
        except InvalidRecord as error:
            raise click.ClickException(f"{path}:{number}: {error}") from None
        for own in decision.pipelines:
            if own.key == key:
                head = f"{health(own).value}, as of {timestamp(decision.now_s)}"
                found = Answer(key=key, head=head, causes=causes(own))
    if found is None:
        raise click.ClickException(f"{path}: has no decision record about {key}")
    return found
