"""The thread that asks AWS: a cycle never waits for it, a failure is told, and an answer outlives the next failures."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from controller.aws.account import FIRST_ANSWER_S, AwsAccount, NoAccount
from controller.aws.failure import AwsFailure
from controller.aws.groups import Group
from controller.aws.prices import SpotPrice
from controller.aws.quotas import QuotaUse
from controller.core.state.cloud import AwsPrice, PriceOrigin, PriceQuote, Purchase, QuotaSource

SOURCE = AwsPrice(instance_types=("inf2.xlarge",), region="us-east-1")
INF = QuotaSource(code="L-1945791B", region="us-east-1", vcpus=4, purchase=Purchase.ON_DEMAND, name="Inf OnDemand")


@dataclass
class Aws:
    """Both ports, with an answer or a failure that a test sets."""

    price: float | str = 0.7582
    quota: float | str = 64.0
    asked: list[str] = field(default_factory=list)
    now_s: float = 0.0
    before: Callable[[], object] = lambda: None

    def on_demand(self, region: str, instance_types: Collection[str]) -> Mapping[str, float]:
        self.asked.append(f"price {region}")
        self.before()
        if isinstance(self.price, str):
            raise AwsFailure(self.price)
        return dict.fromkeys(instance_types, self.price)

    def spot(self, region: str, instance_types: Collection[str], since_s: float) -> Sequence[SpotPrice]:
        raise AssertionError

    def read(self, source: QuotaSource, now_s: float) -> QuotaUse:
        self.asked.append(f"quota {source.code}")
        if isinstance(self.quota, str):
            raise AwsFailure(self.quota)
        return QuotaUse(limit_vcpus=self.quota, as_of_s=now_s, instances={})

    def clock(self) -> float:
        return self.now_s


def an_account(aws: Aws, *, ask: bool = True) -> AwsAccount:
    account = AwsAccount(aws, aws, clock=aws.clock, jitter=lambda: 0.5)
    if ask:
        account.watch({SOURCE: None}, [INF])
        account._stopped = True  # from here on, the tests ask
    return account


def test_the_first_answers_are_there_when_the_first_cycle_reads_them() -> None:
    account = an_account(Aws())
    quote = account.price(SOURCE)
    assert quote is not None
    assert (quote.per_hour, quote.problem) == (0.7582, "")
    assert account.quota(INF).limit_vcpus == 64.0


def test_a_cycle_waits_only_a_moment_for_a_service_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.aws.account.FIRST_ANSWER_S", 0.05)
    free = threading.Event()
    aws = Aws(before=lambda: free.wait(10))
    account = AwsAccount(aws, aws, clock=aws.clock)
    account.watch({SOURCE: None}, [])
    assert account.price(SOURCE) is None
    free.set()
    account.close()
    assert FIRST_ANSWER_S <= 5


def test_only_the_cycle_in_which_something_is_new_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.aws.account.FIRST_ANSWER_S", 0.3)
    free = threading.Event()
    aws = Aws(before=lambda: free.wait(10))
    account = AwsAccount(aws, aws, clock=aws.clock)
    account.watch({SOURCE: None}, [])
    began_s = time.monotonic()
    for _ in range(3):
        account.watch({SOURCE: None}, [])
    assert time.monotonic() - began_s < 0.3
    free.set()
    account.close()


def test_a_price_list_that_hangs_does_not_keep_quotas_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.aws.account.FIRST_ANSWER_S", 0.05)
    free = threading.Event()
    aws = Aws(before=lambda: free.wait(10))
    account = AwsAccount(aws, aws, clock=aws.clock)
    account.watch({SOURCE: None}, [])
    monkeypatch.setattr("controller.aws.account.FIRST_ANSWER_S", 10.0)
    account.watch({}, [INF])
    assert account.quota(INF).limit_vcpus == 64.0
    free.set()
    account.close()


def test_an_answer_of_an_unexpected_form_keeps_nothing_else_from_being_read() -> None:
    aws = Aws()
    account = an_account(aws)
    listed = aws.on_demand

    def on_demand(region: str, instance_types: Collection[str]) -> Mapping[str, float]:
        if region == "us-east-1":
            raise AttributeError("'list' object has no attribute 'values'")
        return listed(region, instance_types)

    aws.on_demand = on_demand  # type: ignore[method-assign]
    other = replace(SOURCE, region="eu-west-1")
    aws.now_s = 3600.0
    for _ in range(3):
        account.watch({SOURCE: None, other: None}, [INF])
        account.refresh()
        aws.now_s += 1000.0
    quotes = account.price(SOURCE), account.price(other)
    assert all(quote is not None for quote in quotes)
    assert [quote.problem for quote in quotes if quote is not None] == [
        "internal error: AttributeError: 'list' object has no attribute 'values'",
        "",
    ]


def test_after_the_clock_was_set_back_answers_are_asked_for_at_once() -> None:
    aws = Aws(now_s=100_000.0)
    account = an_account(aws)
    aws.asked.clear()
    aws.now_s = 50_000.0
    account.watch({SOURCE: None}, [INF])
    account.refresh()
    assert aws.asked == ["price us-east-1", "quota L-1945791B"]


def test_a_price_list_that_hangs_does_not_keep_groups_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.aws.account.FIRST_ANSWER_S", 0.05)
    free = threading.Event()
    aws = Aws(before=lambda: free.wait(10))

    class Groups:
        def read(self, name: str, now_s: float) -> Group:
            return Group(
                name=name, min_size=0, max_size=1, desired=0, zones=("us-east-1a",), instances=(), as_of_s=now_s
            )

        def set_desired(self, name: str, desired: int) -> None:
            raise AssertionError

        def terminate(self, name: str, instances: Collection[str]) -> None:
            raise AssertionError

    account = AwsAccount(aws, aws, Groups, clock=aws.clock)
    account.watch({SOURCE: None}, [])
    monkeypatch.setattr("controller.aws.account.FIRST_ANSWER_S", 10.0)
    account.watch({}, (), ["vad"])
    assert account.group("vad").group.max_size == 1
    free.set()
    account.close()


def test_a_price_is_asked_for_again_when_it_is_due_and_not_before() -> None:
    aws = Aws()
    account = an_account(aws)
    aws.asked.clear()
    aws.now_s, aws.price = 3599.0, 0.9
    account.watch({SOURCE: None}, [])
    account.refresh()
    assert "price us-east-1" not in aws.asked
    aws.now_s = 3600.0
    account.refresh()
    quote = account.price(SOURCE)
    assert quote is not None
    assert quote.per_hour == 0.9


def test_while_aws_fails_the_last_price_counts_and_after_three_failures_that_is_told() -> None:
    aws = Aws()
    account = an_account(aws)
    aws.price, aws.now_s = "price list for us-east-1: EndpointConnectionError", 3600.0
    told = []
    for _ in range(3):
        account.watch({SOURCE: None}, [])
        account.refresh()
        quote = account.price(SOURCE)
        assert quote is not None
        assert (quote.per_hour, quote.as_of_s) == (0.7582, 0.0)
        told.append(quote.problem)
        aws.now_s += 1000
    assert told == ["", "", "price list for us-east-1: EndpointConnectionError"]


def test_the_times_between_failures_double() -> None:
    aws = Aws(price="no answer")
    account = an_account(aws)
    times: list[float] = []
    while len(times) < 5:
        before = len(aws.asked)
        account.watch({SOURCE: None}, [])
        account.refresh()
        if "price us-east-1" in aws.asked[before:]:
            times.append(aws.now_s)
        aws.now_s += 1.0
    assert times == [30.0, 90.0, 210.0, 450.0, 930.0]


def test_an_implausible_price_is_refused_and_told_at_once_and_a_later_one_counts() -> None:
    aws = Aws()
    account = an_account(aws)
    aws.price, aws.now_s = 8.0, 3600.0
    account.watch({SOURCE: None}, [])
    account.refresh()
    quote = account.price(SOURCE)
    assert quote is not None
    assert (quote.per_hour, quote.problem) == (
        0.7582,
        "AWS gives an implausible price: 8 USD per hour for inf2.xlarge, which was 0.7582",
    )
    aws.price, aws.now_s = 0.8, 7200.0
    account.watch({SOURCE: None}, [])
    account.refresh()
    quote = account.price(SOURCE)
    assert quote is not None
    assert (quote.per_hour, quote.problem) == (0.8, "")


def test_the_price_of_an_earlier_process_counts_before_the_first_answer_and_is_what_that_is_compared_with() -> None:
    kept = PriceQuote(
        per_hour=0.05, origin=PriceOrigin.LISTED, as_of_s=-100.0, at="inf2.xlarge", by_node={"inf2.xlarge": 0.05}
    )
    account = AwsAccount(Aws(), aws := Aws(), clock=aws.clock)
    account.watch({SOURCE: kept}, [])
    quote = account.price(SOURCE)
    account.close()
    assert quote is not None
    assert (quote.per_hour, quote.as_of_s) == (0.05, -100.0)
    assert "implausible" in quote.problem


def test_a_quota_that_was_never_read_has_no_limit_and_says_why() -> None:
    account = an_account(Aws(quota="quota L-1945791B in us-east-1: AccessDeniedException"))
    use = account.quota(INF)
    assert (use.limit_vcpus, use.problem) == (None, "quota L-1945791B in us-east-1: AccessDeniedException")
    assert account.quota(replace(INF, code="L-00000000")).problem == "not read yet"


def test_what_is_no_longer_asked_for_is_no_longer_looked_up() -> None:
    aws = Aws()
    account = an_account(aws)
    aws.now_s = 10_000.0
    aws.asked.clear()
    account.refresh()
    assert aws.asked == []
    assert account.price(SOURCE) is None


def test_without_an_account_the_kept_price_counts() -> None:
    account = NoAccount()
    account.watch({SOURCE: None}, [INF])
    assert account.price(SOURCE) is None
    assert account.quota(INF).limit_vcpus is None
