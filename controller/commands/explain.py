"""`sluice explain`: why a pipeline has what it has, as the operator wrote it into the status."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("pipeline", required=False)
@click.option(
    "-n", "--namespace", help="Namespace of the pipeline; default: default. NAMESPACE/PIPELINE says the same."
)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Credentials; default: those of kubectl.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    metavar="FILE",
    help="Make the decisions recorded in FILE again (the operator's log as JSON lines, or one record; - is standard "
    "input) and tell whether they are the same; with PIPELINE, explain those about it. No cluster is asked.",
)
def explain(pipeline: str | None, namespace: str | None, kubeconfig: Path | None, replay: Path | None) -> None:
    """Tell what was decided for PIPELINE, why, why not more, why not now, and what would change it."""
    if replay is not None:
        from controller.commands.from_record import print_replay

        print_replay(replay, None if pipeline is None else _key(pipeline, namespace))
        return
    if pipeline is None:
        raise click.UsageError("PIPELINE: is missing; name one, or give --replay FILE")
    from controller.kube.gateway import PIPELINES, ConfigurationError, Gateway, KubeError, NotFound

    where, _, name = _key(pipeline, namespace).partition("/")
    try:
        with Gateway(kubeconfig) as gateway:
            resource = gateway.get(PIPELINES, where, name)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except NotFound:
        raise click.ClickException(f"there is no pipeline {name} in namespace {where}") from None
    except KubeError as error:
        raise click.ClickException(str(error)) from None
    answer = rendered(resource, datetime.now(UTC))
    if answer is None:
        raise click.ClickException(f"the operator has not decided anything about {where}/{name} yet: does it run?")
    click.echo("\n".join(answer))


def _key(pipeline: str, namespace: str | None) -> str:
    """Return NAMESPACE/PIPELINE."""
    place, _, name = pipeline.rpartition("/")
    if place and namespace and place != namespace:
        raise click.UsageError(f"PIPELINE: {pipeline!r}: is not in namespace {namespace!r}")
    return f"{place or namespace or 'default'}/{name}"


def rendered(resource: dict[str, Any], now: datetime) -> list[str] | None:
    """Return what the status of a SpeechPipeline explains, for a person at `now`; None when it explains nothing."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    key = f"{metadata['namespace']}/{metadata['name']}"
    broken = [
        condition["message"] for condition in status.get("conditions", []) if condition["reason"] == "InvalidSpec"
    ]
    if broken:
        return [f"{key} cannot be used as it is, and its replicas stay as they are:", *(f"  {why}" for why in broken)]
    explanation = (status.get("memory") or {}).get("explanation")
    if explanation is None:
        return None
    age_s = max(0.0, (now - datetime.fromisoformat(explanation["time"])).total_seconds())
    lines = [f"{key}: {status['summary']['health']}, as of {explanation['time']} ({age_s:.0f} s ago)"]
    if status.get("observedGeneration") != metadata["generation"]:
        lines.append("The spec has been changed since: the operator has not looked at the change yet.")
    return [*lines, *explanation["lines"]]
