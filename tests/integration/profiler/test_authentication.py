"""A real Prometheus that demands TLS, a client certificate and a password answers the operator, and no other."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from profiler.samples import Absence
from profiler.sources.access import Access
from profiler.sources.prometheus_api import PrometheusApi
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.certificates import Signed, authority, signed_by
from simulations.lab.host.processes import LOOPBACK, Processes, free_ports

pytestmark = pytest.mark.lab

READY_S = 30.0
PASSWORD = "test"
# The bcrypt hash of the password, from Prometheus' own documentation.
WEB = """
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: authority.crt
basic_auth_users: {sluice: $2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def client(folder: Path) -> Signed:
    issuer = authority(folder)
    signed_by(issuer, folder, "server")
    return signed_by(issuer, folder, "client")


@pytest.fixture(scope="module")
def url(binaries: Binaries, folder: Path, client: Signed) -> Iterator[str]:
    (folder / "web.yaml").write_text(WEB)
    (folder / "prometheus.yaml").write_text("{}\n")
    (port,) = free_ports(1)

    def ready() -> bool:
        context = ssl.create_default_context(cafile=folder / "authority.crt")
        context.load_cert_chain(client.certificate, client.key)
        try:
            urlopen(f"https://{LOOPBACK}:{port}/-/ready", timeout=5, context=context)
        except URLError as error:
            return getattr(error, "code", 0) == 401  # it listens, and refuses a request without a password
        return False

    with Processes(folder) as processes:
        child = processes.start(
            "prometheus",
            [
                binaries.prometheus,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--web.config.file={folder / 'web.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={LOOPBACK}:{port}",
            ],
        )
        child.wait_until(ready, READY_S)
        yield f"https://{LOOPBACK}:{port}"


def answer(url: str, folder: Path, client: Signed | None, *, password: str = PASSWORD) -> object:
    (folder / "password").write_text(f"{password}\n")
    access = Access(
        username="sluice",
        password_file=folder / "password",
        ca_file=folder / "authority.crt",
        certificate_file=None if client is None else client.certificate,
        key_file=None if client is None else client.key,
    )
    api = PrometheusApi(url, access)
    try:
        return api.ask(["vector(7)"], 10.0)["vector(7)"]
    finally:
        api.close()


def test_password_and_certificate_are_accepted(url: str, folder: Path, client: Signed) -> None:
    found = answer(url, folder, client)
    assert isinstance(found, list), found
    assert found[0]["value"][1] == "7"


def test_a_wrong_password_is_reported_with_what_to_check(url: str, folder: Path, client: Signed) -> None:
    refused = answer(url, folder, client, password="wrong")
    assert isinstance(refused, Absence)
    assert "HTTP status 401: check the credentials" in refused.detail


def test_without_the_certificate_the_connection_is_refused(url: str, folder: Path) -> None:
    refused = answer(url, folder, None)
    assert isinstance(refused, Absence)
    assert "certificate" in refused.detail.lower()
