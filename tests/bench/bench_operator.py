"""What a cycle of the operator costs by the size of the fleet: time by part, API requests, memory, writes.

    python tests/bench/bench_operator.py [--pipelines 100 1000 5000] [--cycles 4] [--delays-only] [--json FILE]
    python tests/bench/bench_operator.py --shards 2 --pipelines 10000 [--cycles 4] [--json FILE]

The operator is a process of its own, bound to one core, as its own ServiceAccount on the lab's API server (etcd, API
server and controllers share the machine's other cores); only its metrics are synthetic, and tell no latencies: from
those it would learn for many minutes before nothing changes. Each size has a cluster of its
own: four Deployments, three or more ready pods and a status per pipeline, ten pools. The functions of the optimizer are
compiled before, as in the image: a process that compiles them keeps some 150 MiB. What is printed for each size:

    first start     how many have a status before the operator starts (the API server gives a new pipeline one), and
                    from the start of the process to the first decision, and to the last of the statuses that it writes
    steady          a cycle in which nothing has changed, and what it wrote
    restart         from the start of the process to the first decision with nothing changed, and what was written
    one change      from the change of one pipeline to the patch of its Deployment, in cycles
    noisy           a cycle in which every reading has moved by up to 5 %

Then the same fleet with metrics of a real Prometheus, which scrapes all pods from one exporter, behind a proxy that
delays the answer to every query (5, 50 and 250 ms). The servers tell latencies here, so the operator learns and writes.
What is printed for each delay: the duration of a cycle, what of it was spent on reading, the share of the queries of
each kind without an answer, and the share of the pipelines of which nothing was missing.

With `--shards N` there are N operators for the fleet, each for about the Nth part of it, and each bound to a core of
its own if the machine has as many. Then only this is printed, for each shard: its pipelines, the time to its first
decision and to the last of its first statuses, a steady cycle, its memory, and what it uses and may use of the pools.
A warning says where shards and the API server share cores: their times are then longer.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from aiohttp import web
from large_fleets import FleetExporter, LargeFleet, Maker
from operator_process import SYNTHETIC
from typing_extensions import override

from controller.core.state.shards import shard_of
from controller.kube.gateway import DEPLOYMENTS, PIPELINES, PODS, POOLS
from controller.kube.turns import EVERY
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.cluster.prometheus import PrometheusServer
from simulations.lab.faults.reverse_proxy import ReverseProxy, end_to_end
from simulations.lab.host.binaries import ensure
from simulations.lab.host.processes import free_ports

ROOT = Path(__file__).parents[2]
PARTS = ("read", "decide", "status", "apply")
NOISE = 0.05
LIMIT_S = 1800.0
ROUNDS = 40
"""So many times two cycles a fleet may take to come to rest; what is written after that is in the figures."""
QUIET_ROUNDS = EVERY // 2
"""It rests once nothing was written for so many of them: until each pipeline was assessed once more."""
DELAYS_MS = (5, 50, 250)
SCRAPES_S = 15.0
_CYCLES = 'sluice_cycles_total{outcome="success"}'
_LOOK_S = 5.0
_QUIET = 0.4  # cores
_ALL_WRITTEN = "the operator's metrics say that all are written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The mean cycle of several: seconds in all and by part, CPU seconds, requests by verb, queries, mean memory."""

    cycles: int
    seconds: float
    parts: dict[str, float]
    cpu_seconds: float
    requests: dict[str, float]
    queries: float
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """Cycles with a metric back end that takes `delay_ms` more for each query; shares are of the last cycle."""

    delay_ms: int
    cycle: Cycle
    unanswered: dict[str, float]
    complete: float
    peak_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size of fleet; times in seconds from the start of the process, unless told otherwise."""

    pipelines: int
    deployments: int
    pods: int
    with_status: int
    first_decision_s: float
    all_statuses_s: float
    first_parts: dict[str, float]
    first_cpu_s: float
    settled_cycles: int
    steady: Cycle
    steady_writes: int
    noisy: Cycle
    restart_decision_s: float
    restart_writes: int
    change_s: float
    change_cycles: float
    peak_mib: float
    series: int
    exposition_mib: float
    exposition_s: float
    events: int
    delayed: tuple[Delayed, ...] = ()


class OperatorProcess:
    """A running operator, and what it tells about itself."""

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        interval_s: float,
        prometheus_url: str = "",
        *,
        shard: str = "",
        core: int | None = None,
    ) -> None:
        """`shard` is as in `--shard`; `core` is the one to run on, None: the last one."""
        self.noise = folder / "noise"
        self.noise.write_text("0")
        self._log = folder / f"operator-{time.monotonic_ns()}.log"
        self.started_s = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, *SYNTHETIC, "--kubeconfig", str(kubeconfig), "--port", "0"),
                    *("--interval", f"{interval_s:g}s", "--noise", str(self.noise)),
                    *("--core", str(max(os.sched_getaffinity(0)) if core is None else core)),
                    *(("--shard", shard) if shard else ()),
                    *(("--prometheus-url", prometheus_url) if prometheus_url else ()),
                    *(("--scrape-interval", f"{SCRAPES_S:g}s") if prometheus_url else ()),
                ],
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        self._url = ""
        self.wait(self._found_url, "did not begin to listen")

    def wait(self, holds: Callable[[], object], what: str, within_s: float = 2.0) -> float:
        """Wait until `holds`; return the seconds since the start, right to `within_s`."""
        begun_s = time.monotonic()
        while True:
            asked_s = time.monotonic()
            if holds():
                return time.monotonic() - self.started_s
            if self._process.poll() is not None or asked_s - begun_s > LIMIT_S:
                raise SystemExit(f"the operator {what}:\n{self._log.read_text()[-4000:]}")
            # To ask takes time of the operator's own or of its API server.
            time.sleep(min(within_s, max(0.05, 30 * (time.monotonic() - asked_s))))

    def wait_cycles(self, count: int) -> None:
        seen = self.cycles()
        self.wait(lambda: self.cycles() >= seen + count, "did not go on")

    def exposition(self) -> str:
        try:
            with urlopen(f"{self._url}/metrics", timeout=60) as answer:
                text: str = answer.read().decode()
                return text
        except (URLError, TimeoutError):
            return ""

    def counters(self) -> dict[str, float]:
        """Return the operator's counters of its own work."""
        return {
            name: float(value)
            for name, value in re.findall(
                r"^(sluice_(?:cycle|api|scale|events|last)[^ ]*) ([0-9.e+-]+)$", self.exposition(), re.MULTILINE
            )
        }

    def parts_s(self) -> dict[str, float]:
        """Return the seconds spent in each part of all cycles until now."""
        counters = self.counters()
        return {part: counters[f'sluice_cycle_part_seconds_total{{part="{part}"}}'] for part in PARTS}

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """Return the values of the operator's gauge `name` by `label`, its only one."""
        found = re.findall(rf'^{name}\{{{label}="([^"]+)"\}} ([0-9.e+-]+)$', self.exposition(), re.MULTILINE)
        return {key: float(value) for key, value in found}

    def has_reported_all(self) -> bool:
        """Return whether each pipeline has a plan and a status with it, as the operator says at the end of a cycle.

        To list thousands of pipelines takes an API server seconds.
        """
        exposed = self.exposition()
        gauges = ("never_planned_pipelines", "pending_status_pipelines")
        return all(f"\nsluice_{name} 0.0\n" in exposed for name in gauges)

    def missing(self) -> int:
        """Return how many pipelines miss metrics that decisions need."""
        return len(re.findall(r'^sluice_pipeline_hold\{.*reason="MetricsMissing".*\}', self.exposition(), re.MULTILINE))

    def cycles(self) -> int:
        return int(self.counters().get(_CYCLES, 0))

    def decided(self) -> bool:
        return "sluice.decision: " in self._log.read_text()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def mib(self, name: str) -> float:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        return float("nan")

    def measured(self, count: int, queries: Callable[[], int] = lambda: 0) -> Cycle:
        """Return the mean of the next `count` cycles, or of a few more. The operator is seldom asked meanwhile.

        `queries` returns how many queries for metrics there were until now.
        """
        begun = self.cycles() + 1
        self.wait(lambda: self.cycles() >= begun, "did not go on")
        before, cpu_s, asked = self.counters(), self.cpu_s(), queries()
        samples: list[float] = []

        def ended() -> bool:
            for _ in range(20):
                samples.append(self.mib("VmRSS"))
                time.sleep(1.0)
            return self.cycles() >= begun + count

        self.wait(ended, "did not go on")
        after, cpu_s, asked = self.counters(), self.cpu_s() - cpu_s, queries() - asked
        count = round(after[_CYCLES] - before[_CYCLES])
        moved = {name: (value - before.get(name, 0.0)) / count for name, value in after.items()}
        return Cycle(
            cycles=count,
            seconds=moved["sluice_cycle_duration_seconds_sum"],
            parts={part: moved[f'sluice_cycle_part_seconds_total{{part="{part}"}}'] for part in PARTS},
            cpu_seconds=cpu_s / count,
            requests={
                match[1]: value
                for name, value in moved.items()
                if value and (match := re.fullmatch(r'sluice_api_requests_total\{verb="(\w+)"\}', name))
            },
            queries=asked / count,
            rss_mib=sum(samples) / len(samples),
        )

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def _found_url(self) -> bool:
        found = re.search(r"metrics and probes at (http://[0-9.:]+)", self._log.read_text())
        self._url = found[1] if found else ""
        return bool(found)


