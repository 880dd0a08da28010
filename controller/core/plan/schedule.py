"""The cheapest schedule of work that can wait: how fast to go now, and what is left for cheaper hours. Pure.

The time to use is divided into periods. In each, work has a price that rises with its rate: the cheapest capacity is
used first. Without start-ups, the cheapest schedule uses all capacity below one price, and the same share of the
capacity at this price in every period (the fractional knapsack). Replicas that start are paid, and do nothing, for the
start-up; both schedules that are compared are counted so.

Waiting is a bet on the later periods. It is taken only where it saves more than a tolerance of the cost of the work
that it moves, and where what is free now, or less where less is expected, does all items after one more cycle and a
start-up. So a wrong expectation costs no deadline that the present capacity meets.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from optimizer.model import PoolName

_EPSILON = 1e-9
_STEPS = 32
"""Halvings of an interval, to ten digits."""
SURE_SHARE = 0.9
"""A run that is begun is stopped only where this share of the sure capacity does the items left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Capacity for `rate_rps` items per second at `item_cost` (USD) per item.

    `use` are the instances of pools that one item per second takes.
    """

    rate_rps: float
    item_cost: float
    use: Mapping[PoolName, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time of `length_s` seconds with the same capacity: `segments`, the cheapest first."""

    length_s: float
    segments: tuple[Segment, ...]

    @property
    def most_rps(self) -> float:
        """Return the items per second of all of the capacity."""
        return sum(each.rate_rps for each in self.segments)

    def below_rps(self, item_cost: float) -> float:
        """Return the items per second that cost at most `item_cost` each."""
        return sum(each.rate_rps for each in self.segments if each.item_cost <= item_cost)

    def cost_per_s(self, rate_rps: float) -> float:
        """Return the cost (USD) of a second at `rate_rps`, at most that of all capacity."""
        cost = 0.0
        for each in self.segments:
            taken = min(rate_rps, each.rate_rps)
            cost += taken * each.item_cost
            rate_rps -= taken
        return cost

    def instances(self, rate_rps: float) -> Mapping[PoolName, float]:
        """Return the instances that `rate_rps` takes, by pool."""
        found: dict[PoolName, float] = {}
        for each in self.segments:
            taken = min(rate_rps, each.rate_rps)
            for pool, count in each.use.items():
                found[pool] = found.get(pool, 0.0) + taken * count
            rate_rps -= taken
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done: `left` items (above 0), in the time of the periods.

    The replicas that are ready do `ready_rps` items per second; others are ready after `startup_s` seconds. `waiting`
    says that the work waits already.
    """

    left: float
    ready_rps: float = 0.0
    startup_s: float = 0.0
    waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """When to wait: where it saves more than the share `tolerance` of what it moves; decided every `interval_s`."""

    tolerance: float = 0.0
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The items per second in each period, what they `cost` (USD), and whether they do all items.

    `done` are the items done in each period, `even_rps` is the rate that does all items without waiting, infinite where
    no rate does. `even` says that this is the schedule without waiting.
    """

    rates: tuple[float, ...]
    done: tuple[float, ...]
    cost: float
    complete: bool
    even_rps: float
    even: bool


def schedule(work: Work, periods: Sequence[Period], caution: Caution) -> Schedule:
    """Return the schedule to follow: the cheapest one where waiting is worth it and safe, else the even one.

    `periods` are at least one. Where their capacity does not suffice, all of it is used.
    """
    even = even_schedule(work, periods)
    if not even.complete:
        return even
    found = cheapest(work, periods)
    running = work.ready_rps > 0
    # A run that is begun is not stopped for little, and one that waits goes on waiting: expectations scatter.
    tolerance = caution.tolerance * (2 if running else 0 if work.waiting else 1)
    moved = sum(
        each.length_s * max(0.0, each.cost_per_s(one) - each.cost_per_s(other))
        for each, one, other in zip(periods, even.rates, found.rates, strict=True)
    )
    if not found.complete or even.cost - found.cost <= max(tolerance * moved, _EPSILON * even.cost):
        return even
    waits = found.rates[0] < even.rates[0] * (1 - _EPSILON)
    if waits and work.left > (SURE_SHARE if running else 1.0) * sure_items(work, periods, caution.interval_s):
        return even
    return replace(found, even_rps=even.even_rps)


