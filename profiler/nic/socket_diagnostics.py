"""Sizes of the receive buffers of UDP sockets, by netlink's sock_diag. Files in /proc show what waits, but no size."""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _NLMSG_DONE = 20, 2, 3
_REQUEST_DUMP = 0x301
_INET_DIAG_SKMEMINFO = 7
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_MESSAGE_SIZE = 72
_INODE_AT = 68
_ATTRIBUTE = struct.Struct("=HH")
_MEMORY = struct.Struct("=II")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketMemory:
    """The receive buffer of a socket: `charged_bytes` of at most `limit_bytes` are in use, packet overhead included."""

    charged_bytes: int
    limit_bytes: int


class DiagnosticsRefused(OSError):
    """The kernel refused the request: it has no udp_diag, or the process lacks the right."""


def request(family: int, sequence: int) -> bytes:
    """Return the netlink message that asks for all UDP sockets of an address `family`, with their memory."""
    body = _REQUEST.pack(family, socket.IPPROTO_UDP, 1 << (_INET_DIAG_SKMEMINFO - 1), 0, 0xFFFFFFFF)
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, sequence, 0) + body


def parse(data: bytes) -> tuple[dict[int, SocketMemory], bool]:
    """Return the memory of the sockets in one answer by inode, and whether it is the last answer.

    Raises:
        DiagnosticsRefused: the answer is an error, or too short.
    """
    try:
        return _parsed(data)
    except struct.error:
        raise DiagnosticsRefused(errno.EBADMSG, "the answer of sock_diag is too short") from None


def _parsed(data: bytes) -> tuple[dict[int, SocketMemory], bool]:
    found: dict[int, SocketMemory] = {}
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if kind == _NLMSG_DONE:
            return found, True
        if kind == _NLMSG_ERROR:
            (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
            raise DiagnosticsRefused(-code, os.strerror(-code))
        if length < _HEADER.size:
            break
        body = data[at + _HEADER.size : at + length]
        (inode,) = struct.unpack_from("=I", body, _INODE_AT)
        for attribute, value in _attributes(body[_MESSAGE_SIZE:]):
            if attribute == _INET_DIAG_SKMEMINFO:
                charged, limit = _MEMORY.unpack_from(value)
                found[inode] = SocketMemory(charged_bytes=charged, limit_bytes=limit)
        at += _aligned(length)
    return found, False


def socket_memory(timeout_s: float = 2.0) -> Mapping[int, SocketMemory]:
    """Return the memory of all UDP sockets in the network namespace of this thread, by inode.

    Raises:
        OSError: the kernel has no sock_diag, refused the request, or did not answer in time.
    """
    found: dict[int, SocketMemory] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diagnostics:
        diagnostics.settimeout(timeout_s)
        for sequence, family in enumerate(_FAMILIES, start=1):
            diagnostics.send(request(family, sequence))
            last = False
            while not last:
                part, last = parse(diagnostics.recv(1 << 18))
                found |= part
    return found


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
