"""`sluice explain`: the last decision about a pipeline and its reasons, from the status or from records."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("pipeline", required=False)
@click.option("-n", "--namespace", help="Namespace of the pipeline (default: default). NAMESPACE/PIPELINE is the same.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="File with credentials. Default: that of kubectl.")
@click.option(
    "--from-record",
    "record",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    metavar="FILE",
    help="Repeat the decisions recorded in FILE (the operator's log as JSON lines, or one record; - is standard input) "
    "and compare them with the record. With PIPELINE, explain those about it. Needs no cluster.",
)
def explain(pipeline: str | None, namespace: str | None, kubeconfig: Path | None, record: Path | None) -> None:
    """Explain the last decision about PIPELINE: what, why, why not more, why not now, and what would change it."""
    if record is not None:
        from controller.commands.from_record import print_from_record

        print_from_record(record, None if pipeline is None else _key(pipeline, namespace))
        return
    if pipeline is None:
        raise click.UsageError("PIPELINE: is missing; name a pipeline, or use --from-record FILE")
    from controller.kube.gateway import PIPELINES, ConfigurationError, Gateway, KubeError, NotFound

    where, _, name = _key(pipeline, namespace).partition("/")
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
    click.echo("\n".join(answer))


def _key(pipeline: str, namespace: str | None) -> str:
    """Return NAMESPACE/PIPELINE; `pipeline` may have its namespace in front. The default is `default`."""
    place, _, name = pipeline.rpartition("/")
    if place and namespace and place != namespace:
        raise click.UsageError(f"PIPELINE: {pipeline!r}: is not in namespace {namespace!r} of --namespace")
    return f"{place or namespace or 'default'}/{name}"


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