def sure_items(work: Work, periods: Sequence[Period], wait_s: float) -> float:
    """Return the items that are done after another `wait_s` and a start-up with what is sure.

    Sure is what is free now, or less where less is expected.
    """
    now_rps = periods[0].most_rps
    most = sum(each.length_s * min(now_rps, each.most_rps) for each in periods)
    return max(0.0, most - (wait_s + work.startup_s) * now_rps)


def even_schedule(work: Work, periods: Sequence[Period]) -> Schedule:
    """Return the schedule with the same rate in all periods, as far as their capacity allows."""
    limits = [each.most_rps for each in periods]
    highest = max(limits)

    def at(rate_rps: float) -> tuple[float, ...]:
        return tuple(min(rate_rps, most) for most in limits)

    rate_rps = _least(lambda rate: _items(work, periods, at(rate)), work.left, highest)
    found = _schedule(work, periods, at(highest if rate_rps is None else rate_rps))
    return replace(found, even=True, even_rps=float("inf") if rate_rps is None else rate_rps)


def cheapest(work: Work, periods: Sequence[Period]) -> Schedule:
    """Return the schedule that uses all capacity below a price, and a share of that at the price: the least such."""
    prices = sorted({segment.item_cost for each in periods for segment in each.segments})
    low, high = 0, len(prices) - 1

    def below(index: int) -> tuple[float, ...]:
        price = prices[index] if index >= 0 else -1.0
        return tuple(each.below_rps(price) for each in periods)

    while low < high:
        middle = (low + high) // 2
        if _items(work, periods, below(middle)) >= work.left * (1 - _EPSILON):
            high = middle
        else:
            low = middle + 1
    least, most = below(low - 1), below(low)

    def at(share: float) -> tuple[float, ...]:
        return tuple(one + share * (other - one) for one, other in zip(least, most, strict=True))

    share = _least(lambda part: _items(work, periods, at(part)), work.left, 1.0)
    return _schedule(work, periods, at(1.0 if share is None else share))


def _schedule(work: Work, periods: Sequence[Period], rates: tuple[float, ...]) -> Schedule:
    done = items_done(work, periods, rates)
    return Schedule(
        rates=rates,
        done=done,
        cost=sum(each.length_s * each.cost_per_s(rate) for each, rate in zip(periods, rates, strict=True)),
        complete=sum(done) >= work.left * (1 - _EPSILON),
        even_rps=float("inf"),
        even=False,
    )


def _items(work: Work, periods: Sequence[Period], rates: Sequence[float]) -> float:
    return sum(items_done(work, periods, rates))


def items_done(work: Work, periods: Sequence[Period], rates: Sequence[float]) -> tuple[float, ...]:
    """Return the items done in each period at `rates`: what exceeds the rate before has to start first."""
    before, found = work.ready_rps, []
    for each, rate in zip(periods, rates, strict=True):
        late_s = min(work.startup_s, each.length_s)
        found.append(rate * each.length_s - max(0.0, rate - before) * late_s)
        before = rate
    return tuple(found)


def _least(items: Callable[[float], float], left: float, most: float) -> float | None:
    """Return the least number up to `most` for which `items`, which does not fall, reaches `left`; None: none does."""
    if items(most) < left * (1 - _EPSILON):
        return None
    low, high = 0.0, most
    below, above = items(low), items(most)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        found = items(middle)
        if found >= left:
            high, above = middle, found
        else:
            low, below = middle, found
    # On a line between the two: rates far below the most have as many digits.
    return high if above <= below else low + (high - low) * min(1.0, max(0.0, (left - below) / (above - below)))


def until(periods: Sequence[Period], time_s: float) -> tuple[Period, ...]:
    """Return `periods` until `time_s` (above 0) after their begin; the last one is cut."""
    found: list[Period] = []
    for each in periods:
        if time_s <= _EPSILON:
            break
        found.append(each if each.length_s <= time_s else replace(each, length_s=time_s))
        time_s -= each.length_s
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """What a course takes: `instances` by pool, and USD per hour."""

    instances: Mapping[PoolName, float]
    per_hour: float


