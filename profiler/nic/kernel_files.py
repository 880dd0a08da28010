"""Parsers of the text files in /proc that describe the network receive path. Pure.

Formats are those of Linux 4.14 to 6.18. Fields that a kernel of that range lacks are an `Absence`.
"""

import re
from collections.abc import Mapping

from profiler.nic.readings import DeviceCounters, SoftnetCpu, UdpCounters, UdpSocket, unsupported
from profiler.samples import Absence, Reading

_WRAP = 2**32
_NOT_ASKED = unsupported("sock_diag has nothing of this socket")
_UDP_FIELDS = 12
"""Fields of a line of /proc/net/udp up to `pointer`; `drops` follows."""
_BACKLOG, _CPU = 11, 12
"""Columns of /proc/net/softnet_stat: packets that wait for the CPU (from Linux 5.10 on), and the number of the CPU."""
_POD = re.compile(
    r"(?:^|/)(?:kubepods[a-z-]*-)?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})"
    r"(?:\.slice)?(?:/|$)"
)


class InvalidFile(ValueError):
    """A file of the kernel has a format that is not known; the message names the file and the line."""


def udp_sockets(text: str, version: int) -> tuple[UdpSocket, ...]:
    """Return the sockets in /proc/net/udp (`version` 4) or udp6 (6), without the sizes of their buffers.

    The header names `tx_queue rx_queue` and `tr tm->when` as four columns; their values are two, joined by colons.

    Raises:
        InvalidFile: a line cannot be parsed.
    """
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if not fields:
            continue
        try:
            _, queued = fields[4].split(":")
            drops: Reading = (
                float(fields[_UDP_FIELDS]) if len(fields) > _UDP_FIELDS else unsupported("no column drops in udp")
            )
            found.append(
                UdpSocket(
                    inode=int(fields[9]),
                    version=version,
                    queued_bytes=int(queued, 16),
                    drops=drops,
                    limit_bytes=_NOT_ASKED,
                    charged_bytes=_NOT_ASKED,
                )
            )
        except (ValueError, IndexError):
            raise InvalidFile(f"/proc/net/udp: {line!r}: cannot be parsed") from None
    return tuple(found)


def softnet(text: str) -> tuple[SoftnetCpu, ...]:
    """Return the CPUs in /proc/net/softnet_stat. The values are hexadecimal, and offline CPUs have no line.

    Before Linux 5.10 there is no column with the number of the CPU; the number of the line takes its place.

    Raises:
        InvalidFile: a line cannot be parsed.
    """
    found = []
    for number, line in enumerate(text.splitlines()):
        try:
            columns = [int(each, 16) for each in line.split()]
            processed, dropped, squeezed = columns[:3]
        except ValueError:
            raise InvalidFile(f"/proc/net/softnet_stat: {line!r}: cannot be parsed") from None
        known = len(columns) > _CPU
        found.append(
            SoftnetCpu(
                cpu=columns[_CPU] if known else number,
                processed=processed,
                dropped=dropped,
                squeezed=squeezed,
                backlog_packets=float(columns[_BACKLOG]) if known else unsupported("before Linux 5.10"),
            )
        )
    return tuple(found)


def udp_counters(snmp: str, snmp6: str) -> UdpCounters | Absence:
    """Return the UDP counters in /proc/net/snmp and snmp6; `snmp6` is empty where there is no IPv6.

    `MemErrors`, which Linux has since 5.11, count datagrams that the memory limit of all UDP sockets refused.

    Raises:
        InvalidFile: a line cannot be parsed.
    """
    lines = [line.split() for line in snmp.splitlines() if line.startswith("Udp:")]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        return unsupported("no UDP counters in /proc/net/snmp")
    try:
        four = dict(zip(lines[0][1:], map(int, lines[1][1:]), strict=True))
    except ValueError:
        raise InvalidFile(f"/proc/net/snmp: {lines[1]!r}: cannot be parsed") from None
    six: dict[str, int] = {}
    for line in snmp6.splitlines():
        if line.startswith("Udp6"):
            try:
                name, value = line.split()
                six[name] = int(value)
            except ValueError:
                raise InvalidFile(f"/proc/net/snmp6: {line!r}: cannot be parsed") from None
    if not all(name in four for name in ("InDatagrams", "InErrors", "RcvbufErrors")):
        return unsupported("no RcvbufErrors in /proc/net/snmp")

    def total(*names: str) -> int:
        return sum(four.get(name, 0) + six.get(f"Udp6{name}", 0) for name in names)

    by_name = {f"Udp_{name}": value for name, value in four.items()}
    by_name |= {f"Udp6_{name.removeprefix('Udp6')}": value for name, value in six.items()}
    return UdpCounters(
        in_datagrams=total("InDatagrams"),
        receive_buffer_errors=total("RcvbufErrors", "MemErrors"),
        by_name=by_name,
    )


def devices(text: str) -> Mapping[str, DeviceCounters]:
    """Return the receive counters in /proc/net/dev by device. A long number may follow the colon without a space.

    Raises:
        InvalidFile: a line cannot be parsed.
    """
    found: dict[str, DeviceCounters] = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.rpartition(":")
        try:
            octets, packets, errors, dropped, fifo, frame, *_ = map(int, rest.split())
        except ValueError:
            raise InvalidFile(f"/proc/net/dev: {line!r}: cannot be parsed") from None
        found[name.strip()] = DeviceCounters(
            packets=packets, bytes=octets, errors=errors, dropped=dropped, fifo=fifo, frame=frame
        )
    return found


def pod_uid(cgroup: str) -> str | None:
    """Return the UID of the pod to which a process belongs, from its /proc/PID/cgroup; None outside of pods.

    The drivers systemd and cgroupfs of the kubelet write the UID with underscores and with dashes.
    """
    for line in cgroup.splitlines():
        if (match := _POD.search(line.rpartition(":")[2])) is not None:
            return match[1].replace("_", "-")
    return None


def increase(before: int, after: int) -> int | None:
    """Return the increase of a 64-bit counter, None where it began again."""
    return after - before if after >= before else None


def wrapped_increase(before: int, after: int) -> int:
    """Return the increase of a counter modulo 2³², as those of /proc/net/softnet_stat."""
    return (after - before) % _WRAP
