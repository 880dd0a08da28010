"""Settings of the operator process, read from the environment (`SLUICE_…`) and overridden by flags."""

import os
import re
import socket
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from controller.core.state.shards import Shard
from controller.kube.priorities import HIGHEST_PRIORITY, PriorityLimits
from controller.prometheus_access import access_problems
from controller.resources.fields import Label, LabelKey, PodSeriesLabel, PositiveDuration, Subdomain, Url, duration_s
from controller.resources.parsing import rule_text
from profiler.samples import SeriesLabels
from profiler.sources.access import Access


class InvalidSettings(ValueError):
    """A setting is missing or invalid; the message names the setting, its value and the rule."""


# The text of the rule for each pattern, as in `controller.resources.fields`.
_HEADER = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+=[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"
_USERNAME = r"^[^:\x00-\x1f\x7f]+$"
_MATCH = r"^[A-Za-z_][A-Za-z0-9_]*=[\x21-\x7d][\x21-\x7e]*$"  # not =~, which would not be a regular expression
_REGION = r"^[a-z0-9-]+$"
_ROLE = r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\x21-\x7e]+$"
_NAMESPACE = r"^[0-9A-Za-z.\-_/#:]+$"
_DIMENSION = r"^[\x21-\x7e]{1,255}$"
_PRIORITY = r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?=)?(1000000000|[0-9]{1,9})$"
_SHARD = r"^[0-9]{1,4}/[1-9][0-9]{0,3}$"
_ADDRESS = r"^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"
_RULES = {
    _ADDRESS: "must be host and port, such as 0.0.0.0:9090 or [::]:9090",
    _SHARD: "must be the number of the shard from 0, and the number of shards, such as 0/2",
    _HEADER: "must be headers such as X-Scope-OrgID=team-a, separated by commas",
    _USERNAME: "must be a user name without colons and control characters",
    _PRIORITY: "must be integers from 0 to 1000000000, such as 1000 or speech=100000, separated by commas",
    _MATCH: "must be labels with values such as cluster=eu-1, not beginning with ~, separated by commas",
    _ROLE: "must be the ARN of an IAM role, such as arn:aws:iam::123456789012:role/sluice",
    _NAMESPACE: "must be a namespace of CloudWatch: letters, digits and . - _ / # :",
    _DIMENSION: "must be two names of dimensions, such as Namespace,PodName",
    _REGION: "must be lower-case letters, digits and -, such as eu-west-1",
}


def _whole_seconds(duration: str) -> str:
    seconds = duration_s(duration)
    if seconds < 2 or seconds != int(seconds):
        raise ValueError("must be a whole number of seconds, at least 2s")
    return duration


_SERVICE_LINK = re.compile("(tcp|udp|sctp)://")


class _Environment(EnvSettingsSource):
    """The environment without service links.

    For a Service called `sluice` kubelet sets SLUICE_PORT=tcp://10.0.0.37:8080 in all pods of its namespace. No setting
    can begin like that, so such a value counts as not set.
    """

    @override
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        is_link = isinstance(value, str) and _SERVICE_LINK.match(value)
        return None if is_link else value, key, is_complex


