"""The node agent: the kubelet of all nodes of the lab, with stage workers and processes in place of containers.

`python -m simulations.lab.pods.agent --kubeconfig FILE` watches pods. A pod that is bound to a node and has the
specification of a worker in the annotation `lab.sluice.dev/worker` gets a stage worker on its own loopback address.
With the annotation `lab.sluice.dev/batching`, NAME/KEY, it batches as that key of a ConfigMap says, and reads a change
`CONFIG_SYNC_S` later. With `lab.sluice.dev/gives-back` it gives its items back, for another replica, when its pod is
deleted; without it completes them. A pod whose container has the image `lab/process` gets its command as a process,
which is started again if it ends.
The agent never uses an address twice, and leaves nodes named by `--except-node`, with their pods, to another agent. A
node that was not reported as ready or not, such as one that Karpenter has launched, is reported as ready. Standard
output has one JSON object per line for each event: `listening` (with the URL of the control endpoint), `started`,
`stopped` (with items served, lost and given back, sessions cut), `crashed` and `rejected`.

The control endpoint listens on loopback only. The body of a request is a number, the factor:
    PUT /slow-factors/NAMESPACE/PIPELINE/STAGE multiplies the service times of that stage's workers, present and future.
    PUT /quotas/NAMESPACE/PIPELINE/STAGE says whether (true or false) a quota limits that stage's processes.
    PUT /stuck/NAMESPACE/PIPELINE/STAGE lets the oldest worker of that stage be so many times as slow (1: as before).
    PUT /start-factors/POOL multiplies the start-up time of future workers on that pool.
    PUT /interference, with the field of a scenario file as JSON, makes workers on one node slow each other.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from controller.kube.batching import settings_of
from simulations.lab.net.kube_api import KubeApi, KubeApiError
from simulations.lab.net.timers import Timers
from simulations.lab.pods.process import IMAGE, ProcessEnded, ProcessPod
from simulations.lab.pods.worker import StageWorker, WorkerCounts, WorkerSpec, worker_of
from simulations.scenario.interference import NamedStage, beside

WORKER_ANNOTATION = "lab.sluice.dev/worker"
BATCHING_ANNOTATION = BATCHING_LABEL = "lab.sluice.dev/batching"
"""The ConfigMap and the key that a worker reads its batch settings from, NAME/KEY; and the label of such ConfigMaps."""
GIVES_BACK_ANNOTATION = "lab.sluice.dev/gives-back"
"""Says, with any value, that a worker gives its items back when its pod is deleted."""
CONFIG_SYNC_S = 10.0
"""How long a change of a ConfigMap takes to reach the workers: a kubelet takes up to two minutes."""
PIPELINE_LABEL = "sluice.dev/pipeline"
POOL_LABEL = "sluice.dev/pool"
STAGE_LABEL = "sluice.dev/stage"

NODE_READY: Mapping[str, str] = MappingProxyType(
    {"type": "Ready", "status": "True", "reason": "LabNode", "message": "the lab's agent runs its pods"}
)
"""The condition of a node of the lab."""

_NOT_FOUND = 404
DRAIN_SHARE = 0.9  # share of the grace period to wait for sessions; the rest is for the items in the queue
_DEFAULT_GRACE_S = 30
_RESTART_S, _LONGEST_RESTART_S = 1.0, 30.0  # the kubelet's are 10 s and 5 minutes

StageKey = tuple[str, str, str]  # namespace, pipeline, stage


class Agent:
    """Runs all pods of the lab, each in an asyncio task."""

    def __init__(self, api: KubeApi, timers: Timers, *, other_nodes: Sequence[str] = ()) -> None:
        """Create the agent; nothing happens before `run`. `other_nodes` are left to another agent, with their pods."""
        self._api = api
        self._timers = timers
        self._other_nodes = frozenset(other_nodes)
        self._selector = ",".join(f"spec.nodeName!={name}" for name in ("", *other_nodes))
        self._pods: dict[str, _Pod] = {}
        self._nodes: set[str] = set()
        self._slow_factors: dict[StageKey, float] = {}
        self._start_factors: dict[str, float] = {}
        self._interference: dict[str, float] = {}
        self._quotas: set[StageKey] = set()
        self._configs: dict[tuple[str, str], Mapping[str, str]] = {}
        self._addresses = _addresses()
        self._ordinal = 0
        self._tasks = asyncio.TaskGroup()

    async def run(self, control_port: int = 0) -> None:
        """Run the pods until cancelled; `control_port` is the port of the control endpoint, 0 for any free port.

        Raises:
            OSError: the port is in use.
            ExceptionGroup: a request failed; it has the KubeApiError.
        """
        application = web.Application()
        application.router.add_put("/slow-factors/{namespace}/{pipeline}/{stage}", self._put_slow_factor)
        application.router.add_put("/start-factors/{pool}", self._put_start_factor)
        application.router.add_put("/stuck/{namespace}/{pipeline}/{stage}", self._put_stuck)
        application.router.add_put("/quotas/{namespace}/{pipeline}/{stage}", self._put_quota)
        application.router.add_put("/interference", self._put_interference)
        control = web.AppRunner(application)
        await control.setup()
        try:
            await web.TCPSite(control, "127.0.0.1", control_port).start()
            host, port = control.addresses[0][:2]
            _say("listening", control=f"http://{host}:{port}")
            async with self._tasks:
                self._tasks.create_task(self._follow_nodes())
                self._tasks.create_task(self._follow_pods())
                self._tasks.create_task(self._follow_configs())
        finally:
            await control.cleanup()

    async def _follow_nodes(self) -> None:
        async for kind, node in self._api.watch("/api/v1/nodes"):
            name = node["metadata"]["name"]
            if kind == "DELETED":
                self._nodes.discard(name)
                for pod in tuple(self._pods.values()):
                    if pod.node == name:
                        self._drop(pod)
            else:
                self._nodes.add(name)
                if name not in self._other_nodes and not _is_reported(node):
                    await self._report(node)

    async def _report(self, node: dict[str, Any]) -> None:
        """Report a new node as ready, as its kubelet does, with the capacity that can be allocated on it."""
        # Karpenter's provider for KWOK states as capacity only what the first pods request.
        status = {"conditions": [dict(NODE_READY)], "capacity": node["status"].get("allocatable", {})}
        await self._unless_gone(self._api.patch(f"/api/v1/nodes/{node['metadata']['name']}/status", {"status": status}))

    async def _follow_pods(self) -> None:
        async for kind, manifest in self._api.watch("/api/v1/pods", {"fieldSelector": self._selector}):
            uid = manifest["metadata"]["uid"]
            pod = self._pods.get(uid)
            if kind == "DELETED":
                # The pod is kept until now: otherwise an event for a pod that has ended would look like a new pod.
                if pod is not None:
                    del self._pods[uid]
                    pod.vanish()
            elif pod is None:
                await self._adopt(_Pod(manifest))
            elif "deletionTimestamp" in manifest["metadata"]:
                pod.leave(manifest["metadata"])

    async def _follow_configs(self) -> None:
        async for kind, config in self._api.watch("/api/v1/configmaps", {"labelSelector": BATCHING_LABEL}):
            place = config["metadata"]["namespace"], config["metadata"]["name"]
            data = {} if kind == "DELETED" else config.get("data", {})
            delay_s = CONFIG_SYNC_S if place in self._configs else 0.0
            self._configs.setdefault(place, data)
            self._tasks.create_task(self._sync(place, data, delay_s))

    async def _sync(self, place: tuple[str, str], data: Mapping[str, str], delay_s: float) -> None:
        """Let workers read what a ConfigMap has, as late as a kubelet does."""
        await asyncio.sleep(delay_s)
        self._configs[place] = data
        for pod in self._pods.values():
            self._set_batching(pod)

    def _set_batching(self, pod: "_Pod") -> None:
        """Let the worker of a pod batch as its ConfigMap says; without a usable value, as its specification does."""
        if pod.worker is None or pod.batching is None:
            return
        name, key = pod.batching
        settings = settings_of(self._configs.get((pod.namespace, name), {}).get(key, ""))
        spec = pod.worker_spec()
        assert spec is not None, "it has a worker"
        limit, wait_s = (spec.batch_max, spec.batch_wait_s) if settings is None else (settings.limit, settings.wait_s)
        pod.worker.set_batching(limit, wait_s)

    async def _adopt(self, pod: "_Pod") -> None:
        """Run a pod that is new to this agent; delete the pod if its node does not exist."""
        if pod.node not in self._nodes and not await self._node_exists(pod.node):
            await self._delete(pod)
            return
        self._pods[pod.uid] = pod
        pod.task = self._tasks.create_task(self._live(pod))

    async def _node_exists(self, name: str) -> bool:
        try:
            await self._api.get(f"/api/v1/nodes/{name}")
        except KubeApiError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    def _drop(self, pod: "_Pod") -> None:
        """End a pod whose node is gone, and delete it."""
        pod.vanish()
        self._tasks.create_task(self._delete(pod))

    async def _live(self, pod: "_Pod") -> None:
        """Run a pod from its start to its deletion; the task is cancelled when the pod or its node vanishes."""
        try:
            try:
                spec = pod.worker_spec()
                process = pod.process(self._addresses)
            except ValueError as error:
                _say("rejected", pod=pod.name, namespace=pod.namespace, reason=str(error))
                await self._patch_status(pod, pod.waiting_status("CreateContainerConfigError", str(error)))
                await pod.leaving.wait()
            else:
                if spec is not None:
                    await self._run_worker(pod, spec)
                elif process is not None:
                    await self._run_process(pod, process)
                else:  # nothing that the agent runs: its status stays unchanged
                    await pod.leaving.wait()
            await self._delete(pod)
        except asyncio.CancelledError:
            if not pod.vanished:
                raise

    async def _run_worker(self, pod: "_Pod", spec: WorkerSpec) -> None:
        self._ordinal += 1
        worker = worker_of(spec, next(self._addresses), self._timers, ordinal=self._ordinal)
        worker.slowness.factor = self._slow_factors.get((pod.namespace, spec.pipeline, spec.stage), 1.0)
        worker.slowness.crowding = partial(self._crowding, pod)
        pod.worker = worker
        self._set_batching(pod)
        try:
            if not pod.leaving.is_set():
                await self._patch_status(pod, pod.running_status(worker.host, ready=False))
                with contextlib.suppress(TimeoutError):
                    startup_s = spec.startup_s * self._start_factors.get(pod.pool, 1.0)
                    await asyncio.wait_for(pod.leaving.wait(), startup_s)
            if not pod.leaving.is_set():
                await worker.start()
                await self._patch_status(pod, pod.running_status(worker.host, ready=True))
                _say("started", pod=pod.name, namespace=pod.namespace, stage=spec.stage, address=worker.host)
                await pod.leaving.wait()
                async with asyncio.timeout(pod.grace_s):
                    unready = self._patch_status(pod, pod.running_status(worker.host, ready=False))
                    drain_s = min(spec.drain_s, DRAIN_SHARE * pod.grace_s)
                    await asyncio.gather(unready, worker.give_back() if pod.gives_back else worker.drain(drain_s))
        except TimeoutError:
            pass  # the grace period is over: queued items are lost
        finally:
            await worker.abort()
            self._say_stopped(pod, spec.stage, worker.counts)

    async def _run_process(self, pod: "_Pod", process: ProcessPod) -> None:
        """Run the process of a pod until the pod leaves."""
        leaving, running = (asyncio.create_task(work) for work in (pod.leaving.wait(), self._keep(pod, process)))
        try:
            await asyncio.wait((leaving, running), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running  # it raises: nothing else ends it
            running.cancel()
            await asyncio.wait((running,))
            async with asyncio.timeout(pod.grace_s):
                unready = self._patch_status(pod, pod.running_status(process.host, ready=False))
                await asyncio.gather(unready, process.drain())
        except TimeoutError:
            pass  # the grace period is over
        finally:
            leaving.cancel()
            running.cancel()
            await process.abort()
            self._say_stopped(pod, pod.stage_label, process.counts)

    async def _keep(self, pod: "_Pod", process: ProcessPod) -> None:
        """Start the process, and again whenever it ends, with a delay that doubles as the kubelet's does."""
        for restarts in itertools.count():
            await self._patch_status(pod, pod.running_status(process.host, ready=False))
            try:
                await process.start()
                pod.running = process
                if pod.stage_key in self._quotas:
                    process.limit_by_quota(on=True)
                await self._patch_status(pod, pod.running_status(process.host, ready=True))
                _say("started", pod=pod.name, namespace=pod.namespace, stage=pod.stage_label, address=process.host)
                await process.wait()
            except ProcessEnded as error:
                pod.running = None
                pod.ended("OOMKilled" if error.out_of_memory else "Error")
                _say("crashed", pod=pod.name, namespace=pod.namespace, reason=str(error))
                await self._patch_status(pod, pod.waiting_status("CrashLoopBackOff", str(error)))
                await asyncio.sleep(min(_RESTART_S * 2**restarts, _LONGEST_RESTART_S))

    @staticmethod
    def _say_stopped(pod: "_Pod", stage: str, counts: WorkerCounts) -> None:
        _say(
            "stopped",
            pod=pod.name,
            namespace=pod.namespace,
            stage=stage,
            served=counts.served,
            lost=counts.lost,
            given_back=counts.given_back,
            sessions_cut=counts.sessions_cut,
        )

    async def _patch_status(self, pod: "_Pod", status: dict[str, Any]) -> None:
        # With the uid, the server refuses the patch for a later pod of the same name.
        await self._unless_gone(self._api.patch(f"{pod.path}/status", {"metadata": {"uid": pod.uid}, "status": status}))

    async def _delete(self, pod: "_Pod") -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._unless_gone(self._api.delete(pod.path, options))

    @staticmethod
    async def _unless_gone(call: Coroutine[Any, Any, object]) -> None:
        try:
            await call
        except KubeApiError as error:
            if error.status not in {_NOT_FOUND, 409}:  # 409: another pod has the same name now
                raise

    async def _put_slow_factor(self, request: web.Request) -> web.Response:
        key, factor = _stage_key(request), await _factor(request)
        self._slow_factors[key] = factor
        for pod in self._pods.values():
            if pod.worker is not None and (pod.namespace, pod.worker.spec.pipeline, pod.worker.spec.stage) == key:
                pod.worker.slowness.factor = factor
        return web.Response(status=204)

    async def _put_quota(self, request: web.Request) -> web.Response:
        key = _stage_key(request)
        (self._quotas.add if await request.json() else self._quotas.discard)(key)
        for pod in self._pods.values():
            if pod.running is not None and pod.stage_key == key:
                pod.running.limit_by_quota(on=key in self._quotas)
        return web.Response(status=204)

    async def _put_stuck(self, request: web.Request) -> web.Response:
        factor = await _factor(request)
        own = [pod for pod in self._pods.values() if pod.worker is not None and pod.stage_key == _stage_key(request)]
        for pod in own[:1]:
            assert pod.worker is not None
            pod.worker.slowness.factor = factor
        return web.Response(status=204)

    async def _put_start_factor(self, request: web.Request) -> web.Response:
        self._start_factors[request.match_info["pool"]] = await _factor(request)
        return web.Response(status=204)

    async def _put_interference(self, request: web.Request) -> web.Response:
        self._interference = await request.json()
        return web.Response(status=204)

    def _crowding(self, pod: "_Pod") -> float:
        """Return the factor by which the busy workers on the node of `pod` slow its worker now."""
        if not self._interference:
            return 1.0
        return 1.0 + sum(
            beside(self._interference, pod.stage, other.stage) - 1.0
            for other in self._pods.values()
            if other is not pod and other.node == pod.node and other.worker is not None and other.worker.busy
        )


