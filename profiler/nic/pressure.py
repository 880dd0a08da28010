"""Gauges of a node's receive path over a window of samples, and the receive pressure that follows from them. Pure.

No network card reports how full its receive ring is, so none of these gauges is a depth of the ring. The kernel has
depths of the sockets' buffers and of the CPUs' backlogs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from profiler.nic.driver_statistics import RECEIVE_ALLOWANCES, exceeded, queue_packets
from profiler.nic.kernel_files import increase, wrapped_increase
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
from profiler.samples import Absence, AbsenceReason, Reading

STALL_S = 0.004
"""Time for which a busy CPU may be away from a ring: two rounds of packet processing, each of which Linux ends after 2
ms (`net.core.netdev_budget_usecs` with 1000 ticks per second). A ring that tolerates no more is at its limit."""
LOSS_SHARE = 0.001
"""Lost packets of a device, as a share of all, from which on it loses for want of capacity. Linux counts packets of
protocols that it does not know as dropped, too."""
OWN_SHARE = 0.1
"""Least share of the node's packets with which a pod takes part in the pressure of the node's devices and CPUs."""

_TOO_SHORT = Absence(reason=AbsenceReason.WINDOW_TOO_SHORT, detail="a rate needs two samples")
_RESTARTED = Absence(reason=AbsenceReason.WINDOW_TOO_SHORT, detail="the counters began again")


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketGauges:
    """The UDP sockets of one network namespace.

    `fill` is the fullest that the buffer of a socket was in a sample of the window, 0–1. `queued_bytes` wait in all
    buffers now. `losses_per_s` datagrams found a full buffer. `packets_per_s` reached the namespace's devices.
    """

    fill: Reading
    queued_bytes: Reading
    losses_per_s: Reading
    packets_per_s: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGauges:
    """The receive side of one device, or of one port of a DPDK application.

    `stall_tolerance_s` is how long the CPUs may be away before the rings overflow: size of a ring × queues / packet
    rate. `skew` is the packets of the busiest queue over the mean of all queues, at least 1. `losses_per_s` never
    reached the network stack, and `shaped_per_s` exceeded an allowance of the EC2 instance. `socket` is that of the
    DPDK application, "" for a device of the kernel: each of two applications may have a port 0.
    """

    name: str
    packets_per_s: Reading
    stall_tolerance_s: Reading
    skew: Reading
    losses_per_s: Reading
    shaped_per_s: Reading
    socket: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuGauges:
    """Packet processing over all CPUs of the node.

    `backlog_fill` is the fullest backlog of a CPU in a sample of the window, 0–1. `squeezed_share` is the share of
    packets that were processed in rounds which used up their budget, at most, 0–1.
    """

    backlog_fill: Reading
    losses_per_s: Reading
    squeezes_per_s: Reading
    squeezed_share: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGauges:
    """The gauges of a node, with the receive pressure of the node (`node`) and of its pods (`pressures`), 0–1."""

    host: SocketGauges
    devices: tuple[DeviceGauges, ...]
    cpus: CpuGauges
    pods: Mapping[PodName, SocketGauges]
    node: Reading
    pressures: Mapping[PodName, Reading]


def rx_queue_pressure(sockets: SocketGauges | None, devices: Sequence[DeviceGauges], cpus: CpuGauges | None) -> Reading:
    """Return the receive pressure, 0–1: the largest of its known terms.

    The terms are the fill of the sockets' buffers, the fill of the CPUs' backlogs, and for each device
    `STALL_S` · skew / stall tolerance. Losses in the window make it 1, whatever the fill: those of sockets and
    backlogs, those of a device from `LOSS_SHARE` of its packets on, and packets beyond an EC2 allowance. It is absent
    if every term is.
    """
    terms: list[Reading] = []
    if sockets is not None:
        terms += [sockets.fill, _lost(sockets.losses_per_s)]
    if cpus is not None:
        terms += [cpus.backlog_fill, _lost(cpus.losses_per_s)]
    for device in devices:
        terms += [_ring(device), _lost_share(device), _lost(device.shaped_per_s)]
    known = [_idle(term) for term in terms if not _absent(term)]
    if known:
        return max(0.0, min(1.0, max(known)))
    absent = next((term for term in terms if isinstance(term, Absence)), None)
    return absent or unsupported("nothing of the receive path can be read")


def node_gauges(samples: Sequence[NodeSample]) -> NodeGauges:
    """Return the gauges over `samples`, of which there is at least one, the oldest first."""
    first, last = samples[0], samples[-1]
    elapsed_s = last.at_s - first.at_s
    host = _sockets([sample.host for sample in samples], elapsed_s)
    before = {device.name: device for device in first.devices}
    devices = [_device(before.get(device.name), device, elapsed_s) for device in last.devices if device.physical]
    ports = {(port.socket, port.port): port for port in first.dpdk}
    devices += [_port(ports.get((port.socket, port.port)), port, elapsed_s) for port in last.dpdk]
    cpus = _cpus(samples, elapsed_s)
    pods = {
        name: _sockets([sample.pods[name] for sample in samples if name in sample.pods], _seen_s(samples, name))
        for name in last.pods
    }
    network = (tuple(devices), cpus)
    node = rx_queue_pressure(host, *network)
    total = sum(rate for device in devices if not isinstance(rate := device.packets_per_s, Absence))
    pressures = {
        name: rx_queue_pressure(own, *network) if _takes_part(own, total) else rx_queue_pressure(own, (), None)
        for name, own in pods.items()
    }
    return NodeGauges(
        host=host,
        devices=tuple(devices),
        cpus=cpus,
        pods=pods,
        node=node,
        pressures=pressures | dict.fromkeys(last.sharing, node),
    )


def _seen_s(samples: Sequence[NodeSample], pod: PodName) -> float:
    seen = [sample.at_s for sample in samples if pod in sample.pods]
    return seen[-1] - seen[0]


def _takes_part(pod: SocketGauges, total_per_s: float) -> bool:
    own = pod.packets_per_s
    return not isinstance(own, Absence) and own > 0 and own >= OWN_SHARE * total_per_s


def _sockets(seen: Sequence[Namespace], elapsed_s: float) -> SocketGauges:
    first, last = seen[0], seen[-1]
    fills = [_fill(each.sockets) for each in seen]
    known = [fill for fill in fills if not isinstance(fill, Absence)]
    queued: Reading
    if isinstance(last.sockets, Absence):
        queued = last.sockets
    else:
        queued = float(sum(each.queued_bytes for each in last.sockets))
    return SocketGauges(
        fill=max(known) if known else fills[-1],
        queued_bytes=queued,
        losses_per_s=_rate(first.udp, last.udp, elapsed_s, lambda old, new: increase(_full(old), _full(new))),
        packets_per_s=_rate(first.packets, last.packets, elapsed_s, lambda old, new: increase(int(old), int(new))),
    )


def _full(counters: UdpCounters) -> int:
    return counters.receive_buffer_errors


def _fill(sockets: tuple[UdpSocket, ...] | Absence) -> Reading:
    if isinstance(sockets, Absence):
        return sockets
    if not sockets:
        return Absence(reason=AbsenceReason.NO_TRAFFIC, detail="no UDP socket")
    fills = [_used(each) for each in sockets]
    known = [fill for fill in fills if not isinstance(fill, Absence)]
    return max(known) if known else fills[0]


def _used(socket: UdpSocket) -> Reading:
    charged, limit = socket.charged_bytes, socket.limit_bytes
    if isinstance(charged, Absence) or isinstance(limit, Absence):
        return charged if isinstance(charged, Absence) else limit
    return min(1.0, charged / limit) if limit > 0 else unsupported("the socket has no receive buffer")


def _device(before: Device | None, now: Device, elapsed_s: float) -> DeviceGauges:
    old = _TOO_SHORT if before is None else before
    packets_per_s = _rate(
        old, now, elapsed_s, lambda first, last: increase(first.counters.packets, last.counters.packets)
    )
    return DeviceGauges(
        name=now.name,
        packets_per_s=packets_per_s,
        stall_tolerance_s=stall_tolerance_s(now.ring_size, now.queues, packets_per_s),
        skew=_TOO_SHORT if before is None else _skew(before, now),
        losses_per_s=_rate(old, now, elapsed_s, lambda first, last: increase(first.counters.lost, last.counters.lost)),
        shaped_per_s=_TOO_SHORT if before is None else _shaped(before, now, elapsed_s),
    )


def stall_tolerance_s(ring_size: Reading, queues: Reading, packets_per_s: Reading) -> Reading:
    """Return how long the CPUs may be away before the rings overflow, in seconds, if all queues get as much."""
    for reading in (ring_size, queues, packets_per_s):
        if isinstance(reading, Absence):
            return reading
    assert not isinstance(ring_size, Absence)
    assert not isinstance(queues, Absence)
    assert not isinstance(packets_per_s, Absence)
    if packets_per_s <= 0:
        return Absence(reason=AbsenceReason.NO_TRAFFIC, detail="no packets in the window")
    return ring_size * queues / packets_per_s


def _skew(before: Device, now: Device) -> Reading:
    if isinstance(now.statistics, Absence):
        return now.statistics
    after = queue_packets(now.statistics)
    if not after:
        return unsupported(f"{now.name}: the driver does not count packets per queue")
    earlier = {} if isinstance(before.statistics, Absence) else queue_packets(before.statistics)
    if earlier.keys() != after.keys():
        return _RESTARTED
    gained = [increase(earlier[queue], packets) for queue, packets in after.items()]
    known = [packets for packets in gained if packets is not None]
    if len(known) < len(gained):
        return _RESTARTED
    total = sum(known)
    if not total:
        return Absence(reason=AbsenceReason.NO_TRAFFIC, detail="no packets in the window")
    return max(known) * len(known) / total


def _shaped(before: Device, now: Device, elapsed_s: float) -> Reading:
    if isinstance(now.statistics, Absence):
        return now.statistics
    after = exceeded(now.statistics, RECEIVE_ALLOWANCES)
    if after is None:
        return unsupported(f"{now.name}: the driver has no counters of EC2 allowances")
    earlier = None if isinstance(before.statistics, Absence) else exceeded(before.statistics, RECEIVE_ALLOWANCES)
    if earlier is None:
        return _RESTARTED
    return _rate(float(earlier), float(after), elapsed_s, lambda old, new: increase(int(old), int(new)))


def _port(before: DpdkPort | None, now: DpdkPort, elapsed_s: float) -> DeviceGauges:
    old = _TOO_SHORT if before is None else before
    packets_per_s = _rate(old, now, elapsed_s, lambda first, last: increase(first.packets, last.packets))
    return DeviceGauges(
        name=f"dpdk{now.port}",
        socket=now.socket,
        packets_per_s=packets_per_s,
        stall_tolerance_s=stall_tolerance_s(now.ring_size, now.queues, packets_per_s),
        skew=unsupported("DPDK's counters are of the whole port"),
        losses_per_s=_rate(
            old,
            now,
            elapsed_s,
            lambda first, last: increase(first.missed + first.no_buffer, last.missed + last.no_buffer),
        ),
        shaped_per_s=unsupported("DPDK's counters have no EC2 allowances"),
    )


def _cpus(samples: Sequence[NodeSample], elapsed_s: float) -> CpuGauges:
    first, last = samples[0], samples[-1]
    fills = [_backlog_fill(sample) for sample in samples]
    known = [fill for fill in fills if not isinstance(fill, Absence)]

    def gained(value: Callable[[SoftnetCpu], int]) -> Reading:
        return _rate(first.softnet, last.softnet, elapsed_s, lambda old, new: _gained(old, new, value))

    squeezes, processed = gained(lambda cpu: cpu.squeezed), gained(lambda cpu: cpu.processed)
    return CpuGauges(
        backlog_fill=max(known) if known else fills[-1],
        losses_per_s=gained(lambda cpu: cpu.dropped),
        squeezes_per_s=squeezes,
        squeezed_share=_squeezed_share(squeezes, processed, last.budget),
    )


def _gained(old: Sequence[SoftnetCpu], new: Sequence[SoftnetCpu], value: Callable[[SoftnetCpu], int]) -> int | None:
    if len(old) != len(new) and any(isinstance(cpu.backlog_packets, Absence) for cpu in new):
        return None  # Before Linux 5.10 the CPUs have no numbers: those after the one that came or went have moved.
    before = {cpu.cpu: value(cpu) for cpu in old}
    return sum(wrapped_increase(before[cpu.cpu], value(cpu)) for cpu in new if cpu.cpu in before)


def _squeezed_share(squeezes: Reading, processed: Reading, budget: Reading) -> Reading:
    for reading in (squeezes, processed, budget):
        if isinstance(reading, Absence):
            return reading
    assert not isinstance(squeezes, Absence)
    assert not isinstance(processed, Absence)
    assert not isinstance(budget, Absence)
    if processed <= 0:
        return Absence(reason=AbsenceReason.NO_TRAFFIC, detail="no packets in the window")
    return min(1.0, squeezes * budget / processed)


def _backlog_fill(sample: NodeSample) -> Reading:
    if isinstance(sample.softnet, Absence):
        return sample.softnet
    if isinstance(sample.backlog_limit, Absence):
        return sample.backlog_limit
    depths = [each.backlog_packets for each in sample.softnet]
    known = [depth for depth in depths if not isinstance(depth, Absence)]
    if not known or sample.backlog_limit <= 0:
        return next((depth for depth in depths if isinstance(depth, Absence)), unsupported("no CPU has a backlog"))
    return min(1.0, max(known) / sample.backlog_limit)


def _rate(first: object, last: object, elapsed_s: float, gained: Callable[..., int | None]) -> Reading:
    """Return what `gained` finds between two values, per second; absent where one of them is."""
    if isinstance(last, Absence):
        return last
    if isinstance(first, Absence):
        return first
    if elapsed_s <= 0:
        return _TOO_SHORT
    found = gained(first, last)
    return _RESTARTED if found is None else found / elapsed_s


def _absent(reading: Reading) -> bool:
    """Return whether nothing is known. Without traffic there is no pressure, and that is known."""
    return isinstance(reading, Absence) and reading.reason is not AbsenceReason.NO_TRAFFIC


def _idle(reading: Reading) -> float:
    return 0.0 if isinstance(reading, Absence) else reading


def _lost(losses_per_s: Reading) -> Reading:
    return losses_per_s if isinstance(losses_per_s, Absence) else float(losses_per_s > 0)


def _lost_share(device: DeviceGauges) -> Reading:
    losses, packets = device.losses_per_s, device.packets_per_s
    if isinstance(losses, Absence) or isinstance(packets, Absence):
        return losses if isinstance(losses, Absence) else packets
    return float(losses > 0 and losses >= LOSS_SHARE * (packets + losses))


def _ring(device: DeviceGauges) -> Reading:
    tolerance_s, skew = device.stall_tolerance_s, device.skew
    if isinstance(tolerance_s, Absence):
        return tolerance_s
    return STALL_S * (1.0 if isinstance(skew, Absence) else skew) / tolerance_s
