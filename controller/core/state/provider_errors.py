"""What an error of the cloud provider means for a pool: one table of codes and phrases, one function over it.

The texts are those of EC2 and of Auto Scaling, as they appear in conditions and Events of NodeClaims, in activities of
Auto Scaling groups, and in the status of the cluster autoscaler. Which codes mean that the provider has no capacity is
as in Karpenter's provider for AWS, except for quotas, which a person can have raised.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class ErrorClass(Enum):
    """What to do about an error. The values are condition reasons."""

    CAPACITY = "NoCapacity"
    """The provider has none of these instances now: plan with the next pool, and try again later."""
    QUOTA = "QuotaExceeded"
    """The account may not have more of them: plan with the next pool, and say which quota is to be raised."""
    THROTTLED = "Throttled"
    """Too many requests: the autoscaler tries again by itself, so wait."""
    PERMISSION = "NotPermitted"
    """The autoscaler lacks rights or credentials: nothing will come until a person changes them, so say it."""


ERRORS_COUNT_S = 900.0
"""How long an error says something of the present, in seconds: autoscalers try again within minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderError:
    """An error of the provider at `at_s`: its class, and its text as it was found."""

    kind: ErrorClass
    at_s: float
    text: str


_SIGNS: Sequence[tuple[ErrorClass, Sequence[str]]] = (
    (
        ErrorClass.QUOTA,
        (
            "VcpuLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "MaxFleetCountExceeded",
            "InstanceLimitExceeded",
            "OutOfQuota",  # the cluster autoscaler's class of the same errors
            "more vCPU capacity than your current vCPU limit",
            "max spot instance count exceeded",
        ),
    ),
    (
        ErrorClass.PERMISSION,
        (
            "UnauthorizedOperation",
            "AccessDenied",
            "AuthFailure",
            "ExpiredToken",
            "InvalidClientTokenId",
            "OptInRequired",
            "not authorized to perform",
            "client error on launch",  # of an Auto Scaling group that may not use the key of an encrypted volume
            "authentication failure",
        ),
    ),
    (
        ErrorClass.THROTTLED,
        ("RequestLimitExceeded", "Throttling", "RequestThrottled", "TooManyRequests", "SlowDown", "rate exceeded"),
    ),
    (
        ErrorClass.CAPACITY,
        (
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientCapacity",  # also Karpenter's InsufficientCapacityError
            "UnfulfillableCapacity",
            "InsufficientFreeAddressesInSubnet",
            "ReservationCapacityExceeded",
            "SpotMaxPriceTooLow",
            "OutOfResource",  # the cluster autoscaler's class of the same errors
            r"Unsupported\b",  # this type is not offered in this zone; UnsupportedOperation is another error
            "do not have sufficient",
            "no spot capacity available",
            "not supported in your requested availability zone",
        ),
    ),
)
"""Codes, and parts of messages (those with spaces). The more specific first: Karpenter reports a quota with the
words for a missing capacity around it."""


def _pattern(sign: str) -> str:
    return f"(?i:{re.escape(sign)})" if " " in sign else rf"\b{sign}"


_PATTERNS = tuple((kind, re.compile("|".join(map(_pattern, signs)))) for kind, signs in _SIGNS)


def classify(text: str) -> ErrorClass | None:
    """Return what an error of the provider means, by the codes and phrases in its `text`; None if it has none."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(text)), None)


def last_of(errors: Iterable[ProviderError], kind: ErrorClass) -> ProviderError | None:
    """Return the last of `errors` of the class `kind`, None without any."""
    return max((error for error in errors if error.kind is kind), key=lambda error: error.at_s, default=None)
