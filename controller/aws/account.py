"""What the cycle asks of the AWS account: prices, quotas and groups, kept up to date by threads of their own.

A cycle never waits for an answer, except for the first one about something new, and that only once, for a moment.
Prices, quotas and groups have a thread each: a price list that hangs must not make quotas and instances unknown.
"""

import logging
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from controller.aws.failure import AwsFailure
from controller.aws.groups import Group, GroupApi, GroupNotFound, SeenGroup, observed
from controller.aws.prices import PriceApi, ask, refusal
from controller.aws.quotas import QuotaApi, QuotaUse
from controller.core.state.cloud import AwsPrice, PriceQuote, QuotaSource
from profiler.sources.aws_errors import MOST_CHARACTERS

_LOG = logging.getLogger(__name__)
FIRST_ANSWER_S = 5.0
"""The longest that a cycle waits for the first answer about something new, in seconds."""
QUOTA_REFRESH_S = 60.0
"""Time between two readings of a quota, whose use changes with every launch."""
GROUP_REFRESH_S = 10.0
"""Time between two readings of an Auto Scaling group: less than a cycle."""
GROUP_OLD_S = 90.0
"""A reading of a group that is older than this says nothing of the present, and the group counts as not readable."""
_RETRY_S, _LONGEST_RETRY_S = 30.0, 900.0
_JITTER = 0.1
"""Share by which waiting times vary, so that the operators of an account do not ask at the same moment."""
_TURN_S = 1.0
_UNUSED_S = 900.0
"""After this time without a question, something is no longer asked for: its pool was deleted, or its spec changed."""
_OLD = 3
"""An answer is out of date after so many missed refreshes; until then, a failed request is not worth a word."""

A = TypeVar("A", PriceQuote, QuotaUse, SeenGroup)
K = TypeVar("K", AwsPrice, QuotaSource, str)


class Account(Protocol):
    """The account as a cycle sees it. No method blocks, but `watch` for a moment."""

    def watch(
        self,
        prices: Mapping[AwsPrice, PriceQuote | None],
        quotas: Collection[QuotaSource],
        groups: Collection[str] = (),
    ) -> None:
        """Begin to keep these up to date. `prices` has for each look-up what an earlier process believed, or None.

        `groups` are the names of Auto Scaling groups.
        """
        ...

    def group(self, name: str) -> SeenGroup:
        """Return the last reading of an Auto Scaling group.

        Raises:
            AwsFailure: it was not read lately; `GroupNotFound`: it does not exist.
        """
        ...

    def price(self, source: AwsPrice) -> PriceQuote | None:
        """Return the last believed price, None without any."""
        ...

    def problem_of_price(self, source: AwsPrice) -> str:
        """Return why the last look-up gave no price, empty where it did or there was none."""
        ...

    def quota(self, source: QuotaSource) -> QuotaUse:
        """Return the last reading of a quota; one that was never read has no limit, and a problem."""
        ...


class NoAccount:
    """Stands for the account where there is none: nothing is known, and nothing is asked."""

    def __init__(self) -> None:
        self._kept: Mapping[AwsPrice, PriceQuote | None] = {}

    def watch(
        self,
        prices: Mapping[AwsPrice, PriceQuote | None],
        quotas: Collection[QuotaSource],  # noqa: ARG002
        groups: Collection[str] = (),  # noqa: ARG002
    ) -> None:
        """Keep the prices that an earlier process believed."""
        self._kept = prices

    def price(self, source: AwsPrice) -> PriceQuote | None:
        """Return what an earlier process believed."""
        return self._kept.get(source)

    def problem_of_price(self, source: AwsPrice) -> str:  # noqa: ARG002
        """Return that nothing is asked."""
        return "this operator does not ask AWS"

    def quota(self, source: QuotaSource) -> QuotaUse:  # noqa: ARG002
        """Return that the quota is not known."""
        return QuotaUse(limit_vcpus=None, as_of_s=None, problem="this operator does not ask AWS")

    def group(self, name: str) -> SeenGroup:
        """Raise that nothing is known of the group."""
        raise AwsFailure(f"Auto Scaling group {name}: this operator does not ask AWS")


@dataclass(slots=True, kw_only=True)
class _Watched(Generic[A]):
    """Something that is kept up to date: its last believed answer, and why there is no newer one."""

    refresh_s: float
    due_s: float
    asked_s: float
    answer: A | None = None
    problem: str = ""
    error: AwsFailure | None = None
    failed: int = 0
    tried: bool = False


