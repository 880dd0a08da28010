"""The shards of a fleet: which one a namespace belongs to, and their entries in the status of what they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from optimizer.model import PoolName

MILLS = 1000
"""A budget is divided in units of so many parts of a USD per hour."""


def shard_of(name: str, count: int) -> int:
    """Return which of `count` shards `name` selects, from 0. It is the same in every process and release."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % count


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The shard `index` (from 0) of `count`. `label` is the label of namespaces that selects a shard, "" their name."""

    index: int
    count: int
    label: str = ""

    @property
    def divides(self) -> bool:
        """Whether the operator of this shard divides what all share."""
        return self.index == 0

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether the namespace of this name, with `labels`, belongs to the shard."""
        chosen = labels.get(self.label, "") if self.label else ""
        return shard_of(chosen or namespace, self.count) == self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What plans lack of a shared resource, and what more of it is worth; an empty one lacks nothing.

    `lacking` is how much more the plans would use, in units (instances of a pool, thousandths of USD/h of a budget).
    `unserved` is the share (0–1) of the demand that is not served for lack of it, and `priority` the highest one of a
    pipeline that lacks it for its demand. `least_priority` is the lowest one of a pipeline that uses it, None where
    none does. `price_per_hour` is what one more unit would save in USD per hour, None where that is not known.
    """

    lacking: int = 0
    unserved: float = 0.0
    priority: int = 0
    least_priority: int | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The entry of a shard in the status of a shared resource. `of` is the number of shards that it was written for.

    Amounts are in units, as in `Want`. `used` is what its replicas occupy or cost, and `agreed` what it works within.
    `allowed` is what it may agree to, None before the first division. With `reduce` it has to give back what it uses
    above that. `awaiting` counts the pipelines that another operator has not handed over yet. `users` counts those that
    may use the resource: without any, the shard needs no room. `want` is None until the shard has planned.
    `renewed_at_s` is in epoch seconds.
    """

    shard: int
    of: int
    used: int
    agreed: int
    allowed: int | None = None
    reduce: bool = False
    awaiting: int = 0
    users: int = 0
    want: Want | None = None
    renewed_at_s: float = 0.0

    @property
    def committed(self) -> int:
        """Return the most that the shard may use without a further write of its entry."""
        return max(self.used, self.agreed, self.allowed or 0)


def committed(entries: Sequence[Entry]) -> int:
    """Return the most that all shards together may use without a further write."""
    return sum(entry.committed for entry in entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a shard may use of a shared resource, in units.

    What it uses beyond that stays and does not grow, unless the allowance is `firm`: then it is given back.
    `granted` is whether the divider has given it, so that it says what there is. `entry` is the shard's own one.
    """

    amount: int
    firm: bool = False
    granted: bool = True
    entry: Entry | None = None


Allowances = Mapping[PoolName, Allowance]
