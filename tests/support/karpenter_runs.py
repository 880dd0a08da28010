"""Runs of a scenario on the lab with Karpenter, which makes the nodes of the pool `gpu`."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from karpenter_lab import KarpenterOnLab
from lab_runs import LabRun, Seen, lab_run

from controller.core.record import recorded_inputs
from controller.core.state.snapshot import Snapshot
from simulations.lab.host.binaries import Karpenter

POOL = "gpu"
"""The name of the elastic pool and of its NodePool."""
WORKLOAD, RESERVE = "encoder-gpu", "encoder-reserve"
"""The Deployments on the elastic pool and on the pool with fixed nodes."""
REGISTRATION_DELAY_S = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What an observation of the run has seen, and Karpenter's nodes and NodeClaims at that time."""

    seen: Seen
    nodes: frozenset[str]
    claims: Mapping[str, Mapping[str, Any]]

    def ready_nodes(self) -> set[str]:
        """Return the nodes with a ready pod of the elastic pool."""
        return {pod["spec"]["nodeName"] for pod in self.pods() if _is_ready(pod)}

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the elastic pool that are not terminating."""
        return [
            pod
            for pod in self.seen.pods
            if pod["metadata"].get("labels", {}).get("app") == WORKLOAD and "deletionTimestamp" not in pod["metadata"]
        ]

    def pending(self) -> list[dict[str, Any]]:
        """Return those of `pods` that have no node."""
        return [pod for pod in self.pods() if "nodeName" not in pod["spec"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRun:
    """A finished run and its moments in order."""

    run: LabRun
    moments: list[Moment]

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield the snapshots of all recorded decisions, in order."""
        for line in self.run.operator_log.read_text().splitlines():
            record = json.loads(line).get("record")
            if record is not None:
                yield recorded_inputs(record)[0]


def elastic_run(
    scenario: Path,
    node_pool: Mapping[str, Any],
    karpenter: Karpenter,
    folder: Path,
    *,
    also: Callable[[Moment, KarpenterOnLab], None],
) -> ElasticRun:
    """Run a scenario with Karpenter and the NodePool `gpu`; call `also` with every moment."""
    moments: list[Moment] = []
    running: list[KarpenterOnLab] = []
    with contextlib.ExitStack() as stack:

        def start(kubeconfig: Path) -> None:
            started = stack.enter_context(KarpenterOnLab(folder / "karpenter", karpenter, kubeconfig))
            started.add_node_class("kwok", registration_delay_s=REGISTRATION_DELAY_S)
            started.add_node_pool(node_pool, node_class="kwok")
            running.append(started)

        def look(seen: Seen, _: Path) -> None:
            (started,) = running
            moment = Moment(
                seen=seen,
                nodes=frozenset(node.metadata.name for node in started.nodes()),
                claims={claim["metadata"]["name"]: claim for claim in started.node_claims()},
            )
            moments.append(moment)
            also(moment, started)

        run = lab_run(scenario, "--interval", "1", folder=folder, must_be_punctual=False, also=look, once_up=start)
    return ElasticRun(run=run, moments=moments)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
