"""The ingress: receives the load, sends it through the stages' pods, and exports measurements.

`python -m simulations.lab.traffic.ingress --config FILE --kubeconfig FILE`; the configuration is
`topology.IngressConfig`. Each pipeline's load comes in on a port of its own, as frames of `simulations.lab.net.wire`:
OPEN_SESSION before a stream's first chunk, ITEM for a chunk or a request with `arrival_payload`, END_SESSION.

The answer to OPEN_SESSION is REFUSED_SLOT if the stream is shed or refused; the client may send OPEN_SESSION again. It
sends the stream's chunks all the same: the ingress counts them as shed or refused, and passes none on. The answer to an
item is OK if served or filtered, else REFUSED_QUEUE.
"""

import argparse
import asyncio
import gc
import json
import math
import signal
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from controller.core.state.spec import DemandUnit
from simulations.lab.host.processes import LOOPBACK
from simulations.lab.net.kube_api import KubeApi, KubeApiError
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import NO_SESSION, RequestKind, Respondent, ServerConnection, Status
from simulations.lab.traffic.backend import PodState
from simulations.lab.traffic.backlog import Additions, BacklogTraffic
from simulations.lab.traffic.dataplane import PipelineTraffic, Record, Stream
from simulations.lab.traffic.records import RecordWriter
from simulations.lab.traffic.topology import IngressConfig, PipelineTopology
from simulations.results.scoring import Outcome

_PAYLOAD = struct.Struct("!dd")
_FLUSH_S = 1.0
_STATUS_S = 1.0
_RECONNECT_S = 1.0
_LABELS = ("namespace", "pipeline")


def arrival_payload(arrival_s: float, arrived_s: float) -> bytes:
    """Return the payload of an item: its arrival in seconds since the run began, and on the monotonic clock."""
    return _PAYLOAD.pack(arrival_s, arrived_s)


class PipelineEntry:
    """Handles the connections that bring the load of one pipeline; session ids are unique among its clients."""

    def __init__(self, pipeline: PipelineTraffic) -> None:
        self._pipeline = pipeline
        self._streams: dict[int, tuple[ServerConnection, Stream]] = {}

    def on_connected(self, connection: ServerConnection) -> None:
        """Do nothing: a client needs no preparation."""

    def on_disconnected(self, connection: ServerConnection) -> None:
        """End the streams of the disconnected client."""
        for session_id in [key for key, (owner, _) in self._streams.items() if owner is connection]:
            self.on_end_session(session_id)

    def on_open_session(self, connection: ServerConnection, session_id: int, _: bytes) -> None:
        """Begin a stream, or try again to admit one that is not; abort the connection if the stream is admitted."""
        owner, stream = self._streams.get(session_id, (connection, None))

        def decided(found: bool) -> None:
            connection.respond(RequestKind.OPEN_SESSION, session_id, Status.OK if found else Status.REFUSED_SLOT)

        if stream is None:
            self._streams[session_id] = connection, self._pipeline.open_stream(decided)
        elif owner is connection and stream.refused_as is not None:
            self._pipeline.try_again(stream, decided)
        else:
            connection.abort()

    def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:
        """Offer a chunk or a request to the pipeline; abort the connection if stream or payload are not valid."""
        _, stream = self._streams.get(session_id, (None, None))
        if len(payload) != _PAYLOAD.size or (stream is None) != (session_id == NO_SESSION):
            connection.abort()
            return
        arrival_s, arrived_s = _PAYLOAD.unpack(payload)

        def answer(outcome: Outcome, _: bytes) -> None:
            done = outcome in {Outcome.SERVED, Outcome.FILTERED}
            connection.respond(RequestKind.ITEM, item_id, Status.OK if done else Status.REFUSED_QUEUE)

        self._pipeline.offer(stream, number=item_id, arrival_s=arrival_s, arrived_s=arrived_s, answer=answer)

    def on_take_session(self, connection: ServerConnection, _: int) -> None:
        """Close the connection: the ingress has no state of streams to give."""
        connection.abort()

    def on_end_session(self, session_id: int) -> None:
        """End the stream with this id, if there is one."""
        _, stream = self._streams.pop(session_id, (None, None))
        if stream is not None:
            self._pipeline.end_stream(stream)


