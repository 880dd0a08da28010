"""Prices of instance types from AWS: the price list for on-demand, the spot price history for spot.

`PriceApi` is the port; `AwsPrices` asks AWS. `on_demand_quote` and `spot_quote` make the price of a pool from the
answers, and `refusal` finds implausible ones. These three are pure.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from controller.aws.clients import Make, failures
from controller.aws.failure import AwsFailure
from controller.aws.price_table import PRICES_PER_HOUR
from controller.core.state.cloud import (
    IMPLAUSIBLE,
    AwsPrice,
    PriceOrigin,
    PriceQuote,
    PriceRange,
    Purchase,
    node_key,
)

DAY_S = 86_400.0
_MOST_CHANGE = 10.0
"""Factor by which a price does not change between two look-ups: it is then taken for a mistake."""
_LEAST_SPOT = 0.02
"""The least share of the on-demand price that a first spot price is believed at: discounts reach 90 %."""
_PAGES = 20
"""The most pages of an answer, so that a service that repeats a page does not hold the thread for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPrice:
    """A spot price in USD per hour that began at `at_s`."""

    instance_type: str
    zone: str
    per_hour: float
    at_s: float


class PriceApi(Protocol):
    """Answers what instance types cost. Calls block, for seconds at most, and raise `AwsFailure`."""

    def on_demand(self, region: str, instance_types: Collection[str]) -> Mapping[str, float]:
        """Return the on-demand price of each type that the price list has for `region`, in USD per hour."""
        ...

    def spot(self, region: str, instance_types: Collection[str], since_s: float) -> Sequence[SpotPrice]:
        """Return the spot prices of the types in all zones of `region` since `since_s`."""
        ...


class AwsPrices:
    """Asks AWS, by the Price List Query API and DescribeSpotPriceHistory."""

    def __init__(self, client: Make) -> None:
        """`client` makes the clients."""
        self._client = client

    def on_demand(self, region: str, instance_types: Collection[str]) -> Mapping[str, float]:
        """Return the on-demand price of each type that the price list has for `region`, in USD per hour."""
        what = f"price list for {region}"
        client = self._client("pricing", pricing_region(region))
        found: dict[str, float] = {}
        with failures(what):
            for name in instance_types:
                token: dict[str, str] = {}
                for _ in range(_PAGES):
                    page = client.get_products(ServiceCode="AmazonEC2", Filters=_filters(region, name), **token)
                    for product in page["PriceList"]:
                        price = _usd(json.loads(product))
                        if price is not None:
                            found[name] = max(price, found.get(name, 0.0))
                    if not page.get("NextToken"):
                        break
                    token = {"NextToken": page["NextToken"]}
        return found

    def spot(self, region: str, instance_types: Collection[str], since_s: float) -> Sequence[SpotPrice]:
        """Return the spot prices of the types in all zones of `region` since `since_s`."""
        client = self._client("ec2", region)
        prices: list[SpotPrice] = []
        with failures(f"spot prices of {region}"):
            token: dict[str, str] = {}
            for _ in range(_PAGES):
                page = client.describe_spot_price_history(
                    InstanceTypes=sorted(instance_types),
                    ProductDescriptions=["Linux/UNIX"],
                    StartTime=datetime.fromtimestamp(since_s, UTC),
                    **token,
                )
                prices += [
                    SpotPrice(
                        instance_type=each["InstanceType"],
                        zone=each["AvailabilityZone"],
                        per_hour=float(each["SpotPrice"]),
                        at_s=each["Timestamp"].timestamp(),
                    )
                    for each in page["SpotPriceHistory"]
                ]
                if not page.get("NextToken"):
                    break
                token = {"NextToken": page["NextToken"]}
        return prices


def pricing_region(region: str) -> str:
    """Return the region whose endpoint has the price list for `region`.

    Raises:
        AwsFailure: no price list can be asked for this region.
    """
    if region.startswith("us-gov-"):
        raise AwsFailure(f"price list for {region}: AWS GovCloud has no price list to ask; set price.perHour")
    return "cn-northwest-1" if region.startswith("cn-") else "us-east-1"


