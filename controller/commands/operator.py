"""`sluice operator`: assembles the operator from its settings and runs it until it is stopped."""

import logging
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import click

from controller.commands.connections import setting_options
from controller.commands.help_page import examples
from controller.core.state.policy import Policy
from controller.resources.fields import duration_s
from controller.settings import InvalidSettings, OperatorSettings, load_settings

if TYPE_CHECKING:
    from controller.aws.account import AwsAccount
    from controller.health import Health
    from controller.keda.external_scaler import ExternalScaler
    from controller.kube.store import ResourceStore
    from profiler.sources.base import MetricSource
    from profiler.sources.demand_history import HistorySource

_LOG = logging.getLogger(__name__)
_WATCH_DEAD_S = 60.0
_KNOWN_S = 10.0
DEEPEST = 40_000
"""Recursion limit in frames. The API server accepts documents nested 10,000 deep, and one that cannot be decoded would
end the watches."""


@click.command(
    short_help="Watch pipelines and pools, and scale the stages",
    epilog=examples("sluice operator --prometheus-url http://prometheus:9090"),
)
@setting_options(OperatorSettings.model_fields)
def operator(**flags: object) -> None:
    """Watch pipelines and pools, decide every interval, and scale the stages.

    Each flag can also be set in the environment, such as SLUICE_PROMETHEUS_URL.
    """
    try:
        settings = load_settings(flags)
    except InvalidSettings as error:
        raise click.UsageError(str(error)) from None
    with closing(_Stop()) as stop:
        run(settings, stop)
    if stop.died is not None:
        raise click.ClickException(stop.died)