class Measurements(Collector):
    """Collects the metrics of the ingress for Prometheus."""

    def __init__(self, pipelines: list[PipelineTraffic]) -> None:
        self._pipelines = pipelines

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all pipelines, with the labels `namespace` and `pipeline`."""
        streams = GaugeMetricFamily(
            "sluice_ingress_active_streams",
            "Streams offered; one not admitted, until 30 s after its last attempt",
            labels=_LABELS,
        )
        requests = CounterMetricFamily("sluice_ingress_requests", "Requests offered", labels=_LABELS)
        items = CounterMetricFamily("sluice_ingress_items", "Items by outcome", labels=(*_LABELS, "outcome"))
        latency = HistogramMetricFamily(
            "sluice_ingress_latency_seconds",
            "Arrival to last answer; lost items are in the +Inf bucket",
            labels=_LABELS,
        )
        retries = CounterMetricFamily("sluice_ingress_retries", "Items sent again to another pod", labels=_LABELS)
        cut = CounterMetricFamily("sluice_ingress_sessions_cut", "Sessions that lost their pod", labels=_LABELS)
        moved = CounterMetricFamily(
            "sluice_ingress_sessions_moved",
            "Sessions moved to another pod without a cut: with their state (carried), or without any (empty)",
            labels=(*_LABELS, "state"),
        )
        backlog = GaugeMetricFamily(
            "sluice_ingress_backlog_items", "Items of a backlog that are not done: waiting and in work", labels=_LABELS
        )
        for pipeline in self._pipelines:
            tally = pipeline.tally
            labels = (pipeline.topology.namespace, pipeline.topology.name)
            if isinstance(pipeline, BacklogTraffic):
                backlog.add_metric(labels, pipeline.left)
            elif pipeline.topology.unit is DemandUnit.STREAMS:
                streams.add_metric(labels, tally.active_streams)
            else:
                requests.add_metric(labels, tally.offered)
            items.add_metric((*labels, "offered"), tally.offered)
            for outcome in (Outcome.SERVED, Outcome.FILTERED, Outcome.SHED, Outcome.REFUSED, Outcome.LOST):
                items.add_metric((*labels, outcome.name.lower()), tally.outcomes[outcome])
            histogram, total = tally.latency, 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*histogram.bounds_s, "+Inf"), histogram.counts, strict=True):
                total += count
                buckets.append((bound if isinstance(bound, str) else f"{bound:.6g}", total))
            latency.add_metric(labels, buckets, histogram.sum_s)
            retries.add_metric(labels, tally.recoveries.retries)
            cut.add_metric(labels, tally.recoveries.sessions_cut)
            moved.add_metric((*labels, "carried"), tally.recoveries.moved_carried)
            moved.add_metric((*labels, "empty"), tally.recoveries.moved_empty)
        yield from (streams, requests, backlog, items, latency, retries, cut, moved)


def totals(pipeline: PipelineTraffic) -> dict[str, Any]:
    """Return the totals of a pipeline as JSON: items by outcome, retries, and sessions cut and moved.

    offered = served + filtered + shed + refused + lost + in_flight.
    """
    tally = pipeline.tally
    counts = {outcome.name.lower(): tally.outcomes[outcome] for outcome in Outcome}
    counts["in_flight"] = tally.offered - sum(tally.outcomes.values()) + tally.outcomes[Outcome.IN_FLIGHT]
    return {
        "namespace": pipeline.topology.namespace,
        "name": pipeline.topology.name,
        "offered": tally.offered,
        **counts,
        "retries": tally.recoveries.retries,
        "sessions_cut": tally.recoveries.sessions_cut,
        "moved_carried": tally.recoveries.moved_carried,
        "moved_empty": tally.recoveries.moved_empty,
    }


class Listener(Protocol):
    """What accepts the load of a pipeline."""

    def close(self) -> None:
        """Accept nothing more."""


def traffic_of(topology: PipelineTopology) -> type[PipelineTraffic]:
    """Return the kind of traffic of a pipeline."""
    return BacklogTraffic if topology.unit is DemandUnit.ITEMS else PipelineTraffic


Listen = Callable[[PipelineTraffic], Awaitable[Listener]]
"""Begins to accept the load of a pipeline on its port; OSError: the port is in use."""


async def listen(pipeline: PipelineTraffic) -> Listener:
    """Accept the load of a pipeline as frames of `simulations.lab.net.wire`.

    Raises:
        OSError: the port is in use.
    """
    entry = PipelineEntry(pipeline)
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: ServerConnection(entry), LOOPBACK, pipeline.topology.port)


class Ingress:
    """The ingress with all pipelines of one configuration, from `start` to `stop`."""

    def __init__(self, config: IngressConfig, listen: Listen = listen) -> None:
        """Open the file of records; needs a running event loop. `listen` is how the load comes in."""
        self._config = config
        self._listen = listen
        self._records = RecordWriter(config.records)
        self._timers = Timers()
        self.pipelines = [
            traffic_of(topology)(topology, self._recorder(index), self._timers)
            for index, topology in enumerate(config.pipelines)
        ]
        self._listeners: list[Listener] = []
        registry = CollectorRegistry()
        registry.register(Measurements(self.pipelines))
        self._registry = registry
        application = web.Application()
        application.router.add_get("/metrics", self._scrape)
        application.router.add_put("/pass-ratios/{namespace}/{pipeline}/{stage}", self._put_pass_ratio)
        application.router.add_put("/overheads/{namespace}/{pipeline}", self._put_overhead)
        application.router.add_put("/sends/{namespace}/{pipeline}", self._put_sends)
        application.router.add_put("/backlogs/{namespace}/{pipeline}", self._put_backlog)
        self._metrics = web.AppRunner(application, access_log=None)
        self._flusher = asyncio.get_running_loop().create_task(self._flush())

    async def start(self) -> None:
        """Listen on the port of each pipeline, and on the port for metrics.

        Raises:
            OSError: a port is in use.
        """
        for pipeline in self.pipelines:
            self._listeners.append(await self._listen(pipeline))
        await self._metrics.setup()
        await web.TCPSite(self._metrics, LOOPBACK, self._config.metrics_port).start()

    async def stop(self) -> None:
        """Record the items in flight, write the totals to the file `summary`, and close everything."""
        self._flusher.cancel()
        for listener in self._listeners:
            listener.close()
        for pipeline in self.pipelines:
            pipeline.finish()
        self._timers.close()
        self._records.close()
        self._config.summary.write_text(json.dumps([totals(pipeline) for pipeline in self.pipelines], indent=1))
        await self._metrics.cleanup()

    def pod_changed(self, pod: PodState) -> None:
        """Add a new pod to the routing, or update a changed one."""
        for pipeline in self.pipelines:
            pipeline.pod_changed(pod)

    def pod_gone(self, uid: str) -> None:
        """Remove a deleted pod from the routing."""
        for pipeline in self.pipelines:
            pipeline.pod_gone(uid)

    def _recorder(self, index: int) -> Record:
        def record(outcome: Outcome, arrival_s: float, latency_s: float) -> None:
            self._records.add(index, outcome, arrival_s, latency_s)

        return record

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            self._records.flush()

    async def _put_pass_ratio(self, request: web.Request) -> web.Response:
        """Let another share (0–1) of the items of a stage go on from now on."""
        parts, ratio = request.match_info, float(await request.text())
        for traffic in self._named(request):
            stages = tuple(
                replace(stage, pass_ratio=ratio) if stage.name == parts["stage"] else stage
                for stage in traffic.topology.stages
            )
            traffic.topology = replace(traffic.topology, stages=stages)
        return web.Response(status=204)

    async def _put_overhead(self, request: web.Request) -> web.Response:
        """Let every answer of a pipeline be so many seconds later from now on."""
        overhead_s = float(await request.text())
        for traffic in self._named(request):
            traffic.topology = replace(traffic.topology, overhead_s=overhead_s)
        return web.Response(status=204)

    async def _put_sends(self, request: web.Request) -> web.Response:
        """Send every item of a pipeline so many times on average from now on."""
        sends = float(await request.text())
        for traffic in self._named(request):
            traffic.topology = replace(traffic.topology, sends=sends)
        return web.Response(status=204)

    async def _put_backlog(self, request: web.Request) -> web.Response:
        """Add items to a backlog, as the `Additions` in the request say."""
        additions = Additions.from_json(await request.text())
        for traffic in self._named(request):
            if isinstance(traffic, BacklogTraffic):
                traffic.expect(additions)
        return web.Response(status=204)

    def _named(self, request: web.Request) -> list[PipelineTraffic]:
        parts = request.match_info
        name = parts["namespace"], parts["pipeline"]
        return [own for own in self.pipelines if (own.topology.namespace, own.topology.name) == name]

    async def _scrape(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def read_pod(manifest: dict[str, Any]) -> PodState:
    """Return the fields of the pod `manifest` that routing needs."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions", ())}
    return PodState(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        labels=metadata.get("labels", {}),
        ip=status.get("podIP"),
        ready=conditions.get("Ready") == "True" and "deletionTimestamp" not in metadata,
        name=metadata["name"],
    )