class DelayingProxy(ReverseProxy):
    """Forwards each request after `delay_s`, and counts them."""

    delay_s = 0.0
    requests = 0

    @override
    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        await asyncio.sleep(self.delay_s)
        async with self._forwarded(request) as answer:
            return web.Response(status=answer.status, body=await answer.read(), headers=end_to_end(answer.headers))


class ExporterPrometheus(PrometheusServer):
    """A Prometheus that scrapes its static targets only: nothing listens at the addresses of the pods."""

    @override
    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        jobs = settings["scrape_configs"]
        assert isinstance(jobs, list)
        return {**settings, "scrape_configs": [job for job in jobs if "static_configs" in job]}


def wait_for_quiet() -> None:
    """Wait until what was created has been dealt with by the control plane, which shares the machine."""

    def busy_s() -> float:
        """Return the seconds of all processors until now, without those of processes that yield to others (nice)."""
        user, _, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
        return (user + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")

    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        before = busy_s()
        time.sleep(_LOOK_S)
        if busy_s() - before < _QUIET * _LOOK_S:
            return
    raise SystemExit("the machine did not come to rest: something else runs on it")


def apply(kubectl: Path, kubeconfig: Path, *paths: Path) -> None:
    for path in paths:
        subprocess.run(
            [kubectl, "--kubeconfig", kubeconfig, "apply", "-f", path], check=True, stdout=subprocess.DEVNULL
        )


def changed(before: dict[str, str], after: dict[str, str]) -> int:
    return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())


