"""Prices of AWS: what is asked, what is made of the answers, and which answers are not believed."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from aws_answers import StubbedAws, a_product, a_spot_price
from botocore.stub import ANY

from controller.adoption.list_prices import DATE, REGION, USD_PER_HOUR
from controller.aws.failure import AwsFailure
from controller.aws.price_table import PRICES_PER_HOUR, bundled_quote, listed_on
from controller.aws.prices import AwsPrices, SpotPrice, ask, on_demand_quote, refusal, spot_quote
from controller.core.state.cloud import AwsPrice, PriceOrigin, PriceQuote, Purchase
from controller.core.state.provider_errors import ErrorClass

NOW_S = 1_790_000_000.0
INF2 = AwsPrice(instance_types=("inf2.xlarge",), region="us-east-1")
SPOT = AwsPrice(instance_types=("g5.xlarge", "g5.2xlarge"), region="us-east-1", purchase=Purchase.SPOT)


@pytest.fixture
def aws() -> Iterator[StubbedAws]:
    stubbed = StubbedAws()
    yield stubbed
    stubbed.all_asked()


class TestPriceList:
    def test_the_price_of_a_type_is_asked_for_as_karpenter_does_and_read_from_its_terms(self, aws: StubbedAws) -> None:
        wanted = {
            "regionCode": "us-east-1",
            "serviceCode": "AmazonEC2",
            "instanceType": "inf2.xlarge",
            "operatingSystem": "Linux",
            "preInstalledSw": "NA",
            "tenancy": "Shared",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
        }
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        aws.stub("pricing").add_response(
            "get_products",
            {"PriceList": [a_product("inf2.xlarge", "0.7582000000")]},
            {"ServiceCode": "AmazonEC2", "Filters": filters},
        )
        quote = ask(AwsPrices(aws.client), INF2, NOW_S)
        assert quote == PriceQuote(
            per_hour=0.7582,
            origin=PriceOrigin.LISTED,
            as_of_s=NOW_S,
            at="inf2.xlarge",
            by_node={"inf2.xlarge": 0.7582},
        )

    def test_further_pages_are_read(self, aws: StubbedAws) -> None:
        aws.stub("pricing").add_response("get_products", {"PriceList": [], "NextToken": "next"})
        aws.stub("pricing").add_response(
            "get_products",
            {"PriceList": [a_product("inf2.xlarge", "0.8")]},
            {"ServiceCode": "AmazonEC2", "Filters": ANY, "NextToken": "next"},
        )
        assert ask(AwsPrices(aws.client), INF2, NOW_S).per_hour == 0.8

    @pytest.mark.parametrize(("region", "endpoint"), [("eu-central-1", "us-east-1"), ("cn-north-1", "cn-northwest-1")])
    def test_the_list_is_asked_for_where_it_has_an_endpoint(self, aws: StubbedAws, region: str, endpoint: str) -> None:
        aws.stub("pricing").add_response("get_products", {"PriceList": [a_product("inf2.xlarge", "0.8")]})
        ask(AwsPrices(aws.client), replace(INF2, region=region), NOW_S)
        assert aws.made == [("pricing", endpoint)]

    def test_govcloud_has_no_price_list_to_ask(self, aws: StubbedAws) -> None:
        with pytest.raises(AwsFailure, match=r"GovCloud has no price list to ask; set price\.perHour"):
            ask(AwsPrices(aws.client), replace(INF2, region="us-gov-west-1"), NOW_S)

    @pytest.mark.parametrize("products", [[], [a_product("inf2.xlarge", None)]], ids=["unknown type", "other currency"])
    def test_a_type_without_a_price_in_dollars_is_named(self, aws: StubbedAws, products: list[str]) -> None:
        aws.stub("pricing").add_response("get_products", {"PriceList": products})
        with pytest.raises(AwsFailure, match=r"price list for us-east-1: has no inf2\.xlarge"):
            ask(AwsPrices(aws.client), INF2, NOW_S)

    def test_a_refused_request_is_a_failure_with_its_class(self, aws: StubbedAws) -> None:
        aws.stub("pricing").add_client_error(
            "get_products", "AccessDeniedException", "User is not authorized to perform: pricing:GetProducts"
        )
        with pytest.raises(AwsFailure, match="AccessDeniedException") as raised:
            ask(AwsPrices(aws.client), INF2, NOW_S)
        assert raised.value.kind is ErrorClass.PERMISSION

    def test_an_answer_of_another_form_is_a_failure_and_no_crash(self, aws: StubbedAws) -> None:
        aws.stub("pricing").add_response("get_products", {"PriceList": ["not JSON"]})
        with pytest.raises(AwsFailure, match="JSONDecodeError"):
            ask(AwsPrices(aws.client), INF2, NOW_S)

    def test_of_several_types_the_dearest_counts_for_new_nodes_and_savings_are_taken_off(self) -> None:
        source = AwsPrice(instance_types=("c7i.xlarge", "c7i.2xlarge"), region="us-east-1", savings=0.28)
        quote = on_demand_quote(source, {"c7i.xlarge": 0.1785, "c7i.2xlarge": 0.357}, NOW_S)
        assert quote.per_hour == pytest.approx(0.357 * 0.72)
        assert quote.by_node["c7i.xlarge"] == pytest.approx(0.1785 * 0.72)


class TestSpot:
    def test_the_last_price_of_each_zone_counts_and_the_range_of_the_day_is_told(self, aws: StubbedAws) -> None:
        history = [
            a_spot_price("g5.xlarge", "us-east-1a", "0.41", NOW_S - 100),
            a_spot_price("g5.xlarge", "us-east-1a", "0.30", NOW_S - 80_000),
            a_spot_price("g5.xlarge", "us-east-1b", "0.52", NOW_S - 50),
        ]
        aws.stub("ec2").add_response(
            "describe_spot_price_history",
            {"SpotPriceHistory": history, "NextToken": "more"},
            {
                "InstanceTypes": ["g5.2xlarge", "g5.xlarge"],
                "ProductDescriptions": ["Linux/UNIX"],
                "StartTime": ANY,
            },
        )
        aws.stub("ec2").add_response(
            "describe_spot_price_history",
            {"SpotPriceHistory": [a_spot_price("g5.2xlarge", "us-east-1a", "0.50", NOW_S - 10)], "NextToken": ""},
        )
        quote = ask(AwsPrices(aws.client), SPOT, NOW_S)
        assert (quote.per_hour, quote.at, quote.origin) == (0.52, "g5.xlarge/us-east-1b", PriceOrigin.SPOT)
        assert quote.by_node == {
            "g5.xlarge/us-east-1a": 0.41,
            "g5.xlarge/us-east-1b": 0.52,
            "g5.2xlarge/us-east-1a": 0.50,
        }
        assert quote.day is not None
        assert (quote.day.low_per_hour, quote.day.high_per_hour) == (0.30, 0.52)

    def test_zones_that_the_pool_does_not_use_do_not_count(self) -> None:
        source = replace(SPOT, zones=("us-east-1a",))
        prices = [
            SpotPrice(instance_type="g5.xlarge", zone="us-east-1a", per_hour=0.4, at_s=1.0),
            SpotPrice(instance_type="g5.xlarge", zone="us-east-1e", per_hour=0.9, at_s=1.0),
        ]
        assert spot_quote(source, prices, NOW_S).per_hour == 0.4
        with pytest.raises(AwsFailure, match=r"none for g5\.xlarge, g5\.2xlarge in us-east-1c"):
            spot_quote(replace(SPOT, zones=("us-east-1c",)), prices, NOW_S)


class TestRefusal:
    def quote(self, per_hour: float, name: str = "inf2.xlarge") -> PriceQuote:
        return PriceQuote(
            per_hour=per_hour, origin=PriceOrigin.LISTED, as_of_s=NOW_S, at=name, by_node={name: per_hour}
        )

    @pytest.mark.parametrize("per_hour", [0.0, -1.0, float("nan"), float("inf"), 7.582, 0.07582])
    def test_nothing_and_ten_times_as_much_or_as_little_are_not_believed(self, per_hour: float) -> None:
        assert refusal(INF2, self.quote(per_hour), self.quote(0.7582)).startswith("AWS gives an implausible price")

    @pytest.mark.parametrize("per_hour", [0.08, 0.5, 7.5])
    def test_smaller_changes_are(self, per_hour: float) -> None:
        assert refusal(INF2, self.quote(per_hour), self.quote(0.7582)) == ""

    def test_the_first_price_is_compared_with_the_bundled_table(self) -> None:
        assert "0.7582 on demand in the bundled table" in refusal(INF2, self.quote(7.6), None)
        assert refusal(INF2, self.quote(0.9), None) == ""

    def test_a_spot_price_of_a_ten_thousandth_of_a_cent_is_not_believed(self) -> None:
        # The answer of stand-ins for EC2.
        source = replace(SPOT, instance_types=("g5.xlarge",))
        assert refusal(source, self.quote(0.00001, "g5.xlarge/us-east-1a"), None)
        assert refusal(source, self.quote(0.12, "g5.xlarge/us-east-1a"), None) == ""

    def test_a_type_of_which_nothing_is_known_needs_only_be_above_0(self) -> None:
        assert refusal(INF2, self.quote(99.0, "zz9.large"), None) == ""


class TestTable:
    def test_a_quote_of_the_table_has_its_date_and_the_savings(self) -> None:
        quote = bundled_quote(replace(INF2, savings=0.5))
        assert quote is not None
        assert quote.origin is PriceOrigin.BUNDLED
        assert quote.per_hour == pytest.approx(0.3791)
        assert quote.as_of_s == datetime(2026, 7, 20, tzinfo=UTC).timestamp()

    def test_the_date_is_the_oldest_of_its_types(self) -> None:
        quote = bundled_quote(replace(INF2, instance_types=("inf2.xlarge", "inf1.xlarge")))
        assert quote is not None
        assert quote.as_of_s == datetime(2026, 1, 19, tzinfo=UTC).timestamp()

    def test_manifests_are_suggested_with_the_prices_of_the_table(self) -> None:
        assert {name: PRICES_PER_HOUR[name] for name in USD_PER_HOUR} == {
            name: float(price) for name, price in USD_PER_HOUR.items()
        }
        assert ("us-east-1", listed_on(USD_PER_HOUR).isoformat()) == (REGION, DATE)

    @pytest.mark.parametrize("source", [replace(INF2, region="eu-west-1"), replace(INF2, instance_types=("x.large",))])
    def test_it_does_not_answer_for_other_regions_and_types(self, source: AwsPrice) -> None:
        assert bundled_quote(source) is None

    def test_its_prices_are_those_of_the_example_pools(self) -> None:
        assert (PRICES_PER_HOUR["inf2.xlarge"], PRICES_PER_HOUR["g5.xlarge"]) == (0.7582, 1.006)
