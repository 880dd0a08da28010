"""Rounds of faults against three operators, with all writes from the audit log of the API server.

A write is always due: the bounds and budgets of two pipelines change as soon as their replicas follow.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.request import urlopen

import psutil
import stoppable_operator
from kubernetes import client, config
from tcp_relay import Link, TcpRelay

from controller.kube.gateway import PIPELINES
from controller.resources.schema import CRDS
from simulations.lab.cluster import nodes
from simulations.lab.cluster.cluster import install
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import Child, ProcessError, Processes, free_ports

PATIENCE_S = 120.0
SYSTEM, SPEECH, POOL = "sluice-system", "speech", "cpu"
PIPELINE_NAMES = ("captions", "notes")
REPLICAS = ("sluice-a", "sluice-b", "sluice-c")
_GROUP, _VERSION = PIPELINES.api_version.split("/")
_POLL_S = 0.02
_NOWHERE = "http://127.0.0.1:1"
T = TypeVar("T")
_POD_KEY = "authentication.kubernetes.io/pod-name"


class Fault(Enum):
    """The faults of the leader."""

    KILL = "killed"
    PAUSE = "paused anywhere"
    PAUSE_BEFORE_CHECK = "paused before its last check"
    PAUSE_AFTER_CHECK = "paused after its last check"
    PAUSE_AFTER_CHECK_UNTOUCHED = "the same, without another write there"
    """No other operator writes to the workload: the version that the leader has read stays the newest."""
    CUT = "partition, connections reset"
    HOLD = "partition, bytes arrive late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write of a scale or a status in the audit log; times are of the API server's clock."""

    pod: str
    of: str
    workload: str
    code: int
    received_s: float
    answered_s: float

    @property
    def accepted(self) -> bool:
        return self.code < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """The lease taken by a pod, or released (""), with the times of request and answer."""

    pod: str
    received_s: float
    answered_s: float


class AuditLog:
    """The audit log: tenures of the lease, and writes with their pods."""

    def __init__(self, path: Path) -> None:
        self.tenures: list[Tenure] = []
        self.writes: list[Write] = []
        self._path = path
        self._offset = 0
        self._rest = ""
        self._holder = ""

    def read(self) -> Self:
        """Read the entries since the last call."""
        with self._path.open() as log:
            log.seek(self._offset)
            text = self._rest + log.read()
            self._offset = log.tell()
        *lines, self._rest = text.split("\n")
        for line in lines:
            if line:
                self._take(json.loads(line))
        return self

    def former_leaders(self) -> list[Write]:
        """Return the accepted writes of pods that did not hold the lease.

        Those count too during which the lease changed hands, and those that the server gave up on, which may have been
        made.
        """
        return [write for write in self.writes if not 400 <= write.code < 500 and self._holders(write) != {write.pod}]

    def refused_leaders(self) -> list[Write]:
        """Return the writes of lease holders that the policy refused."""
        return [write for write in self.writes if write.code == 403 and write.pod in self._holders(write)]

    def _holders(self, write: Write) -> set[str]:
        """Return the pods that may have held the lease during the write."""
        before = [tenure for tenure in self.tenures if tenure.answered_s <= write.received_s]
        during = [
            tenure
            for tenure in self.tenures
            if tenure.received_s <= write.answered_s and tenure.answered_s > write.received_s
        ]
        return {tenure.pod for tenure in (*before[-1:], *during)}

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["user"]["username"] != f"system:serviceaccount:{SYSTEM}:sluice":
            return
        received_s, answered_s = (
            datetime.fromisoformat(event[stamp]).timestamp() for stamp in ("requestReceivedTimestamp", "stageTimestamp")
        )
        subject, code = event["objectRef"], event["responseStatus"]["code"]
        if subject["resource"] == "leases":
            spec = (event.get("requestObject") or {}).get("spec") or {}
            holder = spec.get("holderIdentity", self._holder) or ""
            if code < 300 and holder != self._holder:
                self._holder = holder
                pod = holder.partition("_")[0]
                self.tenures.append(Tenure(pod=pod, received_s=received_s, answered_s=answered_s))
            return
        self.writes.append(
            Write(
                pod=event["user"].get("extra", {}).get(_POD_KEY, [""])[0],
                of=subject["subresource"],
                workload=subject["name"],
                code=code,
                received_s=received_s,
                answered_s=answered_s,
            )
        )


