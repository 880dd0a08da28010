"""The text that `sluice nic-exporter` serves: raw values by node_exporter's names, and gauges of its own. Pure.

A value that the kernel or the driver lacks has no series; `speech_nic_unsupported` names it with the reason.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from profiler.nic.pressure import CpuGauges, DeviceGauges, NodeGauges, SocketGauges
from profiler.nic.readings import Device, DeviceCounters, DpdkPort, NodeSample, PodName, SoftnetCpu, unsupported
from profiler.samples import Absence, AbsenceReason, Reading

_SEPARATOR = re.compile(r"_*[^0-9A-Za-z_]+_*")
_DIRECTIONS = (
    (re.compile(r"(^|_)rx(_|$)"), r"\1received\2"),
    (re.compile(r"(^|_)tx(_|$)"), r"\1transmitted\2"),
)
_WITH_TOTAL = {
    "rx_bytes": "received_bytes_total",
    "rx_dropped": "received_dropped_total",
    "rx_errors": "received_errors_total",
    "rx_packets": "received_packets_total",
    "tx_bytes": "transmitted_bytes_total",
    "tx_errors": "transmitted_errors_total",
    "tx_packets": "transmitted_packets_total",
}
"""Statistics of drivers that node_exporter names otherwise than by its rule."""
_SRD_MODE = "ena_srd_mode"
_SRD_MODES = {0: "off", 1: "tcp", 2: "udp", 3: "both"}

Labels = Mapping[str, str]
Sample = tuple[Labels, Reading]
Value = TypeVar("Value")


class _Text:
    """Lines of the text format 0.0.4. Families are written whole, and one without a known value not at all."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.unsupported: dict[tuple[str, tuple[tuple[str, str], ...]], Absence] = {}

    def add(self, name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
        lines = []
        for labels, reading in samples:
            if not isinstance(reading, Absence):
                lines.append(f"{name}{_braced(labels)} {_number(reading)}")
            elif reading.reason is AbsenceReason.UNSUPPORTED:
                self.unsupported[name, tuple(labels.items())] = reading
        if lines:
            self.lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]


def ethtool_name(statistic: str) -> str:
    """Return node_exporter's name of a driver's statistic: `queue_0_rx_cnt` is `node_ethtool_queue_0_received_cnt`."""
    name = _WITH_TOTAL.get(statistic)
    if name is None:
        name = _SEPARATOR.sub("_", statistic).lower().lstrip("_")
        for pattern, word in _DIRECTIONS:
            name = pattern.sub(word, name)
    return f"node_ethtool_{name}"


def exposition(sample: NodeSample, gauges: NodeGauges, problems: Iterable[str] = ()) -> str:
    """Return the text of one scrape: the raw values of `sample`, and the `gauges` of the window that ends with it."""
    text = _Text()
    _raw(text, sample)
    _own(text, sample, gauges)
    text.add(
        "speech_nic_read_problems",
        "gauge",
        "Files, devices and namespaces that could not be read at the last sample",
        [({}, float(len(tuple(problems))))],
    )
    lacking = dict(text.unsupported)
    text.add(
        "speech_nic_unsupported",
        "gauge",
        "1 for each value that this kernel or driver does not have, with the reason",
        [
            ({**dict(labels), "metric": name, "reason": absence.detail}, 1.0)
            for (name, labels), absence in sorted(lacking.items(), key=lambda each: each[0])
        ],
    )
    return "\n".join(text.lines) + "\n"