def _most(used: Sequence[Busy]) -> Busy:
    if len(used) == 1:
        return used[0]
    pools = {pool for each in used for pool in each.instances}
    return Busy(
        instances={pool: max(each.instances.get(pool, 0.0) for each in used) for pool in pools},
        per_hour=max((each.per_hour for each in used), default=0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The schedule that a backlog follows. `periods` go on beyond the `time_s` seconds that it may use."""

    work: Work
    periods: tuple[Period, ...]
    time_s: float
    found: Schedule

    @classmethod
    def of(cls, work: Work, periods: tuple[Period, ...], time_s: float, caution: Caution) -> "Course":
        """Return the course of `work` that has `time_s` seconds; `periods` are at least as long."""
        return cls(work=work, periods=periods, time_s=time_s, found=schedule(work, until(periods, time_s), caution))

    @property
    def changes(self) -> bool:
        """Return whether other capacity or other prices than now are expected before the deadline."""
        return any(each.segments != self.periods[0].segments for each in until(self.periods, self.time_s))

    @property
    def waits_s(self) -> float | None:
        """Return after how many seconds the work goes on faster, because it waits; None: it does not wait."""
        rates, passed_s = self.found.rates, 0.0
        if self.found.even or rates[0] >= max(rates) * (1 - _EPSILON):
            return None
        for each, rate in zip(self.periods, rates, strict=False):
            if rate > rates[0] + _EPSILON * max(rates):
                return passed_s
            passed_s += each.length_s
        return None

    @property
    def now(self) -> Busy:
        """Return what the work takes in the present period."""
        first, rate = self.periods[0], self.found.rates[0]
        return Busy(instances=first.instances(rate), per_hour=3600 * first.cost_per_s(rate))

    def busiest(self, step_s: float, steps: int) -> Sequence[Busy]:
        """Return the most that the work takes at any time of each of `steps` periods of `step_s` seconds from now."""
        used = [
            Busy(instances=each.instances(rate), per_hour=3600 * each.cost_per_s(rate))
            for each, rate in zip(self.periods, self.found.rates, strict=False)
        ]
        ends_s = [*accumulate(each.length_s for each in self.periods[: len(used)])]
        found: list[Busy] = []
        for index in range(steps):
            # Those that end after its begin, up to the one in which it ends.
            first, last = bisect_right(ends_s, index * step_s), bisect_right(ends_s, (index + 1) * step_s)
            found.append(_most(used[first : last + 1]))
        return found

    def remaining(self, rate_rps: float) -> tuple[float, float] | None:
        """Return after how many seconds all items are done, and what they cost (USD) from now on; None: never.

        In the first period the work goes at `rate_rps`.
        """
        periods = until(self.periods, self.time_s)
        rates = (rate_rps, *self.found.rates[1:])
        left, passed_s, cost = self.work.left, 0.0, 0.0
        for each, rate, done in zip(periods, rates, items_done(self.work, periods, rates), strict=True):
            spent = each.length_s * each.cost_per_s(rate)
            if done > 0 and done >= left * (1 - _EPSILON):
                return passed_s + each.length_s * min(1.0, left / done), cost + spent * min(1.0, left / done)
            left, passed_s, cost = left - max(0.0, done), passed_s + each.length_s, cost + spent
        rate, last = rates[-1], periods[-1]  # the rest is done after the time, as fast as before
        if rate <= 0:
            return None
        return passed_s + left / rate, cost + left / rate * last.cost_per_s(rate)

    def savings(self, extensions: Sequence[float]) -> Sequence[float]:
        """Return what the items left would cost less (USD) with each of `extensions` times more time, at least 0."""
        cost = self._cost(1.0)
        return [max(0.0, cost - self._cost(1.0 + each)) for each in extensions]

    def _cost(self, share: float) -> float:
        """Return the cost (USD) of the items left in `share` of the time. What is not done then costs as the rest."""
        periods = until(self.periods, share * self.time_s)
        options = [even_schedule(self.work, periods), cheapest(self.work, periods)]
        complete = [each.cost for each in options if each.complete]
        if complete:
            return min(complete)
        done = sum(options[0].done)
        return options[0].cost * self.work.left / done if done > 0 else 0.0
