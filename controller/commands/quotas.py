"""`sluice quotas`: what the pipelines in manifests need at their peak against the vCPU quotas of the AWS account."""

import json
import math
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.commands.findings import refused
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from controller.aws.clients import Make
    from controller.aws.quotas import QuotaUse
    from controller.core.state.cloud import AwsPrice, PriceQuote, QuotaSource
    from controller.core.state.spec import PipelineSpec, PoolSpec
    from optimizer.model import PipelineKey, PoolName

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
UNBOUNDED = 10_000
"""Instances of a pool that nothing but its quota bounds, in the plan that leaves quotas out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNeed:
    """A quota: what the plan needs of it in vCPUs, by the pool, and what the account has, None where it is not known.

    `used_vcpus` are those of all instances that run now, whether or not they are of these pools.
    """

    source: "QuotaSource"
    by_pool: Mapping[str, int]
    limit_vcpus: float | None
    used_vcpus: float | None
    problem: str

    @property
    def vcpus(self) -> int:
        """Return what the plan needs."""
        return sum(self.by_pool.values())

    @property
    def suffices(self) -> bool | None:
        """Return whether the quota allows the plan if nothing else uses it, None where it is not known."""
        return None if self.limit_vcpus is None else self.vcpus <= self.limit_vcpus

    @property
    def suffices_beside(self) -> bool:
        """Return whether the quota allows the plan beside everything that runs now."""
        if self.vcpus == 0:
            return True
        return self.limit_vcpus is not None and self.vcpus + (self.used_vcpus or 0.0) <= self.limit_vcpus

    @property
    def request_vcpus(self) -> int:
        """Return the quota to ask for: the plan beside everything that runs now."""
        return math.ceil(self.vcpus + (self.used_vcpus or 0.0))

    @property
    def request(self) -> str:
        """Return the command that files the request."""
        arguments = ["aws", "service-quotas", "request-service-quota-increase", "--service-code", "ec2"]
        arguments += ["--quota-code", self.source.code, "--desired-value", str(self.request_vcpus)]
        return shlex.join([*arguments, "--region", self.source.region])


@click.command(
    short_help="Compare what pipelines need with the quotas of the AWS account",
    epilog=examples(
        "sluice quotas pools.yaml speech.yaml --demand speech/captions=800",
        "sluice quotas pools.yaml speech.yaml --demand 800 --offline",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@click.option(
    "--demand",
    "demands",
    multiple=True,
    metavar="[NAMESPACE/NAME=]N",
    help="Peak load of a pipeline in its own unit. Default: the highest of its demand.atLeast and demand.expected.",
)
@click.option("--offline", is_flag=True, help="Do not ask AWS: print what is needed only.")
@click.option("--aws-role", metavar="ARN", help="IAM role to assume.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the answers of AWS to FILE, without secrets: only the fields that Sluice reads, with IDs replaced.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
def quotas(
    files: tuple[Path, ...],
    demands: tuple[str, ...],
    offline: bool,
    aws_role: str | None,
    record: Path | None,
    output: str,
) -> None:
    """Print the vCPUs that the pipelines in manifest FILEs need at their peak, what the account has, and the requests.

    Needs are those of the cheapest plan without quotas, for the pools with spec.capacity.quota. Needs the rights
    servicequotas:GetServiceQuota, servicequotas:GetAWSDefaultServiceQuota and ec2:DescribeInstances; and for prices of
    spec.price.aws pricing:GetProducts, or ec2:DescribeSpotPriceHistory.

    Exit status: 0 the quotas suffice, 1 one does not or is not known, or the manifests are invalid, 2 wrong usage.
    """
    from controller.aws.clients import AwsClients
    from controller.aws.recording import Recorder
    from controller.commands.plan_request import specs_of
    from controller.core.state.shared import resolved
    from controller.resources.validation import validate_files

    if offline and record is not None:
        raise click.UsageError("--record: there are no answers to record with --offline")
    checked = validate_files(files)
    if checked.findings:
        raise refused(checked.findings)
    recorder = None if offline else Recorder(AwsClients(role=aws_role).client)
    client = None if recorder is None else recorder.client
    problems: list[str] = []
    specs, pools = specs_of(checked, lambda source: _quote(source, client, problems))
    completed, _ = resolved(specs.values())
    report = replace(_report(completed, pools, _peaks(demands, completed), client), problems=tuple(problems))
    if recorder is not None and record is not None:
        _read_groups(completed.values(), pools.values(), recorder.client)
        try:
            recorder.save(record)
        except OSError as error:
            raise click.BadParameter(
                f"{record}: cannot be written: {error.strerror}.", param_hint="'--record'"
            ) from None
        click.echo(f"recorded without secrets: {record.resolve()}", err=True)
    if output == "json":
        click.echo(json.dumps(_document(report), indent=2))
    else:
        _print(report)
    if any(need.suffices is not True for need in report.needs):
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """What is needed of each quota, and the cost in USD per hour without quotas and within them.

    None: no plan serves the load within the SLA; `within_per_hour` is None too where a quota is not known. `problems`
    say which prices AWS did not give, so that those of the manifest or of the bundled table count.
    """

    needs: Sequence[QuotaNeed]
    free_per_hour: float | None
    within_per_hour: float | None
    known: bool
    problems: tuple[str, ...] = ()


def _peaks(demands: Iterable[str], specs: Mapping["PipelineKey", "PipelineSpec"]) -> list[str]:
    """Return the values of --demand, with the declared peak of every pipeline that has none there."""
    from controller.commands.plan_request import loads_of

    given = list(demands)
    named = loads_of(given, specs).keys()
    for key, spec in specs.items():
        if key not in named:
            peak = max((floor.demand for floor in spec.at_least), default=None)
            if peak is not None:
                given.append(f"{key}={peak:g}")
    # The name may be left out in the files' only pipeline, and not twice.
    return given


def _report(
    specs: Mapping["PipelineKey", "PipelineSpec"],
    pools: Mapping["PoolName", "PoolSpec"],
    demands: Sequence[str],
    client: "Make | None",
) -> _Report:
    from optimizer.allocate import allocate

    used = {own.pool for spec in specs.values() for own in spec.placements().values()}
    sources = list(dict.fromkeys(pool.quota for name, pool in sorted(pools.items()) if name in used and pool.quota))
    if not sources:
        raise click.UsageError("FILE...: no pool of these pipelines has spec.capacity.quota")
    free = allocate(_problem(specs, pools, demands, lambda pool: pool.instances or UNBOUNDED))
    planned = {pool.name: pool.instances for pool in free.pools}
    uses = {source: _use(source, client) for source in sources}
    by_code: dict[tuple[str, str], QuotaNeed] = {}
    for source in sources:
        own = {
            str(name): planned.get(name, 0) * pool.quota.vcpus
            for name, pool in sorted(pools.items())
            if name in used
            and pool.quota is not None
            and (pool.quota.code, pool.quota.region) == (source.code, source.region)
        }
        use = uses[source]
        by_code[source.code, source.region] = QuotaNeed(
            source=source,
            by_pool=own,
            limit_vcpus=use.limit_vcpus,
            used_vcpus=float(sum(use.instances.values())) if use.instances is not None else use.used_vcpus,
            problem=use.problem,
        )
    known = all(use.limit_vcpus is not None for use in uses.values())

    def within(pool: "PoolSpec") -> int:
        declared = UNBOUNDED if pool.instances is None else pool.instances
        use = None if pool.quota is None else uses[pool.quota]
        if pool.quota is None or use is None or use.limit_vcpus is None:
            return declared
        return min(declared, math.floor(use.limit_vcpus / pool.quota.vcpus))

    bounded = allocate(_problem(specs, pools, demands, within)) if known else None
    return _Report(
        needs=tuple(by_code.values()),
        free_per_hour=free.cost_per_hour if free.feasible else None,
        within_per_hour=bounded.cost_per_hour if bounded is not None and bounded.feasible else None,
        known=known,
    )


def _problem(
    specs: Mapping["PipelineKey", "PipelineSpec"],
    pools: Mapping["PoolName", "PoolSpec"],
    demands: Sequence[str],
    instances: Callable[["PoolSpec"], int],
) -> Any:
    from controller.commands.plan_request import ask

    bounded = {name: replace(pool, instances=instances(pool)) for name, pool in pools.items()}
    return ask(specs, bounded, demands=demands).problem


def _use(source: "QuotaSource", client: "Make | None") -> "QuotaUse":
    from controller.aws.failure import AwsFailure
    from controller.aws.quotas import AwsQuotas, QuotaUse

    if client is None:
        return QuotaUse(limit_vcpus=None, as_of_s=None, problem="AWS was not asked (--offline)")
    try:
        return AwsQuotas(client).read(source, time.time())
    except AwsFailure as failure:
        return QuotaUse(limit_vcpus=None, as_of_s=None, problem=str(failure))


def _quote(source: "AwsPrice", client: "Make | None", problems: list[str]) -> "PriceQuote | None":
    """Return what AWS says about a price, None with a further problem where that is nothing to believe."""
    from controller.aws.failure import AwsFailure
    from controller.aws.prices import AwsPrices, ask, refusal

    if client is None:
        return None
    try:
        quote = ask(AwsPrices(client), source, time.time())
    except AwsFailure as failure:
        problems.append(str(failure))
        return None
    if why := refusal(source, quote, None):
        problems.append(why)
        return None
    return quote


def _read_groups(specs: Iterable["PipelineSpec"], pools: Iterable["PoolSpec"], client: "Make") -> None:
    """Read the Auto Scaling groups of `specs` and `pools`, so that the record has them, or what went wrong.

    They are in the regions of the pools; a group that is in another one is not found.
    """
    from controller.aws.failure import AwsFailure
    from controller.aws.groups import AwsGroups
    from controller.kube.auto_scaling import group_names

    there = list(pools)
    regions = {source.region for pool in there for source in (pool.quota, pool.looked_up) if source is not None}
    for name in group_names(specs, there):
        for region in sorted(regions):
            with suppress(AwsFailure):
                AwsGroups(client, region).read(name, time.time())


def _document(report: _Report) -> dict[str, Any]:
    return {
        "quotas": [
            {
                "code": need.source.code,
                "name": need.source.name,
                "region": need.source.region,
                "pools": [{"name": name, "vcpus": vcpus} for name, vcpus in need.by_pool.items()],
                "needed_vcpus": need.vcpus,
                "limit_vcpus": need.limit_vcpus,
                "used_vcpus": need.used_vcpus,
                "suffices": need.suffices,
                "request_vcpus": None if need.suffices_beside else need.request_vcpus,
                "request": None if need.suffices_beside else need.request,
                "problem": need.problem or None,
            }
            for need in report.needs
        ],
        "cost_per_hour": report.free_per_hour,
        "cost_within_quotas_per_hour": report.within_per_hour,
        "worth_per_hour": _worth(report),
        "problems": list(report.problems),
    }


def _worth(report: _Report) -> float | None:
    if report.free_per_hour is None or report.within_per_hour is None:
        return None
    return max(0.0, report.within_per_hour - report.free_per_hour)


def _print(report: _Report) -> None:
    from controller.commands.terminal import Page
    from controller.core.messages.phrases import money, number

    page = Page()
    page.table(
        ("quota", "family", "region", ">needed", ">has", ">in use", "suffices"),
        (
            (
                need.source.code,
                need.source.name,
                need.source.region,
                f"{need.vcpus} vCPUs",
                "?" if need.limit_vcpus is None else number(need.limit_vcpus),
                "?" if need.used_vcpus is None else number(need.used_vcpus),
                _verdict(need),
            )
            for need in report.needs
        ),
    )
    for problem in report.problems:
        page.say(f"{problem}: the price of the manifest or of the bundled table counts")
    for need in report.needs:
        pools = ", ".join(f"{name} {vcpus}" for name, vcpus in need.by_pool.items())
        page.say(f"{need.source.code}: needed by pools: {pools}")
        if need.problem:
            page.say(f"{need.source.code}: {need.problem}")
        if not need.suffices_beside:
            unknown = "if it is less, " if need.limit_vcpus is None else ""
            page.say(f"{need.source.code}: {unknown}to have {need.request_vcpus} vCPUs: {need.request}")
    if report.free_per_hour is None:
        page.say("without quotas, the load cannot be served within the SLA either: see sluice plan")
    elif report.known and report.within_per_hour is None:
        page.say("within these quotas the load cannot be served within the SLA")
    elif (worth := _worth(report)) is not None and worth > 0:
        page.say(f"the increase is worth {money(worth)}: within these quotas the cheapest plan costs that much more")


def _verdict(need: QuotaNeed) -> str:
    if need.suffices is None:
        return "not known"
    if not need.suffices:
        return "no"
    return "yes" if need.suffices_beside else "yes, if what is in use now is of these pools"