def measure(pipelines: int, cycles: int, interval_s: float) -> Row:
    fleet = LargeFleet(pipelines=pipelines)
    with _made(fleet) as (maker, _, kubeconfig, folder):
        return _measured(fleet, maker, kubeconfig, folder, cycles, interval_s)


def measure_delayed(pipelines: int, cycles: int, interval_s: float) -> tuple[Delayed, ...]:
    fleet = LargeFleet(pipelines=pipelines, scraped=True)
    with _made(fleet) as (maker, cluster, kubeconfig, folder):
        return _delayed(fleet, maker, cluster, kubeconfig, folder, cycles, interval_s)


@contextmanager
def _made(fleet: LargeFleet) -> Iterator[tuple[Maker, ControlPlane, Path, Path]]:
    """Make the fleet on a cluster of its own, and provide also the operator's kubeconfig and a folder."""
    binaries = ensure(lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="sluice-scale-") as name:
        folder = Path(name)
        with ControlPlane(folder / "cluster", binaries) as cluster:
            rights = ROOT / "controller" / "kube" / "rbac.yaml"
            apply(binaries.kubectl, cluster.kubeconfig, ROOT / "crds", rights)
            kubeconfig = folder / "operator.kubeconfig"
            cluster.service_account_kubeconfig("sluice-system", "sluice", kubeconfig)
            maker = Maker(cluster.kubeconfig)
            began_s = time.monotonic()
            maker.create(fleet)
            print(f"  {fleet.pipelines} pipelines made in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
            try:
                yield maker, cluster, kubeconfig, folder
            finally:
                maker.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """One shard of a fleet; times in seconds from the start of its process. `pools` has used and allowed instances."""

    shard: int
    core: int
    pipelines: int
    first_decision_s: float
    all_statuses_s: float
    steady: Cycle
    peak_mib: float
    pools: dict[str, tuple[int, int | None]]


def measure_shards(pipelines: int, shards: int, cycles: int, interval_s: float) -> tuple[ShardRow, ...]:
    """Return what each of `shards` operators of one fleet takes, while all of them run."""
    fleet = LargeFleet(pipelines=pipelines)
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    if shards >= len(cores):
        print(f"warning: {shards} shards and the API server share {len(cores)} cores", file=sys.stderr)
    with _made(fleet) as (maker, cluster, kubeconfig, folder), ExitStack() as parts:
        _may_have_leases(ensure(lambda line: print(line, file=sys.stderr)).kubectl, cluster.kubeconfig, shards)
        wait_for_quiet()
        operators = []
        for index in range(shards):
            own = folder / f"shard-{index}"
            own.mkdir()
            core = cores[index % len(cores)]
            operators.append(OperatorProcess(kubeconfig, own, interval_s, shard=f"{index}/{shards}", core=core))
            parts.callback(operators[-1].end)
        decided = [operator.wait(operator.decided, "came to no decision") for operator in operators]
        reported: dict[int, float] = {}
        operators[0].wait(lambda: _note_reported(operators, reported), "did not write all statuses", within_s=5.0)
        if missing := _without_operator(maker):
            raise SystemExit(f"{missing} pipelines have no status, although {_ALL_WRITTEN}")
        quiet = 0
        while quiet < 2:
            played = maker.play_pods(fleet)
            for operator in operators:
                operator.wait_cycles(2)
            reported_all = all(operator.has_reported_all() for operator in operators)
            quiet = quiet + 1 if reported_all and not played else 0
        rows = []
        for index, operator in enumerate(operators):
            steady = operator.measured(cycles)
            row = ShardRow(
                shard=index,
                core=cores[index % len(cores)],
                pipelines=_of_shard(maker, index, shards),
                first_decision_s=decided[index],
                all_statuses_s=reported[index],
                steady=steady,
                peak_mib=operator.mib("VmHWM"),
                pools=_entries(maker, index),
            )
            rows.append(row)
            print(f"  {row}", file=sys.stderr)
        return tuple(rows)


def _may_have_leases(kubectl: Path, kubeconfig: Path, shards: int) -> None:
    """Give the operators the rights to the Leases of their shards, as the chart does."""
    leases = [f"--resource-name=sluice-{index}" for index in range(shards)]
    role = ("role", "shards", "--verb=get,patch", "--resource=leases.coordination.k8s.io", *leases)
    binding = ("rolebinding", "shards", "--role=shards", "--serviceaccount=sluice-system:sluice")
    for made in (role, binding):
        command: list[str | Path] = [kubectl, "--kubeconfig", kubeconfig, "--namespace=sluice-system", "create", *made]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _note_reported(operators: Sequence[OperatorProcess], reported: dict[int, float]) -> bool:
    """Note, for each shard whose pipelines all have a status, the time since the start of its operator."""
    for index, operator in enumerate(operators):
        if index not in reported and operator.has_reported_all():
            reported[index] = time.monotonic() - operator.started_s
    return len(reported) == len(operators)


def _without_operator(maker: Maker) -> int:
    """Return how many pipelines have no status that an operator has written."""
    return sum("observedGeneration" not in status for status in _statuses(maker))


def _of_shard(maker: Maker, index: int, shards: int) -> int:
    pages = maker.gateway.pages(PIPELINES)
    return sum(shard_of(each["metadata"]["namespace"], shards) == index for page in pages for each in page.items)


def _entries(maker: Maker, index: int) -> dict[str, tuple[int, int | None]]:
    """Return the used and the allowed instances of a shard, by pool."""
    return {
        pool["metadata"]["name"]: (entry["used"], entry.get("allowed"))
        for page in maker.gateway.pages(POOLS)
        for pool in page.items
        for entry in pool.get("status", {}).get("shards", [])
        if entry["shard"] == index
    }


def report_shards(rows: Sequence[ShardRow]) -> None:
    print(f"{sum(row.pipelines for row in rows)} pipelines in {len(rows)} shards, 10 pools")
    for row in rows:
        used = sum(used for used, _ in row.pools.values())
        allowed = sum(allowed or 0 for _, allowed in row.pools.values())
        print(
            f"  shard {row.shard} (core {row.core})  {row.pipelines} pipelines: first decision after "
            f"{row.first_decision_s:.1f} s, all statuses after {row.all_statuses_s:.1f} s, "
            f"at most {row.peak_mib:.0f} MiB"
        )
        print(f"    steady cycle  {cycle_words(row.steady)}; {used} instances used, {allowed} allowed", flush=True)


def _delayed(
    fleet: LargeFleet,
    maker: Maker,
    cluster: ControlPlane,
    kubeconfig: Path,
    folder: Path,
    cycles: int,
    interval_s: float,
) -> tuple[Delayed, ...]:
    def pods() -> Iterator[tuple[str, str]]:
        for page in maker.gateway.pages(PODS):
            yield from ((pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in page.items)

    binaries = ensure(lambda line: print(line, file=sys.stderr))
    wait_for_quiet()
    with ExitStack() as parts:
        exporter = parts.enter_context(FleetExporter(fleet, pods))
        prometheus = parts.enter_context(
            ExporterPrometheus(
                folder / "prometheus",
                binaries,
                kubeconfig=cluster.kubeconfig,
                scrape_interval_s=SCRAPES_S,
                targets=[exporter.address],
            )
        )
        proxy = parts.enter_context(DelayingProxy(prometheus.url, free_ports(1)[0]))
        time.sleep(4 * SCRAPES_S)  # a window of rates
        operator = OperatorProcess(kubeconfig, folder, interval_s, proxy.url)
        parts.callback(operator.end)
        operator.wait(operator.has_reported_all, "did not write all statuses", within_s=5.0)
        _settle(maker, fleet, operator, exporter.refresh)
        rows = []
        for delay_ms in DELAYS_MS:
            proxy.delay_s = delay_ms / 1000
            operator.wait_cycles(1)
            cycle = operator.measured(cycles, lambda: proxy.requests)
            rows.append(
                Delayed(
                    delay_ms=delay_ms,
                    cycle=cycle,
                    unanswered=operator.labelled("sluice_metrics_unanswered_ratio", "kind"),
                    complete=1 - operator.missing() / fleet.pipelines,
                    peak_mib=operator.mib("VmHWM"),
                )
            )
            print(f"  {rows[-1]}", file=sys.stderr)
        return tuple(rows)


def _statuses(maker: Maker) -> Iterator[dict[str, object]]:
    for page in maker.gateway.pages(PIPELINES):
        yield from (pipeline.get("status", {}) for pipeline in page.items)


def _settle(
    maker: Maker, fleet: LargeFleet, operator: OperatorProcess, refresh: Callable[[], None] = lambda: None
) -> dict[str, str]:
    """Play pods until the fleet rests, for at most `ROUNDS`; return the versions of its objects.

    `refresh` is called in each round, with the pods as they are then.
    """
    quiet, versions = 0, maker.versions(fleet)
    for _ in range(ROUNDS):
        if quiet == QUIET_ROUNDS:
            break
        played = maker.play_pods(fleet)
        refresh()
        operator.wait_cycles(2)
        now = maker.versions(fleet)
        writes = changed(versions, now)
        print(f"  settling: {played} pods, {writes} writes", file=sys.stderr)
        quiet = quiet + 1 if not writes and not played else 0
        versions = now
    return versions


def _measured(fleet: LargeFleet, maker: Maker, kubeconfig: Path, folder: Path, cycles: int, interval_s: float) -> Row:
    wait_for_quiet()
    with_status = sum("conditions" in status for status in _statuses(maker))
    operator = OperatorProcess(kubeconfig, folder, interval_s)
    first_decision_s = operator.wait(operator.decided, "came to no decision")
    print(f"  first decision after {first_decision_s:.1f} s", file=sys.stderr)
    operator.wait(lambda: operator.cycles() >= 1, "ended no cycle")
    all_statuses_s = operator.wait(operator.has_reported_all, "did not write all statuses", within_s=5.0)
    if missing := _without_operator(maker):
        raise SystemExit(f"{missing} pipelines have no status, although {_ALL_WRITTEN}")
    first_parts, first_cpu_s = operator.parts_s(), operator.cpu_s()
    print(f"  all statuses after {all_statuses_s:.1f} s: {first_parts}, CPU {first_cpu_s:.1f}", file=sys.stderr)
    versions = _settle(maker, fleet, operator)
    settled = operator.cycles()
    steady = operator.measured(cycles)
    steady_writes = changed(versions, maker.versions(fleet))
    print(f"  steady: {steady}, {steady_writes} writes", file=sys.stderr)
    scraped_s = time.monotonic()
    exposition = operator.exposition()
    scraped_s = time.monotonic() - scraped_s
    peak_mib = operator.mib("VmHWM")
    operator.end()

    before = maker.versions(fleet)
    wait_for_quiet()
    operator = OperatorProcess(kubeconfig, folder, interval_s)
    restart_decision_s = operator.wait(operator.decided, "came to no decision")
    operator.wait(lambda: operator.cycles() >= 3, "did not go on")
    restart_writes = changed(before, maker.versions(fleet))

    pipeline, deployments = next(iter(fleet.resources()))
    namespace, name = pipeline["metadata"]["namespace"], pipeline["metadata"]["name"]
    target = deployments[0]["metadata"]["name"]
    replicas = maker.gateway.get(DEPLOYMENTS, namespace, target)["spec"]["replicas"]
    pipeline["spec"]["stages"][0]["placements"][0]["replicas"]["min"] = replicas + 1
    begun, changed_s = operator.cycles(), time.monotonic()
    maker.call("PATCH", PIPELINES.path(namespace, name), {"spec": {"stages": pipeline["spec"]["stages"]}})
    operator.wait(
        lambda: maker.gateway.get(DEPLOYMENTS, namespace, target)["spec"]["replicas"] > replicas, "changed nothing"
    )
    change_s = time.monotonic() - changed_s
    change_cycles = operator.cycles() - begun
    maker.play_pods(fleet)
    operator.noise.write_text(str(NOISE))
    noisy = operator.measured(cycles)
    print(f"  noisy: {noisy}", file=sys.stderr)
    peak_mib = max(peak_mib, operator.mib("VmHWM"))
    operator.end()
    versions = maker.versions(fleet)
    return Row(
        pipelines=fleet.pipelines,
        deployments=sum(name.startswith("deployments/") for name in versions),
        pods=sum(len(page.items) for page in maker.gateway.pages(PODS)),
        with_status=with_status,
        first_decision_s=first_decision_s,
        all_statuses_s=all_statuses_s,
        first_parts=first_parts,
        first_cpu_s=first_cpu_s,
        settled_cycles=settled,
        steady=steady,
        steady_writes=steady_writes,
        noisy=noisy,
        restart_decision_s=restart_decision_s,
        restart_writes=restart_writes,
        change_s=change_s,
        change_cycles=change_cycles,
        peak_mib=peak_mib,
        series=sum(not line.startswith("#") for line in exposition.splitlines()),
        exposition_mib=len(exposition) / 2**20,
        exposition_s=scraped_s,
        events=sum(name.startswith("events/") for name in versions),
    )


def _words_of(parts: dict[str, float]) -> str:
    return ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())


def cycle_words(cycle: Cycle) -> str:
    requests = ", ".join(f"{verb} {count:g}" for verb, count in sorted(cycle.requests.items())) or "none"
    return (
        f"{cycle.seconds:6.2f} s ({_words_of(cycle.parts)}; CPU {cycle.cpu_seconds:.2f}); "
        f"requests {requests}; {cycle.rss_mib:.0f} MiB"
    )


def report(row: Row) -> None:
    print(f"{row.pipelines} pipelines, {row.deployments} Deployments, {row.pods} pods, 10 pools")
    print(
        f"  first start   {row.with_status} have a status before it; decision after {row.first_decision_s:.1f} s, all "
        f"statuses written after {row.all_statuses_s:.1f} s ({_words_of(row.first_parts)}; CPU {row.first_cpu_s:.1f}), "
        f"settled in cycle {row.settled_cycles}"
    )
    print(f"  steady cycle  {cycle_words(row.steady)}; {row.steady_writes} objects written")
    print(f"  restart       decision after {row.restart_decision_s:.1f} s; {row.restart_writes} objects written")
    print(f"  one change    patched after {row.change_s:.1f} s, {row.change_cycles:g} cycles completed before")
    print(f"  noisy cycle   {cycle_words(row.noisy)}")
    print(
        f"  at most {row.peak_mib:.0f} MiB; {row.series} series of its own, {row.exposition_mib:.1f} MiB in "
        f"{row.exposition_s:.2f} s; {row.events} Events in all",
        flush=True,
    )


def report_delayed(rows: Sequence[Delayed]) -> None:
    for delayed in rows:
        lost = ", ".join(f"{kind} {share:.0%}" for kind, share in delayed.unanswered.items() if share)
        print(
            f"  {delayed.delay_ms:3} ms a query  {cycle_words(delayed.cycle)}; {delayed.cycle.queries:.0f} queries, "
            f"unanswered: {lost or 'none'}; complete: {delayed.complete:.1%} of the pipelines; "
            f"at most {delayed.peak_mib:.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--cycles", type=int, default=4, help="how many cycles a figure is the mean of")
    parser.add_argument("--interval", type=float, default=15.0, help="seconds between cycles")
    parser.add_argument("--delays-only", action="store_true", help="only the rows with delayed answers to queries")
    parser.add_argument("--shards", type=int, default=1, help="operators among which the fleet is divided")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    subprocess.run([sys.executable, "-m", "optimizer.warm_up"], cwd=ROOT, check=True)
    rows: list[dict[str, object]] = []
    for pipelines in arguments.pipelines:
        if arguments.shards > 1:
            found = measure_shards(pipelines, arguments.shards, arguments.cycles, arguments.interval)
            report_shards(found)
            rows.append({"pipelines": pipelines, "shards": [asdict(each) for each in found]})
        elif arguments.delays_only:
            delayed = measure_delayed(pipelines, arguments.cycles, arguments.interval)
            print(f"{pipelines} pipelines")
            report_delayed(delayed)
            rows.append({"pipelines": pipelines, "delayed": [asdict(each) for each in delayed]})
        else:
            row = measure(pipelines, arguments.cycles, arguments.interval)
            report(row)
            row = replace(row, delayed=measure_delayed(pipelines, arguments.cycles, arguments.interval))
            report_delayed(row.delayed)
            rows.append(asdict(row))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
