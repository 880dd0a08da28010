"""Runs of a scenario on the lab with Karpenter, which makes the nodes of the pool `gpu`."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from karpenter_lab import KarpenterOnLab
from kubernetes import client
from lab_runs import Seen, look
from urllib3.exceptions import HTTPError

from controller.core.record import recorded_inputs
from controller.core.state.snapshot import Snapshot
from simulations.lab.host.binaries import Binaries, Karpenter
from simulations.lab.session.report import lab_result
from simulations.lab.session.run import Options, run
from simulations.lab.session.view import Moment
from simulations.scenario.scenario import load_scenario

POOL, RESERVE = "gpu", "reserve"
"""The elastic pool, whose name its NodePool has too, and a pool with fixed nodes."""
REGISTRATION_DELAY_S = 8

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The pipeline, its pools and pods, and Karpenter's nodes, at one time of a run."""

    seen: Seen
    nodes: frozenset[str]

    def pods(self, pool: str = POOL) -> list[dict[str, Any]]:
        """Return the pods on a pool that are not terminating."""
        return [
            pod
            for pod in self.seen.pods
            if pod["metadata"].get("labels", {}).get("app") == f"encoder-{pool}"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def serving(self, pool: str = POOL) -> list[str]:
        """Return the node of each ready pod on a pool."""
        return [pod["spec"]["nodeName"] for pod in self.pods(pool) if _is_ready(pod)]

    def pending(self) -> list[str]:
        """Return the names of the pods on the elastic pool that have no node."""
        return [pod["metadata"]["name"] for pod in self.pods() if "nodeName" not in pod["spec"]]

    @property
    def failed(self) -> bool:
        """Whether the elastic pool is reported as one that cannot deliver."""
        return bool(self.seen.available(POOL).get("status") == "False")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRun:
    """A finished run: its report, what was seen in order, and the snapshots of its recorded decisions."""

    report: Mapping[str, Any]
    sights: list[Sight]
    snapshots: list[Snapshot]

    def last(self, pool: str) -> Mapping[str, int]:
        """Return the desired and the ready replicas on a pool at the end."""
        found: Mapping[str, int] = self.report["windows"][-1]["replicas"]["encoder"][pool]
        return found


def elastic_run(
    scenario: Path,
    node_pool: Mapping[str, Any],
    programs: tuple[Binaries, Karpenter],
    folder: Path,
    *,
    also: Callable[[Sight, KarpenterOnLab], None],
) -> ElasticRun:
    """Run a scenario with Karpenter and the NodePool `gpu`; call `also` with all that is seen."""
    binaries, karpenter = programs
    with contextlib.ExitStack() as stack:

        def start(kubeconfig: Path) -> KarpenterOnLab:
            started = stack.enter_context(KarpenterOnLab(folder / "karpenter", karpenter, kubeconfig))
            started.add_node_class("kwok", registration_delay_s=REGISTRATION_DELAY_S)
            started.add_node_pool(node_pool, node_class="kwok")
            return started

        view = _View(start, also)
        options = Options(seed=1, interval_s=1.0)
        live, cluster = stack.enter_context(run(load_scenario(scenario), options, folder / "lab", binaries, view))
        return ElasticRun(
            report=lab_result(live).to_json(),
            sights=view.sights,
            snapshots=list(_snapshots(cluster.operator_log)),
        )


class _View:
    """Starts Karpenter as soon as the cluster is up, before the operator, and looks at the cluster during the run."""

    def __init__(self, start: Callable[[Path], KarpenterOnLab], also: Callable[[Sight, KarpenterOnLab], None]) -> None:
        self.sights: list[Sight] = []
        self._start = start
        self._also = also
        self._karpenter: KarpenterOnLab
        self._looked_s = 0.0

    def say(self, text: str) -> None:
        print(text)
        if found := re.search(r"is up: kubectl --kubeconfig (\S+)", text):
            self._karpenter = self._start(Path(found[1]))

    def show(self, moment: Moment) -> None:
        print(*moment.decisions.values(), *moment.windows, sep="\n")
        if time.monotonic() < self._looked_s + _LOOK_S:
            return
        self._looked_s = time.monotonic()
        with contextlib.suppress(HTTPError, client.ApiException):  # the cluster is busy: look again
            nodes = frozenset(node.metadata.name for node in self._karpenter.nodes())
            self.sights.append(Sight(seen=look(self._karpenter.api), nodes=nodes))
            self._also(self.sights[-1], self._karpenter)


def _snapshots(operator_log: Path) -> Iterator[Snapshot]:
    for line in operator_log.read_text().splitlines():
        record = json.loads(line).get("record")
        if record is not None:
            yield recorded_inputs(record)[0]


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
