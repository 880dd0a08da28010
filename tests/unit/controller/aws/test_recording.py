"""Recorded answers: the fields that Sluice reads, and nothing that belongs to the user."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aws_answers import StubbedAws, a_product, a_spot_price

from controller.aws.failure import AwsFailure
from controller.aws.groups import AwsGroups
from controller.aws.prices import AwsPrices, ask
from controller.aws.recording import Recorder, without_secrets
from controller.core.state.cloud import AwsPrice, Purchase

NOW_S = 1_790_000_000.0
INF2 = AwsPrice(instance_types=("inf2.xlarge",), region="us-east-1")


def test_a_recorded_price_list_gives_the_same_price_when_it_is_replayed(tmp_path: Path) -> None:
    aws = StubbedAws()
    aws.stub("pricing").add_response("get_products", {"PriceList": [a_product("inf2.xlarge", "0.7582")]})
    recorder = Recorder(aws.client)
    quote = ask(AwsPrices(recorder.client), INF2, NOW_S)
    recorder.save(tmp_path / "record.json")
    (entry,) = json.loads((tmp_path / "record.json").read_text())["answers"]
    assert (entry["service"], entry["region"], entry["operation"]) == ("pricing", "us-east-1", "get_products")
    replayed = StubbedAws()
    replayed.stub("pricing").add_response("get_products", entry["answer"])
    assert ask(AwsPrices(replayed.client), INF2, NOW_S) == quote


def test_spot_prices_keep_types_zones_and_times(tmp_path: Path) -> None:
    aws = StubbedAws()
    price = a_spot_price("g5.xlarge", "us-east-1a", "0.41", NOW_S)
    aws.stub("ec2").add_response("describe_spot_price_history", {"SpotPriceHistory": [price]})
    recorder = Recorder(aws.client)
    source = AwsPrice(instance_types=("g5.xlarge",), region="us-east-1", purchase=Purchase.SPOT)
    ask(AwsPrices(recorder.client), source, NOW_S)
    recorder.save(tmp_path / "record.json")
    (entry,) = json.loads((tmp_path / "record.json").read_text())["answers"]
    (kept,) = entry["answer"]["SpotPriceHistory"]
    assert (kept["InstanceType"], kept["AvailabilityZone"], kept["SpotPrice"]) == ("g5.xlarge", "us-east-1a", "0.41")


def test_a_recorded_group_has_its_states_and_no_names(tmp_path: Path) -> None:
    aws, words = (
        StubbedAws(),
        "We currently do not have sufficient g5.xlarge capacity. Launching i-0123456789abcdef0 failed.",
    )
    stub = aws.stub("autoscaling")
    instance = {
        "InstanceId": "i-0123456789abcdef0",
        "LifecycleState": "InService",
        "HealthStatus": "Healthy",
        "ProtectedFromScaleIn": True,
        "AvailabilityZone": "us-east-1a",
        "LaunchTemplate": {"LaunchTemplateId": "lt-0123456789abcdef0", "LaunchTemplateName": "my-template"},
    }
    group = {
        "AutoScalingGroupName": "my-group",
        "MinSize": 0,
        "MaxSize": 3,
        "DesiredCapacity": 1,
        "DefaultCooldown": 300,
        "AvailabilityZones": ["us-east-1a"],
        "HealthCheckType": "EC2",
        "CreatedTime": datetime(2026, 1, 1, tzinfo=UTC),
        "VPCZoneIdentifier": "subnet-0123456789abcdef0",
        "Instances": [instance],
    }
    activity = {
        "ActivityId": "0a1b2c3d",
        "AutoScalingGroupName": "my-group",
        "Cause": "my-user changed the desired capacity",
        "StartTime": datetime(2026, 1, 1, tzinfo=UTC),
        "StatusCode": "Failed",
        "StatusMessage": words,
    }
    stub.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": [group]})
    stub.add_response("describe_scaling_activities", {"Activities": [activity]})
    stub.add_response("describe_instance_refreshes", {"InstanceRefreshes": []})
    recorder = Recorder(aws.client)
    read = AwsGroups(recorder.client, "us-east-1").read("my-group", NOW_S)
    assert len(read.failed) == 1
    recorder.save(tmp_path / "record.json")
    text = (tmp_path / "record.json").read_text()
    assert "do not have sufficient g5.xlarge capacity" in text
    for hidden in ("0123456789abcdef0", "my-group", "my-template", "my-user", "subnet", "0a1b2c3d"):
        assert hidden not in text


def test_an_error_is_recorded_without_the_account(tmp_path: Path) -> None:
    aws = StubbedAws()
    aws.stub("pricing").add_client_error(
        "get_products",
        "AccessDeniedException",
        "User: arn:aws:sts::123456789012:assumed-role/x/y is not authorized to perform: pricing:GetProducts",
    )
    recorder = Recorder(aws.client)
    with pytest.raises(AwsFailure):
        ask(AwsPrices(recorder.client), INF2, NOW_S)
    recorder.save(tmp_path / "record.json")
    (entry,) = json.loads((tmp_path / "record.json").read_text())["answers"]
    assert "AccessDeniedException" in entry["error"]
    assert "is not authorized to perform: pricing:GetProducts" in entry["error"]
    assert "123456789012" not in entry["error"]
    assert "assumed-role" not in entry["error"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("i-0123456789abcdef0 failed in subnet-0a1b2c3d", "i-removed failed in subnet-removed"),
        ("key AKIAABCDEFGHIJKLMNOP", "key AKIAREMOVED"),
        ("principal AROAABCDEFGHIJKLMNOPQ", "principal AKIAREMOVED"),
        ("snap-0123456789abcdef0 of eipalloc-0a1b2c3d", "snap-removed of eipalloc-removed"),
        ("x-amz-security-token:IQoJb3JpZ2luX2VjEHk= end", "x-amz-security-token:removed end"),
        ("Credential=x/20260101/us-east-1/ec2 end", "Credential=removed end"),
        (f"token {'IQoJb3' * 30} end", "token removed end"),
        ("account 123456789012 at 10.0.0.7", "account 000000000000 at 0.0.0.0"),
        ("Encoded authorization failure message: 4a5b6c", "Encoded authorization failure message: removed"),
        ("We currently do not have sufficient inf2.xlarge capacity", None),
    ],
)
def test_texts_keep_their_words_and_lose_what_is_the_user_s(text: str, kept: str | None) -> None:
    assert without_secrets(text) == (text if kept is None else kept)
