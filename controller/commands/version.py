"""`sluice version`: the version of this program, and that of its resources here and in the cluster."""

import json
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import click

from controller.commands.connections import kubeconfig_option
from controller.commands.help_page import examples


@click.command(
    short_help="Print the versions of Sluice and of its resources",
    epilog=examples("sluice version --cluster"),
)
@click.option("--cluster", is_flag=True, help="Compare with the CustomResourceDefinitions in the cluster.")
@kubeconfig_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the output.",
)
def version(cluster: bool, kubeconfig: Path | None, output: str) -> None:
    """Print the version of Sluice and of its CustomResourceDefinitions.

    With --cluster, the exit status is 1 if those in the cluster are missing or lack fields of this version.
    """
    from controller.resources.schema import CRDS, GROUP, VERSION

    document: dict[str, Any] = {"version": version_of("sluice-operator"), "api_version": f"{GROUP}/{VERSION}"}
    lines = [f"sluice {document['version']}", f"resources {document['api_version']}"]
    if cluster:
        from controller.adoption.cluster_checks import check_crd
        from controller.kube.gateway import ConfigurationError, Gateway
        from controller.kube.survey import Survey

        try:
            with Gateway(kubeconfig) as gateway:
                survey = Survey(gateway)
                manifests = [crd.manifest() for crd in CRDS]
                names = [manifest["metadata"]["name"] for manifest in manifests]
                checks = [
                    check_crd(name, survey.crd(name), manifest) for name, manifest in zip(names, manifests, strict=True)
                ]
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from None
        document["crds"] = [
            {"name": name, "ok": check.ok, "message": check.message} for name, check in zip(names, checks, strict=True)
        ]
        lines += [f"{check.subject}: {check.message}" for check in checks]
    click.echo(json.dumps(document, indent=2) if output == "json" else "\n".join(lines))
    if cluster and any(check.ok is not True for check in checks):
        raise click.exceptions.Exit(1)
