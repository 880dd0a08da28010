"""The options of commands that read a cluster and its Prometheus, and the connections that they name."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from controller.resources.fields import DURATION_PATTERN, PATTERN_RULES, duration_s
from controller.settings import InvalidSettings, OperatorSettings, load_settings
from profiler.samples import DEFAULT_LABELS, SeriesLabels
from profiler.sources.access import Access

Command = TypeVar("Command", bound=Callable[..., Any])

NAMESPACE_HELP = "Namespace of the pipeline (default: default). NAMESPACE/PIPELINE is the same."
DEADLINE_S = 30.0
"""Time limit of one round of queries to Prometheus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A Prometheus, or a back end with the same query API: its URL and how to authenticate to it.

    `labels` are those of the series of pods in it; `presets` is the folder with the users' presets, if there is one.
    """

    url: str
    access: Access
    labels: SeriesLabels = DEFAULT_LABELS
    presets: Path | None = None


@contextmanager
def errors_about(key: str) -> Iterator[None]:
    """Turn the errors of the Kubernetes client about the pipeline `key` into those of a command."""
    from controller.kube.gateway import ConfigurationError, KubeError, NotFound

    namespace, _, name = key.partition("/")
    try:
        yield
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except NotFound:
        raise click.ClickException(f"SpeechPipeline {name!r} does not exist in namespace {namespace!r}") from None
    except KubeError as error:
        raise click.ClickException(str(error)) from None


def setting_options(names: Iterable[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds the flags of these settings of the operator, in this order."""

    def flagged(command: Command) -> Command:
        for name in reversed(tuple(names)):
            field, flag = OperatorSettings.model_fields[name], f"--{name.replace('_', '-')}"
            if bool in {field.annotation, *get_args(field.annotation)}:
                add = click.option(f"{flag}/--no-{flag[2:]}", default=None, help=field.description)
            else:
                kind = click.Path(path_type=Path) if Path in get_args(field.annotation) else None
                add = click.option(flag, type=kind, metavar=_value_name(name), help=field.description)
            command = add(command)
        return command

    return flagged


def duration_option(
    flag: str, name: str, description: str, *, longest: str | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that adds the option `flag` with a duration such as `1h`, which the command gets in seconds.

    It is longer than 0s, and at most `longest` (None: no limit).
    """

    def seconds(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        if re.fullmatch(DURATION_PATTERN, text) is None:
            raise click.BadParameter(f"{text!r}: {PATTERN_RULES[DURATION_PATTERN]}", param=option)
        found = duration_s(text)
        if found <= 0 or (longest is not None and found > duration_s(longest)):
            most = "" if longest is None else f" and at most {longest}"
            raise click.BadParameter(f"{text!r}: must be longer than 0s{most}", param=option)
        return found

    return click.option(flag, name, metavar="TIME", callback=seconds, help=description)


def kubeconfig_option(command: Command) -> Command:
    """Return `command` with the option --kubeconfig."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with credentials. Default: that of kubectl.",
    )(command)


def pipeline_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the argument PIPELINE and the option --namespace, of which it gets `key`.

    The key is NAMESPACE/NAME.
    """

    @click.argument("pipeline")
    @click.option("-n", "--namespace", metavar="NAMESPACE", help=NAMESPACE_HELP)
    @wraps(command)
    def named(pipeline: str, namespace: str | None, **options: object) -> None:
        command(key=pipeline_key(pipeline, namespace), **options)

    return named


def pipeline_key(pipeline: str, namespace: str | None) -> str:
    """Return NAMESPACE/NAME for `pipeline`, which may have its namespace in front. The default is `default`.

    Raises:
        click.UsageError: `pipeline` has another namespace in front.
    """
    place, _, name = pipeline.rpartition("/")
    if place and namespace and place != namespace:
        raise click.UsageError(f"PIPELINE: {pipeline!r}: is not in namespace {namespace!r} of --namespace")
    return f"{place or namespace or 'default'}/{name}"


_VALUE_NAMES = {
    "metrics": "SOURCE,...",
    "prometheus_headers": "NAME=VALUE,...",
    "match_labels": "LABEL=VALUE,...",
    "scrape_endpoints": "URL,...",
    "max_priority": "N,NAMESPACE=N,...",
    "kubeconfig": "FILE",
    "interval": "TIME",
    "scrape_interval": "TIME",
    "decision_time": "TIME",
    "lease_duration": "TIME",
    "aws_role": "ARN",
    "cloudwatch_dimensions": "NAME,NAME",
    "fleet_budget": "USD",
    "ray_hosts": "HOST:PORT,...",
    "composition": "rss|sum",
    "namespaces": "NAME,...",
    "keda_address": "ADDRESS:PORT",
    "log_format": "text|json",
}


def _value_name(name: str) -> str:
    """Return what the help calls the value of a setting: the end of the setting's name, unless it has a better one."""
    last = name.rpartition("_")[2]
    return _VALUE_NAMES.get(name) or {"directory": "FOLDER", "username": "NAME"}.get(last, last.upper())


def account_option(description: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --service-account, the operator's ServiceAccount; `description` is its help."""
    return click.option(
        "--service-account",
        metavar="NAMESPACE/NAME",
        default="sluice-system/sluice",
        show_default=True,
        callback=_account,
        help=description,
    )


def _account(_: click.Context, option: click.Parameter, text: str) -> str:
    parts = text.split("/")
    if len(parts) != 2 or not all(parts):
        raise click.BadParameter(f"{text!r}: must be NAMESPACE/NAME.", param=option)
    return text


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the options for credentials and Prometheus, which it gets as `kubeconfig` and `prometheus`.

    The options for Prometheus are those of the operator, with the same environment variables. Without its URL,
    `prometheus` is None.
    """
    names = [name for name in OperatorSettings.model_fields if name.startswith("prometheus_")]
    names += ["presets_directory", "namespace_label", "pod_label", "match_labels"]

    @kubeconfig_option
    @setting_options(names)
    @wraps(command)
    def connected(**options: object) -> None:
        flags = {name: options.pop(name) for name in names}
        try:
            # With another source than Prometheus, its URL is not required.
            settings = load_settings({**flags, "metrics": "direct"})
        except InvalidSettings as error:
            raise click.UsageError(str(error)) from None
        if (url := settings.prometheus_url) is None:
            command(prometheus=None, **options)
            return
        prometheus = Prometheus(
            url=url,
            access=settings.prometheus_access,
            labels=settings.series_labels,
            presets=settings.presets_directory,
        )
        command(prometheus=prometheus, **options)

    return connected
