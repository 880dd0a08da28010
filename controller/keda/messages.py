"""The messages of KEDA's `externalscaler.ExternalScaler` in protobuf's wire format.

They are those of KEDA 2.21.0, `pkg/scalers/externalscaler/externalscaler.proto`: field numbers are in the code. Unknown
fields are skipped, as protobuf demands. The deprecated integer fields stay unset; KEDA reads them where a double is 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from profiler.protobuf import double, field, fields, text


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
    for number, value in _contents(data):
        if number in found:
            found[number] = value.decode()
        elif number == 3:
            entry = {1: "", 2: ""} | {part: content.decode() for part, content in _contents(value)}
            metadata[entry[1]] = entry[2]
    return ScaledObjectRef(name=found[1], namespace=found[2], metadata=metadata)


def read_metrics_request(data: bytes) -> MetricsRequest:
    """Return the message `GetMetricsRequest` in `data`.

    Raises:
        ValueError: `data` is not such a message.
    """
    found = {1: b"", 2: b""} | dict(_contents(data))
    return MetricsRequest(scaled_object=read_scaled_object(found[1]), metric=found[2].decode())


def is_active(active: bool) -> bytes:
    """Return the message `IsActiveResponse`."""
    return b"\x08\x01" if active else b""


def metric_spec(metric: str, target: float) -> bytes:
    """Return the message `GetMetricSpecResponse` with one metric and its target value."""
    return field(1, text(1, metric) + double(3, target))


def metric_value(metric: str, value: float) -> bytes:
    """Return the message `GetMetricsResponse` with the value of one metric."""
    return field(1, text(1, metric) + double(3, value))


def _contents(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields that are no numbers; all that the messages from KEDA use are such."""
    return ((number, content) for number, content in fields(data) if isinstance(content, bytes))
