"""Checks of the settings that authenticate the operator to Prometheus, made before it starts."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from profiler.sources.access import Access


def access_problems(url: str, access: Access) -> Iterator[tuple[str, str]]:
    """Yield each setting with a problem and the problem, which contains no secret.

    Settings must not exclude each other, and their files must be readable now, though they are read again later.
    """
    address = urlsplit(url)
    if address.username is not None or address.password is not None:
        yield "prometheus_url", "must not contain credentials: use --prometheus-username and --prometheus-password-file"
    ways = {
        "prometheus_token_file": access.token_file,
        "prometheus_username": access.username,
        "prometheus_sigv4_region": access.sigv4_region,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        yield given[1], f"cannot be combined with {_flag(given[0])}: choose one way to authenticate"
    yield from _incomplete("prometheus_username", access.username, "prometheus_password_file", access.password_file)
    if access.key_file is not None and access.certificate_file is None:
        yield "prometheus_key_file", "needs --prometheus-certificate-file too"
    files = {
        "prometheus_token_file": access.token_file,
        "prometheus_password_file": access.password_file,
        "prometheus_ca_file": access.ca_file,
        "prometheus_certificate_file": access.certificate_file,
        "prometheus_key_file": access.key_file,
    }
    unreadable = {name: problem for name, file in files.items() if file is not None and (problem := _unreadable(file))}
    yield from unreadable.items()
    for name in ("prometheus_ca_file", "prometheus_certificate_file"):
        if files[name] is not None and address.scheme != "https":
            yield name, "has no effect without TLS: --prometheus-url must begin with https://"
    if not unreadable:
        yield from _unusable(access)
    for name in access.headers:
        if name.lower() == "authorization":
            yield "prometheus_headers", "must not contain Authorization: use --prometheus-token-file"


def _incomplete(first: str, one: object, second: str, other: object) -> Iterator[tuple[str, str]]:
    if (one is None) != (other is None):
        present, absent = (second, first) if one is None else (first, second)
        yield present, f"needs {_flag(absent)} too"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _unreadable(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return "" if opened.read(1) else f"{file}: the file is empty"
    except OSError as error:
        return f"{file}: {error.strerror}"


def _unusable(access: Access) -> Iterator[tuple[str, str]]:
    """Yield the certificates and keys that the TLS library cannot load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.ca_file is not None:
        try:
            context.load_verify_locations(access.ca_file)
        except ssl.SSLError:
            yield "prometheus_ca_file", f"{access.ca_file}: must have certificates in PEM format"
    if access.certificate_file is not None:
        try:
            # The password of an encrypted key, for which the library would ask on the terminal.
            context.load_cert_chain(access.certificate_file, access.key_file, password="")
        except ssl.SSLError as error:
            rule = "must have a certificate and its private key, without a password, in PEM format"
            yield "prometheus_certificate_file", f"{access.certificate_file}: {rule} ({error.reason or error})"
