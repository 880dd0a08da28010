"""Settings of the operator process, read from the environment (`SLUICE_…`) and overridden by flags."""

import socket
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from controller.resources.fields import Label, PositiveDuration, Subdomain, Url, duration_s
from controller.resources.parsing import rule_text


class InvalidSettings(ValueError):
    """A setting is missing or invalid; the message names the setting, its value and the rule."""


def _whole_seconds(duration: str) -> str:
    seconds = duration_s(duration)
    if seconds < 2 or seconds != int(seconds):
        raise ValueError("must be a whole number of seconds, at least 2s")
    return duration


class OperatorSettings(BaseSettings):
    """Settings of `sluice operator`, one field per flag."""

    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="forbid")

    metrics: Annotated[tuple[Literal["prometheus", "direct"], ...], NoDecode, Field(min_length=1)] = ("prometheus",)
    """Metric sources in order of preference, comma-separated: prometheus, direct (scrapes the pods' own endpoints)."""
    prometheus_url: Url | None = None
    """URL of Prometheus; required when `metrics` names prometheus."""
    scrape_endpoints: Annotated[tuple[Url, ...], NoDecode] = ()
    """URLs, comma-separated, from which direct scrapes evaluate users' queries, such as the ingress. Each must reach
    one process, not a Service in front of several."""
    restrict_queries: bool = False
    """Whether users' queries can select only series of their pipeline's namespace."""
    kubeconfig: Path | None = None
    """Kubeconfig file; by default $KUBECONFIG, the pod's service account, or ~/.kube/config."""
    interval: PositiveDuration = "15s"
    """Time between cycles."""
    scrape_interval: PositiveDuration = "15s"
    """Time between two scrapes of a pod, by Prometheus or directly. Metrics of a pod are expected four such intervals
    after it became ready."""
    fleet_budget: Annotated[Decimal, Field(ge=0)] | None = None
    """Limit on the spend of all pipelines together, in USD per hour."""
    composition: Literal["rss", "sum"] = "rss"
    """How the latency of a pipeline is composed of its stages' latencies. rss is nearly unbiased, and a simulation of
    the queues verifies its plans. sum adds the stages' percentiles: it mostly overestimates, and costs more on
    average."""
    decision_time: PositiveDuration = "2s"
    """Approximate time limit of the search for a plan; when it ends, the best plan found is used and its optimality gap
    reported."""
    namespaces: Annotated[tuple[Label, ...], NoDecode] = ()
    """Namespaces whose pipelines are managed, comma-separated; all when empty."""
    host: str = "127.0.0.1"
    """Address to listen on for /metrics, /livez and /readyz."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port to listen on for /metrics, /livez and /readyz; 0 picks a free one."""
    leader_elect: bool = True
    """Write only while holding the Lease, so that of several replicas only one writes. Disable only with a single
    replica."""
    lease_namespace: Label = "sluice-system"
    """Namespace of the Lease."""
    lease_name: Label = "sluice"
    """Name of the Lease; the admission policy must name the same Lease."""
    lease_duration: Annotated[PositiveDuration, AfterValidator(_whole_seconds)] = "10s"
    """Time after which an unrenewed Lease expires. After a crash, another replica takes over within 1.25 times this
    duration; with less than 5s, up to 0.3 s later."""
    pod_name: Subdomain | None = None
    """Name of the pod that this process runs in, which the admission policy compares with the holder of the Lease; by
    default the host name, which in a pod is the same."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log: text, or json (one JSON object per line, with the decision records)."""

    @field_validator("namespaces", "metrics", "scrape_endpoints", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @property
    def scrape_s(self) -> float:
        """Return the time between two scrapes of a pod in seconds."""
        return duration_s(self.scrape_interval)

    @property
    def interval_s(self) -> float:
        """Return the time between cycles in seconds."""
        return duration_s(self.interval)

    @property
    def decision_s(self) -> float:
        """Return the time limit of the search for a plan in seconds."""
        return duration_s(self.decision_time)

    @property
    def lease_s(self) -> float:
        """Return the duration of the Lease in seconds."""
        return duration_s(self.lease_duration)

    @property
    def pod(self) -> str:
        """Return the name of the pod, or of the host outside a pod."""
        return self.pod_name or socket.gethostname()

    @property
    def reporting_grace_s(self) -> float:
        """Return the time in seconds for which a pod may be ready without metrics: four scrape intervals.

        The pod must be discovered first, and a rate needs two scrapes, so the first value can take three intervals.
        """
        return 4 * self.scrape_s


def load_settings(flags: dict[str, object]) -> OperatorSettings:
    """Return the settings from the environment (`SLUICE_…`), overridden by the `flags` that are not None.

    Raises:
        InvalidSettings: a setting is missing or invalid.
    """
    try:
        settings = OperatorSettings(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        raise InvalidSettings("; ".join(map(_message, error.errors()))) from None
    if len(set(settings.metrics)) < len(settings.metrics):
        raise InvalidSettings(f"{_flag('metrics')}: {','.join(settings.metrics)!r}: must name each source once")
    if "prometheus" in settings.metrics and settings.prometheus_url is None:
        raise InvalidSettings(f"{_flag('prometheus_url')} is required, except with --metrics=direct")
    return settings


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')} (SLUICE_{name.upper()})"


def _message(problem: ErrorDetails) -> str:
    return f"{_flag(str(problem['loc'][0]))}: {problem['input']!r}: {rule_text(problem)}"
