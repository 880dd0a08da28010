"""Quotas of the account: what is asked, which instances count, and what stands in where something may not be read."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aws_answers import StubbedAws, an_instance
from botocore.stub import ANY

from controller.aws.failure import AwsFailure
from controller.aws.quotas import AwsQuotas, quota_family
from controller.core.state.cloud import (
    QUOTA_CODES,
    Purchase,
    QuotaFamily,
    QuotaReading,
    QuotaSource,
    family_of,
    vcpus_of,
)

NOW_S = 1_790_000_000.0
INF = QuotaSource(code="L-1945791B", region="us-east-1", vcpus=4, purchase=Purchase.ON_DEMAND, name="Inf OnDemand")
USAGE = {
    "MetricNamespace": "AWS/Usage",
    "MetricName": "ResourceCount",
    "MetricDimensions": {"Class": "Inf/OnDemand", "Resource": "vCPU", "Service": "EC2", "Type": "Resource"},
    "MetricStatisticRecommendation": "Maximum",
}


@pytest.fixture
def aws() -> Iterator[StubbedAws]:
    stubbed = StubbedAws()
    yield stubbed
    stubbed.all_asked()


def has_quota(aws: StubbedAws, value: float) -> None:
    aws.stub("service-quotas").add_response(
        "get_service_quota",
        {"Quota": {"QuotaCode": INF.code, "Value": value, "UsageMetric": USAGE}},
        {"ServiceCode": "ec2", "QuotaCode": INF.code},
    )


def runs(aws: StubbedAws, *instances: Any, token: str | None = None) -> None:
    answer: dict[str, Any] = {"Reservations": [{"Instances": list(instances)}]}
    aws.stub("ec2").add_response("describe_instances", answer if token is None else {**answer, "NextToken": token})


def test_instances_of_the_family_and_the_purchase_count(aws: StubbedAws) -> None:
    has_quota(aws, 64.0)
    runs(
        aws,
        an_instance("i-1", "inf2.xlarge", cores=2),
        an_instance("i-2", "inf2.xlarge", cores=2, spot=True),
        an_instance("i-3", "c7i.4xlarge", cores=8),
        token="more",
    )
    runs(aws, an_instance("i-4", "inf1.6xlarge", cores=12))
    use = AwsQuotas(aws.client).read(INF, NOW_S)
    assert (use.limit_vcpus, use.instances, use.problem) == (64.0, {"i-1": 4, "i-4": 24}, "")


def test_a_quota_that_was_never_applied_has_the_default_which_may_be_0(aws: StubbedAws) -> None:
    aws.stub("service-quotas").add_client_error("get_service_quota", "NoSuchResourceException")
    aws.stub("service-quotas").add_response("get_aws_default_service_quota", {"Quota": {"Value": 0.0}})
    runs(aws)
    use = AwsQuotas(aws.client).read(INF, NOW_S)
    assert (use.limit_vcpus, use.instances) == (0.0, {})


def test_where_instances_may_not_be_described_cloudwatch_has_the_sum(aws: StubbedAws) -> None:
    has_quota(aws, 64.0)
    aws.stub("ec2").add_client_error("describe_instances", "UnauthorizedOperation", "You are not authorized")
    points = [
        {"Timestamp": datetime.fromtimestamp(NOW_S - ago_s, UTC), "Maximum": value}
        for ago_s, value in ((300, 28.0), (600, 12.0))
    ]
    aws.stub("cloudwatch").add_response(
        "get_metric_statistics",
        {"Datapoints": points},
        {
            "Namespace": "AWS/Usage",
            "MetricName": "ResourceCount",
            "Dimensions": [{"Name": name, "Value": value} for name, value in USAGE["MetricDimensions"].items()],  # type: ignore[attr-defined]
            "StartTime": ANY,
            "EndTime": ANY,
            "Period": 300,
            "Statistics": ["Maximum"],
        },
    )
    use = AwsQuotas(aws.client).read(INF, NOW_S)
    assert (use.limit_vcpus, use.instances, use.used_vcpus) == (64.0, None, 28.0)


def test_a_use_that_nothing_tells_is_missing_with_both_reasons_and_the_quota_stands(aws: StubbedAws) -> None:
    has_quota(aws, 64.0)
    aws.stub("ec2").add_client_error("describe_instances", "UnauthorizedOperation", "You are not authorized")
    aws.stub("cloudwatch").add_response("get_metric_statistics", {"Datapoints": []})
    use = AwsQuotas(aws.client).read(INF, NOW_S)
    assert (use.limit_vcpus, use.instances, use.used_vcpus) == (64.0, None, None)
    assert "UnauthorizedOperation" in use.problem
    assert "CloudWatch has no value of the last hour" in use.problem


def test_a_quota_that_may_not_be_read_is_a_failure(aws: StubbedAws) -> None:
    aws.stub("service-quotas").add_client_error("get_service_quota", "AccessDeniedException", "not authorized")
    with pytest.raises(AwsFailure, match="quota L-1945791B in us-east-1: AccessDeniedException: not authorized"):
        AwsQuotas(aws.client).read(INF, NOW_S)


@pytest.mark.parametrize(
    ("name", "family", "vcpus"),
    [
        ("inf2.xlarge", QuotaFamily.INF, 4),
        ("inf2.48xlarge", QuotaFamily.INF, 192),
        ("trn1.32xlarge", QuotaFamily.TRN, 128),
        ("g5.xlarge", QuotaFamily.G, 4),
        ("gr6.4xlarge", QuotaFamily.G, 16),
        ("vt1.3xlarge", QuotaFamily.G, 12),
        ("p5.4xlarge", QuotaFamily.P, 16),
        ("c8g.4xlarge", QuotaFamily.STANDARD, 16),
        ("im4gn.large", QuotaFamily.STANDARD, 2),
        ("m7g.medium", QuotaFamily.STANDARD, 1),
        ("c7i.metal-24xl", QuotaFamily.STANDARD, None),
        ("t3.large", QuotaFamily.STANDARD, None),
        ("dl1.24xlarge", None, 96),
        ("hpc7g.4xlarge", None, 16),
        ("x2idn.16xlarge", None, 64),
        ("u-6tb1.metal", None, None),
    ],
)
def test_the_family_and_the_vcpus_of_a_type(name: str, family: QuotaFamily | None, vcpus: int | None) -> None:
    assert (family_of(name), vcpus_of(name)) == (family, vcpus)


def test_each_code_is_of_one_family_and_purchase() -> None:
    assert len(set(QUOTA_CODES.values())) == len(QUOTA_CODES)
    assert quota_family("L-3819A6DF") is QuotaFamily.G
    assert quota_family("L-00000000") is None
    assert (QuotaFamily.TRN, Purchase.SPOT) not in QUOTA_CODES


def test_the_quota_for_so_many_instances_includes_what_others_use() -> None:
    reading = QuotaReading(limit_vcpus=64.0, others_vcpus=20.0, as_of_s=0.0)
    assert (reading.instances(4), reading.needed_for(12, 4)) == (11, 68)
    assert QuotaReading(limit_vcpus=None, others_vcpus=None, as_of_s=None).instances(4) is None