class Replica:
    """One operator: the token of its pod, its relay to the API server, and its process."""

    def __init__(
        self, folder: Path, pod: str, control_plane: ControlPlane, relay: TcpRelay, flags: Sequence[str]
    ) -> None:
        """`flags` follow those of every replica; the first is for `stoppable_operator`."""
        self.pod = pod
        self.relay = relay
        self.folder = folder / pod
        self.folder.mkdir(parents=True)
        self._flags = flags
        self._processes = Processes(self.folder)
        self._kubeconfig = self.folder / "kubeconfig"
        self._starts = 0
        self.child: Child
        control_plane.service_account_kubeconfig(
            SYSTEM, "sluice", self._kubeconfig, pod=pod, server=f"https://127.0.0.1:{relay.port}"
        )

    def start(self) -> None:
        """Start a process; its log replaces the previous one."""
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._starts += 1
        self.child = self._processes.start(
            f"operator-{self._starts}",
            [
                *(sys.executable, stoppable_operator.__file__, str(self.folder), self._flags[0]),
                *("--kubeconfig", str(self._kubeconfig), "--prometheus-url", _NOWHERE, "--pod-name", self.pod),
                *("--port", str(port), "--interval", "1s", "--decision-time", "50ms", *self._flags[1:]),
            ],
        )

    def stop(self) -> None:
        """End the process in any state, and remove its stop files."""
        for name in (stoppable_operator.BEFORE, stoppable_operator.AFTER):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, signal.SIGKILL)
        self._processes.stop()

    def readiness(self) -> str:
        """Return the text of /readyz, empty when it is not ready."""
        try:
            with urlopen(f"{self._url}/readyz", timeout=2) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            return ""

    def running(self) -> bool:
        try:
            self.child.check()
        except ProcessError:
            return False
        return True

    def log(self) -> str:
        return self.child.log.read_text(errors="replace")

    def stopped(self) -> bool:
        return bool(psutil.Process(self.child.pid).status() == psutil.STATUS_STOPPED)


@dataclass(slots=True)
class Tally:
    """The results of the rounds of one fault."""

    rounds: int = 0
    takeover_s: list[float] = field(default_factory=list)
    """From the fault until another replica held the lease."""
    first_write_s: list[float] = field(default_factory=list)
    """From the fault until its first write was accepted."""
    held_back: int = 0
    """Former leaders that did not send the write that was due."""
    by_policy: int = 0
    by_conflict: int = 0
    accepted: int = 0


