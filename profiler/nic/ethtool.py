"""Ring sizes, queues and driver statistics of network devices, by the ioctl SIOCETHTOOL. Reading needs no capability.

The numbers and structures are those of Linux's include/uapi/linux/ethtool.h. The netlink interface to ethtool calls the
same functions of the drivers for ring sizes and queues, needs Linux 5.6, and has no statistics of drivers.
"""

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from profiler.nic.readings import unsupported
from profiler.samples import Absence, Reading

_SIOCETHTOOL = 0x8946
_GRINGPARAM, _GCHANNELS, _GSSET_INFO, _GSTRINGS, _GSTATS = 0x10, 0x3C, 0x37, 0x1B, 0x1D
_SET_OF_STATISTICS = 1
_NAME_SIZE = 32
_RING = struct.Struct("=9I")
_CHANNELS = struct.Struct("=9I")
_SET_INFO = struct.Struct("=IIQI")
_STRINGS = struct.Struct("=III")
_STATISTICS = struct.Struct("=II")
MOST_STATISTICS = 10_000
"""Most statistics that are read of a device. A device with 128 queues has about 3,000."""
_LACKING = {errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENOTTY}

Call = Callable[[str, bytes], bytes]
"""Sends a command for a device to the kernel, and returns the structure as the kernel filled it in."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Descriptors of a receive ring as configured, and the most that the device allows."""

    size: Reading
    size_max: Reading


def kernel_call(device: str, structure: bytes) -> bytes:
    """Send an ethtool command to the kernel.

    Raises:
        OSError: the device does not exist, or its driver does not support the command.
    """
    buffer = ctypes.create_string_buffer(structure, len(structure))
    interface = struct.pack("16sP16x", device.encode(), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, interface)
    return buffer.raw


def ring(device: str, call: Call = kernel_call) -> Ring:
    """Return the receive ring of a device."""

    def read() -> Ring:
        _, largest, _, _, _, size, *_ = _RING.unpack(call(device, _RING.pack(_GRINGPARAM, *[0] * 8)))
        if not size:
            lacking = unsupported(f"{device}: the driver reports a ring of 0 descriptors")
            return Ring(size=lacking, size_max=lacking)
        return Ring(size=float(size), size_max=float(largest))

    found = _or_absence(device, "the driver reports no ring", read)
    return Ring(size=found, size_max=found) if isinstance(found, Absence) else found


def receive_queues(device: str, call: Call = kernel_call) -> Reading:
    """Return the active receive queues of a device."""

    def read() -> float | Absence:
        _, *_, receive, _, _, combined = _CHANNELS.unpack(call(device, _CHANNELS.pack(_GCHANNELS, *[0] * 8)))
        return float(receive + combined) or unsupported(f"{device}: the driver reports no queue")

    return _or_absence(device, "the driver reports no queues", read)


def statistics(device: str, call: Call = kernel_call) -> Mapping[str, int] | Absence:
    """Return the statistics of the driver by its own names, as `ethtool -S` prints them."""

    def read() -> Mapping[str, int]:
        info = _SET_INFO.unpack(call(device, _SET_INFO.pack(_GSSET_INFO, 0, 1 << _SET_OF_STATISTICS, 0)))
        count = min(info[3], MOST_STATISTICS) if info[2] else 0
        if not count:
            raise OSError(errno.EOPNOTSUPP, "no statistics")
        room = bytes(_NAME_SIZE * count)
        names = call(device, _STRINGS.pack(_GSTRINGS, _SET_OF_STATISTICS, count) + room)[_STRINGS.size :]
        values = call(device, _STATISTICS.pack(_GSTATS, count) + bytes(8 * count))[_STATISTICS.size :]
        texts = [
            names[at : at + _NAME_SIZE].split(b"\0", 1)[0].decode(errors="replace").strip()
            for at in range(0, len(room), _NAME_SIZE)
        ]
        return dict(zip(texts, struct.unpack(f"={count}Q", values), strict=True))

    return _or_absence(device, "the driver has no statistics", read)


def _or_absence(device: str, lacking: str, read: Callable[[], Value]) -> Value | Absence:
    try:
        return read()
    except OSError as error:
        what = lacking if error.errno in _LACKING else error.strerror or str(error)
        return unsupported(f"{device}: {what}")
