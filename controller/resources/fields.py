"""The scalar types of the resources: patterns, the texts of their rules, and conversion to base units.

Durations, memory quantities and decimals are strings, never floats.
"""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from controller.resources.base import Check

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(us|ms|s|m|h))+$"
DECIMAL_PATTERN = r"^(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?$"
RATIO_PATTERN = r"^(0(\.[0-9]{1,9})?|1(\.0{1,9})?)$"
PASS_RATIO_PATTERN = r"^(0(\.[0-9]{1,9})?|[1-9][0-9]?(\.[0-9]{1,9})?|100(\.0{1,9})?)$"  # noqa: S105 - not a password
QUANTITY_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
KIND_PATTERN = r"^[A-Z][A-Za-z0-9]*$"
API_VERSION_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9]+((alpha|beta)[0-9]+)?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
INSTANCE_TYPE_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
REGION_PATTERN = r"^[a-z][a-z0-9]*(-[a-z0-9]+)+$"
GROUP_PATTERN = r"^[^\x00-\x1f\x7f:]+$"
QUOTA_CODE_PATTERN = r"^L-[0-9A-F]{8}$"
NUMBER_PATTERN = r"^-?[0-9]+(\.[0-9]+)?$"
URL_PATTERN = r"^https?://\S+$"
CLOCK_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
END_PATTERN = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
MOMENT_PATTERN = (
    r"^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
ZONE_PATTERN = r"^[A-Za-z][-+A-Za-z0-9_]*(/[-+A-Za-z0-9_]+)*$"
SERIES_LABEL_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
SERIES_VALUE_PATTERN = r"^[^\x00-\x1f\x7f]+$"
SERVE_NAME_PATTERN = r"^[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?$"
ADDRESS_PATTERN = r"^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?/?$"
CONFIG_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
MODEL_PATTERN = r"""^[^"'\\\x00-\x1f\x7f]+$"""

PATTERN_RULES = {
    DURATION_PATTERN: "must be a duration such as 160ms or 1m30s (units us, ms, s, m, h)",
    DECIMAL_PATTERN: 'must be a decimal number of at least 0 in quotes, such as "0.75"',
    RATIO_PATTERN: 'must be a decimal number from 0 to 1 in quotes, such as "0.75"',
    PASS_RATIO_PATTERN: 'must be a decimal number from 0 to 100 in quotes, such as "0.75" or "3"',
    QUANTITY_PATTERN: "must be a quantity of memory such as 24Gi (Ki, Mi, Gi, Ti, k, M, G, T or bytes)",
    LABEL_PATTERN: "must be a DNS label: lower-case letters, digits and -, starting and ending with a letter or digit",
    SUBDOMAIN_PATTERN: "must be a DNS name: lower-case letters, digits, - and ., "
    "starting and ending with a letter or digit",
    KIND_PATTERN: "must be a Kubernetes kind such as Deployment",
    API_VERSION_PATTERN: "must be an API version such as apps/v1",
    INSTANCE_TYPE_PATTERN: "must be an instance type such as g5.2xlarge",
    REGION_PATTERN: "must be a region such as us-east-1, or a zone such as us-east-1a",
    GROUP_PATTERN: "must be the name of an Auto Scaling group: printable characters without colons",
    QUOTA_CODE_PATTERN: "must be the code of a quota such as L-1945791B",
    NUMBER_PATTERN: "must be a decimal number in quotes",
    URL_PATTERN: "must be a URL such as http://prometheus:9090",
    SERIES_LABEL_PATTERN: "must be the name of a label in Prometheus: letters, digits and _, not a digit first",
    SERIES_VALUE_PATTERN: "must be printable characters",
    SERVE_NAME_PATTERN: "must be a name of Ray Serve: letters, digits, -, _ and ., "
    "starting and ending with a letter, a digit or _",
    ADDRESS_PATTERN: "must be scheme, host and port, such as http://captions-head-svc.speech.svc:8265",
    MODEL_PATTERN: "must be the name of a model: printable characters without quotes and backslashes",
    CONFIG_KEY_PATTERN: "must be a key of a ConfigMap: letters, digits, -, _ and .",
    CLOCK_PATTERN: 'must be a time of day in quotes from "00:00" to "23:59"',
    END_PATTERN: 'must be a time of day in quotes from "00:00" to "24:00"',
    MOMENT_PATTERN: "must be an RFC 3339 time in this century, in whole seconds, such as 2026-12-24T18:00:00Z",
    ZONE_PATTERN: "must be an IANA time zone such as Europe/Berlin",
    LABEL_KEY_PATTERN: "must be a label key such as sluice.dev/pool",
    LABEL_VALUE_PATTERN: "must be a label value: letters, digits, -, _ and ., "
    "starting and ending with a letter or digit",
}
"""For each pattern, the rule that a value must follow, as text for messages."""

_UNIT_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_UNIT_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNIT_BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_DAY_NS = 24 * _UNIT_NS["h"]


def duration_s(text: str) -> float:
    """Return a duration such as `1m30s` or `1500us` in seconds, truncated to nanoseconds as in Go."""
    return _duration_ns(text) / 1e9


def quantity_bytes(text: str) -> float:
    """Return a memory quantity such as `24Gi` in bytes."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]
    return float(Decimal(number) * _UNIT_BYTES[unit])


def _duration_ns(text: str) -> int:
    parts = re.findall(r"([0-9.]+)(us|ms|s|m|h)", text)
    return sum(int(Decimal(number) * _UNIT_NS[unit]) for number, unit in parts)


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def clock_s(text: str) -> float:
    """Return a time of day such as `08:30` in seconds since midnight."""
    hours, minutes = text.split(":")
    return 3600.0 * int(hours) + 60.0 * int(minutes)


def moment_s(text: str) -> float:
    """Return an RFC 3339 time such as `2026-12-24T18:00:00Z` in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def is_day(text: str) -> bool:
    """Return whether `text`, which has the pattern of a time, names a day that the calendar has."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


_SHORT = Check(
    holds=lambda text: _duration_ns(text) <= _DAY_NS,
    cel="duration(self) <= duration('24h')",
    rule="must be at most 24h",
)
_LONGER_THAN_0 = Check(
    holds=lambda text: _duration_ns(text) > 0, cel="duration(self) > duration('0s')", rule="must be longer than 0s"
)
_AT_MOST_10_M = Check(
    holds=lambda text: _duration_ns(text) <= 600 * 10**9,
    cel="duration(self) <= duration('10m')",
    rule="must be at most 10m",
)
_ABOVE_0 = Check(holds=lambda text: Decimal(text) > 0, cel="double(self) > 0.0", rule="must be above 0")

_EXISTS = Check(
    holds=is_day, cel="timestamp(self) >= timestamp('1999-12-31T00:00:00Z')", rule="must be a day of the calendar"
)

Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32), _SHORT]
PositiveDuration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32), _SHORT, _LONGER_THAN_0]
MetricsWindow = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32), _SHORT, _LONGER_THAN_0, _AT_MOST_10_M]
DecimalString = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=19)]
Ratio = Annotated[str, Field(pattern=RATIO_PATTERN, max_length=11)]
PassRatio = Annotated[str, Field(pattern=PASS_RATIO_PATTERN, max_length=13), _ABOVE_0]
MemoryQuantity = Annotated[
    str,
    Field(pattern=QUANTITY_PATTERN, max_length=24),
    Check(
        holds=lambda text: quantity_bytes(text) > 0,
        cel="quantity(self).isGreaterThan(quantity('0'))",
        rule="must be above 0",
    ),
]
InstanceType = Annotated[str, Field(pattern=INSTANCE_TYPE_PATTERN, max_length=63)]
"""The name of an instance type, such as `g5.2xlarge`."""
Region = Annotated[str, Field(pattern=REGION_PATTERN, max_length=63)]
"""The name of an AWS region or zone."""
GroupName = Annotated[str, Field(pattern=GROUP_PATTERN, min_length=1, max_length=255)]
"""The name of an Auto Scaling group."""
Label = Annotated[str, Field(pattern=LABEL_PATTERN, min_length=1, max_length=63)]
Subdomain = Annotated[str, Field(pattern=SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
Kind = Annotated[str, Field(pattern=KIND_PATTERN, max_length=63)]
ApiVersion = Annotated[str, Field(pattern=API_VERSION_PATTERN, max_length=317)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY_PATTERN, max_length=317)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_PATTERN, max_length=63)]
DROP_NULLS = BeforeValidator(_without_nulls)
"""For maps: removes entries that are null, as the API server does."""
ModelName = Annotated[str, Field(pattern=MODEL_PATTERN, min_length=1, max_length=253)]
"""The name of a model as its server labels it, such as `openai/whisper-large-v3`."""
ConfigKey = Annotated[str, Field(pattern=CONFIG_KEY_PATTERN, min_length=1, max_length=253)]
ServeName = Annotated[str, Field(pattern=SERVE_NAME_PATTERN, min_length=1, max_length=128)]
"""The name of an application of Ray Serve, or of a deployment."""
Address = Annotated[str, Field(pattern=ADDRESS_PATTERN, max_length=317)]
"""A URL without a path."""
SeriesLabel = Annotated[str, Field(pattern=SERIES_LABEL_PATTERN, min_length=1, max_length=63)]
"""The name of a label in Prometheus."""
_TAKEN = ("le", "quantile", "instance", "job")
PodSeriesLabel = Annotated[
    SeriesLabel,
    Check(
        holds=lambda label: label not in _TAKEN and not label.startswith("__"),
        cel=f"!(self in {list(_TAKEN)}) && !self.startsWith('__')",
        rule=f"must not be {', '.join(_TAKEN)} or begin with __: these labels never have a pod or its namespace",
    ),
]
"""The name of a label in Prometheus that can have a pod or its namespace."""
SeriesValue = Annotated[str, Field(pattern=SERIES_VALUE_PATTERN, min_length=1, max_length=253)]
"""The value of a label in Prometheus."""
ClockTime = Annotated[str, Field(pattern=CLOCK_PATTERN, max_length=5)]
EndTime = Annotated[str, Field(pattern=END_PATTERN, max_length=5)]
Moment = Annotated[str, Field(pattern=MOMENT_PATTERN, max_length=25), _EXISTS]
"""A time with its offset from UTC."""
ZoneName = Annotated[str, Field(pattern=ZONE_PATTERN, max_length=64)]
Query = Annotated[str, Field(min_length=1, max_length=4096)]
Number = Annotated[str, Field(pattern=NUMBER_PATTERN, max_length=32)]
"""A number in a status, as a decimal string."""
Text = Annotated[str, Field(max_length=4096)]
Url = Annotated[str, Field(pattern=URL_PATTERN)]