class World:
    """A cluster with three operators and a write always due, inside its `with` block."""

    def __init__(
        self, folder: Path, binaries: Binaries, *, lease: str = "2s", clock: bool = True, policy: bool = True
    ) -> None:
        """`clock` and `policy` are the two guards against writes of a former leader; each can be removed."""
        self._folder = folder
        self._binaries = binaries
        self._flags = ("clock" if clock else "no-clock", "--lease-duration", lease)
        self._policy = policy
        self._exit = contextlib.ExitStack()
        self._untouched: str | None = None
        self._ended = threading.Event()
        self.replicas: dict[str, Replica] = {}
        self.tallies = {fault: Tally() for fault in Fault}
        self.void = 0
        """Faults of a replica that had just lost the lease for another reason; they do not count as rounds."""
        self.audit: AuditLog

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            control_plane = stack.enter_context(ControlPlane(self._folder / "kubernetes", self._binaries, audit=True))
            self.audit = AuditLog(control_plane.audit_log)
            self._admin = stack.enter_context(config.new_client_from_config(str(control_plane.kubeconfig)))
            _install(self._admin, policy=self._policy)
            self._core, self._apps = client.CoreV1Api(self._admin), client.AppsV1Api(self._admin)
            self._objects = client.CustomObjectsApi(self._admin)
            self._populate()
            port = int(control_plane.url.rpartition(":")[2])
            for pod in REPLICAS:
                relay = stack.enter_context(TcpRelay(port))
                replica = Replica(self._folder / "replicas", pod, control_plane, relay, self._flags)
                replica.start()
                stack.callback(replica.stop)
                self.replicas[pod] = replica
            for work in (self._change, self._run_pods):
                thread = threading.Thread(target=self._again_and_again, args=(work,), name=work.__name__)
                thread.start()
                stack.callback(thread.join)
            stack.callback(self._ended.set)
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def play(self, fault: Fault) -> None:
        """Inject `fault` into the leader, wait until another operator writes, restore the former leader, record all.

        Raises:
            AssertionError: no other replica took over, or the former leader went on.
        """
        leader = self._leader_at_work()
        writes_before = len(self.audit.read().writes)
        since_s = self._strike(fault, leader)
        if self._holder(since_s) != leader.pod:  # the machine was too busy for a renewal
            self.void += 1
            leader.stop()
            leader.relay.set(Link.OPEN)
            self._leave_alone(None)
            self.play(fault)
            return
        successor = self._successor(leader, since_s)
        self._recover(fault, leader)
        tally = self.tallies[fault]
        tally.rounds += 1
        tally.takeover_s.append(successor.answered_s - since_s)
        first = self._first_write(successor)
        assert first is not None
        tally.first_write_s.append(first.answered_s - since_s)
        late = [
            write
            for write in self.audit.read().writes[writes_before:]
            if write.pod == leader.pod and write.answered_s > successor.answered_s
        ]
        tally.by_policy += sum(write.code == 403 for write in late)
        tally.by_conflict += sum(write.code == 409 for write in late)
        tally.accepted += sum(write.accepted for write in late)
        tally.held_back += "nothing is written until" in leader.log() or "has given up the lease" in leader.log()

    def figures(self) -> dict[str, Any]:
        """Return the results of the rounds, and of all writes since the beginning."""
        audit = self.audit.read()
        former = Counter(write.of for write in audit.former_leaders())
        accepted = Counter(write.of for write in audit.writes if write.accepted)
        return {
            "rows": [{"fault": fault.value, **asdict(tally)} for fault, tally in self.tallies.items() if tally.rounds],
            "void": self.void,
            "tenures": sum(bool(tenure.pod) for tenure in audit.tenures),
            "accepted": {of: accepted[of] for of in ("scale", "status")},
            "former": {of: former[of] for of in ("scale", "status")},
            "leaders_refused": len(audit.refused_leaders()),
        }

    def _leader_at_work(self) -> Replica:
        """Wait until a leader has written and a standby is ready; return the leader."""

        def found() -> Replica | None:
            for replica in self.replicas.values():
                if not replica.running():
                    replica.start()
            tenures = self.audit.read().tenures
            if not tenures or not tenures[-1].pod or self._first_write(tenures[-1]) is None:
                return None
            others = [replica for pod, replica in self.replicas.items() if pod != tenures[-1].pod]
            ready = any(replica.readiness().startswith("standby, leader is") for replica in others)
            return self.replicas[tenures[-1].pod] if ready else None

        return until(found, "a leader that writes, and a standby")

    def _holder(self, at_s: float) -> str:
        return [tenure.pod for tenure in self.audit.read().tenures if tenure.received_s <= at_s][-1]

    def _first_write(self, tenure: Tenure) -> Write | None:
        return next(
            (
                write
                for write in self.audit.writes
                if write.of == "scale"
                and write.accepted
                and write.pod == tenure.pod
                and write.received_s > tenure.answered_s
            ),
            None,
        )

    def _strike(self, fault: Fault, leader: Replica) -> float:
        """Inject the fault into the leader; return its time on the wall clock."""
        match fault:
            case Fault.KILL:
                os.kill(leader.child.pid, signal.SIGKILL)
            case Fault.PAUSE:
                os.kill(leader.child.pid, signal.SIGSTOP)
            case Fault.CUT:
                leader.relay.set(Link.CUT)
            case Fault.HOLD:
                leader.relay.set(Link.HELD)
            case _:
                before = fault is Fault.PAUSE_BEFORE_CHECK
                (leader.folder / (stoppable_operator.BEFORE if before else stoppable_operator.AFTER)).touch()
                until(lambda: leader.stopped() or not leader.running(), "the leader stops at a write")
                if fault is Fault.PAUSE_AFTER_CHECK_UNTOUCHED and leader.stopped():
                    self._leave_alone((leader.folder / stoppable_operator.STOPPED).read_text())
        return time.time()

    def _successor(self, leader: Replica, since_s: float) -> Tenure:
        def found() -> Tenure | None:
            for tenure in self.audit.read().tenures:
                if tenure.answered_s > since_s and tenure.pod not in {"", leader.pod} and self._first_write(tenure):
                    return tenure
            return None

        return until(found, "another replica leads and writes")

    def _recover(self, fault: Fault, leader: Replica) -> None:
        """Resume the former leader, and wait for it to end on its own."""
        if fault is not Fault.KILL:
            if fault in {Fault.CUT, Fault.HOLD}:
                leader.relay.set(Link.OPEN)
            else:
                os.kill(leader.child.pid, signal.SIGCONT)
            until(lambda: not leader.running(), "the former leader ends")
            assert "this replica ends" in leader.log(), leader.log()[-2000:]
        code = leader.child.stop()
        assert code == (-signal.SIGKILL if fault is Fault.KILL else 1), f"the former leader ended with {code}"
        self._leave_alone(None)

    def _leave_alone(self, name: str | None) -> None:
        """Exclude one workload from the changes, or none."""
        if self._untouched is not None:
            self._patch(self._untouched, {"mode": "Auto"})
        self._untouched = name
        if name is not None:
            self._patch(name, {"mode": "Paused"})

    def _again_and_again(self, work: Callable[[client.ApiClient], None]) -> None:
        with contextlib.closing(
            config.new_client_from_config(str(self._folder / "kubernetes" / "admin.kubeconfig"))
        ) as api:
            while not self._ended.wait(0.1):
                work(api)

    def _change(self, api: client.ApiClient) -> None:
        """Change the wanted replicas of every workload that has reached them."""
        apps = client.AppsV1Api(api)
        for name in PIPELINE_NAMES:
            if name == self._untouched:
                continue
            wanted = self._wanted[name]
            if apps.read_namespaced_deployment_scale(name, SPEECH).spec.replicas == wanted:
                self._wanted[name] = 4 - wanted
                self._patch(name, _bounds(name, self._wanted[name]))

    def _run_pods(self, api: client.ApiClient) -> None:
        """Act as the kubelet: pods with a node become ready, pods being deleted are removed."""
        core = client.CoreV1Api(api)
        for pod in core.list_namespaced_pod(SPEECH).items:
            with _gone_is_fine():
                if pod.metadata.deletion_timestamp:
                    core.delete_namespaced_pod(pod.metadata.name, SPEECH, grace_period_seconds=0)
                elif pod.spec.node_name and pod.status.phase == "Pending":
                    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                    status = {"status": {"phase": "Running", "conditions": [ready]}}
                    core.patch_namespaced_pod_status(pod.metadata.name, SPEECH, status)

    def _patch(self, name: str, spec: Mapping[str, Any]) -> None:
        self._objects.patch_namespaced_custom_object(
            _GROUP, _VERSION, SPEECH, "speechpipelines", name, {"spec": dict(spec)}
        )

    def _populate(self) -> None:
        selector = {"sluice.dev/pool": POOL}
        nodes.create(self._core, [nodes.PoolNodes(name=POOL, device="CPU", node_selector=selector, instances=4)])
        self._core.create_namespace({"metadata": {"name": SPEECH}})
        pool = {
            "device": "CPU",
            "nodeSelector": selector,
            "price": {"perHour": "0.4"},
            "capacity": {"readyNodes": True},
        }
        _create(self._objects, "ComputePool", POOL, pool)
        self._wanted = dict.fromkeys(PIPELINE_NAMES, 3)
        for name in PIPELINE_NAMES:
            self._apps.create_namespaced_deployment(SPEECH, _deployment(name, selector))
            spec = {"demand": {"unit": "Requests", "query": "nothing"}, "sla": {"latency": "500ms"}, **_bounds(name, 3)}
            _create(self._objects, "SpeechPipeline", name, spec)


