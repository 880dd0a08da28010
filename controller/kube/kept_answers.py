"""Prices and quotas that an earlier process of the operator read, from the statuses of the pools."""

import logging
import math

from controller.core.state.cloud import (
    AwsPrice,
    PriceOrigin,
    PriceQuote,
    PriceRange,
    QuotaReading,
    QuotaSource,
    lookup_text,
    node_key,
)
from controller.kube.gateway import Json
from controller.kube.workloads import seconds

_LOG = logging.getLogger(__name__)


def kept_quote(status: Json, source: AwsPrice) -> PriceQuote | None:
    """Return the price that `controller.kube.status.price_document` wrote; None where it is of another look-up.

    Prices that did not come from AWS are not worth keeping, and documents that were edited are not believed.
    """
    document = status.get("price")
    try:
        if not document or document.get("lookup") != lookup_text(source):
            return None
        origin = PriceOrigin(document["source"])
        if origin not in {PriceOrigin.LISTED, PriceOrigin.SPOT}:
            return None
        by_node = {
            node_key(each["instanceType"], each.get("zone", "")): _amount(each["perHour"])
            for each in document.get("nodes", ())
        }
        low, high = document.get("dayLowPerHour"), document.get("dayHighPerHour")
        return PriceQuote(
            per_hour=by_node[document["at"]],
            origin=origin,
            as_of_s=seconds(document["asOf"]),
            at=document["at"],
            by_node=by_node,
            day=PriceRange(low_per_hour=_amount(low), high_per_hour=_amount(high)) if low and high else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _LOG.warning("the stored price is not used: %s: %s", type(error).__name__, error)
        return None


def kept_quota(status: Json, source: QuotaSource) -> QuotaReading | None:
    """Return the reading of a quota that `controller.kube.status` wrote; None where it is of another quota."""
    document = status.get("quota")
    try:
        if not document or (document.get("code"), document.get("region")) != (source.code, source.region):
            return None
        limit, others = document.get("limitVcpus"), document.get("usedByOthersVcpus")
        if limit is None or document.get("asOf") is None:
            return None
        return QuotaReading(
            limit_vcpus=_vcpus(limit),
            others_vcpus=None if others is None else _vcpus(others),
            as_of_s=seconds(document["asOf"]),
        )
    except (ValueError, TypeError, AttributeError) as error:
        _LOG.warning("the stored quota is not used: %s: %s", type(error).__name__, error)
        return None


def _vcpus(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{text!r}: must be at least 0")
    return value


def _amount(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{text!r}: must be above 0")
    return value
