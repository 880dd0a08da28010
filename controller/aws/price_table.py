"""The bundled table of on-demand prices, for clusters that reach no price list, and for plans from files.

The values are public list prices of AWS: Linux, shared tenancy, us-east-1. Prices of other regions differ by up to a
half; the table does not answer for them.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time

from controller.core.state.cloud import AwsPrice, PriceOrigin, PriceQuote, Purchase, node_key

REGION = "us-east-1"
_LISTED, _LISTED_AGAIN = date(2026, 1, 19), date(2026, 7, 20)
"""The days as of which the prices were listed: all of them on the first, those of `_AGAIN` the same on the second."""
PRICES_PER_HOUR: Mapping[str, float] = {
    "c6i.large": 0.085,
    "c6i.xlarge": 0.17,
    "c6i.2xlarge": 0.34,
    "c6i.4xlarge": 0.68,
    "c6i.8xlarge": 1.36,
    "c7a.large": 0.10264,
    "c7a.xlarge": 0.20528,
    "c7a.2xlarge": 0.41056,
    "c7a.4xlarge": 0.82112,
    "c7a.8xlarge": 1.64224,
    "c7g.large": 0.0725,
    "c7g.xlarge": 0.145,
    "c7g.2xlarge": 0.29,
    "c7g.4xlarge": 0.58,
    "c7g.8xlarge": 1.16,
    "c7i.large": 0.08925,
    "c7i.xlarge": 0.1785,
    "c7i.2xlarge": 0.357,
    "c7i.4xlarge": 0.714,
    "c7i.8xlarge": 1.428,
    "c8g.large": 0.07976,
    "c8g.xlarge": 0.15952,
    "c8g.2xlarge": 0.31904,
    "c8g.4xlarge": 0.63808,
    "c8g.8xlarge": 1.27616,
    "c8i.2xlarge": 0.37484,
    "c8i.4xlarge": 0.74968,
    "c8i.8xlarge": 1.49936,
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.4xlarge": 1.204,
    "g4dn.8xlarge": 2.176,
    "g4dn.12xlarge": 3.912,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672,
    "g5.24xlarge": 8.144,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048,
    "g6.2xlarge": 0.9776,
    "g6.4xlarge": 1.3232,
    "g6.8xlarge": 2.0144,
    "g6.12xlarge": 4.6016,
    "g6.24xlarge": 6.6752,
    "g6.48xlarge": 13.3504,
    "g6e.xlarge": 1.861,
    "g6e.2xlarge": 2.24208,
    "g6e.4xlarge": 3.00424,
    "g6e.8xlarge": 4.52856,
    "g6f.large": 0.202,
    "g6f.xlarge": 0.2375,
    "inf1.xlarge": 0.228,
    "inf1.2xlarge": 0.362,
    "inf1.6xlarge": 1.18,
    "inf1.24xlarge": 4.721,
    "inf2.xlarge": 0.7582,
    "inf2.8xlarge": 1.96786,
    "inf2.24xlarge": 6.49063,
    "inf2.48xlarge": 12.98127,
    "p4d.24xlarge": 21.957642,
    "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04,
    "trn1.2xlarge": 1.34375,
    "trn1.32xlarge": 21.5,
}
"""USD per hour by instance type."""
_AGAIN = frozenset(
    {"c7g.4xlarge", "c7i.2xlarge", "c7i.4xlarge", "c8g.4xlarge", "c8g.8xlarge", "g4dn.xlarge", "g5.xlarge"}
    | {"g5.2xlarge", "g6.xlarge"}
    | {"g6e.xlarge", "g6f.large", "inf2.xlarge", "inf2.8xlarge", "inf2.24xlarge", "inf2.48xlarge", "p4d.24xlarge"}
    | {"p5.4xlarge", "p5.48xlarge", "trn1.2xlarge", "trn1.32xlarge"}
)


def listed_on(instance_types: Iterable[str]) -> date:
    """Return the day as of which the table has the prices of all of `instance_types`."""
    return _LISTED_AGAIN if _AGAIN.issuperset(instance_types) else _LISTED


def bundled_quote(source: AwsPrice) -> PriceQuote | None:
    """Return the price of `source` by the table, None where it lacks one of its types, or has no answer for it.

    On-demand prices stand for those of spot, which are lower: no budget is exceeded by it.
    """
    if source.region != REGION or not all(name in PRICES_PER_HOUR for name in source.instance_types):
        return None
    share = 1.0 - source.savings if source.purchase is Purchase.ON_DEMAND else 1.0
    prices = {node_key(name): PRICES_PER_HOUR[name] * share for name in source.instance_types}
    dearest = max(prices, key=lambda name: (prices[name], name))
    return PriceQuote(
        per_hour=prices[dearest],
        origin=PriceOrigin.BUNDLED,
        as_of_s=datetime.combine(listed_on(source.instance_types), time(), UTC).timestamp(),
        at=dearest,
        by_node=prices,
    )
