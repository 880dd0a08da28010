"""Clients of AWS services, with deadlines and a limited number of attempts, and their errors as `AwsFailure`.

Credentials are those of botocore's chain: the IAM role of the ServiceAccount (IRSA, EKS Pod Identity), the environment,
or a profile. botocore's standard retry mode waits an exponential time with full jitter between attempts.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from controller.aws.failure import AwsFailure
from profiler.sources.aws_errors import MOST_CHARACTERS, error_text

CONNECT_S, READ_S = 2.0, 10.0
"""Limits on one attempt of a request, in seconds."""
ATTEMPTS = 3
GROUPS_READ_S = 4.0
"""The limit for Auto Scaling groups, with one attempt: a cycle waits for their changes; the next one tries again."""
_SESSION_NAME = "sluice"
NO_CREDENTIALS = "no AWS credentials: give the operator's ServiceAccount an IAM role (IRSA or EKS Pod Identity)"


class AwsClients:
    """Makes the clients of services by region, once each; they may be used in several threads."""

    def __init__(
        self, *, region: str | None = None, role: str | None = None, read_s: float = READ_S, attempts: int = ATTEMPTS
    ) -> None:
        """`region` is the default region, None: that of the environment. `role` is the ARN of a role to assume.

        An attempt of a request takes `CONNECT_S` + `read_s` at most, and there are as many as `attempts`.
        """
        self._region, self._role = region, role
        self._read_s, self._attempts = read_s, attempts
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}

    @property
    def region(self) -> str | None:
        """Return the default region, None where neither a setting nor the environment names one."""
        if self._region is not None:
            return self._region
        with self._lock, failures("region"):
            found: str | None = self._boto_session().region_name
        return found

    def client(self, service: str, region: str) -> Any:
        """Return the client of a service in a region.

        Raises:
            AwsFailure: there is no such service or region.
        """
        with self._lock, failures(f"{service} in {region}"):
            if (service, region) in self._clients:
                return self._clients[service, region]
            session = self._boto_session()
            made = session.client(service, region_name=region, config=_config(self._read_s, self._attempts))
            # A client without credentials never gets any, and they may come: the metadata service may start late.
            if session.get_credentials() is not None:
                self._clients[service, region] = made
            return made

    def _boto_session(self) -> Any:
        if self._session is None:
            # Imported here because it takes a quarter of a second, which only users of AWS should wait for.
            import boto3

            session = boto3.Session(region_name=self._region)
            self._session = session if self._role is None else _in_role(session, self._role, self._region)
        return self._session


def _config(read_s: float, attempts: int) -> Any:
    from botocore.config import Config

    return Config(
        connect_timeout=CONNECT_S,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        user_agent_extra="sluice-operator",
    )


def _in_role(session: Any, role: str, region: str | None) -> Any:
    """Return a session with the rights of `role`, whose credentials are renewed before they expire."""
    import boto3
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import NoCredentialsError
    from botocore.session import get_session

    def create(service: str, **arguments: Any) -> Any:
        return session.client(service, **{"region_name": region, **arguments, "config": _config(READ_S, ATTEMPTS)})

    source = session.get_credentials()
    if source is None:
        raise NoCredentialsError

    fetcher = AssumeRoleCredentialFetcher(
        client_creator=create,
        source_credentials=source,
        role_arn=role,
        extra_args={"RoleSessionName": _SESSION_NAME},
    )
    inner = get_session()
    inner._credentials = DeferredRefreshableCredentials(  # noqa: SLF001  # botocore has no public way to set them
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return boto3.Session(botocore_session=inner, region_name=region)


@contextmanager
def failures(what: str) -> Iterator[None]:
    """Raise the errors of botocore as `AwsFailure`, with `what` was asked for before the words of AWS."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except NoCredentialsError:
        raise AwsFailure(f"{what}: {NO_CREDENTIALS}") from None
    except ClientError as error:
        raise AwsFailure(error_text(what, error.response)) from error
    except (BotoCoreError, ResponseParserError, ValueError, LookupError, TypeError, AttributeError) as error:
        # A proxy may answer with a page of its own.
        raise AwsFailure(f"{what}: {type(error).__name__}: {error}"[:MOST_CHARACTERS]) from error


Make = Callable[[str, str], Any]
"""Returns the client of a service in a region; `AwsClients.client`, or a stand-in in tests."""