def until(found: Callable[[], T | None], what: str) -> T:
    """Return the first true result; AssertionError after two minutes."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(_POLL_S)
    return result


def _bounds(name: str, replicas: int) -> dict[str, Any]:
    """Return a patch of a pipeline's spec for which exactly `replicas` of its only stage are feasible.

    Without data nothing scales down, except under a cap: the budget pays for no more.
    """
    placement = {
        "pool": POOL,
        "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "replicas": {"min": replicas, "max": replicas},
        "perInstance": 4,
        "serviceTime": {"fixed": "50ms", "cv": "0.3"},
        "startup": "1s",
    }
    return {"budget": {"perHour": f"{0.1 * replicas:.1f}"}, "stages": [{"name": "asr", "placements": [placement]}]}


def _deployment(name: str, selector: Mapping[str, str]) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "asr", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": labels}, "spec": {"nodeSelector": dict(selector), "containers": [container]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


def _create(objects: client.CustomObjectsApi, kind: str, name: str, spec: Mapping[str, Any]) -> None:
    body = {"apiVersion": PIPELINES.api_version, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}
    if kind == "ComputePool":
        objects.create_cluster_custom_object(_GROUP, _VERSION, "computepools", body)
    else:
        objects.create_namespaced_custom_object(_GROUP, _VERSION, SPEECH, "speechpipelines", body)


def _install(api: client.ApiClient, *, policy: bool) -> None:
    """Install the resources, the rights and, with `policy`, the admission policies."""
    install(api, policies=policy)
    objects = client.CustomObjectsApi(api)

    def served() -> bool:
        try:
            for crd in CRDS:
                objects.list_cluster_custom_object(_GROUP, _VERSION, crd.plural)
        except client.ApiException as error:
            if error.status != 404:
                raise
            return False
        return True

    until(served, "the API server serves Sluice's resources")


@contextlib.contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except client.ApiException as error:
        if error.status != 404:
            raise
