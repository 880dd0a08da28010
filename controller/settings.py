"""How this process runs: read from the environment (`SLUICE_…`), overridden by flags. What to decide is not here."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from controller.resources.fields import PATTERN_RULES, Label, PositiveDuration, duration_s


class InvalidSettings(ValueError):
    """A setting cannot be used: the message names it, its value and the rule."""


class OperatorSettings(BaseSettings):
    """Settings of `sluice operator`."""

    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="forbid")

    prometheus_url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    """Where the metrics are."""
    kubeconfig: Path | None = None
    """Credentials for the API server; without it $KUBECONFIG, the pod's own, or ~/.kube/config."""
    interval: PositiveDuration = "15s"
    """Time between cycles."""
    scrape_interval: PositiveDuration = "15s"
    """How often Prometheus visits a pod: one that has been ready for less than four visits need not report yet."""
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
    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object per line with the decision records."""

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @property
    def interval_s(self) -> float:
        """Return the time between cycles in seconds."""
        return duration_s(self.interval)

    @property
    def decision_s(self) -> float:
        """Return how long the search for a plan may take, in seconds."""
        return duration_s(self.decision_time)

    @property
    def reporting_grace_s(self) -> float:
        """Return how long a pod may be ready without reporting, in seconds.

        It must be discovered, and a rate needs two visits: the first sample comes up to three visits after Ready.
        """
        return 4 * duration_s(self.scrape_interval)


def load_settings(flags: dict[str, object]) -> OperatorSettings:
    """Return the settings of the environment, overridden by those `flags` that are not None.

    Raises:
        InvalidSettings: one is missing or cannot be used.
    """
    try:
        return OperatorSettings(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        raise InvalidSettings("; ".join(_message(dict(problem)) for problem in error.errors())) from None


def _message(problem: dict[str, object]) -> str:
    location = problem["loc"]
    assert isinstance(location, tuple)
    name = str(location[0])
    setting = f"--{name.replace('_', '-')} (SLUICE_{name.upper()})"
    if problem["type"] == "missing":
        return f"{setting} is required"
    context = problem.get("ctx")
    pattern = context.get("pattern") if isinstance(context, dict) else None
    rule = PATTERN_RULES.get(pattern, problem["msg"]) if isinstance(pattern, str) else problem["msg"]
    return f"{setting}: {problem['input']!r}: {rule}"