class _Pod:
    """One pod: the fields of its manifest that the agent needs, its worker and its task."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"]
        self.uid: str = metadata["uid"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.node: str = manifest["spec"]["nodeName"]
        self._labels: dict[str, str] = metadata.get("labels", {})
        self.leaving = asyncio.Event()
        self.grace_s: float = _DEFAULT_GRACE_S
        self.vanished = False
        self.worker: StageWorker | None = None
        self.running: ProcessPod | None = None
        self.task: asyncio.Task[None] | None = None
        self._annotations: dict[str, str] = metadata.get("annotations", {})
        self._containers: list[dict[str, Any]] = manifest["spec"]["containers"]
        self._began = _now()
        self._ends: list[dict[str, Any]] = []
        if "deletionTimestamp" in metadata:
            self.leave(metadata)

    @property
    def path(self) -> str:
        """The path of the pod at the API server."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def pool(self) -> str:
        """The pool that its label names."""
        return self._labels.get(POOL_LABEL, "")

    @property
    def stage_label(self) -> str:
        """The stage that its label names."""
        return self._labels.get(STAGE_LABEL, "")

    @property
    def stage_key(self) -> StageKey:
        """The namespace, and the pipeline and stage that its labels name."""
        return self.namespace, self._labels.get(PIPELINE_LABEL, ""), self.stage_label

    @property
    def stage(self) -> NamedStage:
        """The stage of its worker, which it has."""
        assert self.worker is not None
        return f"{self.namespace}/{self.worker.spec.pipeline}", self.worker.spec.stage

    @property
    def batching(self) -> tuple[str, str] | None:
        """The ConfigMap and the key with its batch settings, None without the annotation `BATCHING_ANNOTATION`."""
        name, _, key = self._annotations.get(BATCHING_ANNOTATION, "").partition("/")
        return (name, key) if key else None

    @property
    def gives_back(self) -> bool:
        """Whether its worker gives its items back at the end."""
        return GIVES_BACK_ANNOTATION in self._annotations

    def worker_spec(self) -> WorkerSpec | None:
        """Return the worker's specification from the annotation `WORKER_ANNOTATION`; None without the annotation.

        Raises:
            ValueError: the annotation is invalid.
        """
        text = self._annotations.get(WORKER_ANNOTATION)
        return None if text is None else WorkerSpec.from_json(text)

    def process(self, addresses: Iterator[str]) -> ProcessPod | None:
        """Return the process of the pod at the next address; None for a pod without the image of one.

        Raises:
            ValueError: the container cannot be run as a process.
        """
        (container, *_) = self._containers
        return ProcessPod(container, next(addresses)) if container["image"] == IMAGE else None

    def leave(self, metadata: dict[str, Any]) -> None:
        """Begin the termination of the pod, with the grace period in `metadata`."""
        self.grace_s = metadata.get("deletionGracePeriodSeconds", _DEFAULT_GRACE_S)
        self.leaving.set()

    def ended(self, reason: str) -> None:
        """Note that the process has ended, for a `reason` in the kubelet's words: it is the last state from now on."""
        code = 137 if reason == "OOMKilled" else 1
        times = {"startedAt": self._began, "finishedAt": _now()}
        self._ends.append({"terminated": {"reason": reason, "exitCode": code, **times}})

    def vanish(self) -> None:
        """End the pod immediately, without a grace period."""
        if self.task is not None and not self.vanished:
            self.vanished = True
            self.task.cancel()

    def running_status(self, address: str, *, ready: bool) -> dict[str, Any]:
        """Return the status of a pod with running containers, as a patch."""
        state = {"running": {"startedAt": self._began}}
        # Without the directive, an address of a previous agent would stay in the list.
        addresses = [{"$patch": "replace"}, {"ip": address}]
        return self._status("Running", state, ready=ready) | {"podIP": address, "podIPs": addresses}

    def waiting_status(self, reason: str, message: str) -> dict[str, Any]:
        """Return the status of a pod whose containers wait for `reason`, one of the kubelet's words."""
        phase = "Running" if reason == "CrashLoopBackOff" else "Pending"
        return self._status(phase, {"waiting": {"reason": reason, "message": message}}, ready=False)

    def _status(self, phase: str, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
        flag, now = str(ready), _now()
        reason = None if ready else "ContainersNotReady"
        return {
            "phase": phase,
            "startTime": self._began,
            "hostIP": "127.0.0.1",
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "ContainersReady", "status": flag, "reason": reason, "lastTransitionTime": now},
                {"type": "Ready", "status": flag, "reason": reason, "lastTransitionTime": now},
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": ready,
                    "started": ready,
                    "restartCount": len(self._ends),
                    "state": state,
                    "lastState": self._ends[-1] if self._ends else {},
                }
                for container in self._containers
            ],
        }


