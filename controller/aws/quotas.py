"""Quotas of the account on the vCPUs of EC2, and how much of them is used.

`QuotaApi` is the port; `AwsQuotas` asks AWS. A quota is read from Service Quotas. What is used is counted from the
instances, so that those of a pool can be told from others; where they may not be described, CloudWatch has the sum.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from controller.aws.clients import Make, failures
from controller.aws.failure import AwsFailure
from controller.core.state.cloud import (
    QUOTA_CODES,
    Purchase,
    QuotaFamily,
    QuotaReading,
    QuotaSource,
    family_of,
    vcpus_of,
)

_PAGES = 200
"""The most pages of instances: 1000 each."""
_USAGE_S = 3600.0
"""How far back the usage metric is read: it has a value every five minutes, and none before the first use."""
_NOT_FOUND = "NoSuchResourceException"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """A quota in vCPUs and its use as of `as_of_s`.

    `instances` has the vCPUs of each instance that counts, by its ID. Where it is None, `used_vcpus` has the sum, as
    CloudWatch knows it, which is minutes old; None: the use is not known. `problem` says why something is missing.
    """

    limit_vcpus: float | None
    as_of_s: float | None
    instances: Mapping[str, int] | None = None
    used_vcpus: float | None = None
    problem: str = ""


class QuotaApi(Protocol):
    """Answers what the account may have and has. Calls block, for seconds at most, and raise `AwsFailure`."""

    def read(self, source: QuotaSource, now_s: float) -> QuotaUse:
        """Return the quota and its use."""
        ...


class AwsQuotas:
    """Asks AWS: Service Quotas, DescribeInstances, and CloudWatch where instances may not be described."""

    def __init__(self, client: Make) -> None:
        """`client` makes the clients."""
        self._client = client

    def read(self, source: QuotaSource, now_s: float) -> QuotaUse:
        """Return the quota and its use; a use that cannot be read is missing, with the reason."""
        quota = self._quota(source)
        limit_vcpus = float(quota["Value"])
        try:
            instances = self._instances(source)
        except AwsFailure as failure:
            try:
                used = self._usage(source, quota, now_s)
            except AwsFailure as second:
                return QuotaUse(limit_vcpus=limit_vcpus, as_of_s=now_s, problem=f"use not known: {failure}; {second}")
            return QuotaUse(limit_vcpus=limit_vcpus, as_of_s=now_s, used_vcpus=used)
        return QuotaUse(limit_vcpus=limit_vcpus, as_of_s=now_s, instances=instances)

    def _quota(self, source: QuotaSource) -> Mapping[str, Any]:
        client, what = self._client("service-quotas", source.region), f"quota {source.code} in {source.region}"
        wanted = {"ServiceCode": "ec2", "QuotaCode": source.code}
        try:
            with failures(what):
                applied: Mapping[str, Any] = client.get_service_quota(**wanted)["Quota"]
                return applied
        except AwsFailure as failure:
            if _NOT_FOUND not in str(failure):
                raise
        # The account has the default until a value was applied to it.
        with failures(what):
            default: Mapping[str, Any] = client.get_aws_default_service_quota(**wanted)["Quota"]
            return default

    def _instances(self, source: QuotaSource) -> Mapping[str, int]:
        """Return the vCPUs of the instances that count for the quota, by their ID."""
        family = quota_family(source.code)
        if family is None:
            raise AwsFailure(f"quota {source.code}: the instance types that count for it are not known")
        client = self._client("ec2", source.region)
        found: dict[str, int] = {}
        with failures(f"instances in {source.region}"):
            token: dict[str, str] = {}
            for _ in range(_PAGES):
                page = client.describe_instances(
                    Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}],
                    MaxResults=1000,
                    **token,
                )
                instances = (each for reservation in page["Reservations"] for each in reservation["Instances"])
                found |= {
                    each["InstanceId"]: _vcpus(each)
                    for each in instances
                    if family_of(each["InstanceType"]) is family and _purchase(each) is source.purchase
                }
                if not page.get("NextToken"):
                    break
                token = {"NextToken": page["NextToken"]}
        return found

    def _usage(self, source: QuotaSource, quota: Mapping[str, Any], now_s: float) -> float:
        """Return the last value of the usage metric of the quota, in vCPUs."""
        metric, what = quota.get("UsageMetric"), f"usage of quota {source.code} in {source.region}"
        if not metric:
            raise AwsFailure(f"{what}: the quota has no usage metric")
        client = self._client("cloudwatch", source.region)
        with failures(what):
            answer = client.get_metric_statistics(
                Namespace=metric["MetricNamespace"],
                MetricName=metric["MetricName"],
                Dimensions=[{"Name": name, "Value": value} for name, value in metric["MetricDimensions"].items()],
                StartTime=datetime.fromtimestamp(now_s - _USAGE_S, UTC),
                EndTime=datetime.fromtimestamp(now_s, UTC),
                Period=300,
                Statistics=["Maximum"],
            )
            points = sorted(answer["Datapoints"], key=lambda each: each["Timestamp"])
        if not points:
            raise AwsFailure(f"{what}: CloudWatch has no value of the last hour")
        return float(points[-1]["Maximum"])


def quota_family(code: str) -> QuotaFamily | None:
    """Return the family of the instance types that count for a quota, None where the code is not a known one."""
    return next((family for (family, _), known in QUOTA_CODES.items() if known == code), None)


def _vcpus(instance: Mapping[str, Any]) -> int:
    options = instance.get("CpuOptions")
    if options is not None:
        return int(options["CoreCount"]) * int(options["ThreadsPerCore"])
    by_type = vcpus_of(instance["InstanceType"])
    if by_type is None:
        raise AwsFailure(f"instance {instance['InstanceId']}: its number of vCPUs is not known")
    return by_type


def _purchase(instance: Mapping[str, Any]) -> Purchase:
    return Purchase.SPOT if instance.get("InstanceLifecycle") == "spot" else Purchase.ON_DEMAND


def quota_reading(use: QuotaUse, own: Collection[str], own_vcpus: float) -> QuotaReading:
    """Return the reading of a quota for the pool whose instances have the IDs `own`, and `own_vcpus` together.

    An instance that was launched after the reading counts for nobody. Where CloudWatch has only the sum, the pool's own
    are subtracted from it.
    """
    if use.instances is not None:
        others: float | None = float(sum(vcpus for name, vcpus in use.instances.items() if name not in own))
    else:
        others = None if use.used_vcpus is None else max(0.0, use.used_vcpus - own_vcpus)
    return QuotaReading(limit_vcpus=use.limit_vcpus, others_vcpus=others, as_of_s=use.as_of_s, problem=use.problem)
