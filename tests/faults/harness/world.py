"""The world of the fault matrix: a whole lab, operators behind fault proxies, and a record of replicas.

Pods are the lab's real workers, without traffic: `World.offered` is the offered load, exported in place of the ingress
and scraped by the real Prometheus. Replicas come from a watch of the real API server, without a proxy.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from fault_proxy import FaultProxy, api_server_proxy
from kubernetes import client

from controller.kube.gateway import PIPELINES
from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import pipeline_spec, pool_spec
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import LOOPBACK, Child, Processes, free_ports
from simulations.lab.net.kube_api import KubeApi, KubeApiError

NAMESPACE = "speech"
GROUP, VERSION = PIPELINES.api_version.split("/")
WRAPPER = Path(__file__).with_name("operator_wrapper.py")

_POLL_S = 0.03
_PATIENCE_S = 150.0
_TIMEOUT_S = (3, 10)


def until(holds: Callable[[], object], within_s: float = _PATIENCE_S, what: str = "") -> float:
    """Wait until `holds` is true; return the time it took, AssertionError after `within_s`."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace of a matrix: the cycle, and the factor by which durations are `shorter` than in production."""

    interval_s: float = 1.0
    scrape_s: float = 0.5
    shorter: float = 15.0
    slack_s: float = 2.5
    """The tolerance on a promised time, for a busy machine."""
    lease_s: float = 2.0
    hostile: int = 1000
    """The number of invalid resources beside the pipelines."""

    def lasting(self, seconds: float) -> float:
        """Return a duration of production at this pace."""
        return seconds / self.shorter

    @property
    def takeover_s(self) -> float:
        """Return the time until a successor can take the lease after a crash."""
        return 1.5 * self.lease_s

    def cycles(self, count: float) -> float:
        """Return the time of `count` cycles, slack included."""
        return count * self.interval_s + self.slack_s


def paced(interval_s: float) -> Pace:
    """Return the pace of CI, with all times in proportion to the cycle."""
    return Pace(
        interval_s=interval_s,
        scrape_s=0.5 * interval_s,
        shorter=15.0 / interval_s,
        slack_s=2.5 * interval_s,
        lease_s=2.0 * interval_s,
    )


QUICK = paced(1.0)
FULL = Pace(interval_s=15.0, scrape_s=5.0, shorter=1.0, slack_s=5.0, lease_s=15.0, hostile=10_000)


# -- resources of the world


def pool(name: str, *, price: str, instances: int, pace: Pace) -> dict[str, Any]:
    """A ComputePool whose replicas may be pending for 60 s, at this pace."""
    return {
        "apiVersion": PIPELINES.api_version,
        "kind": "ComputePool",
        "metadata": {"name": name},
        "spec": {
            "device": "CPU",
            "nodeSelector": {"sluice.dev/pool": name},
            "price": {"perHour": price},
            "capacity": {"instances": instances},
            "unavailable": {
                "pendingDeadline": f"{pace.lasting(60):g}s",
                "backoff": {"initial": "10m", "max": "20m"},
            },
        },
    }


def pipeline(name: str, *pools: str, budget: str, pace: Pace, per_instance: int = 4, **spec: Any) -> dict[str, Any]:
    """A SpeechPipeline of one stage, whose replicas serve 20 requests/s each, without limits on its steps."""
    at_once = {"stabilization": "0s", "maxStep": {"percent": 100, "replicas": 100}}
    return {
        "apiVersion": PIPELINES.api_version,
        "kind": "SpeechPipeline",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "demand": {"unit": "Requests", "query": f'sum(offered_rate{{pipeline="{name}"}})'},
            "sla": {"latency": "500ms"},
            "budget": {"perHour": budget},
            "scaling": {"scaleUp": at_once, "scaleDown": {**at_once, "drain": "1s"}},
            "stages": [
                {
                    "name": "asr",
                    "metrics": {"window": f"{8 * pace.scrape_s:g}s"},
                    "placements": [
                        {
                            "pool": pool,
                            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{name}-{pool}"},
                            "replicas": {"max": 40},
                            "perInstance": per_instance,
                            "serviceTime": {"fixed": "50ms", "cv": "0.3"},
                            "startup": "300ms",
                        }
                        for pool in pools
                    ],
                }
            ],
            **spec,
        },
    }


