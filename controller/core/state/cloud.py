"""Prices and quotas of a cloud account, as values with their date and source. `controller.aws` reads them.

Quotas of EC2 are in vCPUs, per region, family of instance types and purchase. Spot has quotas of its own.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Purchase(Enum):
    """How instances are bought. The values are those of the resources."""

    ON_DEMAND = "OnDemand"
    SPOT = "Spot"


class PriceOrigin(Enum):
    """Where a price comes from."""

    DECLARED = "Declared"
    """`spec.price.perHour`, because nothing else is known."""
    BUNDLED = "Bundled"
    """The table that ships with Sluice."""
    LISTED = "Listed"
    """The price list of AWS."""
    SPOT = "Spot"
    """The spot price history of AWS."""


IMPLAUSIBLE = "AWS gives an implausible price"
"""How the problem of a quote begins whose present price was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsPrice:
    """A declared look-up of prices: those of `instance_types` in `region`.

    `savings` is the share (0–1) that a savings plan or reserved instances take off the on-demand price. `zones` are the
    zones whose spot prices count, empty: all. Prices are asked for every `refresh_s` seconds.
    """

    instance_types: tuple[str, ...]
    region: str
    purchase: Purchase = Purchase.ON_DEMAND
    savings: float = 0.0
    zones: tuple[str, ...] = ()
    refresh_s: float = 3600.0


def lookup_text(source: AwsPrice) -> str:
    """Return a look-up as text, such as `g5.xlarge OnDemand us-east-1`: equal for look-ups with the same answer."""
    details = [
        ",".join(sorted(source.instance_types)),
        source.purchase.value,
        source.region,
        *([f"savings={source.savings:g}"] if source.savings else []),
        *([f"zones={','.join(sorted(source.zones))}"] if source.zones else []),
    ]
    return " ".join(details)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """The lowest and the highest price of an instance type in the last day, in USD per hour, over all zones."""

    low_per_hour: float
    high_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuote:
    """What an instance of a pool costs in USD per hour, as of `as_of_s`, None: a declared price has no date.

    `per_hour` is the price of the dearest type in the dearest zone: an autoscaler may launch any of them. `by_node` has
    the prices of nodes by `node_key`. `at` is the key of the dearest one. `day` is the range of the last day, for spot
    only. `problem` says why this is not the present price: AWS does not answer, or its price was refused.
    """

    per_hour: float
    origin: PriceOrigin
    as_of_s: float | None
    at: str = ""
    by_node: Mapping[str, float] = field(default_factory=dict)
    day: PriceRange | None = None
    problem: str = ""


def node_key(instance_type: str, zone: str = "") -> str:
    """Return the key of the price of a node, such as `g5.xlarge` or, where zones differ, `g5.xlarge/us-east-1a`."""
    return f"{instance_type}/{zone}" if zone else instance_type


class QuotaFamily(Enum):
    """The families of instance types that share a quota. The values are those of the resources."""

    STANDARD = "Standard"
    """A, C, D, H, I, M, R, T and Z."""
    G = "G"
    """G and VT."""
    P = "P"
    INF = "Inf"
    TRN = "Trn"


QUOTA_CODES: Mapping[tuple[QuotaFamily, Purchase], str] = {
    (QuotaFamily.STANDARD, Purchase.ON_DEMAND): "L-1216C47A",
    (QuotaFamily.STANDARD, Purchase.SPOT): "L-34B43A08",
    (QuotaFamily.G, Purchase.ON_DEMAND): "L-DB2E81BA",
    (QuotaFamily.G, Purchase.SPOT): "L-3819A6DF",
    (QuotaFamily.P, Purchase.ON_DEMAND): "L-417A185B",
    (QuotaFamily.P, Purchase.SPOT): "L-7212CCBC",
    (QuotaFamily.INF, Purchase.ON_DEMAND): "L-1945791B",
    (QuotaFamily.INF, Purchase.SPOT): "L-B5D1601B",
    (QuotaFamily.TRN, Purchase.ON_DEMAND): "L-2C3B7624",
}
"""The code of each quota in Service Quotas (service `ec2`). That of Trainium on spot must be given: public sources have
two different ones (L-6B0D517C and L-5480EFD2)."""

_FAMILY = re.compile(r"[a-z]+")
_SIZE = re.compile(r"\.(?:(medium)|(large)|(\d*)xlarge)$")


def family_of(instance_type: str) -> QuotaFamily | None:
    """Return the quota family of an instance type such as `g5.xlarge`, None for one of another family."""
    found = _FAMILY.match(instance_type)
    match found[0] if found else "":
        case "inf":
            return QuotaFamily.INF
        case "trn":
            return QuotaFamily.TRN
        case "p":
            return QuotaFamily.P
        case "g" | "gr" | "vt":
            return QuotaFamily.G
        case "hpc" | "dl" | "mac" | "u" | "f" | "x":
            return None
        case "":
            return None
        case letters:
            return QuotaFamily.STANDARD if letters[0] in "acdhimrtz" else None


def vcpus_of(instance_type: str) -> int | None:
    """Return the vCPUs of an instance type by its size: 2 for `large`, 4 for `xlarge`, 4·N for `Nxlarge`.

    None for sizes that this does not hold for, such as metal, and the burstable types, whose small sizes have 2.
    """
    found = _SIZE.search(instance_type)
    if found is None or (instance_type[0] == "t" and not instance_type.startswith("trn")):
        return None
    medium, large, multiple = found.groups()
    if medium:
        return 1
    return 2 if large else 4 * int(multiple or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSource:
    """A declared quota: the one of `code` in `region`, of which an instance of the pool takes `vcpus`.

    `name` is how messages call it, such as `Inf OnDemand`.
    """

    code: str
    region: str
    vcpus: int
    purchase: Purchase
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaReading:
    """A quota of the account in vCPUs, with what is used by instances that are not of the pool.

    The numbers are as of `as_of_s`, None: they were never read.

    `limit_vcpus` None: it is not known; `problem` says why. `others_vcpus` None: what is used is not known, and counts
    as nothing. `problem` without a missing limit says why the numbers are older than they should be.
    """

    limit_vcpus: float | None
    others_vcpus: float | None
    as_of_s: float | None
    problem: str = ""

    def instances(self, vcpus: int) -> int | None:
        """Return how many instances of `vcpus` the quota allows, None where it is not known."""
        if self.limit_vcpus is None:
            return None
        return max(0, math.floor((self.limit_vcpus - (self.others_vcpus or 0.0)) / vcpus + 1e-9))

    def needed_for(self, instances: int, vcpus: int) -> int:
        """Return the quota in vCPUs with which `instances` instances of `vcpus` would be allowed."""
        return math.ceil((self.others_vcpus or 0.0) + instances * vcpus - 1e-9)