class _Stop:
    """Tells the operator to stop, on a signal or when one of its threads has failed."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.died: str | None = None
        self._before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def because(self, what: str) -> None:
        """Stop the operator with an error; `what` is its message."""
        self.died = what
        self.event.set()

    def _signalled(self, *_: object) -> None:
        self.event.set()


def operating_policy(settings: OperatorSettings) -> Policy:
    """Return the policy of the decisions: intervals, fleet budget and composition from `settings`."""
    from optimizer.model import Composition

    return Policy(
        interval_s=settings.interval_s,
        scrape_interval_s=duration_s(settings.scrape_interval),
        budget_per_hour=None if settings.fleet_budget is None else float(settings.fleet_budget),
        composition=Composition.RSS if settings.composition == "rss" else Composition.SUM,
    )


def metric_source(settings: OperatorSettings, parts: ExitStack) -> "MetricSource":
    """Return the metric source that `settings` select; closing `parts` closes the source too."""
    from profiler.samples import MetricsTier
    from profiler.sources.cloudwatch import CloudWatchSource
    from profiler.sources.direct import DirectSource
    from profiler.sources.presets import PresetFiles
    from profiler.sources.prometheus import PrometheusSource
    from profiler.sources.restriction import RestrictedSource
    from profiler.sources.tiers import TieredSource

    if settings.metrics == ("cloudwatch",):
        namespace, pod = settings.cloudwatch_dimensions
        return parts.enter_context(
            closing(
                CloudWatchSource(
                    settings.aws_region, namespace=settings.cloudwatch_namespace, dimensions=(namespace, pod)
                )
            )
        )
    presets = PresetFiles(settings.presets_directory)
    sources: dict[MetricsTier, MetricSource] = {}
    for name in settings.metrics:
        if name == "prometheus":
            assert settings.prometheus_url is not None
            prometheus = PrometheusSource(
                settings.prometheus_url, settings.prometheus_access, presets=presets, labels=settings.series_labels
            )
            sources[MetricsTier.PROMETHEUS] = parts.enter_context(closing(prometheus))
        else:
            direct = DirectSource(
                cadence_s=duration_s(settings.scrape_interval), endpoints=settings.scrape_endpoints, presets=presets
            )
            sources[MetricsTier.DIRECT_SCRAPE] = parts.enter_context(closing(direct))
    source = TieredSource(sources) if len(sources) > 1 else next(iter(sources.values()))
    return RestrictedSource(source, settings.series_labels) if settings.restricts_queries else source


def history_source(settings: OperatorSettings, parts: ExitStack) -> "HistorySource":
    """Return the source of past demand; closing `parts` closes it too."""
    from profiler.sources.demand_history import NoHistorySource, PrometheusHistory

    if "prometheus" not in settings.metrics:
        return NoHistorySource()
    assert settings.prometheus_url is not None
    return parts.enter_context(
        closing(
            PrometheusHistory(
                settings.prometheus_url,
                settings.prometheus_access,
                restricts=settings.restricts_queries,
                labels=settings.series_labels,
            )
        )
    )


def aws_account(settings: OperatorSettings, clock: Callable[[], float]) -> "AwsAccount":
    """Return the account that pools look up prices and quotas in; nothing is asked unless a pool does."""
    from controller.aws.account import AwsAccount
    from controller.aws.clients import GROUPS_READ_S, AwsClients
    from controller.aws.failure import AwsFailure
    from controller.aws.groups import AwsGroups
    from controller.aws.prices import AwsPrices
    from controller.aws.quotas import AwsQuotas

    clients = AwsClients(region=settings.aws_region, role=settings.aws_role)
    of_groups = AwsClients(region=settings.aws_region, role=settings.aws_role, read_s=GROUPS_READ_S, attempts=1)

    def groups() -> AwsGroups:
        if of_groups.region is None:
            raise AwsFailure("Auto Scaling groups: no region: set --aws-region (SLUICE_AWS_REGION)")
        return AwsGroups(of_groups.client, of_groups.region)

    return AwsAccount(AwsPrices(clients.client), AwsQuotas(clients.client), groups, clock=clock)


def external_scaler(
    settings: OperatorSettings,
    address: str,
    *,
    pipelines: "ResourceStore",
    listed: Callable[[], bool],
    health: "Health",
    died: Callable[[str], None],
    clock: Callable[[], float],
) -> "ExternalScaler":
    """Return KEDA's external scaler, which answers from `pipelines` at `address` while its context is entered.

    Raises:
        click.UsageError: grpcio is not installed.
    """
    from controller.kube.significance import REFRESH_S

    try:
        from controller.keda.external_scaler import ExternalScaler
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"--keda-address (SLUICE_KEDA_ADDRESS): needs the extra keda: pip install 'sluice-operator[keda]': {error}"
        ) from None
    return ExternalScaler(
        pipelines,
        address=address,
        certificate=settings.keda_certificate,
        stale_s=3 * max(REFRESH_S, settings.interval_s),
        listed=listed,
        beat=lambda: health.beat("external scaler", _WATCH_DEAD_S),
        died=lambda: died("the external scaler for KEDA ended unexpectedly"),
        clock=clock,
    )


def run(settings: OperatorSettings, stop: _Stop) -> None:
    """Assemble the operator from `settings` and run it until `stop` is set.

    Raises:
        click.UsageError: there are no usable credentials, or the server cannot listen on the address.
    """
    # Imported here because they take half a second, which `sluice --help` should not wait for.
    from controller.calibration import search_effort
    from controller.handlers import ResourceWatches
    from controller.health import Health, HealthServer
    from controller.kube.actuator import Actuator
    from controller.kube.allowances import Allowances
    from controller.kube.auto_scaling import GroupActuator
    from controller.kube.batching import BatchingConfigs
    from controller.kube.claims import Claims
    from controller.kube.cluster import Cluster
    from controller.kube.demand_histories import DemandHistories
    from controller.kube.events import EventRecorder
    from controller.kube.first_contact import FirstContact
    from controller.kube.gateway import BUDGETS, PIPELINES, POOLS, ConfigurationError, Gateway, Unavailable
    from controller.kube.kept_memory import KeptMemory
    from controller.kube.leadership import Leadership
    from controller.kube.lease import Terms
    from controller.kube.ray_serve import Hosts, RayServe, ServeActuator
    from controller.kube.reader import Reader, Resources
    from controller.kube.reporter import Reporter
    from controller.kube.shards import Family, Members
    from controller.kube.store import ResourceStore
    from controller.logs import set_up_logging
    from controller.loop import ControlLoop
    from controller.process_memory import configure_malloc
    from controller.ray.client import ServeClient
    from controller.telemetry import Telemetry

    set_up_logging(settings.log_format)
    sys.setrecursionlimit(DEEPEST)
    configure_malloc()
    health, telemetry = Health(), Telemetry()
    with ExitStack() as parts:
        leadership: Leadership | None = None
        kept: KeptMemory | None = None
        try:
            with Gateway(settings.kubeconfig) as named:
                heard = parts.enter_context(FirstContact(named.connection().server)).heard
            if settings.leader_elect:
                terms = Terms(duration_s=duration_s(settings.lease_duration))
                identity = f"{settings.pod}_{uuid.uuid4().hex[:12]}"
                leadership = Leadership(
                    # A separate client: what delays other requests must not delay renewing the lease.
                    parts.enter_context(
                        Gateway(settings.kubeconfig, timeout_s=terms.timeout_s, always_send=True, on_answer=heard)
                    ),
                    namespace=settings.lease_namespace,
                    name=settings.own_lease_name,
                    identity=identity,
                    terms=terms,
                    beat=lambda within_s: health.beat("lease", within_s),
                    ended=stop.because,
                )
                telemetry.leads(leadership.leads)
            else:
                _LOG.warning("leader election is disabled: this must be the only operator on the cluster")
            permit = leadership.check if leadership else lambda: None
            gateway = parts.enter_context(
                Gateway(settings.kubeconfig, permit=permit, on_request=telemetry.requested, on_answer=heard)
            )
            telemetry.measures_skew(gateway.server_clock.skew_s)
            if leadership is not None:
                kept = KeptMemory(
                    gateway, namespace=settings.lease_namespace, name=settings.own_lease_name, identity=identity
                )
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from None
        try:
            server = HealthServer(settings.listen_address, settings.port, health, telemetry.exposition)
        except OSError as error:
            raise click.UsageError(f"cannot listen on {settings.listen_address}:{settings.port}: {error}") from None
        parts.enter_context(server)
        _LOG.info("metrics and probes at %s", server.url)
        own = f"{settings.lease_namespace}/{settings.own_lease_name}" if settings.leader_elect else ""
        shard = settings.fleet_shard
        members = Members(shard, own)
        pipelines = ResourceStore(members.keeps_pipeline) if shard else ResourceStore()
        pools, budgets = ResourceStore(), ResourceStore()
        claims = Claims(gateway, own, everywhere=not settings.namespaces)
        if shard is not None:
            claims.family, claims.count = Family(f"{settings.lease_namespace}/{settings.lease_name}"), shard.count
        account = aws_account(settings, gateway.server_clock.now_s)
        parts.callback(account.close)
        serve_api = parts.enter_context(closing(ServeClient(permit)))
        hosts = Hosts(allowed=frozenset(settings.ray_hosts))
        serve = RayServe(gateway, serve_api, hosts, settings.series_labels)
        parts.callback(serve.close)
        batching = BatchingConfigs(gateway)
        parts.callback(batching.close)
        cluster = parts.enter_context(
            Cluster(
                gateway,
                namespaces=settings.namespaces,
                beat=lambda what: health.beat(f"watch of {what}", _WATCH_DEAD_S),
                died=lambda what: stop.because(f"the watch of {what} ended unexpectedly"),
                members=members,
            )
        )
        reader = Reader(
            gateway,
            metric_source(settings, parts),
            Resources(
                pipelines,
                pools,
                budgets,
                namespaces=settings.namespaces,
                priorities=settings.priorities,
                account=account,
                claims=claims,
                serve=serve,
                batching=batching,
                members=members,
            ),
            cluster=cluster,
            interval_s=settings.interval_s,
            reporting_grace_s=settings.reporting_grace_s,
            clock=gateway.server_clock.now_s,
            histories=DemandHistories(history_source(settings, parts), clock=gateway.server_clock.now_s),
        )
        parts.callback(reader.close)
        if kept is not None:
            reader.resume_from(kept)
        if shard is not None and claims.family is not None:
            allowances = Allowances(
                gateway,
                shard=shard,
                family=claims.family,
                members=members,
                claims=claims,
                stores={PIPELINES: pipelines, POOLS: pools, BUDGETS: budgets},
                policy=operating_policy(settings),
            )
            parts.callback(allowances.close)
            reader.divide_by(allowances)
        watches = parts.enter_context(
            ResourceWatches(
                gateway,
                pipelines=pipelines,
                pools=pools,
                budgets=budgets,
                beat=lambda: health.beat("watches", _WATCH_DEAD_S),
                died=lambda: stop.because("the watches of Sluice's resources ended unexpectedly"),
                namespaces=settings.namespaces,
            )
        )
        if settings.keda_address is not None:
            scaler = external_scaler(
                settings,
                settings.keda_address,
                pipelines=pipelines,
                listed=watches.listed,
                health=health,
                died=stop.because,
                clock=gateway.server_clock.now_s,
            )
            try:
                parts.enter_context(scaler)
            except OSError as error:
                raise click.UsageError(f"--keda-address (SLUICE_KEDA_ADDRESS): {error}") from None
            _LOG.info("external scaler for KEDA at port %d", scaler.port)
        events = EventRecorder(gateway, gateway.server_clock.now_s)
        reporter = Reporter(
            gateway,
            events,
            pipelines=pipelines,
            pools=pools,
            budgets=budgets,
            interval_s=settings.interval_s,
            kept=kept,
            pool_status=settings.writes_pool_status,
            claims=claims,
        )
        parts.callback(reporter.close)

        def resync() -> None:
            if not members.known.wait(_KNOWN_S):
                raise Unavailable("the labels of the namespaces, which select their shards, are not known yet")
            watches.resync()

        loop = ControlLoop(
            reader=reader,
            actuator=Actuator(
                gateway,
                written=cluster.written,
                groups=GroupActuator(account, permit),
                serve=ServeActuator(gateway, serve_api, hosts),
                batching=batching,
            ),
            reporter=reporter,
            resync=resync,
            watch=watches.start,
            policy=operating_policy(settings),
            search_effort=lambda: search_effort(duration_s(settings.decision_time)),
            telemetry=telemetry,
            health=health,
            permit=permit,
        )
        if leadership is not None:
            parts.enter_context(leadership)  # entered last, so released first, as soon as nothing is written any more
            loop.stand_by(stop.event, leadership)
        loop.run(stop.event)
