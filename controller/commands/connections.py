"""The options of commands that read a cluster and its Prometheus, and the connections that they name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

DEADLINE_S = 30.0
"""Time limit of one round of queries to Prometheus."""


def cluster_options(command: Command) -> Command:
    """Return `command` with the options for credentials and Prometheus."""
    options = (
        click.option(
            "--kubeconfig", type=click.Path(path_type=Path), help="File with credentials. Default: that of kubectl."
        ),
        click.option(
            "--prometheus-url",
            envvar="SLUICE_PROMETHEUS_URL",
            help="URL of Prometheus, such as http://prometheus:9090; also SLUICE_PROMETHEUS_URL.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def checked_url(url: str | None) -> str | None:
    """Return the URL of Prometheus; raise `UsageError` if it is none."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--prometheus-url: {url!r}: must be a URL such as http://prometheus:9090")
    return url
