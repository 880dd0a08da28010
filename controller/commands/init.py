"""`sluice init`: suggests manifests for what runs in a namespace."""

from collections.abc import Hashable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.commands.connections import DEADLINE_S, Prometheus, cluster_options
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from controller.adoption.exports import Exports
    from controller.adoption.suggestion import Findings, Measured


@click.command(
    short_help="Suggest manifests for what runs in a namespace",
    epilog=examples("sluice init -n speech --prometheus-url http://localhost:9090 > speech.yaml"),
)
@click.option("-n", "--namespace", metavar="NAMESPACE", required=True, help="Namespace of the workloads.")
@click.option(
    "-l",
    "--selector",
    metavar="SELECTOR",
    help="Label selector of Deployments, StatefulSets and RayServices; all that it selects become stages. Default: "
    "those whose metrics a preset can read, that request an accelerator, or that an autoscaler scales.",
)
@cluster_options
def init(namespace: str, selector: str | None, kubeconfig: Path | None, prometheus: Prometheus | None) -> None:
    """Suggest ComputePools and SpeechPipelines, in mode Recommend, for what runs in a namespace.

    Prints manifests that `sluice validate` accepts. Every guess has a comment with its evidence. Changes nothing.
    """
    from controller.adoption.suggestion import find_stages, suggestion
    from controller.kube.gateway import NAMESPACES, ConfigurationError, Gateway, KubeError, NotFound
    from controller.kube.survey import Survey, sampled_nodes

    try:
        with Gateway(kubeconfig) as gateway:
            gateway.get(NAMESPACES, None, namespace)
            survey = Survey(gateway)
            inventory = survey.inventory([namespace], selector)
            exports = _exports(prometheus, namespace)
            findings = find_stages(inventory, namespace, exports, all_of_them=selector is not None)
            pods_of_node = survey.pods_of_nodes(sampled_nodes(group.nodes for group in findings.used_groups()))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except NotFound:
        raise click.ClickException(f"namespace {namespace!r} does not exist") from None
    except KubeError as error:
        raise click.ClickException(str(error)) from None
    if not findings.stages:
        raise click.ClickException(_nothing(namespace, selector, findings))
    inventory = replace(inventory, pods_of_node=pods_of_node)
    click.echo(suggestion(inventory, findings, exports, _measured(prometheus, findings, exports)), nl=False)


def _exports(prometheus: Prometheus | None, namespace: str) -> "Exports":
    from controller.adoption.exports import Exports, Questions
    from profiler.sources.presets import load_presets
    from profiler.sources.prometheus_api import PrometheusApi

    if prometheus is None:
        return Exports(problem="Prometheus: --prometheus-url is not set, so stages, metrics and rates are guesses")
    questions = Questions(namespace=namespace, presets=load_presets())
    with closing(PrometheusApi(prometheus.url, prometheus.access)) as api:
        return questions.conclude(api.ask(questions.queries(), DEADLINE_S))


def _measured(prometheus: Prometheus | None, findings: "Findings", exports: "Exports") -> "Measured":
    from controller.adoption.suggestion import Measured, measured_targets, user_queries
    from profiler.sources.base import ReadRequest
    from profiler.sources.prometheus import PrometheusSource

    if prometheus is None or exports.problem:
        return Measured()
    queries = user_queries(findings, exports)
    scalars: dict[Hashable, str] = dict(queries.items())
    request = ReadRequest(placements=measured_targets(findings), scalars=scalars, deadline_s=DEADLINE_S)
    with closing(PrometheusSource(prometheus.url, prometheus.access)) as source:
        answer = source.read(request)
    return Measured(
        quantities={str(stage): samples.readings for (_, stage, _), samples in answer.placements.items()},
        users={metric: answer.scalars[metric] for metric in queries},
    )


def _nothing(namespace: str, selector: str | None, findings: "Findings") -> str:
    if findings.unread and not findings.left_out:
        return f"nothing to suggest for namespace {namespace!r}: {'; '.join(findings.unread)}"
    if selector is not None:
        return f"--selector {selector!r}: selects no Deployment, StatefulSet or RayService in namespace {namespace!r}"
    names = ", ".join(str(each.target) for each in findings.left_out) or "no Deployment, StatefulSet or RayService"
    return (
        f"nothing in namespace {namespace!r} looks like a stage: {names}. A stage exports metrics that a preset can "
        "read, requests an accelerator, or has an autoscaler. Name the stages with --selector"
    )