def _filters(region: str, instance_type: str) -> list[dict[str, str]]:
    fields = {
        "regionCode": region,
        "serviceCode": "AmazonEC2",
        "instanceType": instance_type,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    return [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]


def _usd(product: Mapping[str, Any]) -> float | None:
    """Return the hourly price of a product of the price list, None where it has no hourly price in USD."""
    found = [
        float(dimension["pricePerUnit"]["USD"])
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if "USD" in dimension["pricePerUnit"]
    ]
    return max(found, default=None)


def ask(api: PriceApi, source: AwsPrice, now_s: float) -> PriceQuote:
    """Return the price of `source` as of now.

    Raises:
        AwsFailure: AWS does not answer, or does not know a type.
    """
    if source.purchase is Purchase.SPOT:
        return spot_quote(source, api.spot(source.region, source.instance_types, now_s - DAY_S), now_s)
    return on_demand_quote(source, api.on_demand(source.region, source.instance_types), now_s)


def on_demand_quote(source: AwsPrice, prices: Mapping[str, float], now_s: float) -> PriceQuote:
    """Return the price of a pool by the on-demand `prices` of its types, less the savings.

    Raises:
        AwsFailure: a type has no price.
    """
    missing = sorted(set(source.instance_types) - prices.keys())
    if missing:
        raise AwsFailure(f"price list for {source.region}: has no {', '.join(missing)}")
    by_node = {node_key(name): prices[name] * (1.0 - source.savings) for name in source.instance_types}
    dearest = max(by_node, key=lambda name: (by_node[name], name))
    return PriceQuote(per_hour=by_node[dearest], origin=PriceOrigin.LISTED, as_of_s=now_s, at=dearest, by_node=by_node)


def spot_quote(source: AwsPrice, prices: Sequence[SpotPrice], now_s: float) -> PriceQuote:
    """Return the price of a pool by the spot `prices` of the last day: the last one of each type and zone.

    Types that a zone does not offer have no price there.

    Raises:
        AwsFailure: no type has a price in any of the zones.
    """
    usable = [price for price in prices if not source.zones or price.zone in source.zones]
    if not usable:
        where = ", ".join(source.zones) or source.region
        raise AwsFailure(f"spot prices of {source.region}: none for {', '.join(source.instance_types)} in {where}")
    by_node: dict[str, float] = {}
    for price in sorted(usable, key=lambda each: each.at_s):
        by_node[node_key(price.instance_type, price.zone)] = price.per_hour
    dearest = max(by_node, key=lambda name: (by_node[name], name))
    amounts = [price.per_hour for price in usable]
    return PriceQuote(
        per_hour=by_node[dearest],
        origin=PriceOrigin.SPOT,
        as_of_s=now_s,
        at=dearest,
        by_node=by_node,
        day=PriceRange(low_per_hour=min(amounts), high_per_hour=max(amounts)),
    )


def refusal(source: AwsPrice, quote: PriceQuote, last: PriceQuote | None) -> str:
    """Return why `quote` is not believed, empty where it is.

    A price must be above 0, and less than ten times higher or lower than the `last` one that was believed. The first
    one is compared with the on-demand price of the bundled table, whatever the region, where that has the type.
    """
    for name, per_hour in sorted(quote.by_node.items()):
        instance_type = name.partition("/")[0]
        if not math.isfinite(per_hour) or per_hour <= 0:
            return f"{IMPLAUSIBLE}: {per_hour:g} USD per hour for {name}"
        known = None if last is None else last.by_node.get(name, last.by_node.get(instance_type))
        if known is not None:
            low, high, which = known / _MOST_CHANGE, known * _MOST_CHANGE, f"was {known:g}"
        elif instance_type in PRICES_PER_HOUR:
            listed = PRICES_PER_HOUR[instance_type] * (1.0 - source.savings)
            spot = source.purchase is Purchase.SPOT
            low = listed * _LEAST_SPOT if spot else listed / _MOST_CHANGE
            high, which = listed * _MOST_CHANGE, f"is {listed:g} on demand in the bundled table"
        else:
            continue
        if not low < per_hour < high:
            return f"{IMPLAUSIBLE}: {per_hour:g} USD per hour for {name}, which {which}"
    return ""
