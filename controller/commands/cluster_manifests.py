"""The SpeechPipelines and ComputePools of a cluster as a manifest file, for commands that read files."""

from pathlib import Path

import click
import yaml


def write_manifests(kubeconfig: Path | None, path: Path) -> None:
    """Write all SpeechPipelines and ComputePools of the cluster, as they were applied, to the file `path`.

    Raises:
        click.ClickException: they cannot be read, or there is no SpeechPipeline.
    """
    from controller.adoption.inventory import Unread
    from controller.kube.gateway import PIPELINES, POOLS, ConfigurationError, Gateway
    from controller.kube.survey import Survey

    documents = []
    try:
        with Gateway(kubeconfig) as gateway:
            survey = Survey(gateway)
            if problem := survey.problem():
                raise click.ClickException(problem)
            for kind in (POOLS, PIPELINES):
                found = survey.all_of(kind)
                if isinstance(found, Unread):
                    raise click.ClickException(found.reason)
                documents += [
                    {
                        "apiVersion": each["apiVersion"],
                        "kind": each["kind"],
                        "metadata": {
                            name: value for name, value in each["metadata"].items() if name in {"name", "namespace"}
                        },
                        "spec": each["spec"],
                    }
                    for each in found
                ]
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    if not any(each["kind"] == "SpeechPipeline" for each in documents):
        raise click.ClickException("there is no SpeechPipeline in the cluster")
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False))
