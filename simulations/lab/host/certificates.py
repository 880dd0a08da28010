"""Certificates for servers and clients of the lab, made by OpenSSL."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A certificate and its private key."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str = "authority") -> Signed:
    """Return a self-signed certificate that may sign others."""
    signed = Signed(certificate=folder / f"{name}.crt", key=folder / f"{name}.key")
    _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", "-days", "2", *_files(signed))
    return signed


def signed_by(issuer: Signed, folder: Path, name: str) -> Signed:
    """Return a certificate for server and client at 127.0.0.1."""
    signed = Signed(certificate=folder / f"{name}.crt", key=folder / f"{name}.key")
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    by = ("-CA", issuer.certificate, "-CAkey", issuer.key)
    _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", "-days", "2", *names, *by, *_files(signed))
    return signed


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _files(signed: Signed) -> tuple[str | Path, ...]:
    return ("-out", signed.certificate, "-keyout", signed.key)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
