"""Thousands of pipelines on a real API server, and the metrics that their pods would have.

Each pipeline has three stages and four Deployments: `vad` on one of five CPU pools, `asr` on one of three accelerator
pools with a fallback on one of two GPU pools, `text` on a CPU pool; loads, service times and SLAs differ. Deployments
are paused, so that no controller makes pods of them: `play_pods` makes them, ready on nodes, as many as are asked for.
A pipeline's demand is the number that its query consists of, or with `scraped` that of a series that `FleetExporter`
exports, as it does the metrics of all pods.
"""

import json
import math
import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

from http_upstream import serving
from kubernetes import client, config
from synthetic_metrics import SERVICE_S

from controller.kube.gateway import DEPLOYMENTS, NODES, PIPELINES, PODS, POOLS, Gateway, Resource

Json = dict[str, Any]
CPU_POOLS = tuple(f"cpu-{index}" for index in range(5))
ACCELERATORS = tuple(f"inf-{index}" for index in range(3))
GPU_POOLS = tuple(f"gpu-{index}" for index in range(2))
PRICES = {**dict.fromkeys(CPU_POOLS, 0.4), **dict.fromkeys(ACCELERATORS, 0.8), **dict.fromkeys(GPU_POOLS, 1.2)}
PER_INSTANCE = {**dict.fromkeys(CPU_POOLS, 16), **dict.fromkeys(ACCELERATORS, 4), **dict.fromkeys(GPU_POOLS, 4)}
THREADS = 12
_SINCE = "2026-01-01T00:00:00Z"
_OFFERED = "speech_offered_requests"
_BOUNDS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeFleet:
    """The objects of a fleet of `pipelines`, in namespaces of up to `per_namespace` named after `prefix`."""

    pipelines: int
    prefix: str = "fleet"
    seed: int = 0
    scraped: bool = False
    per_namespace: int = 100
    namespaces: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        count = -(-self.pipelines // self.per_namespace)
        object.__setattr__(self, "namespaces", tuple(f"{self.prefix}-{index}" for index in range(count)))

    def nodes_per_pool(self) -> int:
        return max(1, self.pipelines // 20)

    def pool(self, name: str) -> str:
        """Return the name of a pool, which is cluster-scoped, so that fleets do not share it."""
        return f"{self.prefix}-{name}"

    def pools(self) -> Iterator[Json]:
        for name, price in PRICES.items():
            yield {
                "apiVersion": POOLS.api_version,
                "kind": "ComputePool",
                "metadata": {"name": self.pool(name)},
                "spec": {
                    "device": "CPU" if name in CPU_POOLS else "Inferentia" if name in ACCELERATORS else "GPU",
                    "nodeSelector": {"sluice.dev/pool": self.pool(name)},
                    "price": {"perHour": str(price)},
                    "capacity": {"instances": 4 * self.nodes_per_pool()},
                },
            }

    def nodes(self) -> Iterator[Json]:
        for name in PRICES:
            for index in range(self.nodes_per_pool()):
                yield _node(f"{self.pool(name)}-{index}", self.pool(name), f"zone-{index % 3}")

    def resources(self) -> Iterator[tuple[Json, list[Json]]]:
        """Yield each pipeline with its Deployments."""
        for number in range(self.pipelines):
            draw = random.Random(f"{self.seed}/{number}")
            namespace, name = self.namespaces[number // self.per_namespace], f"captions-{number:04}"
            stages: list[tuple[str, list[tuple[str, float, int]]]] = [
                ("vad", [(draw.choice(CPU_POOLS), SERVICE_S["vad"], 1)]),
                ("asr", [(draw.choice(ACCELERATORS), SERVICE_S["asr"], 1), (draw.choice(GPU_POOLS), 0.04, 0)]),
                ("text", [(draw.choice(CPU_POOLS), SERVICE_S["text"], 1)]),
            ]
            demand = f"{draw.uniform(2, 24):.2f}"
            selector = f'{_OFFERED}{{namespace="{namespace}",pipeline="{name}"}}'
            spec: Json = {
                "demand": {"unit": "Requests", "query": f"sum({selector})" if self.scraped else demand},
                "sla": {"latency": f"{draw.randrange(300, 600, 25)}ms"},
                "budget": {"perHour": "10"},
                "stages": [
                    self._stage(name, stage, placements, before, draw)
                    for (stage, placements), before in zip(stages, (None, "vad", "asr"), strict=True)
                ],
            }
            metadata = {"name": name, "namespace": namespace, "labels": {"team": f"team-{number % 40}"}}
            pipeline = {
                "apiVersion": PIPELINES.api_version,
                "kind": "SpeechPipeline",
                "metadata": metadata,
                "spec": spec,
            }
            yield (
                pipeline,
                [
                    _deployment(placement["target"]["name"], namespace, placement["pool"], placement["replicas"]["min"])
                    for stage in spec["stages"]
                    for placement in stage["placements"]
                ],
            )

    def _stage(
        self,
        pipeline: str,
        name: str,
        placements: Sequence[tuple[str, float, int]],
        before: str | None,
        draw: random.Random,
    ) -> Json:
        return {
            "name": name,
            **({} if before is None else {"after": [before]}),
            "placements": [
                {
                    "pool": self.pool(pool),
                    "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{pipeline}-{name}-{pool}"},
                    "replicas": {"min": least, "max": 8},
                    "perInstance": PER_INSTANCE[pool],
                    "serviceTime": {"fixed": f"{1000 * mean_s * draw.uniform(0.8, 1.25):.1f}ms", "cv": "0.4"},
                    "startup": "30s",
                }
                for pool, mean_s, least in placements
            ],
        }


class Maker:
    """Makes and removes objects on an API server, through several threads."""

    def __init__(self, kubeconfig: Path) -> None:
        self.gateway = Gateway(kubeconfig)
        self._client = config.new_client_from_config(str(kubeconfig))
        self._threads = ThreadPoolExecutor(THREADS)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self.gateway.close()
        self._client.close()

    def call(self, method: str, path: str, body: Json | None = None, *, patch: str = "merge-patch") -> None:
        """Make a request; an object that is there already, or gone already, is fine."""
        kind = f"application/{patch}+json" if method == "PATCH" else "application/json"
        try:
            answer = self._client.call_api(
                path,
                method,
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=(5, 60),
            )
            assert answer.data is not None  # read, so that the connection can be used again
        except client.ApiException as error:
            if error.status not in {404, 409}:
                raise

    def each(self, act: Callable[[Any], None], items: Iterable[Any]) -> None:
        for _ in self._threads.map(act, items):
            pass

    def create(self, fleet: LargeFleet) -> None:
        """Create the whole fleet, with the pods of its Deployments."""
        self.each(lambda name: self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}}), fleet.namespaces)
        self.each(lambda pool: self.call("POST", POOLS.path(), pool), fleet.pools())
        self.each(lambda node: self.call("POST", NODES.path(), node), fleet.nodes())
        self.each(self._create_pipeline, fleet.resources())
        self.play_pods(fleet)

    def _create_pipeline(self, made: tuple[Json, list[Json]]) -> None:
        pipeline, deployments = made
        namespace = pipeline["metadata"]["namespace"]
        for deployment in deployments:
            self.call("POST", DEPLOYMENTS.path(namespace), deployment)
        self.call("POST", PIPELINES.path(namespace), pipeline)

    def play_pods(self, fleet: LargeFleet) -> int:
        """Make or remove pods until every Deployment has those that it asks for, ready; return how many it took."""
        there: dict[tuple[str, str], int] = {}
        for pod in self._all(PODS, fleet):
            owner = pod["metadata"]["namespace"], pod["metadata"]["labels"]["app"]
            there[owner] = there.get(owner, 0) + 1
        missing: list[Json] = []
        surplus: list[str] = []
        for deployment in self._all(DEPLOYMENTS, fleet):
            namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
            have, want = there.get((namespace, name), 0), deployment["spec"]["replicas"]
            pool = deployment["spec"]["template"]["spec"]["nodeSelector"]["sluice.dev/pool"]
            missing += [_pod(f"{name}-{index}", namespace, name, pool, fleet) for index in range(have, want)]
            surplus += [PODS.path(namespace, f"{name}-{index}") for index in range(want, have)]
        self.each(self._create_pod, missing)
        self.each(lambda path: self.call("DELETE", path, {"gracePeriodSeconds": 0}), surplus)
        return len(missing) + len(surplus)

    def _create_pod(self, pod: Json) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self.call("POST", PODS.path(namespace), {key: part for key, part in pod.items() if key != "status"})
        self.call("PATCH", PODS.path(namespace, name, "status"), {"status": pod["status"]})

    def remove(self, fleet: LargeFleet) -> None:
        """Remove the fleet, but for what goes with its namespaces."""
        self.each(lambda pool: self.call("DELETE", POOLS.path(None, pool["metadata"]["name"])), fleet.pools())
        self.each(lambda node: self.call("DELETE", NODES.path(None, node["metadata"]["name"])), fleet.nodes())
        self.each(lambda name: self.call("DELETE", f"/api/v1/namespaces/{name}"), fleet.namespaces)

    def versions(self, fleet: LargeFleet) -> dict[str, str]:
        """Return the versions of all that an operator could write to."""
        return {
            f"{kind.plural}/{item['metadata'].get('namespace', '')}/{item['metadata']['name']}": item["metadata"][
                "resourceVersion"
            ]
            for kind in (PIPELINES, POOLS, DEPLOYMENTS, Resource(api_version="v1", plural="events"))
            for item in self._all(kind, fleet)
        }

    def _all(self, kind: Resource, fleet: LargeFleet) -> Iterator[Json]:
        for page in self.gateway.pages(kind):
            for item in page.items:
                if item["metadata"].get("namespace", fleet.namespaces[0]) in fleet.namespaces:
                    yield item