async def follow_pods(api: KubeApi, ingress: Ingress) -> None:
    """Pass all changes of pods to the ingress, without end.

    During an outage of the API server the ingress keeps the pods that it knows.
    """
    while True:
        try:
            async for event in api.watch("/api/v1/pods"):
                if event.type == "DELETED":
                    ingress.pod_gone(event.object["metadata"]["uid"])
                else:
                    ingress.pod_changed(read_pod(event.object))
        except KubeApiError as error:
            say("watch", error=str(error))
            await asyncio.sleep(_RECONNECT_S)


async def follow_status(api: KubeApi, pipeline: PipelineTraffic, *, sheds: bool) -> None:
    """Obey `admissible` (if it `sheds`) and `rebalance` in the pipeline's status, read every second, without end.

    During an outage of the API server the last limit stays until it lapses, and nothing is moved.
    """
    topology = pipeline.topology
    path = f"/apis/sluice.dev/v1alpha1/namespaces/{topology.namespace}/speechpipelines/{topology.name}"
    limit = Limit()
    while True:
        try:
            status = (await api.get(path)).get("status", {})
            limit = Limit.of(status)
            pipeline.rebalance(kept_sessions(status))
        except KubeApiError as error:
            say("status", pipeline=topology.name, error=str(error))
        if sheds:
            pipeline.admissible = limit.at(time.time())
        await asyncio.sleep(_STATUS_S)