class AwsAccount:
    """Asks AWS in threads of its own."""

    def __init__(
        self,
        prices: PriceApi,
        quotas: QuotaApi,
        groups: Callable[[], GroupApi] | None = None,
        *,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`groups` returns the port for Auto Scaling groups, and raises `AwsFailure` where no region is known.

        `clock` returns epoch seconds, `jitter` a number from 0 to 1.
        """
        self._price_api, self._quota_api, self._group_api = prices, quotas, groups
        self._groups: dict[str, _Watched[SeenGroup]] = {}
        self._clock, self._jitter = clock, jitter
        self._prices: dict[AwsPrice, _Watched[PriceQuote]] = {}
        self._quotas: dict[QuotaSource, _Watched[QuotaUse]] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """Stop asking. A request under way ends by its own deadline."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def watch(
        self,
        prices: Mapping[AwsPrice, PriceQuote | None],
        quotas: Collection[QuotaSource],
        groups: Collection[str] = (),
    ) -> None:
        """Begin to keep these up to date, and wait a moment for the first answers about those that are new."""
        now_s = self._clock()
        with self._changed:
            before = len(self._prices), len(self._quotas), len(self._groups)
            for price, kept in prices.items():
                self._prices.setdefault(
                    price, _Watched(refresh_s=price.refresh_s, due_s=now_s, asked_s=now_s, answer=kept)
                )
                self._prices[price].asked_s = now_s
            for quota in quotas:
                self._quotas.setdefault(quota, _Watched(refresh_s=QUOTA_REFRESH_S, due_s=now_s, asked_s=now_s))
                self._quotas[quota].asked_s = now_s
            for group in groups:
                self._groups.setdefault(group, _Watched(refresh_s=GROUP_REFRESH_S, due_s=now_s, asked_s=now_s))
                self._groups[group].asked_s = now_s
            wanted: list[_Watched[Any]] = [self._prices[each] for each in prices]
            wanted += [*(self._quotas[each] for each in quotas), *(self._groups[each] for each in groups)]
            # A service that hangs delays the cycle in which something is new, and no later one.
            if before == (len(self._prices), len(self._quotas), len(self._groups)):
                return
            if not self._threads and not self._stopped:
                for name, part in (
                    ("aws-groups", self.refresh_groups),
                    ("aws-quotas", self.refresh_quotas),
                    ("aws-prices", self.refresh_prices),
                ):
                    self._threads.append(threading.Thread(target=self._run, args=(part,), name=name, daemon=True))
                    self._threads[-1].start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or all(each.tried for each in wanted), FIRST_ANSWER_S)

    def price(self, source: AwsPrice) -> PriceQuote | None:
        """Return the last believed price, that of an earlier process before the first one, None without any."""
        with self._changed:
            found = self._prices.get(source)
            if found is None or found.answer is None:
                return None
            # A refused price is said at once, an answer that did not come when it is missed.
            worth_saying = found.problem and (found.failed == 0 or found.failed >= _OLD)
            return replace(found.answer, problem=found.problem if worth_saying else "")

    def quota(self, source: QuotaSource) -> QuotaUse:
        """Return the last reading of a quota; one that was never read has no limit, and a problem."""
        with self._changed:
            found = self._quotas.get(source)
            if found is None or found.answer is None:
                problem = "not read yet" if found is None or not found.problem else found.problem
                return QuotaUse(limit_vcpus=None, as_of_s=None, problem=problem)
            return replace(found.answer, problem=found.problem) if found.failed >= _OLD else found.answer

    def group(self, name: str) -> SeenGroup:
        """Return the last reading of an Auto Scaling group.

        Raises:
            AwsFailure: it was not read lately; `GroupNotFound`: it does not exist.
        """
        with self._changed:
            found = self._groups.get(name)
            if found is not None and isinstance(found.error, GroupNotFound):
                raise copy(found.error)  # the traceback of one that is kept would keep what reads it
            if found is None or found.answer is None:
                problem = "not read yet" if found is None or not found.problem else found.problem
                raise AwsFailure(problem)
            # In both directions: after the clock was set back, an old reading is one of the future.
            if abs(self._clock() - found.answer.group.as_of_s) > GROUP_OLD_S:
                raise AwsFailure(found.problem or f"Auto Scaling group {name}: no answer for {GROUP_OLD_S:g} s")
            return found.answer

    def scale(self, name: str, before: int, after: int, first: Collection[str] = ()) -> None:
        """Set the desired capacity of a group to `after`, if it still is `before`. `first` are instances to remove.

        Instances that were not launched yet go before them, then those that are not ready: the group itself chooses by
        its termination policy, which may be one with sessions. Instances that are protected from scale-in are not
        removed, even if they are among `first`.

        Raises:
            AwsFailure: the group is not scaled, or only in part.
            GroupChanged: somebody else has changed its desired capacity.
        """
        api = self._groups_api()
        now = api.read(name, self._clock())
        if now.desired != before:
            raise GroupChanged(f"Auto Scaling group {name} was set to {now.desired} instances by another client")
        if not now.min_size <= after <= now.max_size:
            raise AwsFailure(
                f"Auto Scaling group {name}: {after} instances: must be {now.min_size} to {now.max_size}, its MinSize "
                "and MaxSize"
            )
        chosen = _first_to_go(now, before - after, first)
        if chosen:
            api.terminate(name, chosen)
        if after != before - len(chosen):
            api.set_desired(name, after)
        with self._changed:
            if name in self._groups:
                self._groups[name].due_s = self._clock()
                self._changed.notify_all()

    def _groups_api(self) -> GroupApi:
        if self._group_api is None:
            raise AwsFailure("this operator does not scale Auto Scaling groups")
        return self._group_api()

    def problem_of_price(self, source: AwsPrice) -> str:
        """Return why the last look-up gave no price, empty where it did or there was none."""
        with self._changed:
            found = self._prices.get(source)
            return "" if found is None else found.problem

    def _run(self, part: Callable[[], None]) -> None:
        while not self._stopped:
            part()
            with self._changed:
                if not self._stopped:
                    self._changed.wait(_TURN_S)

    def refresh(self) -> None:
        """Ask for everything that is due, one after the other."""
        self.refresh_groups()
        self.refresh_prices()
        self.refresh_quotas()

    def refresh_groups(self) -> None:
        """Ask for the groups that are due."""
        for name, group in self._due(self._groups):
            self._update(group, lambda name=name: self._asked_group(name))  # type: ignore[misc]

    def refresh_prices(self) -> None:
        """Ask for the prices that are due."""
        for price_source, price in self._due(self._prices):
            self._update(price, lambda source=price_source: self._asked_price(source))  # type: ignore[misc]

    def refresh_quotas(self) -> None:
        """Ask for the quotas that are due."""
        for quota_source, quota in self._due(self._quotas):
            self._update(quota, lambda source=quota_source: self._quota_api.read(source, self._clock()))  # type: ignore[misc]

    def _due(self, watched: dict[K, _Watched[A]]) -> Sequence[tuple[K, _Watched[A]]]:
        """Return what is due, and forget what no cycle has asked about for long."""
        now_s = self._clock()
        with self._changed:
            for name in [name for name, each in watched.items() if now_s - each.asked_s > _UNUSED_S]:
                del watched[name]
            return [
                (name, each)
                for name, each in watched.items()
                # A time that is further away than any wait was set before the clock was set back.
                if each.due_s <= now_s or each.due_s - now_s > max(each.refresh_s, _LONGEST_RETRY_S) * (1 + _JITTER)
            ]

    def _asked_group(self, name: str) -> SeenGroup:
        group = self._groups_api().read(name, self._clock())
        with self._changed:
            return observed(group, self._groups[name].answer if name in self._groups else None)

    def _asked_price(self, source: AwsPrice) -> PriceQuote:
        quote = ask(self._price_api, source, self._clock())
        with self._changed:
            last = self._prices[source].answer if source in self._prices else None
        if why := refusal(source, quote, last):
            raise _Refused(why)
        return quote

    def _update(self, watched: _Watched[A], question: Callable[[], A]) -> None:
        answer: A | None = None
        problem, refused = "", False
        failure: AwsFailure | None = None
        unexpected: Exception | None = None
        with self._changed:
            due_s = watched.due_s
        try:
            answer = question()
        except _Refused as error:
            problem, refused = str(error), True
        except AwsFailure as error:
            problem, failure = str(error), error
        except Exception as error:  # noqa: BLE001
            # An answer of a form that no one has seen must not keep the others from being asked for.
            problem, unexpected = f"internal error: {type(error).__name__}: {error}"[:MOST_CHARACTERS], error
        with self._changed:
            if problem and problem != watched.problem:
                _LOG.warning("AWS: %s", problem, exc_info=unexpected)
            watched.problem, watched.error = problem, failure
            if answer is not None:
                watched.answer = answer
            watched.failed = watched.failed + 1 if problem and not refused else 0
            wait_s = watched.refresh_s
            if watched.failed:
                wait_s = min(wait_s, _LONGEST_RETRY_S, _RETRY_S * 2 ** min(watched.failed - 1, 10))
            if watched.due_s == due_s:  # otherwise it was changed meanwhile, and this answer may be of before
                watched.due_s = self._clock() + wait_s * (1 + _JITTER * (2 * self._jitter() - 1))
            watched.tried = True
            self._changed.notify_all()


def _first_to_go(group: Group, count: int, first: Collection[str]) -> Sequence[str]:
    """Return the instances to terminate by name so that `group` has `count` fewer; the group chooses the rest."""
    staying = [each for each in group.instances if not each.leaves]
    launched = count - max(0, group.desired - len(staying))
    free = [each for each in staying if not each.protected]
    chosen = [each for each in free if not each.ready or each.name in first]
    return [each.name for each in sorted(chosen, key=lambda each: (each.ready, each.name))[: max(0, launched)]]


class GroupChanged(AwsFailure):
    """Somebody else has changed the desired capacity of a group."""


class _Refused(AwsFailure):
    """An answer that is not believed."""
