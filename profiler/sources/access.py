"""How to authenticate to the metrics back end: a value without behaviour, which the settings of the operator make."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials and headers for the metrics back end; the default is none, with the system's trust store.

    At most one of `token_file`, `username` and `sigv4_region` is set. Files are read again when they are used, because
    Kubernetes and cert-manager replace them: token and password for every query, the others for every connection.
    """

    token_file: Path | None = None
    """Holds a bearer token."""
    username: str | None = None
    """Of basic authentication; its password is in `password_file`."""
    password_file: Path | None = None
    sigv4_region: str | None = None
    """AWS region: requests are signed with the credentials of the environment (IRSA, EKS Pod Identity, instance)."""
    sigv4_service: str = "aps"
    ca_file: Path | None = None
    """PEM certificates that replace the system's trust store."""
    certificate_file: Path | None = None
    """PEM client certificate; without `key_file` it holds the private key too."""
    key_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request, such as X-Scope-OrgID for Mimir, Cortex and Loki."""
