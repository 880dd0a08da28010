"""Reads a node's network receive path from the kernel: one sample at a time."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from profiler.nic.dpdk import TelemetryFailed, read_ports
from profiler.nic.ethtool import Call, kernel_call, receive_queues, ring, statistics
from profiler.nic.kernel_files import InvalidFile, devices, softnet, udp_counters, udp_sockets
from profiler.nic.network_namespaces import PodProcess, inside, namespace_inode, pod_processes
from profiler.nic.readings import (
    Device,
    DpdkPort,
    Namespace,
    NodeSample,
    PodName,
    SoftnetCpu,
    UdpCounters,
    UdpSocket,
    unsupported,
)
from profiler.nic.socket_diagnostics import SocketMemory, socket_memory
from profiler.samples import Absence, AbsenceReason, Reading

PodNames = Callable[[frozenset[str]], Mapping[str, PodName]]
"""Returns the names of pods by UID, for the UIDs of the argument that are known."""
_SCAN_S = 10.0
"""Time between two searches of all processes for those of pods. A new pod is found at most that much later."""


def no_names(_: frozenset[str]) -> Mapping[str, PodName]:
    """Return no name: without access to the API server, pods are left out."""
    return {}


@dataclass(slots=True, kw_only=True)
class NodeReader:
    """Reads samples. `proc` and `sys` are the file systems of the node, and the process is in its network namespace.

    `pod_names` names the pods of this node. `dpdk` are patterns of telemetry sockets. `problems` has what could not be
    read at the last sample, each once.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    pod_names: PodNames = no_names
    dpdk: tuple[str, ...] = ()
    call: Call = kernel_call
    diagnose: Callable[[], Mapping[int, SocketMemory]] = socket_memory
    clock: Callable[[], float] = time.monotonic
    problems: tuple[str, ...] = ()
    _processes: Mapping[str, PodProcess] = field(default_factory=dict)
    _scanned_s: float = float("-inf")
    _found: list[str] = field(default_factory=list)

    def read(self) -> NodeSample:
        """Return a sample of the node as it is now. What cannot be read is an `Absence` in it."""
        self._found = []
        now_s = self.clock()
        own = namespace_inode(self.proc, "self")
        named = self._named(now_s)
        # A pod whose namespace cannot be told is treated as one that shares the node's.
        apart = {name: pod for name, pod in named.items() if pod.namespace not in (None, own)}
        pods = {name: self._pod(name, pod) for name, pod in apart.items()}
        sample = NodeSample(
            at_s=now_s,
            host=self._namespace("self", self._limits("the node", self.diagnose)),
            devices=self._devices(),
            softnet=self._softnet(),
            budget=self._setting("netdev_budget"),
            backlog_limit=self._setting("netdev_max_backlog"),
            pods={name: namespace for name, namespace in pods.items() if namespace is not None},
            sharing=frozenset(named.keys() - apart.keys()),
            dpdk=self._dpdk(),
        )
        self.problems = tuple(dict.fromkeys(self._found))
        return sample

    def _named(self, now_s: float) -> Mapping[PodName, PodProcess]:
        gone = any(namespace_inode(self.proc, pod.pid) != pod.namespace for pod in self._processes.values())
        if gone or now_s - self._scanned_s >= _SCAN_S:
            self._processes, self._scanned_s = pod_processes(self.proc), now_s
        names = self.pod_names(frozenset(self._processes))
        if unnamed := len(self._processes) - len(names.keys() & self._processes.keys()):
            self._found.append(f"{unnamed} pods are not known by name: their network namespaces are left out")
        return {names[uid]: pod for uid, pod in self._processes.items() if uid in names}

    def _pod(self, name: PodName, pod: PodProcess) -> Namespace | None:
        entry = self.proc / str(pod.pid) / "ns" / "net"
        limits = self._limits(f"{name.namespace}/{name.name}", lambda: inside(entry, self.diagnose))
        found = self._namespace(str(pod.pid), limits)
        # The number of a process that ended may be that of another one by now.
        return found if namespace_inode(self.proc, pod.pid) == pod.namespace else None

    def _limits(
        self, whose: str, diagnose: Callable[[], Mapping[int, SocketMemory]]
    ) -> Mapping[int, SocketMemory] | Absence:
        try:
            return diagnose()
        except OSError as error:
            absence = unsupported(f"sizes of receive buffers of {whose}: {error.strerror or error}")
            self._found.append(absence.detail)
            return absence

    def _namespace(self, pid: str, limits: Mapping[int, SocketMemory] | Absence) -> Namespace:
        folder = self.proc / pid / "net"
        return Namespace(
            sockets=self._sockets(folder, limits),
            udp=self._udp(folder),
            packets=self._packets(folder),
        )

    def _sockets(self, folder: Path, limits: Mapping[int, SocketMemory] | Absence) -> tuple[UdpSocket, ...] | Absence:
        found: list[UdpSocket] = []
        for name, version in (("udp", 4), ("udp6", 6)):
            text = self._text(folder / name, needed=version == 4)
            if not isinstance(text, Absence):
                try:
                    found += udp_sockets(text, version)
                except InvalidFile as error:
                    return self._invalid(error)
            elif version == 4:
                return text
        return tuple(_with_limit(each, limits) for each in found)

    def _udp(self, folder: Path) -> UdpCounters | Absence:
        snmp, snmp6 = self._text(folder / "snmp"), self._text(folder / "snmp6", needed=False)
        if isinstance(snmp, Absence):
            return snmp
        try:
            return udp_counters(snmp, "" if isinstance(snmp6, Absence) else snmp6)
        except InvalidFile as error:
            return self._invalid(error)

    def _packets(self, folder: Path) -> Reading:
        text = self._text(folder / "dev")
        if isinstance(text, Absence):
            return text
        try:
            return float(sum(each.packets for name, each in devices(text).items() if name != "lo"))
        except InvalidFile as error:
            return self._invalid(error)

    def _devices(self) -> tuple[Device, ...]:
        text = self._text(self.proc / "self" / "net" / "dev")
        try:
            found = {} if isinstance(text, Absence) else devices(text)
        except InvalidFile as error:
            self._invalid(error)
            found = {}
        result = []
        for name, counters in found.items():
            physical = (self.sys / "class" / "net" / name / "device").exists()
            lacking = unsupported(f"{name}: not a physical device")
            own = ring(name, self.call) if physical else None
            result.append(
                Device(
                    name=name,
                    counters=counters,
                    physical=physical,
                    queues=self._queues(name) if physical else lacking,
                    ring_size=lacking if own is None else own.size,
                    ring_size_max=lacking if own is None else own.size_max,
                    statistics=statistics(name, self.call) if physical else lacking,
                )
            )
        return tuple(result)

    def _queues(self, name: str) -> Reading:
        """Return the receive queues of a device, by its driver, else by the folders that the kernel has for them."""
        found = receive_queues(name, self.call)
        if not isinstance(found, Absence):
            return found
        folders = len(list((self.sys / "class" / "net" / name / "queues").glob("rx-*")))
        return float(folders) if folders else found

    def _softnet(self) -> tuple[SoftnetCpu, ...] | Absence:
        text = self._text(self.proc / "self" / "net" / "softnet_stat")
        if isinstance(text, Absence):
            return text
        try:
            return softnet(text)
        except InvalidFile as error:
            return self._invalid(error)

    def _setting(self, name: str) -> Reading:
        text = self._text(self.proc / "sys" / "net" / "core" / name, needed=False)
        if isinstance(text, Absence):
            return text
        return float(text) if text.strip().isdigit() else unsupported(f"net.core.{name}: {text.strip()!r}")

    def _dpdk(self) -> tuple[DpdkPort, ...]:
        found: list[DpdkPort] = []
        for path in sorted({path for pattern in self.dpdk for path in Path("/").glob(pattern.lstrip("/"))}):
            try:
                found += read_ports(path)
            except TelemetryFailed as error:
                self._found.append(f"DPDK telemetry: {error}")
        return tuple(found)

    def _text(self, path: Path, *, needed: bool = True) -> str | Absence:
        try:
            return path.read_text(errors="replace")  # names of devices may have any byte
        except OSError as error:
            absence = Absence(reason=AbsenceReason.UNSUPPORTED, detail=f"{path}: {error.strerror}")
            if needed:
                self._found.append(absence.detail)
            return absence

    def _invalid(self, error: InvalidFile) -> Absence:
        self._found.append(str(error))
        # The reason becomes a label. The line in it would make a new series with every sample.
        return unsupported(f"{str(error).partition(':')[0]}: cannot be parsed")


def _with_limit(socket: UdpSocket, limits: Mapping[int, SocketMemory] | Absence) -> UdpSocket:
    if isinstance(limits, Absence):
        return replace(socket, limit_bytes=limits, charged_bytes=limits)
    memory = limits.get(socket.inode)
    # Opened since, or closed: the two are not read at one moment.
    if memory is None:
        return socket
    return replace(socket, limit_bytes=float(memory.limit_bytes), charged_bytes=float(memory.charged_bytes))
