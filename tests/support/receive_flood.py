"""UDP traffic to the pods of a lab, and `sluice nic-exporter` for its nodes.

The sockets, the datagrams, the kernel's counters, the exporters, the names of pods and the scrapes are real. The pods
of the lab are tasks of one process, so two things stand for others: a file per pod stands for the cgroup of its
process, and the receivers of a stage are sockets at the addresses of its pods. All pods share the network namespace of
the machine, as those with `hostNetwork: true` do.
"""

import os
import re
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config

from profiler.nic.kernel_files import udp_sockets
from profiler.samples import Absence
from simulations.lab.host.processes import LOOPBACK, Processes, free_ports

DATAGRAM = bytes(160)
"""20 ms of speech with 8 kHz, as RTP carries it."""
BUFFER_BYTES = 65_536
PORT = 7002
_TICK_S = 0.01
_TIMEOUT_S = (3, 10)
_PRESSURE = re.compile(r'^speech_nic_rx_queue_pressure\{namespace="([^"]+)",pod="([^"]+)"\} (\S+)$', re.MULTILINE)


class Flood:
    """Sends `rate_per_s` datagrams to the receivers in turn, each of which takes `taken_per_s`, for `duration_s`.

    `first_loss_s` is when the kernel was first seen to have lost a datagram of a receiver (monotonic clock), None
    before.
    """

    def __init__(self, *, rate_per_s: float, taken_per_s: float, duration_s: float) -> None:
        self.began_s: float | None = None
        self.first_loss_s: float | None = None
        self._rate_per_s, self._taken_per_s, self._duration_s = rate_per_s, taken_per_s, duration_s
        self._receivers: dict[str, _Receiver] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood", daemon=True)

    @property
    def ended_s(self) -> float:
        """Return when it has ended or will end (monotonic clock)."""
        assert self.began_s is not None, "the flood did not begin"
        return self.began_s + self._duration_s

    def begin(self) -> None:
        """Begin to send; there must be a receiver."""
        self.began_s = time.monotonic()
        self._thread.start()

    def deliver_to(self, addresses: Iterable[str]) -> None:
        """Open a receiver at each new address, and close those at addresses that are gone."""
        wanted = set(addresses)
        with self._lock:
            for gone in self._receivers.keys() - wanted:
                self._receivers.pop(gone).socket.close()
            for new in wanted - self._receivers.keys():
                self._receivers[new] = _Receiver(new)

    def close(self) -> None:
        """Stop, and close the sockets."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.deliver_to(())

    def _run(self) -> None:
        owed, turn, last_s = 0.0, 0, time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not self._stop.wait(_TICK_S):
                now_s = time.monotonic()
                elapsed_s, last_s = min(0.1, now_s - last_s), now_s
                owed += self._rate_per_s * elapsed_s if now_s < self.ended_s else 0.0
                with self._lock:
                    receivers = list(self._receivers.values())
                    while owed >= 1 and receivers:
                        sender.sendto(DATAGRAM, receivers[turn % len(receivers)].address)
                        owed, turn = owed - 1, turn + 1
                    for receiver in receivers:
                        receiver.take(self._taken_per_s * elapsed_s)
                    if self.first_loss_s is None and any(receiver.lost() for receiver in receivers):
                        self.first_loss_s = now_s


class _Receiver:
    """A UDP socket with a buffer of `BUFFER_BYTES`."""

    def __init__(self, host: str) -> None:
        self.address = (host, PORT)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.socket.setblocking(False)
        self.socket.bind(self.address)
        self._inode = os.fstat(self.socket.fileno()).st_ino
        self._credit = 0.0

    def take(self, datagrams: float) -> None:
        """Take so many datagrams on average; what is not there cannot be taken later."""
        self._credit += datagrams
        try:
            while self._credit >= 1:
                self._credit -= 1
                self.socket.recv(len(DATAGRAM))
        except BlockingIOError:
            pass

    def lost(self) -> bool:
        """Return whether the kernel has lost a datagram because the buffer was full."""
        (own,) = [each for each in udp_sockets(Path("/proc/net/udp").read_text(), 4) if each.inode == self._inode]
        return not isinstance(own.drops, Absence) and own.drops > 0


class Exporters:
    """`sluice nic-exporter` for each node of a lab: a process, and the pod that Prometheus finds it by."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self._folder = folder
        # A copy: the lab waits for all processes that name its own folder.
        self._kubeconfig = Path(shutil.copy(kubeconfig, folder))
        self._processes = Processes(folder)
        self._ports: dict[str, int] = {}
        self._known: dict[str, int] = {}

    def start(self, nodes: Iterable[str]) -> None:
        """Start the exporter of each of `nodes`."""
        for node in nodes:
            (port,) = free_ports(1)
            proc = self._folder / node
            proc.mkdir(parents=True)
            for name, target in {"self": "/proc/self", "sys": "/proc/sys"}.items():
                (proc / name).symlink_to(target)
            self._ports[node] = port
            self._processes.start_program(
                f"nic-exporter-{node}",
                ("-m", "controller", "nic-exporter"),
                {
                    "kubeconfig": self._kubeconfig,
                    "node": node,
                    "proc": proc,
                    "listen-address": LOOPBACK,
                    "port": port,
                    "interval": "250ms",
                    "window": "3s",
                },
            )
            with config.new_client_from_config(str(self._kubeconfig)) as api:
                _create_pod(client.CoreV1Api(api), node, port)

    def show(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Let the exporters find a process of each of `pods` that has none yet."""
        for pod in pods:
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            if node in self._ports and uid not in self._known:
                self._known[uid] = number = len(self._known) + 1
                process = self._folder / node / str(number)
                process.mkdir()
                (process / "cgroup").write_text(f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice\n")

    def pressures(self) -> dict[tuple[str, str], float]:
        """Return the receive pressure of the pods, by namespace and name, as the exporters have it now."""
        found: dict[tuple[str, str], float] = {}
        for port in self._ports.values():
            try:
                with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:  # it starts
                continue
            found |= {(namespace, pod): float(value) for namespace, pod, value in _PRESSURE.findall(text)}
        return found

    def close(self) -> None:
        """Stop the exporters."""
        self._processes.stop()


def _create_pod(api: client.CoreV1Api, node: str, port: int) -> None:
    name, namespace = f"nic-exporter-{node}", "speech"
    pod = {
        "metadata": {
            "name": name,
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)},
        },
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "nic-exporter", "image": "sluice", "ports": [{"containerPort": port, "hostPort": port}]}
            ],
        },
    }
    api.create_namespaced_pod(namespace, pod, _request_timeout=_TIMEOUT_S)
    status = {
        "phase": "Running",
        "hostIP": LOOPBACK,
        "podIP": LOOPBACK,
        "podIPs": [{"ip": LOOPBACK}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    api.patch_namespaced_pod_status(name, namespace, {"status": status}, _request_timeout=_TIMEOUT_S)
