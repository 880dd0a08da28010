"""The messages of KEDA's `externalscaler.ExternalScaler` in protobuf's wire format.

They are those of KEDA 2.21.0, `pkg/scalers/externalscaler/externalscaler.proto`: field numbers are in the code. Unknown
fields are skipped, as protobuf demands. The deprecated integer fields stay unset; KEDA reads them where a double is 0.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FIXED64, _LENGTH = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObjectRef:
    """The ScaledObject that KEDA asks for; `metadata` is that of its trigger."""

    name: str
    namespace: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRequest:
    """The request for the value of the metric `metric`."""

    scaled_object: ScaledObjectRef
    metric: str


def read_scaled_object(data: bytes) -> ScaledObjectRef:
    """Return the message `ScaledObjectRef` in `data`.

    Raises:
        ValueError: `data` is not such a message.
    """
    found = {1: "", 2: ""}
    metadata: dict[str, str] = {}
    for number, value in _fields(data):
        if number in found:
            found[number] = value.decode()
        elif number == 3:
            entry = {1: "", 2: ""} | {part: text.decode() for part, text in _fields(value)}
            metadata[entry[1]] = entry[2]
    return ScaledObjectRef(name=found[1], namespace=found[2], metadata=metadata)


def read_metrics_request(data: bytes) -> MetricsRequest:
    """Return the message `GetMetricsRequest` in `data`.

    Raises:
        ValueError: `data` is not such a message.
    """
    found = {1: b"", 2: b""} | dict(_fields(data))
    return MetricsRequest(scaled_object=read_scaled_object(found[1]), metric=found[2].decode())


def is_active(active: bool) -> bytes:
    """Return the message `IsActiveResponse`."""
    return b"\x08\x01" if active else b""


def metric_spec(metric: str, target: float) -> bytes:
    """Return the message `GetMetricSpecResponse` with one metric and its target value."""
    return _field(1, _field(1, metric.encode()) + _double(3, target))


def metric_value(metric: str, value: float) -> bytes:
    """Return the message `GetMetricsResponse` with the value of one metric."""
    return _field(1, _field(1, metric.encode()) + _double(3, value))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH]) + _varint(len(content)) + content


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | _FIXED64]) + struct.pack("<d", value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields that have a length; all that the messages from KEDA use are such."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        match tag & 7:
            case 0:
                _, at = _read_varint(data, at)
                continue
            case 1:
                end = at + 8
            case 5:
                end = at + 4
            case 2:
                length, at = _read_varint(data, at)
                end = at + length
            case kind:
                raise ValueError(f"wire type {kind} of field {tag >> 3}: must be 0, 1, 2 or 5")
        if end > len(data):
            raise ValueError(f"field {tag >> 3} ends at byte {end} of {len(data)}")
        if tag & 7 == _LENGTH:
            yield tag >> 3, data[at:end]
        at = end


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at position `at` and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError(f"no number at byte {at} of {len(data)}")
