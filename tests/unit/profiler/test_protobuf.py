"""Messages in protobuf's wire format are written and read; what is no message is refused."""

import pytest

from profiler.protobuf import double, field, fields, numbers, text, varint


def test_what_is_written_is_read() -> None:
    message = text(1, "asr") + double(2, 0.5) + field(3, varint(1) + varint(300)) + varint(4 << 3) + varint(7)
    found = dict(fields(message))
    assert found[1] == b"asr"
    assert found[4] == 7
    assert list(numbers(found[3])) == [1, 300]
    assert list(numbers(found[4])) == [7]


def test_numbers_are_signed() -> None:
    assert list(numbers(b"\xff" * 9 + b"\x01")) == [-1]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\x0b", b"\xff" * 11])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|wire type|number"):
        list(fields(data))
