"""Authentication of requests to the metrics back end, as `requests` takes it."""

import re
import threading
from pathlib import Path
from typing import Any

import requests
from requests.auth import AuthBase, HTTPBasicAuth

from profiler.sources.access import Access

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_TIMEOUT_S = 2.0
"""Limit on each request for AWS credentials, of which one may precede a query."""


class NoCredentials(Exception):
    """The credentials for a request cannot be read; the message says which and why, and does not contain them."""


def authenticate(session: requests.Session, access: Access) -> None:
    """Make `session` send its requests as `access` says. Requests raise `NoCredentials` while a file is unusable."""
    if access.token_file is not None:
        session.auth = _BearerToken(access.token_file)
    elif access.username is not None and access.password_file is not None:
        session.auth = _Basic(access.username, access.password_file)
    elif access.sigv4_region is not None:
        session.auth = _SigV4(access.sigv4_region, access.sigv4_service)
    if access.ca_file is not None:
        session.verify = str(access.ca_file)
    if access.certificate_file is not None:
        certificate = str(access.certificate_file)
        session.cert = certificate if access.key_file is None else (certificate, str(access.key_file))
    session.headers.update(access.headers)


class _BearerToken(AuthBase):
    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = _content(self._file, "bearer token")
        if _VISIBLE.fullmatch(token) is None:  # as a header it would raise an error with the token in its text
            raise NoCredentials(
                f"bearer token {self._file}: not a token: it is empty, or has spaces or control characters"
            )
        request.headers["Authorization"] = f"Bearer {token}"
        return request


class _Basic(AuthBase):
    def __init__(self, username: str, file: Path) -> None:
        self._username = username.encode()
        self._file = file

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        password = _content(self._file, "password")
        if not password:
            raise NoCredentials(f"password {self._file}: the file is empty")
        HTTPBasicAuth(self._username, password.encode())(request)
        return request


class _SigV4(AuthBase):
    """Signs requests by AWS Signature Version 4 with botocore, whose default chain finds and renews the credentials."""

    def __init__(self, region: str, service: str) -> None:
        # Imported here because it takes a quarter of a second, which only users of AWS should wait for.
        from botocore.config import Config
        from botocore.session import Session

        self._region, self._service = region, service
        self._lock = threading.Lock()
        self._session = Session()
        self._session.set_config_variable("region", region)  # of the token service, which IRSA asks
        self._session.set_default_client_config(
            Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"total_max_attempts": 1})
        )

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        # The signature covers the query as it is sent; AWS expects %20 where `requests` writes +.
        request.url = (request.url or "").replace("+", "%20")
        body = request.body.encode() if isinstance(request.body, str) else request.body
        signed = AWSRequest(method=request.method, url=request.url, data=body)
        SigV4Auth(self._credentials(), self._service, self._region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        return request

    def _credentials(self) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with self._lock:
                found = self._session.get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise NoCredentials(f"AWS credentials: {error}") from error
        if frozen is None:
            raise NoCredentials(
                "no AWS credentials: give the operator's ServiceAccount an IAM role (IRSA or EKS Pod Identity)"
            )
        return frozen


def _content(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise NoCredentials(f"{what} {file}: {reason}") from error
