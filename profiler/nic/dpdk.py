"""Ports of DPDK applications, by their telemetry socket. A device that such an application drives has left the kernel.

The protocol is version 2 of DPDK's telemetry: JSON over a Unix socket of packets.
"""

import json
import socket
from pathlib import Path
from typing import Any

from profiler.nic.readings import DpdkPort, unsupported
from profiler.samples import Reading

_FIRST_ANSWER = 1024
_LEAST_ANSWER, _MOST_ANSWER = 1024, 1 << 20


class TelemetryFailed(Exception):
    """A telemetry socket did not answer, or its answer is not understood; the message names the socket."""


def read_ports(path: Path, timeout_s: float = 1.0) -> tuple[DpdkPort, ...]:
    """Return the Ethernet ports of the application that listens at `path`.

    Raises:
        TelemetryFailed: nothing answers there as DPDK does.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as telemetry:
            telemetry.settimeout(timeout_s)
            telemetry.connect(str(path))
            greeting = json.loads(telemetry.recv(_FIRST_ANSWER))
            room = min(_MOST_ANSWER, max(_LEAST_ANSWER, int(greeting["max_output_len"])))

            def ask(command: str) -> Any:
                telemetry.send(command.encode())
                return json.loads(telemetry.recv(room))[command.partition(",")[0]]

            return tuple(_port(str(path), int(port), ask) for port in ask("/ethdev/list") or ())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise TelemetryFailed(f"{path}: {type(error).__name__}: {error}") from None


def _port(path: str, port: int, ask: Any) -> DpdkPort:
    counters = ask(f"/ethdev/stats,{port}")
    info = ask(f"/ethdev/info,{port}") or {}
    queue = ask(f"/ethdev/rx_queue,{port},0") or {}
    return DpdkPort(
        socket=path,
        port=port,
        packets=int(counters["ipackets"]),
        missed=int(counters["imissed"]),
        errors=int(counters["ierrors"]),
        no_buffer=int(counters["rx_nombuf"]),
        queues=_number(info, "nb_rx_queues"),
        ring_size=_number(queue, "nb_desc"),
    )


def _number(found: dict[str, Any], name: str) -> Reading:
    """Return a number of an answer; releases before 24.11 have no command for queues, and answer null."""
    value = found.get(name)
    return float(value) if isinstance(value, int) and value > 0 else unsupported(f"telemetry has no {name}")
