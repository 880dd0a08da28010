"""Ingress and generator on a real control plane: pods change under load, and admission follows the status."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from kubernetes import client, utils

from controller.core.state.spec import PipelineSpec
from controller.resources.manifests import load_documents
from controller.resources.schema import CRDS
from controller.resources.translate import pipeline_spec, pool_spec
from simulations.lab.cluster import nodes
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.cluster.deployments import deployments, pool_nodes, stage_workers
from simulations.lab.host.processes import Processes, free_ports
from simulations.lab.traffic.generator import GeneratorConfig, PipelineLoad
from simulations.lab.traffic.records import read_records
from simulations.lab.traffic.topology import IngressConfig, pipeline_topology
from simulations.results.scoring import Outcome
from simulations.scenario.scenario import load_scenario
from simulations.scenario.schedule import Schedule

pytestmark = pytest.mark.lab

T = TypeVar("T")
SCENARIO = Path(__file__).parents[5] / "simulations" / "scenarios" / "demo" / "scenario.yaml"
DURATION_S = 8.0
STREAMS = 30


def eventually(look: Callable[[], T], timeout_s: float = 30) -> T:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.05)
    return found


class Lab:
    """The demo's pipeline in a namespace of its own, with an agent, an ingress and a load of equal streams."""

    def __init__(self, control_plane: ControlPlane, api: client.ApiClient, namespace: str, folder: Path) -> None:
        scenario = load_scenario(SCENARIO)
        self.pipeline: PipelineSpec = dataclasses.replace(pipeline_spec(scenario.pipelines[0]), namespace=namespace)
        self.nodes = pool_nodes(map(pool_spec, scenario.pools))
        self.processes = Processes(folder / "processes")
        self.folder = folder
        self._kubeconfig = control_plane.kubeconfig
        self._apps = client.AppsV1Api(api)
        self._namespace = namespace

    def start(self, replicas: dict[str, int], *, sheds: bool = True) -> None:
        """Start agent and ingress; wait until the replicas are ready and the ingress listens."""
        self.run("pods.agent", "--kubeconfig", self._kubeconfig)
        for manifest in deployments([self.pipeline], self.nodes, stage_workers(seed=1)):
            manifest["spec"]["replicas"] = replicas[manifest["metadata"]["name"]]
            self._apps.create_namespaced_deployment(self._namespace, manifest)
        for name, count in replicas.items():
            eventually(
                lambda name=name, count=count: (
                    (  # type: ignore[misc]
                        self._apps.read_namespaced_deployment_status(name, self._namespace).status.ready_replicas or 0
                    )
                    >= count
                )
            )
        port, metrics_port = free_ports(2)
        topology = pipeline_topology(self.pipeline, port=port, seed=1)
        self.config = IngressConfig(
            metrics_port=metrics_port,
            records=self.folder / "items",
            summary=self.folder / "summary",
            pipelines=(topology,),
            sheds=sheds,
        )
        (self.folder / "ingress.json").write_text(self.config.to_json())
        flags = ("--config", self.folder / "ingress.json", "--kubeconfig", self._kubeconfig)
        self.ingress = self.run("traffic.ingress", *flags)
        eventually(lambda: self.said("ingress", "listening"))

    def play(self) -> None:
        """Start the load."""
        start_s = np.linspace(0, 1, STREAMS)
        Schedule(start_s=start_s, end_s=np.full(STREAMS, 99.0)).save(self.folder / "load.npz")
        load = PipelineLoad(
            port=self.config.pipelines[0].port,
            schedule=self.folder / "load.npz",
            chunk_s=self.pipeline.chunk_s,
            seed=1,
        )
        config = GeneratorConfig(
            duration_s=DURATION_S, drain_s=10, report=self.folder / "generator-report", loads=(load,)
        )
        (self.folder / "generator.json").write_text(config.to_json())
        self.run("traffic.generator", "--config", self.folder / "generator.json")

    def scale(self, name: str, replicas: int) -> None:
        self._apps.patch_namespaced_deployment_scale(name, self._namespace, {"spec": {"replicas": replicas}})

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the totals of the ingress and the report of the generator, after the end of the load."""
        eventually(lambda: self.said("generator", "finished"))
        self.ingress.stop()
        (totals,) = json.loads(self.config.summary.read_text())
        return totals, json.loads((self.folder / "generator-report").read_text())

    def run(self, module: str, *arguments: str | Path) -> Any:
        name = module.rpartition(".")[2]
        return self.processes.start(name, [sys.executable, "-m", f"simulations.lab.{module}", *arguments])

    def said(self, name: str, event: str) -> list[dict[str, Any]]:
        lines = (self.folder / "processes" / f"{name}.log").read_text().splitlines()
        return [found for line in lines if line.startswith("{") and (found := json.loads(line))["event"] == event]


@pytest.fixture
def lab(control_plane: ControlPlane, admin: client.ApiClient, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(control_plane, admin, namespace, tmp_path)
    core = client.CoreV1Api(admin)
    nodes.create(core, lab.nodes.values())
    with lab.processes:
        yield lab
    for pool in lab.nodes.values():
        nodes.remove(core, nodes.node_names(pool))


def test_no_item_is_lost_while_stages_are_scaled_and_moved_between_pools(lab: Lab) -> None:
    lab.start({"vad": 2, "encoder-inferentia": 2, "encoder-gpu": 0, "decoder-inferentia": 0, "decoder-gpu": 2, "lm": 1})
    lab.play()
    eventually(lambda: lab.said("generator", "progress"))
    for name, replicas in {"vad": 1, "encoder-gpu": 1, "encoder-inferentia": 1, "decoder-gpu": 1, "lm": 2}.items():
        lab.scale(name, replicas)
    totals, report = lab.finish()

    assert report["sent"] == report["answered"] == totals["offered"] > 150
    assert totals["offered"] == totals["served"] + totals["filtered"]
    assert (totals["lost"], totals["shed"], totals["in_flight"]) == (0, 0, 0)
    items = read_records(lab.config.records, 0)
    assert len(items.outcome) == totals["offered"]
    assert np.count_nonzero(items.outcome == Outcome.FILTERED) == totals["filtered"]
    assert 0 <= items.arrival_s.min() < items.arrival_s.max() < DURATION_S


@pytest.mark.parametrize("sheds", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_streams_beyond_what_the_status_admits_are_shed_unless_the_ingress_ignores_it(
    lab: Lab, admin: client.ApiClient, namespace: str, *, sheds: bool
) -> None:
    manifest = install(admin, namespace)
    custom = client.CustomObjectsApi(admin)
    where = ("sluice.dev", "v1alpha1", namespace, "speechpipelines")
    custom.create_namespaced_custom_object(*where, manifest)
    custom.patch_namespaced_custom_object_status(*where, "captions", {"status": {"admissible": "12"}})
    replicas = {"vad": 1, "encoder-inferentia": 1, "encoder-gpu": 0}
    replicas |= {"decoder-inferentia": 1, "decoder-gpu": 0, "lm": 1}
    lab.start(replicas, sheds=sheds)
    lab.play()
    totals, _ = lab.finish()

    assert (totals["lost"], totals["refused"]) == (0, 0)
    share = totals["shed"] / (totals["shed"] + totals["served"])  # of the items that are not filtered, sent or not
    assert share == pytest.approx((STREAMS - 12) / STREAMS if sheds else 0, abs=0.1)
    assert totals["offered"] == totals["served"] + totals["filtered"] + totals["shed"]


def install(api: client.ApiClient, namespace: str) -> dict[str, Any]:
    """Create the resources in the cluster; return the demo's pipeline for `namespace`."""
    for crd in CRDS:
        with contextlib.suppress(utils.FailToCreateError):  # another test may have been first
            utils.create_from_dict(api, crd.manifest())
    custom = client.CustomObjectsApi(api)

    def served() -> bool:
        with contextlib.suppress(client.ApiException):
            custom.list_namespaced_custom_object("sluice.dev", "v1alpha1", namespace, "speechpipelines")
            return True
        return False

    eventually(served)
    (document,) = load_documents(SCENARIO.parent / "captions.yaml")
    return {**document.data, "metadata": {"name": "captions", "namespace": namespace}}