class FleetExporter:
    """Exports at `url` the demands of a fleet, and what preset `generic` reads of each of the pods in `pods`.

    Every stage gets the items of its pipeline's demand, however many replicas it has.
    """

    def __init__(self, fleet: LargeFleet, pods: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """`pods` returns the namespace and the name of every pod; it is called by `refresh`."""
        self._find = pods
        self._began_s = time.monotonic()
        self._pods: dict[str, tuple[float, float]] = {}
        unscraped = replace(fleet, scraped=False)
        made = [made for made, _ in unscraped.resources()]
        self._offered = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): float(each["spec"]["demand"]["query"])
            for each in made
        }
        self._demands = "".join(
            f'{_OFFERED}{{namespace="{namespace}",pipeline="{pipeline}"}} {rate}\n'
            for (namespace, pipeline), rate in self._offered.items()
        )
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._handler = Handler
        self.address = ""
        self.refresh()

    def __enter__(self) -> Self:
        self._serving = serving(self._handler)
        self.address = self._serving.__enter__().removeprefix("http://")
        return self

    def __exit__(self, *error: Any) -> None:
        self._serving.__exit__(*error)

    def refresh(self) -> None:
        """Export the pods that there are now."""
        found = list(self._find())
        stages: dict[tuple[str, str], int] = {}
        for namespace, pod in found:
            stages[_stage_of(namespace, pod)] = stages.get(_stage_of(namespace, pod), 0) + 1
        self._pods = {
            f'{{namespace="{namespace}",pod="{pod}"': (
                self._offered[namespace, _stage_of(namespace, pod)[1].rpartition("-")[0]]
                / stages[_stage_of(namespace, pod)],
                SERVICE_S[_stage_of(namespace, pod)[1].rsplit("-", 1)[1]],
            )
            for namespace, pod in found
        }

    def text(self) -> str:
        """Return the page that Prometheus reads."""
        now_s = time.monotonic() - self._began_s
        lines = [self._demands]
        for labels, (rate, service_s) in self._pods.items():
            items = rate * now_s
            latency_s = 1.2 * service_s
            lines.append(
                f"speech_stage_arrivals_total{labels}}} {items}\n"
                f"speech_stage_items_total{labels}}} {items}\n"
                f"speech_stage_batches_total{labels}}} {items}\n"
                f"speech_stage_busy_seconds_total{labels}}} {items * service_s}\n"
                f"speech_stage_capacity{labels}}} 1\n"
                f"speech_stage_queue_depth{labels}}} 0\n"
                f"speech_stage_latency_seconds_sum{labels}}} {items * latency_s}\n"
                f"speech_stage_latency_seconds_count{labels}}} {items}\n"
                f'speech_stage_latency_seconds_bucket{labels},le="+Inf"}} {items}\n'
            )
            counts = {bound: items * (1 - math.exp(-bound / latency_s)) for bound in _BOUNDS_S}
            lines += [
                f'speech_stage_latency_seconds_bucket{labels},le="{bound}"}} {count}\n'
                for bound, count in counts.items()
            ]
        return "".join(lines)