def _is_reported(node: dict[str, Any]) -> bool:
    """Whether the node was reported as ready or not ready."""
    return any(condition["type"] == "Ready" for condition in node["status"].get("conditions", ()))


def _addresses() -> Iterator[str]:
    """Yield loopback addresses, each once. The first is random, so that labs on one machine are unlikely to collide."""
    first, last = 127 << 24 | 1 << 16, 127 << 24 | 255 << 16
    start = random.randrange(first, last)
    for number in itertools.chain(range(start, last), range(first, start)):
        if 0 < number & 0xFF < 255:
            yield ".".join(str(number >> shift & 0xFF) for shift in (24, 16, 8, 0))


def _stage_key(request: web.Request) -> StageKey:
    parts = request.match_info
    return parts["namespace"], parts["pipeline"], parts["stage"]


async def _factor(request: web.Request) -> float:
    text = await request.text()
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise web.HTTPBadRequest(text=f"factor: {text!r}, must be a number above 0\n")
    return factor


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


async def _main(kubeconfig: Path, control_port: int, other_nodes: Sequence[str]) -> None:
    timers = Timers()
    async with KubeApi(kubeconfig) as api:
        await Agent(api, timers, other_nodes=other_nodes).run(control_port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m simulations.lab.pods.agent", description="Run the pods of the lab, as a kubelet does."
    )
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--control-port", type=int, default=0, help="port of the control endpoint; 0: any free port")
    parser.add_argument("--except-node", action="append", default=[], help="a node whose pods another agent runs")
    arguments = parser.parse_args()
    asyncio.run(_main(arguments.kubeconfig, arguments.control_port, arguments.except_node))
