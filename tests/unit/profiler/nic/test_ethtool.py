"""Structures that were recorded of virtio_net on Linux 6.18, and the names of ENA's statistics."""

import errno
import struct
from pathlib import Path

import pytest

from profiler.nic.ethtool import receive_queues, ring, statistics
from profiler.samples import Absence, AbsenceReason

RING = "100000000001000000000000000000000001000000010000000000000000000000010000"
CHANNELS = "3c0000000000000000000000000000000100000000000000000000000000000001000000"
ENA = {
    name: int(value)
    for name, _, value in (
        line.partition(": ")
        for line in (Path(__file__).parent / "recorded" / "documented" / "ena_statistics.txt").read_text().splitlines()
    )
}


def recorded(device: str, structure: bytes) -> bytes:
    """Answer as the kernel did for eth0; lo supports nothing."""
    if device == "lo":
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    match struct.unpack_from("=I", structure)[0]:
        case 0x10:
            return bytes.fromhex(RING)
        case 0x3C:
            return bytes.fromhex(CHANNELS)
        case 0x37:
            return struct.pack("=IIQI", 0x37, 0, 1 << 1, len(ENA))
        case 0x1B:
            return structure[:12] + b"".join(name.encode().ljust(32, b"\0") for name in ENA)
        case 0x1D:
            return structure[:8] + struct.pack(f"={len(ENA)}Q", *ENA.values())
    raise AssertionError(structure)


def test_the_ring_and_its_queues() -> None:
    found = ring("eth0", recorded)
    assert (found.size, found.size_max) == (256, 256)
    assert receive_queues("eth0", recorded) == 1


def test_a_device_without_a_driver_is_unsupported_and_not_zero() -> None:
    for reading in (ring("lo", recorded).size, receive_queues("lo", recorded), statistics("lo", recorded)):
        assert isinstance(reading, Absence)
        assert reading.reason is AbsenceReason.UNSUPPORTED
        assert "lo" in reading.detail


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_refusal_says_why(code: int) -> None:
    def refuse(_: str, __: bytes) -> bytes:
        raise OSError(code, "Operation not permitted" if code == errno.EPERM else "")

    found = ring("eth0", refuse).size
    assert isinstance(found, Absence)
    assert ("not permitted" in found.detail) is (code == errno.EPERM)


def test_a_ring_of_zero_is_unsupported() -> None:
    found = ring("eth0", lambda _, structure: structure)
    assert isinstance(found.size, Absence)
    assert isinstance(receive_queues("eth0", lambda _, structure: structure), Absence)


def test_statistics_have_the_names_of_the_driver() -> None:
    assert statistics("eth0", recorded) == ENA
