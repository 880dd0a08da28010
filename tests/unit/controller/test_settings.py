import socket
from pathlib import Path

import pytest

from controller.core.state.shards import Shard
from controller.kube.lease import Terms
from controller.kube.priorities import PriorityLimits
from controller.resources.fields import duration_s
from controller.settings import InvalidSettings, load_settings
from profiler.samples import DEFAULT_LABELS, SeriesLabels


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_PROMETHEUS_URL", "http://prometheus:9090")


def test_a_flag_overrides_the_environment_and_an_absent_flag_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_INTERVAL", "30s")
    monkeypatch.setenv("SLUICE_PORT", "9000")
    settings = load_settings({"interval": "1m30s", "port": None})
    assert (settings.interval_s, settings.port) == (90.0, 9000)


def test_namespaces_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_NAMESPACES", "speech, batch")
    assert load_settings({}).namespaces == ("speech", "batch")


def test_sources_and_endpoints_of_metrics_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_METRICS", "prometheus, direct")
    monkeypatch.setenv("SLUICE_SCRAPE_ENDPOINTS", "http://a:9100/metrics,http://b:9100/metrics")
    settings = load_settings({})
    assert settings.metrics == ("prometheus", "direct")
    assert settings.scrape_endpoints == ("http://a:9100/metrics", "http://b:9100/metrics")


@pytest.mark.parametrize(
    ("flags", "restricts"),
    [
        ({}, True),
        ({"namespaces": "speech,batch"}, True),
        ({"namespaces": "speech"}, False),
        ({"restrict_queries": False}, False),
        ({"namespaces": "speech", "restrict_queries": True}, True),
    ],
)
def test_queries_are_restricted_where_several_namespaces_have_pipelines(
    flags: dict[str, object], restricts: bool
) -> None:
    assert load_settings(flags).restricts_queries is restricts


def test_an_operator_of_some_namespaces_leaves_the_status_of_pools_to_others() -> None:
    assert load_settings({}).writes_pool_status
    assert not load_settings({"namespaces": "speech"}).writes_pool_status
    assert load_settings({"namespaces": "speech", "pool_status": True}).writes_pool_status


def test_priorities_are_limited_by_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({}).priorities == PriorityLimits(default=1000)
    monkeypatch.setenv("SLUICE_MAX_PRIORITY", "10, speech=100000,batch=0")
    assert load_settings({}).priorities == PriorityLimits(default=10, namespaces={"speech": 100_000, "batch": 0})


def test_without_a_default_only_the_named_namespaces_are_limited() -> None:
    assert load_settings({"max_priority": "batch=5"}).priorities.default == 1_000_000_000


def test_without_prometheus_its_address_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_PROMETHEUS_URL")
    assert load_settings({"metrics": "direct"}).metrics == ("direct",)


def test_a_pod_may_miss_two_visits_of_prometheus() -> None:
    assert load_settings({"scrape_interval": "1s"}).reporting_grace_s == 4.0


def test_a_standby_takes_over_within_15_seconds_by_default() -> None:
    terms = Terms(duration_s=duration_s(load_settings({}).lease_duration))
    assert terms.poll_s + terms.duration_s + terms.settle_s < 13.0


def test_outside_of_a_pod_the_host_is_named() -> None:
    assert load_settings({}).pod == socket.gethostname()
    assert load_settings({"pod_name": "sluice-0"}).pod == "sluice-0"


@pytest.mark.parametrize("link", ["tcp://10.0.0.37:8080", "udp://10.0.0.37:53", "sctp://[fd00::1]:8080"])
def test_the_link_of_a_service_called_sluice_is_not_a_port(monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    monkeypatch.setenv("SLUICE_PORT", link)
    assert load_settings({}).port == 8080
    assert load_settings({"port": "9000"}).port == 9000


def test_a_link_given_as_a_flag_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"--port \(SLUICE_PORT\): 'tcp://10.0.0.37:8080': must be an integer"):
        load_settings({"port": "tcp://10.0.0.37:8080"})


def test_in_a_pod_probes_reach_every_address_and_elsewhere_none_but_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert load_settings({}).listen_address == "127.0.0.1"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    assert load_settings({}).listen_address == "::"
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert load_settings({}).listen_address == "0.0.0.0"
    assert load_settings({"host": "127.0.0.2"}).listen_address == "127.0.0.2"


