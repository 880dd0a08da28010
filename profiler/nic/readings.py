"""Raw values of a node's network receive path at one moment, as the kernel and the drivers report them. No I/O.

A value that the kernel or the driver lacks is an `Absence`, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiler.samples import Absence, AbsenceReason, Reading


def unsupported(detail: str) -> Absence:
    """Return the absence of a value that this kernel or driver does not have."""
    return Absence(reason=AbsenceReason.UNSUPPORTED, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpSocket:
    """A UDP socket. `queued_bytes` wait in its receive buffer, packet overhead included, and `drops` counts losses.

    `limit_bytes` is the size of the buffer in the same unit: twice the SO_RCVBUF that the process asked for.
    `charged_bytes` count against it. They are more than wait: Linux takes back what was read in portions of up to a
    quarter of the buffer, and a datagram is lost when the charge, not what waits, reaches the limit. `version` is that
    of IP, 4 or 6.
    """

    inode: int
    version: int
    queued_bytes: int
    drops: Reading
    limit_bytes: Reading
    charged_bytes: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftnetCpu:
    """Packet processing of one CPU. All but `backlog_packets`, a present depth, are counters modulo 2³²."""

    cpu: int
    processed: int
    dropped: int
    squeezed: int
    backlog_packets: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpCounters:
    """UDP counters of a network namespace, IPv4 and IPv6 together.

    `in_datagrams` counts datagrams when the process reads them, `receive_buffer_errors` those lost because the buffer
    of a socket, or the memory for all of them, was full. `by_name` has all counters by their names in node_exporter,
    such as `Udp_InErrors` and `Udp6_InErrors`.
    """

    in_datagrams: int
    receive_buffer_errors: int
    by_name: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounters:
    """Receive counters of a device in /proc/net/dev. `dropped` includes packets that the device missed."""

    packets: int
    bytes: int
    errors: int
    dropped: int
    fifo: int
    frame: int

    @property
    def lost(self) -> int:
        """Return the packets lost before the network stack; ENA counts an empty ring in `frame`."""
        return self.dropped + self.fifo + self.frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A network device of the node.

    `ring_size` descriptors is each receive queue long, at most `ring_size_max`. `statistics` are those of the driver by
    its own names, an `Absence` where it has none. `physical` is False for loopback, bridges and pairs of pods.
    """

    name: str
    counters: DeviceCounters
    physical: bool
    queues: Reading
    ring_size: Reading
    ring_size_max: Reading
    statistics: Mapping[str, int] | Absence


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """What one network namespace shows: its UDP sockets, and the packets that its devices but loopback received.

    `sockets` and `udp` are an `Absence` where the files of the namespace cannot be read.
    """

    sockets: tuple[UdpSocket, ...] | Absence
    udp: UdpCounters | Absence
    packets: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """Namespace and name of a pod."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DpdkPort:
    """A device that a DPDK application drives itself, so that the kernel has no counters of it.

    `missed` counts packets that the device lost because no descriptor was free, `no_buffer` failed allocations.
    """

    socket: str
    port: int
    packets: int
    missed: int
    errors: int
    no_buffer: int
    queues: Reading
    ring_size: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """Everything that was read at `at_s`, in seconds of a monotonic clock.

    `pods` has the namespaces of the pods that have one of their own, and the names of the pods that share that of the
    node, or whose namespace cannot be read, are in `sharing`. `budget` packets is the most that a CPU processes in one
    round, and `backlog_limit` the most that wait for a CPU.
    """

    at_s: float
    host: Namespace
    devices: tuple[Device, ...]
    softnet: tuple[SoftnetCpu, ...] | Absence
    budget: Reading
    backlog_limit: Reading
    pods: Mapping[PodName, Namespace] = field(default_factory=dict)
    sharing: frozenset[PodName] = frozenset()
    dpdk: tuple[DpdkPort, ...] = ()