def _stage_of(namespace: str, pod: str) -> tuple[str, str]:
    """Return the namespace of a pod, and the name of its pipeline and stage."""
    return namespace, "-".join(pod.split("-")[:3])


def _node(name: str, pool: str, zone: str) -> Json:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    resources = {"cpu": "192", "memory": "384Gi", "pods": "250"}
    return {
        "metadata": {
            "name": name,
            "labels": {
                "sluice.dev/pool": pool,
                "topology.kubernetes.io/zone": zone,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m7i.48xlarge",
            },
        },
        "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
    }


def _deployment(name: str, namespace: str, pool: str, replicas: int) -> Json:
    labels = {"app": name, "app.kubernetes.io/part-of": "speech"}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "paused": True,
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"sluice.dev/pool": pool},
                    "containers": [
                        {
                            "name": "server",
                            "image": "registry.example.com/speech/server:2026.11",
                            "args": ["--model", name, "--port", "8000"],
                            "ports": [{"name": "metrics", "containerPort": 8002}],
                            "env": [{"name": f"SETTING_{index}", "value": "on"} for index in range(8)],
                            "resources": {"requests": {"cpu": "4", "memory": "8Gi"}},
                            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8000}},
                        }
                    ],
                },
            },
        },
    }


def _pod(name: str, namespace: str, app: str, pool: str, fleet: LargeFleet) -> Json:
    node = random.Random(f"{namespace}/{name}").randrange(fleet.nodes_per_pool())
    template = json.loads(json.dumps(_deployment(app, namespace, pool, 1)["spec"]["template"]))
    labels = {**template["metadata"]["labels"], "pod-template-hash": f"{zlib.crc32(app.encode()):x}"}
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _SINCE}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    # Of a group that does not exist: the garbage collector would remove pods without their ReplicaSet.
                    "apiVersion": "lab.sluice.dev/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-{labels['pod-template-hash']}",
                    "uid": f"{namespace}-{app}",
                    "controller": True,
                }
            ],
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8002"},
        },
        "spec": {**template["spec"], "nodeName": f"{pool}-{node}", "tolerations": [{"operator": "Exists"}]},
        "status": {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "podIPs": [{"ip": "10.1.2.3"}],
            "hostIP": "10.0.0.1",
            "startTime": _SINCE,
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": "server",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "image": "registry.example.com/speech/server:2026.11",
                    "imageID": f"registry.example.com/speech/server@sha256:{'0' * 64}",
                    "containerID": f"containerd://{'0' * 64}",
                    "state": {"running": {"startedAt": _SINCE}},
                }
            ],
        },
    }
