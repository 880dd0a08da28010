import base64
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from http_upstream import serving

from profiler.samples import Absence
from profiler.sources.access import Access
from profiler.sources.prometheus_api import PrometheusApi
from simulations.lab.host.certificates import Signed, authority, signed_by

QUERY = 'sum(rate(x_total{a="b/c", d=~"e+"}[1m])) > 0'


@dataclass
class Seen:
    """The requests that a server has received."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


def handler(seen: Seen) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            seen.paths.append(self.path)
            seen.bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    with serving(handler(seen)) as seen.url:
        yield seen


def ask(url: str, access: Access, query: str = QUERY) -> object:
    api = PrometheusApi(url, access)
    try:
        return api.ask([query], 5.0)[query]
    finally:
        api.close()


def problem(answer: object) -> str:
    assert isinstance(answer, Absence), answer
    return answer.detail


def test_basic_authentication_sends_user_and_password_and_reads_the_password_for_each_query(
    seen: Seen, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    api = PrometheusApi(seen.url, Access(username="sluice", password_file=file))
    for password in ("first", "schlüssel"):
        file.write_text(f"{password}\n")
        assert api.ask([QUERY], 5.0) == {QUERY: []}
        scheme, _, encoded = seen.headers[-1]["authorization"].partition(" ")
        assert (scheme, base64.b64decode(encoded).decode()) == ("Basic", f"sluice:{password}")
    api.close()


def test_an_empty_password_is_not_sent(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("\n")
    answer = ask(seen.url, Access(username="sluice", password_file=tmp_path / "password"))
    assert problem(answer) == f"Prometheus: password {tmp_path}/password: the file is empty"
    assert seen.paths == []


@pytest.mark.parametrize("content", ["", "secret\nsecret\n", "secr et", "secret\x00"])
def test_what_is_not_a_token_is_named_by_its_file_and_not_by_its_content(
    seen: Seen, tmp_path: Path, content: str
) -> None:
    (tmp_path / "token").write_text(content)
    words = problem(ask(seen.url, Access(token_file=tmp_path / "token")))
    assert f"bearer token {tmp_path}/token: not a token" in words
    assert "secr" not in words.replace(str(tmp_path), "")
    assert seen.paths == []


def test_a_file_that_is_no_text_is_reported(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in problem(ask(seen.url, Access(token_file=tmp_path / "token")))


def test_further_headers_are_sent_with_every_query(seen: Seen) -> None:
    assert ask(seen.url, Access(headers={"X-Scope-OrgID": "team-a|team-b"})) == []
    assert seen.headers[0]["x-scope-orgid"] == "team-a|team-b"


def test_without_settings_nothing_is_sent(seen: Seen) -> None:
    assert ask(seen.url, Access()) == []
    assert "authorization" not in seen.headers[0]


class TestSigV4:
    REGION = "eu-west-1"

    @pytest.fixture(autouse=True)
    def _aws(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))

    def expected(self, seen: Seen, service: str, *, signed: str) -> str:
        """Return the signature that AWS computes for the request (its documentation, "Create a signed request")."""
        path, headers = urlsplit(seen.paths[0]), seen.headers[0]
        at = headers["x-amz-date"]
        query = "&".join(sorted(path.query.split("&")))
        lines = [f"{name}:{headers[name]}" for name in signed.split(";")]
        method = "POST" if seen.bodies[0] else "GET"
        canonical = "\n".join(
            [method, path.path, query, *lines, "", signed, hashlib.sha256(seen.bodies[0]).hexdigest()]
        )
        scope = f"{at[:8]}/{self.REGION}/{service}/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = b"AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
        for part in (at[:8], self.REGION, service, "aws4_request", text):
            key = hmac.digest(key, part.encode(), "sha256")
        return f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders={signed}, Signature={key.hex()}"

    @pytest.mark.parametrize("service", ["aps", "execute-api"])
    def test_the_signature_is_the_one_that_aws_computes(self, seen: Seen, service: str) -> None:
        assert ask(seen.url, Access(sigv4_region=self.REGION, sigv4_service=service)) == []
        assert seen.headers[0]["authorization"] == self.expected(seen, service, signed="host;x-amz-date")
        assert "+" not in seen.paths[0]  # AWS decodes it as a plus sign

    def test_the_body_of_a_long_query_is_signed(self, seen: Seen) -> None:
        assert ask(seen.url, Access(sigv4_region=self.REGION), f"sum({'x' * 3000})") == []
        assert seen.bodies[0].startswith(b"query=sum")
        assert seen.headers[0]["authorization"] == self.expected(seen, "aps", signed="host;x-amz-date")

    def test_a_session_token_is_sent_and_signed(self, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
        assert ask(seen.url, Access(sigv4_region=self.REGION)) == []
        assert seen.headers[0]["x-amz-security-token"] == "session"
        signed = "host;x-amz-date;x-amz-security-token"
        assert seen.headers[0]["authorization"] == self.expected(seen, "aps", signed=signed)

    def test_without_credentials_nothing_is_sent_and_the_reason_says_what_to_do(
        self, seen: Seen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        words = problem(ask(seen.url, Access(sigv4_region=self.REGION)))
        assert "no AWS credentials: give the operator's ServiceAccount an IAM role" in words
        assert seen.paths == []

    def test_a_role_whose_token_cannot_be_read_is_reported(
        self, seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/sluice")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "gone"))
        assert "gone" in problem(ask(seen.url, Access(sigv4_region=self.REGION)))


class TestTls:
    @pytest.fixture(scope="class")
    @staticmethod
    def issuer(tmp_path_factory: pytest.TempPathFactory) -> Signed:
        return authority(tmp_path_factory.mktemp("authority"))

    @pytest.fixture
    def server(self, issuer: Signed, tmp_path: Path) -> Iterator[Seen]:
        """A server that demands a client certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own = signed_by(issuer, tmp_path, "server")
        context.load_cert_chain(own.certificate, own.key)
        context.load_verify_locations(issuer.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        seen = Seen()

        class Server(ThreadingHTTPServer):
            def get_request(self) -> tuple[ssl.SSLSocket, object]:
                connection, address = super().get_request()
                return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a refused handshake

        with Server(("127.0.0.1", 0), handler(seen)) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            seen.url = f"https://127.0.0.1:{server.server_port}"
            yield seen
            server.shutdown()
            thread.join()

    def test_a_server_of_a_private_authority_gets_the_clients_certificate(
        self, server: Seen, issuer: Signed, tmp_path: Path
    ) -> None:
        own = signed_by(issuer, tmp_path, "client")
        access = Access(ca_file=issuer.certificate, certificate_file=own.certificate, key_file=own.key)
        assert ask(server.url, access) == []
        both = tmp_path / "both.pem"
        both.write_text(own.certificate.read_text() + own.key.read_text())
        assert ask(server.url, Access(ca_file=issuer.certificate, certificate_file=both)) == []

    def test_another_authority_is_not_trusted(self, server: Seen, issuer: Signed, tmp_path: Path) -> None:
        own = signed_by(issuer, tmp_path, "client")
        other = authority(tmp_path, "other")
        for ca_file in (None, other.certificate):
            access = Access(ca_file=ca_file, certificate_file=own.certificate, key_file=own.key)
            assert "CERTIFICATE_VERIFY_FAILED" in problem(ask(server.url, access))

    def test_a_renewed_certificate_is_used_by_the_next_connection(
        self, server: Seen, issuer: Signed, tmp_path: Path
    ) -> None:
        used = Signed(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
        stranger = authority(tmp_path, "stranger")
        good, bad = signed_by(issuer, tmp_path, "good"), signed_by(stranger, tmp_path, "bad")
        api = PrometheusApi(
            server.url, Access(ca_file=issuer.certificate, certificate_file=used.certificate, key_file=used.key)
        )
        answers = []
        for current in (bad, good):
            used.certificate.write_bytes(current.certificate.read_bytes())
            used.key.write_bytes(current.key.read_bytes())
            answers.append(api.ask([QUERY], 5.0)[QUERY])
        api.close()
        assert isinstance(answers[0], Absence)
        assert answers[1] == []

    def test_a_file_that_is_gone_is_named(self, server: Seen, tmp_path: Path) -> None:
        words = problem(ask(server.url, Access(ca_file=tmp_path / "gone.crt")))
        assert "gone.crt" in words