_RECEIVED: tuple[tuple[str, str, Callable[[DeviceCounters], int]], ...] = (
    ("packets", "Packets received", lambda own: own.packets),
    ("bytes", "Bytes received", lambda own: own.bytes),
    ("errs", "Receive errors", lambda own: own.errors),
    ("drop", "Packets dropped, missed ones included", lambda own: own.dropped),
    ("fifo", "Packets lost because a queue of the device was full", lambda own: own.fifo),
    ("frame", "Frame errors; ENA counts packets that found no descriptor", lambda own: own.frame),
)
_SOFTNET: tuple[tuple[str, str, str, Callable[[SoftnetCpu], Reading]], ...] = (
    ("processed_total", "counter", "Packets processed", lambda cpu: float(cpu.processed)),
    ("dropped_total", "counter", "Packets dropped because the backlog was full", lambda cpu: float(cpu.dropped)),
    ("times_squeezed_total", "counter", "Rounds that used up budget or time", lambda cpu: float(cpu.squeezed)),
    ("backlog_len", "gauge", "Packets that wait for the CPU", lambda cpu: cpu.backlog_packets),
)
_DPDK: tuple[tuple[str, str, Callable[[DpdkPort], int]], ...] = (
    ("packets", "Packets received", lambda port: port.packets),
    ("missed", "Packets lost because no descriptor was free", lambda port: port.missed),
    ("errors", "Receive errors", lambda port: port.errors),
    ("nombuf", "Failed allocations of buffers", lambda port: port.no_buffer),
)
_DEVICES: tuple[tuple[str, str, Callable[[Device], Reading]], ...] = (
    ("rx_ring_size", "Descriptors of each receive ring, as configured", lambda device: device.ring_size),
    ("rx_ring_size_max", "Most descriptors that the device allows", lambda device: device.ring_size_max),
    ("rx_queues", "Active receive queues", lambda device: device.queues),
)
_DEVICE_GAUGES: tuple[tuple[str, str, Callable[[DeviceGauges], Reading]], ...] = (
    ("rx_packets_per_second", "Packets received per second", lambda own: own.packets_per_s),
    (
        "rx_stall_tolerance_seconds",
        "How long the CPUs may be away before the rings overflow: size × queues / packet rate",
        lambda own: own.stall_tolerance_s,
    ),
    ("rx_queue_skew_ratio", "Packets of the busiest queue over the mean of all queues", lambda own: own.skew),
    ("rx_losses_per_second", "Packets lost before the network stack", lambda own: own.losses_per_s),
    ("rx_shaped_per_second", "Packets beyond a receive allowance of the EC2 instance", lambda own: own.shaped_per_s),
)
_CPU_GAUGES: tuple[tuple[str, str, Callable[[CpuGauges], Reading]], ...] = (
    ("backlog_fill_ratio", "Fullest backlog of a CPU in the window, 0 to 1", lambda own: own.backlog_fill),
    ("backlog_losses_per_second", "Packets that found the backlog of their CPU full", lambda own: own.losses_per_s),
    ("squeezes_per_second", "Rounds of packet processing that used up budget or time", lambda own: own.squeezes_per_s),
    ("squeezed_ratio", "Share of packets processed in such rounds, at most", lambda own: own.squeezed_share),
)
_SOCKET_GAUGES: tuple[tuple[str, str, Callable[[SocketGauges], Reading]], ...] = (
    ("udp_buffer_fill_ratio", "Fullest receive buffer of a UDP socket in the window, 0 to 1", lambda own: own.fill),
    ("udp_rx_queue_bytes", "Bytes that wait in the receive buffers of UDP sockets", lambda own: own.queued_bytes),
    ("udp_losses_per_second", "Datagrams that found a full receive buffer", lambda own: own.losses_per_s),
    ("namespace_rx_packets_per_second", "Packets that reached the network namespace", lambda own: own.packets_per_s),
)


