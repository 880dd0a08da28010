"""Clients of AWS: deadlines, attempts with pauses between them, and errors as one exception."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler

import pytest
from botocore.exceptions import ClientError
from http_upstream import serving

from controller.aws import clients
from controller.aws.clients import ATTEMPTS, NO_CREDENTIALS, AwsClients, failures
from controller.aws.failure import AwsFailure
from controller.core.state.provider_errors import ErrorClass

Answer = tuple[int, dict[str, object]]
THROTTLED: Answer = (400, {"__type": "TooManyRequestsException", "message": "slow down"})
QUOTA: Answer = (200, {"Quota": {"QuotaCode": "L-1945791B", "Value": 64.0}})


@contextmanager
def a_service(answer: Callable[[int], Answer]) -> Iterator[tuple[str, list[float]]]:
    """Serve what `answer` returns for the number of the request; yield the address and the times of requests."""
    times: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            times.append(time.monotonic())
            self.rfile.read(int(self.headers["Content-Length"]))
            status, document = answer(len(times))
            body = json.dumps(document).encode()
            with suppress(OSError):  # the client may have given up
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as url:
        yield url, times


def read_quota(monkeypatch: pytest.MonkeyPatch, url: str, made_by: AwsClients | None = None) -> float:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    client = (made_by or AwsClients()).client("service-quotas", "us-east-1")
    try:
        with failures("quota"):
            value: float = client.get_service_quota(ServiceCode="ec2", QuotaCode="L-1945791B")["Quota"]["Value"]
            return value
    finally:
        client.close()


def test_a_throttled_request_is_sent_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_service(lambda number: THROTTLED if number < ATTEMPTS else QUOTA) as (url, times):
        assert read_quota(monkeypatch, url) == 64.0
    assert len(times) == ATTEMPTS


def test_pauses_are_random_and_attempts_have_deadlines() -> None:
    """The operators of an account must not ask again at the same moment: mode standard pauses with full jitter."""
    from botocore.retries.standard import ExponentialBackoff, RetryContext

    config = AwsClients().client("ec2", "us-east-1").meta.config
    assert config.retries == {"mode": "standard", "total_max_attempts": ATTEMPTS}
    assert (config.connect_timeout, config.read_timeout) == (clients.CONNECT_S, clients.READ_S)
    pauses = {ExponentialBackoff().delay_amount(RetryContext(attempt_number=1)) for _ in range(5)}
    assert len(pauses) > 1


def test_attempts_end_and_the_failure_has_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        a_service(lambda _: THROTTLED) as (url, times),
        pytest.raises(AwsFailure, match="quota: TooManyRequests") as error,
    ):
        read_quota(monkeypatch, url)
    assert len(times) == ATTEMPTS
    assert error.value.kind is ErrorClass.THROTTLED


def test_a_service_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: int) -> Answer:
        time.sleep(0.5)
        return QUOTA

    begun = time.monotonic()
    with a_service(hang) as (url, _), pytest.raises(AwsFailure, match="ReadTimeoutError"):
        read_quota(monkeypatch, url, AwsClients(read_s=0.05, attempts=1))
    assert time.monotonic() - begun < 5


@pytest.fixture
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")


@pytest.mark.usefixtures("without_credentials")
def test_without_credentials_the_failure_says_what_to_do() -> None:
    client = AwsClients().client("ec2", "us-east-1")
    with pytest.raises(AwsFailure) as error, failures("instances"):
        client.describe_instances()
    assert str(error.value) == f"instances: {NO_CREDENTIALS}"


@pytest.mark.usefixtures("without_credentials")
def test_without_credentials_a_role_cannot_be_assumed() -> None:
    clients = AwsClients(role="arn:aws:iam::111122223333:role/sluice")
    with pytest.raises(AwsFailure, match=r"ec2 in us-east-1: no AWS credentials"):
        clients.client("ec2", "us-east-1")
    with pytest.raises(AwsFailure, match="region: no AWS credentials"):
        _ = clients.region


@pytest.mark.usefixtures("without_credentials")
def test_credentials_that_come_later_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made = AwsClients()
    with pytest.raises(AwsFailure, match="no AWS credentials"), failures("quota"):
        made.client("service-quotas", "us-east-1").get_service_quota(ServiceCode="ec2", QuotaCode="L-1945791B")
    with a_service(lambda _: QUOTA) as (url, _):
        assert read_quota(monkeypatch, url, made) == 64.0
        assert made.client("service-quotas", "us-east-1") is made.client("service-quotas", "us-east-1")


def test_the_signed_request_is_not_told() -> None:
    message = "The signature does not match.\n\nThe Canonical String was 'POST\nx-amz-security-token:IQoJb3"
    error = ClientError({"Error": {"Code": "SignatureDoesNotMatch", "Message": message}}, "DescribeInstances")
    with pytest.raises(AwsFailure) as failure, failures("instances"):
        raise error
    assert str(failure.value) == "instances: SignatureDoesNotMatch: The signature does not match."


def test_the_default_region_is_the_setting_or_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert AwsClients().region == "eu-west-1"
    assert AwsClients(region="us-east-1").region == "us-east-1"
