"""Answers of sock_diag that were recorded on Linux 6.18, and of the kernel that runs the test."""

import errno
import socket
import struct
from pathlib import Path

import pytest

from profiler.nic.kernel_files import udp_sockets
from profiler.nic.socket_diagnostics import DiagnosticsRefused, SocketMemory, parse, request, socket_memory

RECORDED = Path(__file__).parent / "recorded" / "linux-6.18"


def recorded(name: str) -> list[bytes]:
    return [bytes.fromhex(line) for line in (RECORDED / name).read_text().splitlines()]


def test_a_recorded_answer_has_the_limits_of_the_sockets_in_the_file() -> None:
    answer, end = recorded("sock_diag.hex")
    memory, last = parse(answer)
    flooded, idle = udp_sockets((RECORDED / "udp").read_text(), 4)
    assert not last
    assert memory[flooded.inode] == SocketMemory(charged_bytes=flooded.queued_bytes, limit_bytes=16384)
    assert memory[idle.inode] == SocketMemory(charged_bytes=0, limit_bytes=212992)
    assert parse(end) == ({}, True)


def test_the_answer_for_ipv6_has_further_attributes() -> None:
    memory, _ = parse(recorded("sock_diag6.hex")[0])
    waiting, _ = udp_sockets((RECORDED / "udp6").read_text(), 6)
    assert memory[waiting.inode] == SocketMemory(charged_bytes=waiting.queued_bytes, limit_bytes=212992)


def test_a_refusal_is_an_error() -> None:
    with pytest.raises(DiagnosticsRefused) as refused:
        parse(struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -errno.ENOENT) + bytes(16))
    assert refused.value.errno == errno.ENOENT


def test_an_answer_that_is_cut_off_ends() -> None:
    answer = recorded("sock_diag.hex")[0]
    assert parse(answer[:8]) == ({}, False)


def test_an_answer_that_is_too_short_is_a_refusal() -> None:
    for answer in (struct.pack("=IHHII", 20, 20, 0, 1, 0) + bytes(4), struct.pack("=IHHII", 16, 2, 0, 1, 0)):
        with pytest.raises(DiagnosticsRefused, match="too short"):
            parse(answer)


def test_the_request_asks_for_udp_with_memory() -> None:
    message = request(socket.AF_INET, 7)
    assert struct.unpack_from("=IHHII", message) == (len(message), 20, 0x301, 7, 0)
    assert struct.unpack_from("=BBB", message, 16) == (socket.AF_INET, socket.IPPROTO_UDP, 1 << 6)


def test_the_kernel_answers_with_the_size_that_it_reports_to_the_process() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 40_000)
        own.bind(("127.0.0.1", 0))
        try:
            memory = socket_memory()
        except OSError as error:
            pytest.skip(f"sock_diag: {error}")
        text = Path("/proc/self/net/udp").read_text()
        port = f":{own.getsockname()[1]:04X}"
        (inode,) = [int(line.split()[9]) for line in text.splitlines()[1:] if line.split()[1].endswith(port)]
        assert memory[inode].limit_bytes == own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
