"""Records answers of AWS in a file, without secrets, so that they can be looked at and replayed in tests.

Only the fields that Sluice reads are kept, by name: whatever else an answer has (account numbers, ARNs, addresses,
tags, user data, request IDs) is never written. Names and IDs of the user's own things are replaced by numbered ones.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from controller.aws.clients import Make

_KEPT: Mapping[str, frozenset[str]] = {
    "get_products": frozenset(
        {"PriceList", "product", "attributes", "instanceType", "regionCode", "terms", "OnDemand", "priceDimensions"}
        | {"pricePerUnit", "USD", "CNY", "unit"}
    ),
    "describe_spot_price_history": frozenset(
        {"SpotPriceHistory", "InstanceType", "AvailabilityZone", "SpotPrice", "ProductDescription", "Timestamp"}
    ),
    "get_service_quota": frozenset(
        {"Quota", "QuotaCode", "QuotaName", "Value", "Unit", "UsageMetric", "MetricNamespace", "MetricName"}
        | {"MetricDimensions", "MetricStatisticRecommendation", "Class", "Resource", "Service", "Type"}
    ),
    "describe_instances": frozenset(
        {"Reservations", "Instances", "InstanceId", "InstanceType", "InstanceLifecycle", "CpuOptions", "CoreCount"}
        | {"ThreadsPerCore"}
    ),
    "get_metric_statistics": frozenset({"Datapoints", "Timestamp", "Maximum", "Unit"}),
    "get_metric_data": frozenset({"MetricDataResults", "Id", "Timestamps", "Values", "StatusCode"}),
    "describe_auto_scaling_groups": frozenset(
        {"AutoScalingGroups", "AutoScalingGroupName", "MinSize", "MaxSize", "DesiredCapacity", "Instances"}
        | {"InstanceId", "InstanceType", "AvailabilityZone", "AvailabilityZones", "LifecycleState", "HealthStatus"}
        | {"ProtectedFromScaleIn", "CreatedTime"}
    ),
    "describe_scaling_activities": frozenset(
        {"Activities", "ActivityId", "StartTime", "EndTime", "StatusCode", "StatusMessage"}
    ),
    "describe_instance_refreshes": frozenset({"InstanceRefreshes", "Status", "PercentageComplete"}),
}
_KEPT_FREE = frozenset({"priceDimensions", "OnDemand"})
"""Fields that are maps by IDs of the price list, which are public; their keys are numbered."""
_OWN_NAMES = frozenset({"ActivityId", "AutoScalingGroupName", "InstanceId"})
_SECRETS = (
    (re.compile(r"arn:[a-z-]+:[^\s\"',]+"), "arn:removed"),
    (re.compile(r"\b\d{12}\b"), "000000000000"),
    (re.compile(r"(?i)(x-amz-security-token|authorization|credential|signature)([:=]\s*)\S+"), r"\1\2removed"),
    (re.compile(r"\b(AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16,}\b"), "AKIAREMOVED"),
    (re.compile(r"\b([a-z]{1,12})-(?:[0-9a-f]{17}|[0-9a-f]{8})\b"), r"\1-removed"),
    (re.compile(r"[A-Za-z0-9+/=_-]{100,}"), "removed"),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b"), "0.0.0.0"),  # noqa: S104 - an address in a text
    (re.compile(r"(Encoded authorization failure message: )\S+"), r"\1removed"),
)


class Recorder:
    """Makes clients whose answers are recorded; `save` writes them."""

    def __init__(self, client: Make) -> None:
        """`client` makes the clients that ask AWS."""
        self._client = client
        self._entries: list[Mapping[str, Any]] = []
        self._names: dict[str, str] = {}

    def client(self, service: str, region: str) -> Any:
        """Return a client whose answers are recorded."""
        return _Recorded(
            self._client(service, region), lambda name, answer: self._record(service, region, name, answer)
        )

    def _record(self, service: str, region: str, operation: str, answer: Any) -> None:
        kept = _KEPT.get(operation.replace("aws_default_", ""))
        document = answer if isinstance(answer, str) else self._kept(answer, kept or frozenset())
        key = "error" if isinstance(answer, str) else "answer"
        value = without_secrets(document) if isinstance(document, str) else document
        self._entries.append({"service": service, "region": region, "operation": operation, key: value})

    def _kept(self, value: Any, names: frozenset[str], parent: str = "") -> Any:
        if isinstance(value, Mapping):
            if parent in _KEPT_FREE:
                return {f"{parent}-{i}": self._kept(each, names) for i, each in enumerate(value.values())}
            return {name: self._kept(each, names, name) for name, each in value.items() if name in names}
        if isinstance(value, list | tuple):
            return [self._kept(each, names, parent) for each in value]
        if isinstance(value, datetime):
            return value.isoformat()
        if parent == "PriceList" and isinstance(value, str):
            return json.dumps(self._kept(json.loads(value), names))
        if parent in _OWN_NAMES:
            return self._names.setdefault(str(value), f"{parent}-{len(self._names)}")
        return without_secrets(value) if isinstance(value, str) else value

    def save(self, path: Path) -> None:
        """Write what was recorded, as JSON."""
        path.write_text(json.dumps({"version": 1, "answers": self._entries}, indent=2) + "\n", encoding="utf-8")


class _Recorded:
    def __init__(self, client: Any, record: Callable[[str, Any], None]) -> None:
        self._client, self._record = client, record

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._client, name)

        def recorded(**arguments: Any) -> Any:
            from botocore.exceptions import BotoCoreError, ClientError

            try:
                answer = call(**arguments)
            except (BotoCoreError, ClientError) as error:
                self._record(name, str(error))
                raise
            self._record(name, answer)
            return answer

        return recorded


def without_secrets(text: str) -> str:
    """Return `text` without ARNs, account numbers, keys, IDs of the user's resources, and addresses."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
