"""Protobuf's wire format, as far as messages that are written and read by hand need it. Pure.

Source: Protocol Buffers, Encoding. Messages are small and few, so that no generated code is carried.
"""

import struct
from collections.abc import Iterator

_FIXED64, _LENGTH = 1, 2


def field(number: int, content: bytes) -> bytes:
    """Return a field with a length: bytes, text or a message."""
    return varint(number << 3 | _LENGTH) + varint(len(content)) + content


def text(number: int, content: str) -> bytes:
    """Return a field with text."""
    return field(number, content.encode())


def double(number: int, value: float) -> bytes:
    """Return a field with a floating-point number."""
    return varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def varint(value: int) -> bytes:
    """Return a number that is not negative in its variable length."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and content of the fields of the message in `data`: a number, or the bytes of all other kinds.

    Raises:
        ValueError: `data` is no message.
    """
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        match tag & 7:
            case 0:
                value, at = read_varint(data, at)
                yield tag >> 3, value
                continue
            case 1:
                end = at + 8
            case 5:
                end = at + 4
            case 2:
                length, at = read_varint(data, at)
                end = at + length
            case kind:
                raise ValueError(f"wire type {kind} of field {tag >> 3}: must be 0, 1, 2 or 5")
        if end > len(data):
            raise ValueError(f"field {tag >> 3} ends at byte {end} of {len(data)}")
        yield tag >> 3, data[at:end]
        at = end


def numbers(content: bytes | int) -> Iterator[int]:
    """Yield the signed 64-bit numbers of a repeated field, packed or one of several.

    Raises:
        ValueError: the bytes are no numbers.
    """
    if isinstance(content, int):
        yield _signed(content)
        return
    at = 0
    while at < len(content):
        value, at = read_varint(content, at)
        yield _signed(value)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at position `at` and the position after it.

    Raises:
        ValueError: there is none.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError(f"no number at byte {at} of {len(data)}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
