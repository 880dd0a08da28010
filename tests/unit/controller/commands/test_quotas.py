"""What `sluice quotas` prints of needs, quotas and requests, and what it records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_answers import StubbedAws, a_product, an_instance
from click.testing import CliRunner, Result
from corpus import CONTRACT

from controller.commands.quotas import QuotaNeed, quotas
from controller.core.state.cloud import Purchase, QuotaSource

DEMAND = "--demand=speech/live-captions=800"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The pools and the pipeline of the contract, with a quota on Inferentia and one on GPUs."""
    documents = list(yaml.safe_load_all(CONTRACT[0].read_text()))
    for document in documents:
        if document["metadata"]["name"] in {"inferentia", "gpu"}:
            family = "Inf" if document["metadata"]["name"] == "inferentia" else "G"
            document["spec"]["capacity"]["quota"] = {"family": family, "region": "us-east-1", "vcpusPerInstance": 4}
    pools = tmp_path / "pools.yaml"
    pools.write_text(yaml.safe_dump_all(documents))
    return [pools, CONTRACT[1]]


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StubbedAws]:
    """Let the command ask a stand-in that has these quotas, in the order of the pools' names."""

    def has(*values: float, instances: tuple[Any, ...] = ()) -> StubbedAws:
        aws = StubbedAws()
        for value in values:
            aws.stub("service-quotas").add_response("get_service_quota", {"Quota": {"Value": value}})
            aws.stub("ec2").add_response("describe_instances", {"Reservations": [{"Instances": list(instances)}]})
        monkeypatch.setattr("controller.aws.clients.AwsClients.client", lambda _, *which: aws.client(*which))
        return aws

    return has


def run(*arguments: object) -> Result:
    return CliRunner().invoke(quotas, [str(argument) for argument in arguments])


def test_quotas_that_suffice_need_no_request(files: list[Path], account: Callable[..., StubbedAws]) -> None:
    account(1000.0, 1000.0)
    result = run(*files, DEMAND, "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [(each["code"], each["suffices"], each["request"]) for each in report["quotas"]] == [
        ("L-DB2E81BA", True, None),
        ("L-1945791B", True, None),
    ]
    needed = {pool["name"]: pool["vcpus"] for each in report["quotas"] for pool in each["pools"]}
    assert sum(needed.values()) > 0
    assert all(vcpus % 4 == 0 for vcpus in needed.values())
    assert report["worth_per_hour"] == 0