def test_the_source_of_metrics_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_PROMETHEUS_URL")
    with pytest.raises(InvalidSettings, match=r"--prometheus-url \(SLUICE_PROMETHEUS_URL\) is required"):
        load_settings({})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("interval", "1d", "must be a duration such as"),
        ("interval", "0s", "must be longer than 0s"),
        ("prometheus_url", "prometheus", "must be a URL such as"),
        ("fleet_budget", "-1", "must be at least 0"),
        ("fleet_budget", "NaN", "must be a finite number"),
        ("decision_time", "0s", "must be longer than 0s"),
        ("composition", "max", "must be rss or sum"),
        ("port", "eight", "must be an integer"),
        ("restrict_queries", "perhaps", "must be true or false"),
        ("port", "70000", "must be at most 65535"),
        ("max_priority", "high", "must be integers from 0 to 1000000000, such as 1000 or speech=100000"),
        ("max_priority", "speech=1000000001", "must be integers from 0 to 1000000000"),
        ("max_priority", "10,20", "has two limits for one namespace"),
        ("log_format", "xml", "must be text or json"),
        ("namespaces", "Speech", "must be a DNS label"),
        ("metrics", "graphite", "must be prometheus, direct or cloudwatch"),
        ("metrics", "direct,direct", "must name each source once"),
        ("scrape_endpoints", "ingress:9100", "must be a URL such as"),
        ("lease_name", "Sluice", "must be a DNS label"),
        ("lease_duration", "1s", "must be a whole number of seconds, at least 2s"),
        ("lease_duration", "2500ms", "must be a whole number of seconds, at least 2s"),
        ("pod_name", "sluice_0", "must be a DNS name"),
        ("aws_region", "US East", "must be lower-case letters, digits and -"),
        ("aws_role", "sluice", "must be the ARN of an IAM role"),
        ("cloudwatch_namespace", "a b", "must be a namespace of CloudWatch"),
        ("cloudwatch_dimensions", "PodName", "must have at least 2 entries"),
        ("metrics", "cloudwatch,direct", "cloudwatch must be the only source"),
    ],
)
def test_a_bad_value_is_named_with_its_setting_and_rule(name: str, value: str, rule: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load_settings({name: value})
    assert f"--{name.replace('_', '-')}" in str(refused.value)
    assert value in str(refused.value)
    assert rule in str(refused.value)


def test_cloudwatch_is_read_only_where_queries_need_no_restriction() -> None:
    with pytest.raises(InvalidSettings, match="cannot be restricted to their namespace"):
        load_settings({"metrics": "cloudwatch"})
    assert load_settings({"metrics": "cloudwatch", "namespaces": "speech"}).metrics == ("cloudwatch",)
    settings = load_settings({"metrics": "cloudwatch", "restrict_queries": False, "cloudwatch_dimensions": "ns,pod"})
    assert settings.cloudwatch_dimensions == ("ns", "pod")


def test_the_labels_of_series_are_settings() -> None:
    assert load_settings({}).series_labels == DEFAULT_LABELS
    flags: dict[str, object] = {"pod_label": "exported_pod", "match_labels": "region=a, cluster=eu=1"}
    match = (("cluster", "eu=1"), ("region", "a"))
    assert load_settings(flags).series_labels == SeriesLabels(pod="exported_pod", match=match)


@pytest.mark.parametrize(
    ("flag", "value", "rule"),
    [
        ("pod_label", "exported-pod", "must be the name of a label in Prometheus"),
        ("namespace_label", "1st", "must be the name of a label in Prometheus"),
        *(
            (flag, label, "never have a pod or its namespace")
            for flag in ("pod_label", "namespace_label")
            for label in ("le", "quantile", "instance", "job", "__name__")
        ),
        ("pod_label", "namespace", "must not be that of --namespace-label"),
        ("match_labels", "cluster", "must be labels with values such as cluster=eu-1, not beginning with ~"),
        ("match_labels", "cluster=~eu.*", "must be labels with values such as cluster=eu-1, not beginning with ~"),
        ("match_labels", "cluster=a,cluster=b", "must name each label once"),
        ("presets_directory", Path("/nonexistent"), "must be a directory"),
    ],
)
def test_a_label_or_a_folder_that_cannot_be_is_named(flag: str, value: object, rule: str) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        load_settings({flag: value})
    assert f"--{flag.replace('_', '-')}" in str(refusal.value)
    assert rule in str(refusal.value)


def test_a_shard_has_a_lease_of_its_own_and_the_first_one_divides() -> None:
    first, second = load_settings({"shard": "0/2"}), load_settings({"shard": "1/2", "shard_label": "team"})
    assert (first.own_lease_name, first.writes_pool_status) == ("sluice-0", True)
    assert (second.own_lease_name, second.writes_pool_status) == ("sluice-1", False)
    assert second.fleet_shard == Shard(index=1, count=2, label="team")


@pytest.mark.parametrize("flags", [{}, {"shard": "0/1"}])
def test_one_shard_is_as_none(flags: dict[str, object]) -> None:
    settings = load_settings(flags)
    assert (settings.fleet_shard, settings.own_lease_name) == (None, "sluice")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"shard": "2/2"}, "--shard (SLUICE_SHARD): '2/2': the number must be less than 2, from 0"),
        ({"shard": "1"}, "--shard (SLUICE_SHARD): '1': must be the number of the shard from 0"),
        ({"shard_label": "team"}, "--shard-label (SLUICE_SHARD_LABEL): 'team': needs --shard"),
        ({"shard": "0/2", "fleet_budget": "40"}, "use a ComputeBudget that selects all namespaces"),
        ({"shard": "0/2", "namespaces": "speech"}, "--namespaces (SLUICE_NAMESPACES): 'speech': not with several"),
        ({"shard": "0/2", "leader_elect": False}, "--leader-elect (SLUICE_LEADER_ELECT): needed with several shards"),
        ({"shard": "0/2", "pool_status": True}, "--pool-status (SLUICE_POOL_STATUS): not with several shards"),
    ],
)
def test_what_does_not_fit_several_shards_is_refused(flags: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load_settings(flags)
    assert problem in str(refused.value)
