"""How this process runs: read from the environment (`SLUICE_…`), overridden by flags. What to decide is not here."""

import socket
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from controller.resources.fields import PATTERN_RULES, Label, PositiveDuration, Subdomain, duration_s


class InvalidSettings(ValueError):
    """A setting cannot be used: the message names it, its value and the rule."""


def _whole_seconds(duration: str) -> str:
    seconds = duration_s(duration)
    if seconds < 2 or seconds != int(seconds):
        raise ValueError("must be a whole number of seconds, at least 2s")
    return duration


class OperatorSettings(BaseSettings):
    """Settings of `sluice operator`."""

    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="forbid")

    metrics: Annotated[tuple[Literal["prometheus", "direct"], ...], NoDecode, Field(min_length=1)] = ("prometheus",)
    """Where the metrics come from, best first, comma-separated: prometheus, and direct, the pods' own endpoints."""
    prometheus_url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """Where Prometheus is."""
    scrape_endpoints: Annotated[tuple[Annotated[str, Field(pattern=r"^https?://\S+$")], ...], NoDecode] = ()
    """Endpoints that answer the users' own queries in direct scrapes, such as that of the ingress, comma-separated;
    each must be one process."""
    restrict_queries: bool = False
    """Whether the users' own queries see the series of their namespace only."""
    kubeconfig: Path | None = None
    """Credentials for the API server; without it $KUBECONFIG, the pod's own, or ~/.kube/config."""
    interval: PositiveDuration = "15s"
    """Time between cycles."""
    scrape_interval: PositiveDuration = "15s"
    """How often a pod is visited, by Prometheus or directly: one that has been ready for less than four visits need not
    report yet."""
    fleet_budget: Annotated[Decimal, Field(ge=0)] | None = None
    """USD per hour that all pipelines together never exceed."""
    composition: Literal["rss", "sum"] = "rss"
    """How the stages' latencies make up the pipeline's: rss is nearly unbiased, and its plans are replayed before they
    are believed; sum adds the stages' percentiles, the safe mode: never too bold, on average too dear."""
    decision_time: PositiveDuration = "2s"
    """About how long the search for a plan may take; after that the best one found stands, with its gap."""
    namespaces: Annotated[tuple[Label, ...], NoDecode] = ()
    """Namespaces whose pipelines are served, comma-separated in the environment; all when empty."""
    host: str = "127.0.0.1"
    """Address of /metrics, /livez and /readyz."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port of the same; 0 picks a free one."""
    lease: bool = True
    """Write only while holding a Lease, so that several replicas never write at once; without it this must be the only
    one."""
    lease_namespace: Label = "sluice-system"
    """Namespace of the Lease."""
    lease_name: Label = "sluice"
    """Name of the Lease; the admission policy names it too."""
    lease_duration: Annotated[PositiveDuration, AfterValidator(_whole_seconds)] = "10s"
    """How long the Lease lasts without being renewed: another replica takes over within a quarter more."""
    pod_name: Subdomain | None = None
    """The pod that this process runs in, as its token names it; without it the host's name, which is a pod's own."""
    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object per line with the decision records."""

    @field_validator("namespaces", "metrics", "scrape_endpoints", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @property
    def scrape_s(self) -> float:
        """Return how often a pod is visited, in seconds."""
        return duration_s(self.scrape_interval)

    @property
    def interval_s(self) -> float:
        """Return the time between cycles in seconds."""
        return duration_s(self.interval)

    @property
    def decision_s(self) -> float:
        """Return how long the search for a plan may take, in seconds."""
        return duration_s(self.decision_time)

    @property
    def lease_s(self) -> float:
        """Return how long the Lease lasts, in seconds."""
        return duration_s(self.lease_duration)

    @property
    def pod(self) -> str:
        """Return the name of the pod, or of the host outside of one."""
        return self.pod_name or socket.gethostname()

    @property
    def reporting_grace_s(self) -> float:
        """Return how long a pod may be ready without reporting, in seconds.

        It must be discovered, and a rate needs two visits: the first sample comes up to three visits after Ready.
        """
        return 4 * self.scrape_s


def load_settings(flags: dict[str, object]) -> OperatorSettings:
    """Return the settings of the environment, overridden by those `flags` that are not None.

    Raises:
        InvalidSettings: one is missing or cannot be used.
    """
    try:
        settings = OperatorSettings(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        raise InvalidSettings("; ".join(_message(dict(problem)) for problem in error.errors())) from None
    if len(set(settings.metrics)) < len(settings.metrics):
        raise InvalidSettings(f"{_flag('metrics')}: {','.join(settings.metrics)!r}: must name each source once")
    if "prometheus" in settings.metrics and settings.prometheus_url is None:
        raise InvalidSettings(f"{_flag('prometheus_url')} is required")
    return settings


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')} (SLUICE_{name.upper()})"


def _message(problem: dict[str, object]) -> str:
    location = problem["loc"]
    assert isinstance(location, tuple)
    setting = _flag(str(location[0]))
    if problem["type"] == "missing":
        return f"{setting} is required"
    context = problem.get("ctx")
    pattern = context.get("pattern") if isinstance(context, dict) else None
    rule = PATTERN_RULES.get(pattern, problem["msg"]) if isinstance(pattern, str) else problem["msg"]
    return f"{setting}: {problem['input']!r}: {rule}"
