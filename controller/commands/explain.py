"""`sluice explain`: the last decision about a pipeline and its reasons, from the status or from records."""

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from controller.commands.connections import NAMESPACE_HELP, kubeconfig_option, pipeline_key


@click.command()
@click.argument("pipeline", required=False)
@click.option("-n", "--namespace", help=NAMESPACE_HELP)
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
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json also has what was learned about each placement, for `sluice plan --learned`.",
)
def explain(
    pipeline: str | None, namespace: str | None, kubeconfig: Path | None, record: Path | None, output: str
) -> None:
    """Explain the last decision about PIPELINE: what, why, why not more, why not now, and what would change it."""
    if record is not None:
        if output == "json":
            raise click.UsageError("-o json: needs a pipeline of a cluster; not available with --from-record")
        from controller.commands.from_record import print_from_record

        print_from_record(record, None if pipeline is None else pipeline_key(pipeline, namespace))
        return
    if pipeline is None:
        raise click.UsageError("PIPELINE: is missing; name a pipeline, or use --from-record FILE")
    from controller.kube.gateway import PIPELINES, ConfigurationError, Gateway, KubeError, NotFound

    where, _, name = pipeline_key(pipeline, namespace).partition("/")
    try:
        with Gateway(kubeconfig) as gateway:
            resource = gateway.get(PIPELINES, where, name)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except NotFound:
        raise click.ClickException(f"SpeechPipeline {name!r} does not exist in namespace {where!r}") from None
    except KubeError as error:
        raise click.ClickException(str(error)) from None
    answer = rendered(resource, datetime.now(UTC))
    if answer is None:
        raise click.ClickException(f"{where}/{name} has no decision yet; check that the operator is running")
    click.echo("\n".join(answer) if output == "text" else json.dumps(document(resource, answer), indent=2))


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
    from controller.core.codec import InvalidRecord
    from controller.core.state.learned import LearnedPlacement, learned_placements, stages_document
    from controller.core.state.spec import PlacementKey
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
        with contextlib.suppress(InvalidRecord):  # written by another version
            learned = learned_placements(spec, memory_from(status.get("memory")).learned)
    return {**head, "stages": stages_document(spec, learned)}