def kept_sessions(status: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return how many sessions pods should keep at most, by stage and pod, as a pipeline's status says."""
    return {
        stage["name"]: {entry["pod"]: int(entry["keep"]) for entry in stage.get("rebalance", ())}
        for stage in status.get("stages", ())
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limit on the load in the status of a pipeline: `admissible` (None: no limit), valid until `until_s`."""

    admissible: float | None = None
    until_s: float = math.inf

    @staticmethod
    def of(status: dict[str, Any]) -> "Limit":
        """Return the limit in `status`; operators of earlier versions state no end of it."""
        admissible, until = status.get("admissible"), status.get("admissibleUntil")
        return Limit(
            admissible=None if admissible is None else float(admissible),
            until_s=math.inf if until is None else datetime.fromisoformat(until).timestamp(),
        )

    def at(self, now_s: float) -> float | None:
        """Return the load to admit at `now_s`, None for no limit: a limit that no operator has renewed is none."""
        return self.admissible if now_s < self.until_s else None


def say(event: str, **fields: object) -> None:
    """Print an event with its fields as one JSON object on a line."""
    print(json.dumps({"event": event, **fields}), flush=True)


async def run(config: IngressConfig, kubeconfig: Path, listen: Listen = listen) -> None:
    """Serve until SIGTERM or SIGINT; an error in following pods or status ends the ingress too, and is raised."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with KubeApi(kubeconfig) as api:
        ingress = Ingress(config, listen)
        await ingress.start()
        followers = [
            loop.create_task(follow_pods(api, ingress)),
            *(
                loop.create_task(follow_status(api, pipeline, sheds=config.sheds))
                for pipeline in ingress.pipelines
                if config.sheds or pipeline.topology.hands_over
            ),
        ]
        # These objects stay until the end; if every garbage collection visited them, items would be delayed.
        gc.collect()
        gc.freeze()
        say("listening", ports=[pipeline.topology.port for pipeline in ingress.pipelines])
        stopping = loop.create_task(stopped.wait())
        await asyncio.wait([stopping, *followers], return_when=asyncio.FIRST_COMPLETED)
        for task in followers:
            task.cancel()
        await ingress.stop()
        say("stopped", totals=[totals(pipeline) for pipeline in ingress.pipelines])
        for task in followers:
            if task.done() and not task.cancelled():
                task.result()


def main(module: str, description: str | None, listen: Listen) -> None:
    """Run an ingress as the program `module`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(run(IngressConfig.from_json(arguments.config.read_text()), arguments.kubeconfig, listen))


if __name__ == "__main__":
    main("simulations.lab.traffic.ingress", __doc__, listen)