def test_a_quota_of_0_has_a_request_and_the_plan_without_it_its_price(
    files: list[Path], account: Callable[..., StubbedAws]
) -> None:
    account(0.0, 1000.0)
    result = run(*files, DEMAND, "-o", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    gpu = report["quotas"][0]
    assert (gpu["limit_vcpus"], gpu["used_vcpus"], gpu["suffices"]) == (0, 0, False)
    assert gpu["needed_vcpus"] > 0
    assert gpu["request"] == (
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA "
        f"--desired-value {gpu['needed_vcpus']} --region us-east-1"
    )
    assert report["cost_per_hour"] is not None
    within = report["cost_within_quotas_per_hour"]
    assert report["worth_per_hour"] == (None if within is None else within - report["cost_per_hour"])


def test_what_runs_now_may_be_of_these_pools_so_the_request_has_both(
    files: list[Path], account: Callable[..., StubbedAws]
) -> None:
    account(1000.0, 1000.0)
    needed = json.loads(run(*files, DEMAND, "-o", "json").stdout)["quotas"][0]["needed_vcpus"]
    account(float(needed), 1000.0, instances=(an_instance("i-1", "g5.xlarge", cores=2),))
    result = run(*files, DEMAND, "-o", "json")
    gpu = json.loads(result.stdout)["quotas"][0]
    assert result.exit_code == 0
    assert (gpu["used_vcpus"], gpu["suffices"], gpu["request_vcpus"]) == (4, True, needed + 4)


def test_a_quota_is_of_its_region(files: list[Path], tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(files[0].read_text()))
    for document in documents:
        if document["metadata"]["name"] == "inferentia":
            document["spec"]["capacity"]["quota"] = {"family": "G", "region": "eu-west-1", "vcpusPerInstance": 4}
    pools = tmp_path / "regions.yaml"
    pools.write_text(yaml.safe_dump_all(documents))
    found = json.loads(run(pools, files[1], DEMAND, "--offline", "-o", "json").stdout)["quotas"]
    assert {(each["region"], *(pool["name"] for pool in each["pools"])) for each in found} == {
        ("us-east-1", "gpu"),
        ("eu-west-1", "inferentia"),
    }


def test_the_table_says_it_in_words(files: list[Path], account: Callable[..., StubbedAws]) -> None:
    account(0.0, 1000.0)
    result = run(*files, DEMAND)
    assert "L-DB2E81BA  G OnDemand" in result.stdout
    assert "--quota-code L-DB2E81BA" in result.stdout.replace("\n", " ")
    assert "within these quotas the load cannot be served" in result.stdout or "the increase is worth" in result.stdout


def test_offline_the_needs_are_printed_and_nothing_is_asked(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.aws.clients.AwsClients.client", lambda *_: pytest.fail("asked"))
    result = run(*files, DEMAND, "--offline")
    assert result.exit_code == 1
    assert "AWS was not asked (--offline)" in result.stdout
    assert "not known" in result.stdout


def test_a_failure_of_aws_is_said_with_the_needs(files: list[Path], account: Callable[..., StubbedAws]) -> None:
    aws = account()
    for _ in range(2):
        aws.stub("service-quotas").add_client_error("get_service_quota", "AccessDeniedException", "not authorized")
    result = run(*files, DEMAND, "-o", "json")
    assert result.exit_code == 1
    (first, _) = json.loads(result.stdout)["quotas"]
    assert first["problem"] == "quota L-DB2E81BA in us-east-1: AccessDeniedException: not authorized"
    assert first["suffices"] is None
    assert first["needed_vcpus"] >= 0


def test_without_demand_the_declared_peak_counts(
    files: list[Path], tmp_path: Path, account: Callable[..., StubbedAws]
) -> None:
    pipeline = yaml.safe_load(CONTRACT[1].read_text())
    pipeline["spec"]["demand"]["expected"] = [{"schedule": "0 9 * * *", "for": "1h", "atLeast": "800"}]
    known = tmp_path / "pipeline.yaml"
    known.write_text(yaml.safe_dump(pipeline))
    account(1000.0, 1000.0, 1000.0, 1000.0)
    by_file = json.loads(run(files[0], known, "-o", "json").stdout)
    by_option = json.loads(run(*files, DEMAND, "-o", "json").stdout)
    assert [each["needed_vcpus"] for each in by_file["quotas"]] == [
        each["needed_vcpus"] for each in by_option["quotas"]
    ]
    assert "--demand: speech/live-captions: missing" in run(*files, "--offline").stderr


def a_priced_pool(files: list[Path], tmp_path: Path, region: str) -> list[Path]:
    """Return the files with a price of AWS, and no other, for the pool of GPUs."""
    documents = list(yaml.safe_load_all(files[0].read_text()))
    gpu = next(each for each in documents if each["metadata"]["name"] == "gpu")
    gpu["spec"]["price"] = {"aws": {"instanceType": "g5.xlarge", "region": region}}
    gpu["spec"]["capacity"]["quota"]["region"] = region
    pools = tmp_path / "priced.yaml"
    pools.write_text(yaml.safe_dump_all(documents))
    return [pools, files[1]]


def test_prices_of_aws_are_looked_up_and_recorded(
    files: list[Path], tmp_path: Path, account: Callable[..., StubbedAws]
) -> None:
    aws = account(1000.0, 1000.0)
    aws.stub("pricing").add_response("get_products", {"PriceList": [a_product("g5.xlarge", "1.123", "eu-west-1")]})
    record = tmp_path / "record.json"
    result = run(*a_priced_pool(files, tmp_path, "eu-west-1"), DEMAND, "--record", record, "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["problems"] == []
    assert json.loads(record.read_text())["answers"][0]["operation"] == "get_products"


@pytest.mark.parametrize(
    ("region", "exit_status", "told"),
    [("us-east-1", 0, "the price of the manifest or of the bundled table counts"), ("eu-west-1", 1, "set spec.price")],
)
def test_a_price_that_aws_does_not_give_is_said(
    files: list[Path],
    tmp_path: Path,
    account: Callable[..., StubbedAws],
    region: str,
    exit_status: int,
    told: str,
) -> None:
    aws = account(1000.0, 1000.0)
    aws.stub("pricing").add_client_error("get_products", "AccessDeniedException", "not authorized")
    result = run(*a_priced_pool(files, tmp_path, region), DEMAND)
    assert result.exit_code == exit_status, result.output
    assert told in " ".join(result.output.split())


def test_pools_without_quotas_are_wrong_usage() -> None:
    result = run(*CONTRACT[:2], DEMAND, "--offline")
    assert result.exit_code == 2
    assert "no pool of these pipelines has spec.capacity.quota" in result.stderr


def test_a_record_has_what_was_read_and_no_secrets(
    files: list[Path], tmp_path: Path, account: Callable[..., StubbedAws]
) -> None:
    secret = {
        **an_instance("i-0123456789abcdef0", "inf2.xlarge", cores=2),
        "PrivateIpAddress": "10.1.2.3",
        "KeyName": "my-key",
        "IamInstanceProfile": {"Arn": "arn:aws:iam::123456789012:instance-profile/x", "Id": "A"},
        "Tags": [{"Key": "team", "Value": "secret project"}],
    }
    account(1000.0, 64.0, instances=(secret,))
    record = tmp_path / "record.json"
    result = run(*files, DEMAND, "--record", record)
    assert "recorded without secrets" in result.stderr
    text = record.read_text()
    for hidden in ("0123456789abcdef0", "10.1.2.3", "my-key", "123456789012", "secret project", "ResponseMetadata"):
        assert hidden not in text
    answers = json.loads(text)["answers"]
    assert [(each["service"], each["operation"]) for each in answers] == [
        ("service-quotas", "get_service_quota"),
        ("ec2", "describe_instances"),
    ] * 2
    assert answers[0]["answer"] == {"Quota": {"Value": 1000.0}}
    assert answers[1]["answer"] == {
        "Reservations": [
            {
                "Instances": [
                    {
                        "InstanceId": "InstanceId-0",
                        "InstanceType": "inf2.xlarge",
                        "CpuOptions": {"CoreCount": 2, "ThreadsPerCore": 2},
                    }
                ]
            }
        ]
    }


@pytest.mark.parametrize("limit_vcpus", [None, 0.0])
def test_what_needs_nothing_has_no_request(limit_vcpus: float | None) -> None:
    source = QuotaSource(code="L-1945791B", region="x", vcpus=4, purchase=Purchase.ON_DEMAND, name="Inf OnDemand")
    need = QuotaNeed(source=source, by_pool={"inf2": 0}, limit_vcpus=limit_vcpus, used_vcpus=8.0, problem="")
    assert need.suffices_beside


def test_a_record_that_cannot_be_written_is_wrong_usage(
    files: list[Path], tmp_path: Path, account: Callable[..., StubbedAws]
) -> None:
    account(1000.0, 1000.0)
    result = run(*files, DEMAND, "--record", tmp_path / "no" / "record.json")
    assert result.exit_code == 2
    assert "cannot be written: No such file or directory" in " ".join(result.stderr.split())


def test_a_record_needs_answers(files: list[Path], tmp_path: Path) -> None:
    assert run(*files, DEMAND, "--offline", "--record", tmp_path / "r.json").exit_code == 2