class OperatorSettings(BaseSettings):
    """Settings of `sluice operator`: one field per flag, with the flag's help text, so there are many."""

    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="forbid", use_attribute_docstrings=True)

    metrics: Annotated[tuple[Literal["prometheus", "direct", "cloudwatch"], ...], NoDecode, Field(min_length=1)] = (
        "prometheus",
    )
    """Metric sources, preferred first: prometheus (default), direct, or cloudwatch alone."""
    prometheus_url: Url | None = None
    """URL of Prometheus, such as http://prometheus:9090."""
    prometheus_token_file: Path | None = None
    """File with a bearer token for Prometheus; read again for every query."""
    prometheus_username: Annotated[str, Field(pattern=_USERNAME)] | None = None
    """User name for basic authentication to Prometheus."""
    prometheus_password_file: Path | None = None
    """File with the password for the same; read again for every query."""
    prometheus_ca_file: Path | None = None
    """PEM file with the CA certificates of Prometheus; default: the system's."""
    prometheus_certificate_file: Path | None = None
    """PEM file with the client certificate for Prometheus."""
    prometheus_key_file: Path | None = None
    """PEM file with its private key; default: in the certificate's file."""
    prometheus_headers: Annotated[tuple[Annotated[str, Field(pattern=_HEADER)], ...], NoDecode] = ()
    """Further HTTP headers for Prometheus, comma-separated, such as X-Scope-OrgID=team-a."""
    prometheus_sigv4_region: Annotated[str, Field(pattern=_REGION)] | None = None
    """AWS region: sign requests to Amazon Managed Prometheus (SigV4) with the pod's AWS credentials."""
    prometheus_sigv4_service: Annotated[str, Field(pattern=_REGION)] = "aps"
    """AWS service of the signature; default aps."""
    presets_directory: Path | None = None
    """Folder with presets of your own, each a file NAME.toml; read again when one changes."""
    namespace_label: PodSeriesLabel = "namespace"
    """Label of the series of pods that has the namespace; default namespace."""
    pod_label: PodSeriesLabel = "pod"
    """Label of the series of pods that has the pod; default pod."""
    match_labels: Annotated[tuple[Annotated[str, Field(pattern=_MATCH)], ...], NoDecode] = ()
    """Labels that series must have, comma-separated, such as cluster=eu-1; for a back end of several clusters."""
    # Each endpoint must be one process, not a Service in front of several.
    scrape_endpoints: Annotated[tuple[Url, ...], NoDecode] = ()
    """URLs from which direct scrapes evaluate users' queries, comma-separated."""
    restrict_queries: bool | None = None
    """Let users' queries select only series of their own namespace; default: yes, unless --namespaces has just one."""
    max_priority: Annotated[tuple[Annotated[str, Field(pattern=_PRIORITY)], ...], NoDecode] = ("1000",)
    """Highest priority of a pipeline, and of those in a namespace, comma-separated: default 1000; 10,speech=100000."""
    kubeconfig: Path | None = None
    """Credentials; default: the pod's, or kubectl's."""
    interval: PositiveDuration = "15s"
    """Time between cycles; default 15s."""
    scrape_interval: PositiveDuration = "15s"
    """Time between two scrapes of a pod, by Prometheus or directly; default 15s."""
    aws_region: Annotated[str, Field(pattern=_REGION)] | None = None
    """AWS region of Auto Scaling groups and of the token service; default: that of the environment (AWS_REGION)."""
    aws_role: Annotated[str, Field(pattern=_ROLE)] | None = None
    """ARN of an IAM role to assume for prices, quotas and Auto Scaling groups; default: none."""
    cloudwatch_namespace: Annotated[str, Field(pattern=_NAMESPACE, max_length=255)] = "Sluice"
    """Namespace of the stages' metrics in CloudWatch; default Sluice."""
    cloudwatch_dimensions: Annotated[
        tuple[Annotated[str, Field(pattern=_DIMENSION)], ...], NoDecode, Field(min_length=2, max_length=2)
    ] = ("Namespace", "PodName")
    """Dimensions of these metrics with the namespace and the name of a pod; default Namespace,PodName."""
    ray_hosts: Annotated[tuple[Annotated[str, Field(pattern=_ADDRESS)], ...], NoDecode] = ()
    """Ray dashboards to ask outside the pipelines' own namespaces, comma-separated, such as ray.example.com:8265."""
    fleet_budget: Annotated[Decimal, Field(ge=0)] | None = None
    """Limit on the spend of all pipelines together, in USD per hour; default: none."""
    composition: Literal["rss", "sum"] = "rss"
    """How stage latencies combine: rss (default, verified by simulation), or sum (safe, more expensive)."""
    decision_time: PositiveDuration = "2s"
    """Approximate time limit of the search for a plan; default 2s."""
    namespaces: Annotated[tuple[Label, ...], NoDecode] = ()
    """Manage only pipelines of these namespaces, comma-separated; default: all."""
    shard: Annotated[str, Field(pattern=_SHARD)] | None = None
    """The shard of the fleet that this operator has, such as 0/2; default: none, it has the whole fleet."""
    shard_label: LabelKey | None = None
    """Label of namespaces whose value selects their shard; default: their name does."""
    # Of several operators on a cluster, only one may write it.
    pool_status: bool | None = None
    """Write the status of ComputePools; default: yes, unless --namespaces or a shard other than 0 is set."""
    host: str | None = None
    """Address to listen on for /metrics, /livez and /readyz; default: every address in a pod, elsewhere 127.0.0.1."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port for the same; default 8080, 0 picks a free one."""
    keda_address: Annotated[str, Field(pattern=_ADDRESS)] | None = None
    """Address to serve KEDA's external scaler on, such as [::]:9090; default: none. Needs the extra keda."""
    keda_certificate_file: Path | None = None
    """PEM file with the external scaler's certificate; default: no TLS."""
    keda_key_file: Path | None = None
    """PEM file with its private key."""
    leader_elect: bool = True
    """Write only while holding the Lease (default). Disable only with a single replica."""
    lease_namespace: Label = "sluice-system"
    """Namespace of the Lease; default sluice-system."""
    # The admission policy must name the same Lease.
    lease_name: Label = "sluice"
    """Name of the Lease; default sluice."""
    # Another replica takes over within 1.25 times this duration.
    lease_duration: Annotated[PositiveDuration, AfterValidator(_whole_seconds)] = "10s"
    """Time after which an unrenewed Lease expires; default 10s."""
    # The admission policy compares it with the holder of the Lease. In a pod it is the same as the host name.
    pod_name: Subdomain | None = None
    """Name of the pod that this process runs in; default: the host name."""
    log_format: Literal["text", "json"] = "text"
    """text (default), or json, which includes the decision records."""

    @field_validator(
        "namespaces",
        "metrics",
        "scrape_endpoints",
        "prometheus_headers",
        "max_priority",
        "match_labels",
        "cloudwatch_dimensions",
        "ray_hosts",
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, the one that wins first: flags, then the environment."""
        return init_settings, _Environment(settings_cls)

    @property
    def listen_address(self) -> str:
        """Return the address to listen on.

        kubelet's probes and Prometheus call a pod by its own address, so that 127.0.0.1 would fail there. Outside a pod
        nothing else has to reach the metrics, and they need no authentication.
        """
        if self.host is not None:
            return self.host
        if "KUBERNETES_SERVICE_HOST" not in os.environ:
            return "127.0.0.1"
        return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104  # "::" has the addresses of IPv4 too

    @property
    def keda_certificate(self) -> tuple[Path, Path] | None:
        """Return the files with the certificate and the key of the external scaler; None: it has no TLS."""
        if self.keda_certificate_file is None or self.keda_key_file is None:
            return None
        return self.keda_certificate_file, self.keda_key_file

    @property
    def prometheus_access(self) -> Access:
        """Return how to authenticate to Prometheus."""
        return Access(
            token_file=self.prometheus_token_file,
            username=self.prometheus_username,
            password_file=self.prometheus_password_file,
            sigv4_region=self.prometheus_sigv4_region,
            sigv4_service=self.prometheus_sigv4_service,
            ca_file=self.prometheus_ca_file,
            certificate_file=self.prometheus_certificate_file,
            key_file=self.prometheus_key_file,
            headers={name: value for name, _, value in (header.partition("=") for header in self.prometheus_headers)},
        )

    @property
    def series_labels(self) -> SeriesLabels:
        """Return the labels of the series of pods."""
        match = ((name, value) for name, _, value in (label.partition("=") for label in self.match_labels))
        return SeriesLabels(namespace=self.namespace_label, pod=self.pod_label, match=tuple(sorted(match)))

    @property
    def restricts_queries(self) -> bool:
        """Return whether users' queries see only their own namespace: by default where several have pipelines."""
        return len(self.namespaces) != 1 if self.restrict_queries is None else self.restrict_queries

    @property
    def writes_pool_status(self) -> bool:
        """Return whether to write the status of ComputePools, which all operators of a cluster share."""
        first = self.fleet_shard is None or self.fleet_shard.divides
        return not self.namespaces and first if self.pool_status is None else self.pool_status

    @property
    def fleet_shard(self) -> Shard | None:
        """Return the shard of this operator, None where it has the whole fleet."""
        index, _, count = (self.shard or "0/1").partition("/")
        return None if int(count) == 1 else Shard(index=int(index), count=int(count), label=self.shard_label or "")

    @property
    def own_lease_name(self) -> str:
        """Return the name of this operator's Lease: each shard has one."""
        return self.lease_name if self.fleet_shard is None else f"{self.lease_name}-{self.fleet_shard.index}"

    @property
    def priorities(self) -> PriorityLimits:
        """Return the highest priority of pipelines, by namespace."""
        entries = [entry.rpartition("=") for entry in self.max_priority]
        limits = {namespace: int(limit) for namespace, _, limit in entries}
        return PriorityLimits(default=limits.pop("", HIGHEST_PRIORITY), namespaces=limits)

    @property
    def interval_s(self) -> float:
        """Return the time between cycles in seconds."""
        return duration_s(self.interval)

    @property
    def pod(self) -> str:
        """Return the name of the pod, or of the host outside a pod."""
        return self.pod_name or socket.gethostname()

    @property
    def reporting_grace_s(self) -> float:
        """Return the time in seconds for which a pod may be ready without metrics: four scrape intervals.

        The pod must be discovered first, and a rate needs two scrapes, so the first value can take three intervals.
        """
        return 4 * duration_s(self.scrape_interval)


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
    if "cloudwatch" in settings.metrics:
        if len(settings.metrics) > 1:
            raise InvalidSettings(
                f"{_flag('metrics')}: {','.join(settings.metrics)!r}: cloudwatch must be the only source"
            )
        if settings.restricts_queries:
            raise InvalidSettings(
                f"{_flag('metrics')}: cloudwatch: users' queries cannot be restricted to their namespace there; "
                "name one namespace in --namespaces, or set --no-restrict-queries"
            )
    if "prometheus" in settings.metrics and settings.prometheus_url is None:
        raise InvalidSettings(
            f"{_flag('prometheus_url')} is required, except with --metrics=direct and --metrics=cloudwatch"
        )
    if settings.namespace_label == settings.pod_label:
        raise InvalidSettings(f"{_flag('pod_label')}: {settings.pod_label!r}: must not be that of --namespace-label")
    matched = [label.partition("=")[0] for label in settings.match_labels]
    if len(set(matched)) < len(matched):
        raise InvalidSettings(
            f"{_flag('match_labels')}: {','.join(settings.match_labels)!r}: must name each label once"
        )
    if settings.presets_directory is not None and not settings.presets_directory.is_dir():
        raise InvalidSettings(f"{_flag('presets_directory')}: {str(settings.presets_directory)!r}: must be a directory")
    if (settings.keda_certificate_file is None) != (settings.keda_key_file is None):
        raise InvalidSettings(f"{_flag('keda_certificate_file')} and {_flag('keda_key_file')}: need each other")
    limited = [entry.rpartition("=")[0] for entry in settings.max_priority]
    if len(set(limited)) < len(limited):
        raise InvalidSettings(
            f"{_flag('max_priority')}: {','.join(settings.max_priority)!r}: has two limits for one namespace"
        )
    _check_shard(settings)
    problems = access_problems(settings.prometheus_url or "", settings.prometheus_access)
    if found := [f"{_flag(name)}: {problem}" for name, problem in problems]:
        raise InvalidSettings("; ".join(found))
    return settings


def _check_shard(settings: OperatorSettings) -> None:
    """Refuse what does not fit the shard.

    Raises:
        InvalidSettings: the message names the setting, its value and the rule.
    """
    index, _, count = (settings.shard or "0/1").partition("/")
    if int(index) >= int(count):
        raise InvalidSettings(f"{_flag('shard')}: {settings.shard!r}: the number must be less than {count}, from 0")
    if settings.shard_label is not None and settings.shard is None:
        raise InvalidSettings(f"{_flag('shard_label')}: {settings.shard_label!r}: needs --shard")
    if settings.fleet_shard is None:
        return
    if settings.fleet_budget is not None:
        raise InvalidSettings(
            f"{_flag('fleet_budget')}: {settings.fleet_budget}: not with several shards; "
            "use a ComputeBudget that selects all namespaces, which they share"
        )
    if settings.namespaces:
        raise InvalidSettings(f"{_flag('namespaces')}: {','.join(settings.namespaces)!r}: not with several shards")
    if not settings.leader_elect:
        raise InvalidSettings(f"{_flag('leader_elect')}: needed with several shards, which know each other by Leases")
    if settings.pool_status is not None:
        raise InvalidSettings(f"{_flag('pool_status')}: not with several shards: all of them write their entries")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')} (SLUICE_{name.upper()})"


def _message(problem: ErrorDetails) -> str:
    rule = _RULES.get(problem.get("ctx", {}).get("pattern", "")) or rule_text(problem)
    return f"{_flag(str(problem['loc'][0]))}: {problem['input']!r}: {rule}"
