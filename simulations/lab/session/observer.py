"""Observes the lab's cluster twice a second on the API server: replicas, spend, prices and budgets.

Reports rest on these counts of pods and on `spec.replicas`, never on the operator's own metrics or status.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from kubernetes import client, config

from controller.core.state.spec import PipelineSpec
from optimizer.model import Basis, PipelineKey, PlacementId, PoolName
from simulations.results.spending import NodePrices, Observation, Replicas, observation

_PERIOD_S = 0.5
_TIMEOUT_S = (3, 10)


class Observer:
    """Observes the cluster in a thread, from `begin` to the end of the `with` block.

    `observations` has all observations so far, in order of time.
    """

    def __init__(self, kubeconfig: Path, pipelines: tuple[PipelineSpec, ...]) -> None:
        self.observations: list[Observation] = []
        self._api = config.new_client_from_config(str(kubeconfig))
        self._core, self._apps, self._custom = (
            client.CoreV1Api(self._api),
            client.AppsV1Api(self._api),
            client.CustomObjectsApi(self._api),
        )
        self._pipelines = pipelines
        self._start_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._failure: Exception | None = None

    def begin(self, start_s: float) -> None:
        """Make the first observation and start the thread; times count from `start_s` (seconds, monotonic clock)."""
        self._start_s = start_s
        self.observations.append(self.observe())
        self._thread.start()

    @property
    def latest(self) -> Observation:
        """Return the last observation; there is none before `begin`."""
        return self.observations[-1]

    def check(self) -> None:
        """Raise the error that has ended the thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2 * _TIMEOUT_S[1])
        self._api.close()

    def _watch(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            try:
                seen = self.observe()
            except Exception as error:  # noqa: BLE001 - `check` raises it in the thread of the run
                self._failure = error
                return
            self.observations.append(seen)

    def observe(self) -> Observation:
        """Return the present state of the cluster, read from the API server."""
        t_s = time.monotonic() - self._start_s
        pools = {PoolName(item["metadata"]["name"]): item["spec"]["price"] for item in self._resources("computepools")}
        prices = {name: float(price["perHour"]) for name, price in pools.items()}
        budgets = {
            PipelineKey(f"{item['metadata']['namespace']}/{item['metadata']['name']}"): float(
                item["spec"]["budget"]["perHour"]
            )
            for item in self._resources("speechpipelines")
        }
        billed = any(pipeline.basis is Basis.INSTANCES for pipeline in self._pipelines)
        placements: dict[PlacementId, Replicas] = {}
        for namespace in sorted({pipeline.namespace for pipeline in self._pipelines}):
            desired = {
                item["metadata"]["name"]: int(item["spec"]["replicas"])
                for item in self._list(self._apps.list_namespaced_deployment, namespace)
            }
            pods: dict[str, list[dict[str, Any]]] = {}
            for pod in self._list(self._core.list_namespaced_pod, namespace):
                pods.setdefault(pod["metadata"].get("labels", {}).get("app", ""), []).append(pod)
            placements |= {
                (pipeline.key, stage.name, placement.name): _count(
                    desired.get(placement.target.name, 0), pods.get(placement.target.name, []), billed=billed
                )
                for pipeline in self._pipelines
                if pipeline.namespace == namespace
                for stage in pipeline.stages
                for placement in stage.placements
            }
        return observation(
            t_s,
            self._pipelines,
            placements,
            budget_per_hour=budgets,
            price_per_hour=prices,
            node_prices=self._node_prices(pools),
        )

    def backlogs(self) -> frozenset[PipelineKey]:
        """Return the pipelines whose status has a backlog: the operator has seen how many items are left."""
        return frozenset(
            PipelineKey(f"{item['metadata']['namespace']}/{item['metadata']['name']}")
            for item in self._resources("speechpipelines")
            if "left" in item.get("status", {}).get("backlog", {})
        )

    def _node_prices(self, pools: Mapping[PoolName, dict[str, Any]]) -> Mapping[PoolName, NodePrices]:
        """Return the prices of nodes for the pools that have one by instance type; `pools` are the prices declared."""
        if not any("byInstanceType" in price for price in pools.values()):
            return {}
        types = {
            node["metadata"]["name"]: node["metadata"].get("labels", {}).get("node.kubernetes.io/instance-type", "")
            for node in self._list(lambda _, **options: self._core.list_node(**options), "")
        }
        return {
            name: NodePrices(
                price_per_hour=float(price["perHour"]),
                by_type={kind: float(own) for kind, own in price.get("byInstanceType", {}).items()},
                types=types,
            )
            for name, price in pools.items()
        }

    def _resources(self, plural: str) -> list[dict[str, Any]]:
        answer = self._custom.list_cluster_custom_object("sluice.dev", "v1alpha1", plural, _request_timeout=_TIMEOUT_S)
        items: list[dict[str, Any]] = answer["items"]
        return items

    @staticmethod
    def _list(call: Callable[..., Any], namespace: str) -> list[dict[str, Any]]:
        # Plain JSON: building the client's models costs an order of magnitude more than parsing.
        answer = call(namespace, _preload_content=False, _request_timeout=_TIMEOUT_S)
        items: list[dict[str, Any]] = json.loads(answer.data)["items"]
        return items


def _count(desired: int, pods: list[dict[str, Any]], *, billed: bool) -> Replicas:
    terminating = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
    ready = [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))
    ]
    return Replicas(
        desired=desired,
        existing=len(pods),
        terminating=len(terminating),
        ready=len(ready),
        scheduled=sum(1 for pod in pods if pod["spec"].get("nodeName")),
        nodes=Counter(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")) if billed else {},
    )
