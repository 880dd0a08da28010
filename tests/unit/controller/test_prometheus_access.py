import subprocess
from pathlib import Path

import pytest

from controller.settings import InvalidSettings, load_settings
from profiler.sources.access import Access
from simulations.lab.host.certificates import Signed, authority

URL = "https://prometheus:9090"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "content"
    file.write_text("content")
    return file


def problems(**settings: object) -> str:
    with pytest.raises(InvalidSettings) as refused:
        load_settings({"prometheus_url": URL, **{f"prometheus_{name}": value for name, value in settings.items()}})
    return str(refused.value)


def test_the_settings_become_the_access(signed: Signed, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_PROMETHEUS_HEADERS", "X-Scope-OrgID=team-a|team-b, X-Via=a=b")
    settings = load_settings(
        {
            "prometheus_url": URL,
            "prometheus_username": "sluice",
            "prometheus_password_file": file,
            "prometheus_ca_file": signed.certificate,
            "prometheus_certificate_file": signed.certificate,
            "prometheus_key_file": signed.key,
        }
    )
    assert settings.prometheus_access == Access(
        username="sluice",
        password_file=file,
        ca_file=signed.certificate,
        certificate_file=signed.certificate,
        key_file=signed.key,
        headers={"X-Scope-OrgID": "team-a|team-b", "X-Via": "a=b"},
    )


def test_without_settings_nothing_authenticates() -> None:
    assert load_settings({"prometheus_url": "http://prometheus:9090"}).prometheus_access == Access()


def test_one_way_to_authenticate_is_chosen(file: Path) -> None:
    basic = {"username": "sluice", "password_file": file}
    assert "--prometheus-username (SLUICE_PROMETHEUS_USERNAME): cannot be combined with --prometheus-token-file" in (
        problems(token_file=file, **basic)
    )
    assert "--prometheus-sigv4-region (SLUICE_PROMETHEUS_SIGV4_REGION): cannot be combined with" in problems(
        token_file=file, sigv4_region="eu-west-1"
    )


def test_a_user_needs_a_password_and_a_key_a_certificate(file: Path) -> None:
    assert "--prometheus-username (SLUICE_PROMETHEUS_USERNAME): needs --prometheus-password-file too" in problems(
        username="sluice"
    )
    assert "needs --prometheus-username too" in problems(password_file=file)
    assert "needs --prometheus-certificate-file too" in problems(key_file=file)


@pytest.mark.parametrize("name", ["token_file", "password_file", "ca_file", "certificate_file", "key_file"])
def test_a_file_that_is_missing_or_empty_is_named_with_its_setting(name: str, tmp_path: Path) -> None:
    flag = f"--prometheus-{name.replace('_', '-')} (SLUICE_PROMETHEUS_{name.upper()})"
    assert f"{flag}: {tmp_path}/gone: No such file or directory" in problems(**{name: tmp_path / "gone"})
    assert f"{flag}: {tmp_path}: Is a directory" in problems(**{name: tmp_path})
    (tmp_path / "empty").touch()
    assert f"{flag}: {tmp_path}/empty: the file is empty" in problems(**{name: tmp_path / "empty"})


def test_certificates_must_be_usable(signed: Signed, file: Path) -> None:
    assert "must have certificates in PEM format" in problems(ca_file=file)
    assert "must have a certificate and its private key" in problems(certificate_file=file)
    assert "must have a certificate and its private key" in problems(certificate_file=signed.certificate)


def test_a_key_with_a_password_is_refused_without_asking_for_it(signed: Signed, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    command: list[str | Path] = [
        "openssl",
        "ec",
        "-in",
        signed.key,
        "-out",
        locked,
        "-aes256",
        "-passout",
        "pass:secret",
    ]
    subprocess.run(command, check=True, capture_output=True)
    words = problems(certificate_file=signed.certificate, key_file=locked)
    assert "without a password" in words


def test_certificates_need_tls(signed: Signed) -> None:
    words = problems(url="http://prometheus:9090", ca_file=signed.certificate)
    assert "--prometheus-ca-file (SLUICE_PROMETHEUS_CA_FILE): has no effect without TLS" in words


def test_credentials_in_the_address_are_refused_and_not_repeated() -> None:
    words = problems(url="https://sluice:secret@prometheus:9090")
    assert "must not contain credentials" in words
    assert "secret" not in words


@pytest.mark.parametrize("header", ["X-Scope-OrgID", "X Scope=a", "X-Scope-OrgID=", "X=a\nY: b", "=a"])
def test_a_header_has_a_name_and_a_value(header: str) -> None:
    assert "must be headers such as X-Scope-OrgID=team-a" in problems(headers=(header,))


def test_the_header_of_credentials_has_settings_of_its_own() -> None:
    assert "must not contain Authorization: use --prometheus-token-file" in problems(headers=("authorization=x",))


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [("username", "a:b", "without colons"), ("sigv4_region", "EU west", "such as eu-west-1")],
)
def test_a_bad_value_is_named_with_its_rule(name: str, value: str, rule: str) -> None:
    words = problems(**{name: value})
    assert value in words
    assert rule in words
