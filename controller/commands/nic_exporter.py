"""`sluice nic-exporter`: serves the receive pressure of a node and of its pods to Prometheus."""

import logging
import threading
from contextlib import ExitStack
from pathlib import Path

import click

from controller.commands.connections import duration_option, kubeconfig_option
from controller.commands.help_page import examples

_LOG = logging.getLogger(__name__)
_DEAD_S = 60.0
"""Time without a sample after which /livez fails, and three intervals at least."""


_MOST_SAMPLES = 600
"""Most samples in a window. Each has all sockets of all pods of the node."""


def _patterns(_: click.Context, option: click.Parameter, found: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in found:
        if not pattern.startswith("/") or not pattern.strip("/") or "**" in pattern:
            raise click.BadParameter(f"{pattern!r}: must be an absolute path, without **", param=option)
    return found


@click.command(
    "nic-exporter",
    short_help="Export a node's network receive pressure",
    epilog=examples("sluice nic-exporter --port 9111", "sluice nic-exporter --node ip-10-0-1-7.ec2.internal"),
)
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=9111, show_default=True, help="Port of /metrics."
)
@click.option(
    "--listen-address",
    metavar="ADDRESS",
    help="Address to listen on. Default: every one.",
)
@click.option(
    "--node",
    metavar="NAME",
    envvar="SLUICE_NODE_NAME",
    help="Name of this node, to name its pods by the API server. Default: $SLUICE_NODE_NAME; without it no pods.",
)
@duration_option("--interval", "interval_s", "Time between two samples. Default: 1s.", longest="1m")
@duration_option("--window", "window_s", "Time over which gauges are taken. Default: 15s.", longest="1h")
@click.option(
    "--dpdk-telemetry",
    "dpdk",
    multiple=True,
    metavar="FILE",
    callback=_patterns,
    help="Telemetry socket of a DPDK application, or a pattern: /var/run/dpdk/*/dpdk_telemetry.v2. May be repeated.",
)
@click.option(
    "--proc",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/proc",
    show_default=True,
    help="The node's /proc.",
)
@click.option(
    "--sys",
    "sys_",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/sys",
    show_default=True,
    help="The node's /sys.",
)
@kubeconfig_option
def nic_exporter(
    *,
    port: int,
    listen_address: str | None,
    node: str | None,
    interval_s: float | None,
    window_s: float | None,
    dpdk: tuple[str, ...],
    proc: Path,
    sys_: Path,
    kubeconfig: Path | None,
) -> None:
    """Export the receive pressure of this node's network cards, and of its pods.

    It runs on each node in the node's network namespace, as the chart's DaemonSet does, and reads what the kernel and
    the drivers have. Values that they lack have no series; speech_nic_unsupported names them.
    """
    from controller.health import Health, HealthServer, every_address
    from controller.kube.gateway import ConfigurationError, Gateway
    from controller.kube.node_pods import NodePods
    from controller.logs import set_up_logging
    from profiler.nic.node_reader import NodeReader, no_names
    from profiler.nic.sampler import INTERVAL_S, WINDOW_S, Sampler

    interval_s, window_s = interval_s or INTERVAL_S, window_s or WINDOW_S
    if window_s > _MOST_SAMPLES * interval_s:
        raise click.UsageError(f"--window: must be at most {_MOST_SAMPLES} times --interval")
    address = listen_address or every_address()
    dead_s = max(_DEAD_S, 3 * interval_s)
    set_up_logging("text")
    health = Health()
    reader = NodeReader(proc=proc, sys=sys_, dpdk=dpdk)
    reported: set[str] = set()

    def sampled() -> None:
        health.beat("sampler", dead_s)
        health.ready()
        for problem in reader.problems:
            if problem not in reported and len(reported) < 1000:
                reported.add(problem)
                _LOG.warning("%s", problem)

    with ExitStack() as parts:
        if node is None:
            reader.pod_names = no_names
            _LOG.warning("no --node: the pods of this node are not told apart")
        else:
            try:
                gateway = parts.enter_context(Gateway(kubeconfig))
            except ConfigurationError as error:
                raise click.UsageError(str(error)) from None
            reader.pod_names = parts.enter_context(NodePods(gateway, node)).names
        sampler = Sampler(reader, interval_s=interval_s, window_s=window_s, sampled=sampled)
        parts.enter_context(sampler)
        try:
            server = HealthServer(address, port, health, lambda: sampler.text().encode())
        except OSError as error:
            why = error.strerror or error
            raise click.UsageError(f"cannot listen on {address}, port {port}: {why}") from None
        parts.enter_context(server)
        _LOG.info("metrics at %s/metrics", server.url)
        threading.Event().wait()  # until a signal ends the command