def _raw(text: _Text, sample: NodeSample) -> None:
    for suffix, words, received in _RECEIVED:
        samples = [({"device": each.name}, float(received(each.counters))) for each in sample.devices]
        text.add(f"node_network_receive_{suffix}_total", "counter", f"{words}, as in /proc/net/dev", samples)
    cpus = () if isinstance(sample.softnet, Absence) else sample.softnet
    for suffix, kind, words, of_cpu in _SOFTNET:
        text.add(f"node_softnet_{suffix}", kind, words, [({"cpu": str(cpu.cpu)}, of_cpu(cpu)) for cpu in cpus])
    if not isinstance(sample.host.udp, Absence):
        for name, value in sample.host.udp.by_name.items():
            text.add(f"node_netstat_{name}", "untyped", "UDP counter of the node", [({}, float(value))])
    if not isinstance(sample.host.sockets, Absence):
        queued = {4: 0, 6: 0}
        for each in sample.host.sockets:
            queued[each.version] += each.queued_bytes
        text.add(
            "node_udp_queues",
            "gauge",
            "Bytes that wait in the receive buffers of the node's UDP sockets",
            [({"ip": f"v{version}", "queue": "rx"}, float(octets)) for version, octets in queued.items()],
        )
    families: dict[str, dict[str, float]] = {}
    for device in sample.devices:
        if not isinstance(device.statistics, Absence):
            for statistic, value in device.statistics.items():
                # Two statistics may get one name. Prometheus refuses a scrape with a series that occurs twice.
                families.setdefault(ethtool_name(statistic), {}).setdefault(device.name, float(value))
    for name, values in families.items():
        statistics = [({"device": device_name}, own) for device_name, own in values.items()]
        text.add(name, "untyped", "Statistic of the driver, as `ethtool -S` has it", statistics)
    for suffix, words, of_port in _DPDK:
        text.add(
            f"speech_nic_dpdk_receive_{suffix}_total",
            "counter",
            f"{words}, of a port of a DPDK application",
            [({"device": f"dpdk{port.port}", "socket": port.socket}, float(of_port(port))) for port in sample.dpdk],
        )


def _own(text: _Text, sample: NodeSample, gauges: NodeGauges) -> None:
    physical = [device for device in sample.devices if device.physical]
    for name, words, of_device in _DEVICES:
        text.add(f"speech_nic_{name}", "gauge", words, [({"device": each.name}, of_device(each)) for each in physical])
    text.add(
        "speech_nic_ena_express",
        "gauge",
        "1 where the device uses ENA Express (SRD), else 0; mode is that of the driver: off, tcp, udp or both",
        [_srd(each) for each in physical],
    )
    for name, words, of_gauges in _DEVICE_GAUGES:
        samples = [(_device(each), of_gauges(each)) for each in gauges.devices]
        text.add(f"speech_nic_{name}", "gauge", words, samples)
    for name, words, of_cpus in _CPU_GAUGES:
        text.add(f"speech_nic_{name}", "gauge", words, [({}, of_cpus(gauges.cpus))])
    sockets: list[tuple[Labels, SocketGauges]] = [({}, gauges.host)]
    sockets += [(_pod(name), own) for name, own in _sorted(gauges.pods)]
    for name, words, of_sockets in _SOCKET_GAUGES:
        text.add(f"speech_nic_{name}", "gauge", words, [(labels, of_sockets(own)) for labels, own in sockets])
    text.add("speech_nic_node_rx_queue_pressure", "gauge", "Receive pressure of the node, 0 to 1", [({}, gauges.node)])
    text.add(
        "speech_nic_rx_queue_pressure",
        "gauge",
        "Receive pressure of a pod, 0 to 1; that of the node for pods without a network namespace of their own",
        [(_pod(name), reading) for name, reading in _sorted(gauges.pressures)],
    )


def _srd(device: Device) -> Sample:
    labels = {"device": device.name}
    if isinstance(device.statistics, Absence):
        return labels, device.statistics
    mode = device.statistics.get(_SRD_MODE)
    if mode is None:
        return labels, unsupported(f"{device.name}: the device has no ENA Express")
    return {**labels, "mode": _SRD_MODES.get(mode, str(mode))}, float(mode > 0)


def _device(gauges: DeviceGauges) -> Labels:
    return {"device": gauges.name, "socket": gauges.socket} if gauges.socket else {"device": gauges.name}


def _pod(name: PodName) -> Labels:
    return {"namespace": name.namespace, "pod": name.name}


def _sorted(found: Mapping[PodName, Value]) -> list[tuple[PodName, Value]]:
    return sorted(found.items(), key=lambda each: (each[0].namespace, each[0].name))


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