def beyond_cel() -> dict[str, Any]:
    """A pipeline that the API server accepts and the operator refuses: a branch before a join drops items."""
    resource = pipeline("bad", "plenty", budget="5", pace=QUICK)
    (stage,) = resource["spec"]["stages"]

    def named(name: str, **fields: Any) -> dict[str, Any]:
        placements = [
            {**placement, "target": {**placement["target"], "name": f"bad-{name}"}} for placement in stage["placements"]
        ]
        return {**stage, "name": name, "placements": placements, **fields}

    resource["spec"]["stages"] = [
        named("vad"),
        named("left", after=["vad"], passRatio="0.5"),
        named("right", after=["vad"]),
        named("join", after=["left", "right"]),
    ]
    return resource


# -- the record


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """The desired replicas and the pods, terminating ones included, of each Deployment at `at_s`."""

    at_s: float
    desired: Mapping[str, int]
    pods: Mapping[str, int]


class Recorder:
    """Records Deployments and pods of the namespace from the real API server, inside its `with` block."""

    def __init__(self, kubeconfig: Path) -> None:
        self.books: list[ReplicaCounts] = []
        self.managers: list[tuple[float, str, int, str]] = []
        """(when, Deployment, replicas, field manager of the last scale) for every change of replicas."""
        self._kubeconfig = kubeconfig
        self._desired: dict[str, int] = {}
        self._pods: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._stop: asyncio.Event = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE_S)

    def since(self, at_s: float) -> list[ReplicaCounts]:
        """Return the counts from `at_s` on, beginning with those at `at_s`."""
        books = tuple(self.books)
        before = [entry for entry in books if entry.at_s <= at_s]
        return [*before[-1:], *(entry for entry in books if entry.at_s > at_s)]

    def _run(self) -> None:
        self._loop.run_until_complete(self._follow())
        self._loop.close()

    async def _follow(self) -> None:
        async with KubeApi(self._kubeconfig) as api:
            tasks = [asyncio.create_task(self._deployments(api)), asyncio.create_task(self._watch_pods(api))]
            await self._stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _deployments(self, api: KubeApi) -> None:
        while True:
            with contextlib.suppress(KubeApiError):  # the row has stopped the API server
                async for kind, item in api.watch(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"):
                    name = item["metadata"]["name"]
                    if kind == "DELETED":
                        self._desired.pop(name, None)
                    elif self._desired.get(name) != item["spec"]["replicas"]:
                        self._desired[name] = item["spec"]["replicas"]
                        self.managers.append((time.monotonic(), name, item["spec"]["replicas"], _manager(item)))
                    self._note()
            await asyncio.sleep(_POLL_S)

    async def _watch_pods(self, api: KubeApi) -> None:
        while True:
            with contextlib.suppress(KubeApiError):
                async for kind, item in api.watch(f"/api/v1/namespaces/{NAMESPACE}/pods"):
                    uid = item["metadata"]["uid"]
                    if kind == "DELETED":
                        self._pods.pop(uid, None)
                    else:
                        self._pods[uid] = item["metadata"].get("labels", {}).get("app", "")
                    self._note()
            await asyncio.sleep(_POLL_S)

    def _note(self) -> None:
        pods: dict[str, int] = {}
        for app in self._pods.values():
            pods[app] = pods.get(app, 0) + 1
        self.books.append(ReplicaCounts(at_s=time.monotonic(), desired=dict(self._desired), pods=pods))


def _manager(deployment: Mapping[str, Any]) -> str:
    """Return the field manager of the last change of the replicas."""
    entries = [
        entry
        for entry in deployment["metadata"].get("managedFields", [])
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    ]
    return max(entries, key=lambda entry: entry.get("time", ""))["manager"] if entries else ""


# -- the load


class _Exporter:
    """Exports the offered load of every pipeline, in place of the ingress."""

    def __init__(self, port: int) -> None:
        self.offered: dict[str, float] = {}
        offered = self.offered

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                labels = f'namespace="{NAMESPACE}", pipeline='  # queries see their own namespace only
                lines = [f'offered_rate{{{labels}"{name}"}} {rate}' for name, rate in tuple(offered.items())]
                body = "\n".join([*lines, ""]).encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # the client has been killed
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
                pass

        self._server = ThreadingHTTPServer((LOOPBACK, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


# -- the operator


@dataclass
class Operator:
    """An operator's process and its two proxies."""

    name: str
    api: FaultProxy
    metrics: FaultProxy
    log_file: Path
    child: Child
    flags: Mapping[str, str] = field(default_factory=dict)

    def log(self) -> str:
        """Return its log so far."""
        return self.log_file.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of one of its endpoints; status 0 without an answer."""
        address = re.findall(r"metrics and probes at (http://[0-9.:]+)", self.log())
        if not address:
            return 0, ""
        try:
            with urlopen(f"{address[-1]}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (URLError, OSError):
            return 0, ""

    def ready(self) -> bool:
        """Whether its last cycle succeeded."""
        return self.get("/readyz")[0] == HTTPStatus.OK

    def cycles(self) -> int:
        """Return the number of successful cycles."""
        found = re.search(r'sluice_cycles_total\{outcome="success"\} ([0-9.]+)', self.get("/metrics")[1])
        return 0 if found is None else int(float(found[1]))

    def alive(self) -> bool:
        """Whether the process has not ended."""
        try:
            self.child.check()
        except RuntimeError:
            return False
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, number)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.signal(signal.SIGKILL)
        self.child.stop()

    def leads(self) -> bool:
        """Whether it holds the lease."""
        return re.search(r"^sluice_leader 1", self.get("/metrics")[1], re.MULTILINE) is not None

    def stop(self) -> int:
        """Stop the process (SIGTERM); return its exit status."""
        return self.child.stop(20.0)


class World:
    """A lab with three valid pipelines and an invalid one.

    `main` runs on pool `plenty`, and its budget limits it; the load of `other` stays; `spare` runs on pool `scarce` and
    must move to `plenty` when `scarce` cannot place replicas; `bad` is invalid.
    """

    BUDGETS: Mapping[str, float] = {"main": 1.6, "other": 1.0, "spare": 2.0}
    PRICES: Mapping[str, float] = {"plenty": 0.8, "scarce": 0.4}
    INSTANCES: Mapping[str, int] = {"plenty": 12, "scarce": 2}
    PER_INSTANCE = 4
    BASE: Mapping[str, float] = {"main": 50.0, "other": 30.0, "spare": 30.0}
    MUCH, LITTLE = 2000.0, 1.0
    CAPPED = 8
    """Replicas of `main` that its budget allows."""

    def __init__(self, folder: Path, binaries: Binaries, pace: Pace = QUICK, *, broken: str | None = None) -> None:
        """`broken` is the guard to remove from all operators."""
        self.folder = folder
        self.broken = broken
        self.pace = pace
        self.kept: dict[str, Any] = {}
        """What a run that rows share has shown, by the names of the rows that are still to be judged."""
        self.cluster = LabCluster(folder, binaries, scrape_interval_s=pace.scrape_s)
        self._exit = contextlib.ExitStack()
        self._operators: list[Operator] = []
        self._standing: Operator | None = None
        self._count = 0

    def __enter__(self) -> Self:
        enter = self._exit.enter_context
        try:
            self.exporter = enter(_Exporter(self.cluster.ingress_port))
            enter(self.cluster)
            self.processes = enter(Processes(self.folder / "operators"))
            self._api = enter(self.cluster.admin())
            self.core, self.apps = client.CoreV1Api(self._api), client.AppsV1Api(self._api)
            self.objects = client.CustomObjectsApi(self._api)
            self.offered = self.exporter.offered
            self.offered.update(self.BASE)
            self.install()
            if self.broken == "one-writer":
                self._accept_every_writer()
            self.recorder = enter(Recorder(self.cluster.kubeconfig))
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    # -- resources

    def pools(self) -> list[dict[str, Any]]:
        """Return the ComputePools."""
        return [
            pool(name, price=f"{price}", instances=self.INSTANCES[name], pace=self.pace)
            for name, price in self.PRICES.items()
        ]

    def pipelines(self) -> list[dict[str, Any]]:
        """Return the valid pipelines."""
        return [
            pipeline("main", "plenty", budget="1.6", pace=self.pace),
            pipeline("other", "plenty", budget="1", pace=self.pace),
            pipeline("spare", "scarce", "plenty", budget="2", pace=self.pace),
        ]

    def install(self) -> None:
        """Create missing nodes and Deployments; `begin` creates the resources."""
        documents = [*self.pools(), *self.pipelines()]
        self.cluster.apply(
            [],
            [pipeline_spec(parse(SpeechPipeline, _served(d))) for d in documents if d["kind"] == "SpeechPipeline"],
            [pool_spec(parse(ComputePool, _served(d))) for d in documents if d["kind"] == "ComputePool"],
        )

    def _accept_every_writer(self) -> None:
        """Make the server accept writes of operators without the lease."""
        audited = {"spec": {"validationActions": ["Audit"]}}
        client.AdmissionregistrationV1Api(self._api).patch_validating_admission_policy_binding(
            "sluice-one-writer", audited
        )

    def begin(self) -> None:
        """Create the resources without a status, over replicas that serve the base load."""
        self.offered.update(self.BASE)
        for document in self.pools():
            self.objects.create_cluster_custom_object(GROUP, VERSION, "computepools", document)
        for document in [*self.pipelines(), beyond_cel()]:
            self.create(document)

    def create(self, document: dict[str, Any]) -> None:
        """Create a SpeechPipeline."""
        self.objects.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, "speechpipelines", document)

    def end(self) -> None:
        """Delete the resources and restore the replicas of the base load; a healthy plain operator goes on."""
        for operator in self._operators:
            if operator is self._standing and operator.alive() and operator.ready():
                continue
            operator.kill()
        if self._standing is not None and not self._standing.alive():
            self._standing = None
        self._operators = [] if self._standing is None else [self._standing]
        self.objects.delete_collection_namespaced_custom_object(GROUP, VERSION, NAMESPACE, "speechpipelines")
        self.objects.delete_collection_cluster_custom_object(GROUP, VERSION, "computepools")
        self.core.delete_collection_namespaced_event(NAMESPACE)
        self.core.delete_collection_namespaced_event("default")
        for node in self.core.list_node().items:
            self.core.patch_node(node.metadata.name, {"spec": {"unschedulable": False}})
        self.install()  # a row may have deleted some
        for name, replicas in self.base_replicas().items():
            self.scale(name, replicas)
        until(lambda: self.serving(self.base_replicas()), what="the replicas of the base load")

    def base_replicas(self) -> dict[str, int]:
        """Return the replicas for the base load, by Deployment."""
        return {"main-plenty": 3, "other-plenty": 2, "spare-scarce": 2, "spare-plenty": 0}

    def serving(self, replicas: Mapping[str, int]) -> bool:
        """Whether exactly these replicas are desired and ready."""
        for name, count in replicas.items():
            deployment = self.apps.read_namespaced_deployment(name, NAMESPACE, _request_timeout=_TIMEOUT_S)
            status = deployment.status
            if (
                deployment.spec.replicas != count
                or (status.replicas or 0) != count
                or (status.ready_replicas or 0) != count
            ):
                return False
        return sum(replicas.values()) == len(self.core.list_namespaced_pod(NAMESPACE).items)

    def settled(self) -> bool:
        """Whether every Deployment has its desired pods, and there are no other pods."""
        desired = 0
        for deployment in self.apps.list_namespaced_deployment(NAMESPACE).items:
            desired += deployment.spec.replicas
            if (deployment.status.ready_replicas or 0) != deployment.spec.replicas:
                return False
        return desired == len(self.core.list_namespaced_pod(NAMESPACE).items)

    def scale(self, name: str, replicas: int, manager: str = "test") -> None:
        """Set the replicas of a Deployment."""
        self.apps.patch_namespaced_deployment_scale(
            name, NAMESPACE, {"spec": {"replicas": replicas}}, field_manager=manager
        )

    def patch_pipeline(self, name: str, patch: dict[str, Any]) -> None:
        """Change a pipeline."""
        self.objects.patch_namespaced_custom_object(GROUP, VERSION, NAMESPACE, "speechpipelines", name, patch)

    def restart_api_server(self) -> None:
        """Kill the real API server and start it again at the same address, without its history for watches."""
        self.cluster._control_plane.restart_api_server()

    def replicas(self, name: str) -> int:
        """Return the desired replicas of a Deployment."""
        found: int = self.apps.read_namespaced_deployment(name, NAMESPACE, _request_timeout=_TIMEOUT_S).spec.replicas
        return found

    def status(self, name: str = "main") -> dict[str, Any]:
        """Return the status of a pipeline on the real API server."""
        resource = self.objects.get_namespaced_custom_object(
            GROUP, VERSION, NAMESPACE, "speechpipelines", name, _request_timeout=_TIMEOUT_S
        )
        found: dict[str, Any] = resource.get("status", {})
        return found

    def names(self) -> list[str]:
        """Return the names of all pipelines."""
        found = self.objects.list_namespaced_custom_object(GROUP, VERSION, NAMESPACE, "speechpipelines")
        return [item["metadata"]["name"] for item in found["items"]]

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """Return a condition of a pipeline, empty if it is missing."""
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def pool_status(self, name: str) -> dict[str, Any]:
        """Return the status of a pool."""
        resource = self.objects.get_cluster_custom_object(GROUP, VERSION, "computepools", name)
        found: dict[str, Any] = resource.get("status", {})
        return found

    def events(self) -> list[tuple[str, str, str]]:
        """Return object, reason and message of the operator's Events."""
        return [
            (event.involved_object.name, event.reason, event.message)
            for event in self.core.list_namespaced_event(NAMESPACE).items
            if event.source.component == "sluice"
        ]

    def kept_memory(self) -> list[str]:
        """Return the annotations of the operator's Lease that have the memory of a pipeline."""
        lease = client.CoordinationV1Api(self._api).read_namespaced_lease("sluice", "sluice-system")
        return [name for name in lease.metadata.annotations or {} if name.startswith("memory.sluice.dev/")]

    def versions(self) -> dict[str, dict[str, str]]:
        """Return all objects that the operator writes, with versions and fields."""
        found: dict[str, dict[str, str]] = {"events": {"count": f"{len(self.events())}"}}
        for plural in ("speechpipelines", "computepools"):
            for item in self.objects.list_cluster_custom_object(GROUP, VERSION, plural)["items"]:
                status = {name: json.dumps(value) for name, value in item.get("status", {}).items()}
                found[f"{plural}/{item['metadata']['name']}"] = {
                    "resourceVersion": item["metadata"]["resourceVersion"],
                    **status,
                }
        for deployment in self.apps.list_namespaced_deployment(NAMESPACE).items:
            found[f"deployments/{deployment.metadata.name}"] = {"replicas": f"{deployment.spec.replicas}"}
        return found

    def cordon(self, pool_name: str) -> None:
        """Cordon the nodes of a pool."""
        selector = f"sluice.dev/pool={pool_name}"
        for node in self.core.list_node(label_selector=selector).items:
            self.core.patch_node(node.metadata.name, {"spec": {"unschedulable": True}})

    def lose_a_pod(self, name: str) -> None:
        """Delete one pod of a Deployment at once; the Deployment replaces it."""
        pod = self.core.list_namespaced_pod(NAMESPACE, label_selector=f"app={name}").items[0]
        self.core.delete_namespaced_pod(pod.metadata.name, NAMESPACE, grace_period_seconds=0)

    # -- operators

    def operator(self) -> Operator:
        """Return the plain operator, which runs across rows while it is healthy."""
        if self._standing is None:
            self._standing = self.another_operator()
        return self._standing

    def alone(self) -> None:
        """Stop the plain operator, for a row with operators of its own."""
        if self._standing is not None:
            self._standing.kill()
            self._operators.remove(self._standing)
            self._standing = None

    def another_operator(
        self, name: str = "operator", *, wrapped: Sequence[str] = (), before: Sequence[str] = (), **flags: str
    ) -> Operator:
        """Start an operator behind proxies of its own.

        `wrapped` are arguments of the wrapper, `before` is a command to run it with, `flags` are further settings.
        """
        self._count += 1
        label = f"{name}-{self._count}"
        control_plane = self.cluster._control_plane
        api = self._exit.enter_context(api_server_proxy(control_plane))
        metrics = self._exit.enter_context(FaultProxy(self.cluster.prometheus_url, free_ports(1)[0]))
        kubeconfig = self.folder / "operators" / f"{label}.kubeconfig"
        control_plane.service_account_kubeconfig("sluice-system", "sluice", kubeconfig, pod=label, server=api.url)
        operator = Operator(
            name=label,
            api=api,
            metrics=metrics,
            log_file=self.folder / "operators" / f"{label}.log",
            child=self._start(label, kubeconfig, metrics, wrapped, before, {"pod_name": label, **flags}),
            flags={"pod_name": label, **flags},
        )
        self._operators.append(operator)
        return operator

    def again(self, operator: Operator, *, wrapped: Sequence[str] = ()) -> Operator:
        """Restart an operator that has ended, behind the same proxies."""
        self._count += 1
        label = f"{operator.name}.{self._count}"
        kubeconfig = self.folder / "operators" / f"{operator.name}.kubeconfig"
        operator.log_file = self.folder / "operators" / f"{label}.log"
        operator.child = self._start(label, kubeconfig, operator.metrics, wrapped, (), operator.flags)
        return operator

    def _start(
        self,
        label: str,
        kubeconfig: Path,
        metrics: FaultProxy,
        wrapped: Sequence[str],
        before: Sequence[str],
        flags: Mapping[str, str],
    ) -> Child:
        settings = {
            "kubeconfig": str(kubeconfig),
            "prometheus-url": metrics.url,
            "interval": f"{self.pace.interval_s:g}s",
            "scrape-interval": f"{self.pace.scrape_s:g}s",
            "port": "0",
            "log-format": "json",
            "lease-duration": f"{self.pace.lease_s:g}s",
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        changes = [*wrapped, *(["--break", self.broken] if self.broken else [])]
        program = [str(WRAPPER), *changes, "--"] if changes else ["-m", "controller", "operator"]
        arguments = [text for name, value in settings.items() for text in (f"--{name}", value)]
        return self.processes.start(label, [*before, sys.executable, *program, *arguments])


def _served(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the fields that the API server adds."""
    return {**document, "metadata": {**document["metadata"], "uid": "0", "generation": 1}}


def spend(books: ReplicaCounts, name: str) -> float:
    """Return the spend of a pipeline in USD per hour: the larger of desired replicas and pods."""
    return sum(
        max(books.desired.get(deployment, 0), books.pods.get(deployment, 0)) * price / World.PER_INSTANCE
        for pool_name, price in World.PRICES.items()
        for deployment in (f"{name}-{pool_name}",)
    )


def instances(books: ReplicaCounts, pool_name: str) -> float:
    """Return the desired instances of a pool."""
    return (
        sum(count for deployment, count in books.desired.items() if deployment.endswith(f"-{pool_name}"))
        / World.PER_INSTANCE
    )
