"""The parts of a run that need no lab; the others are tested on one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from live_runs import CLOCK, a_run

from controller.core.state.spec import PipelineSpec, PoolSpec
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.cluster.deployments import PodOf, UnsupportedManifest
from simulations.lab.host.binaries import Binaries
from simulations.lab.pods.agent import WORKER_ANNOTATION
from simulations.lab.pods.worker import WorkerSpec
from simulations.lab.session import run as runs
from simulations.lab.session.fault_actions import unsupported
from simulations.lab.session.report import lab_windows
from simulations.lab.session.run import Options, _ended_windows, _Load, _specs, check, max_lag_s
from simulations.lab.session.view import RunView
from simulations.lab.session.workload import StageWorkers
from simulations.lab.traffic.generator import GeneratorConfig
from simulations.lab.traffic.topology import IngressConfig
from simulations.results.scoring import Clock
from simulations.scenario.load import item_seed, pipeline_schedules
from simulations.scenario.scenario import BacklogLoad, Scenario, load_scenario
from simulations.scenario.schedule import Schedule

CONTRACT = Path(__file__).parents[4] / "contract"
BACKLOG = Path(__file__).parents[5] / "simulations" / "scenarios" / "backlog" / "scenario.yaml"
DEMO = Path(__file__).parents[5] / "simulations" / "scenarios" / "demo" / "scenario.yaml"
UNEVEN = replace(CLOCK, duration_s=45.5)


@pytest.mark.parametrize("clock", [CLOCK, UNEVEN])
def test_every_window_of_the_report_ends_once_and_not_before_its_time(clock: Clock) -> None:
    ends_s = [*[window.t_s for window in lab_windows(replace(a_run(), clock=clock))][1:], clock.duration_s]

    for ended, end_s in enumerate(ends_s, start=1):
        assert _ended_windows(clock, end_s - 0.1) == ended - 1
        assert _ended_windows(clock, end_s) == ended
    assert _ended_windows(clock, clock.duration_s + 60) == len(ends_s)


def test_no_window_ends_before_the_run_begins() -> None:
    assert _ended_windows(CLOCK, -2.0) == _ended_windows(CLOCK, 0.0) == 0


@pytest.mark.parametrize("path", [DEMO, BACKLOG, CONTRACT / "scenario.yaml"])
def test_the_lab_can_run_the_demo_a_backlog_and_the_scenario_of_the_interface(path: Path) -> None:
    scenario = load_scenario(path, live=True)
    check(scenario, seed=1)  # raises what the lab refuses
    assert list(unsupported(scenario.file)) == []


@pytest.mark.parametrize(("sla", "most_s"), [("1s", 0.02), ("400ms", 0.008), ("100ms", 0.005)])
def test_a_load_may_be_late_by_a_small_part_of_the_sla(tmp_path: Path, sla: str, most_s: float) -> None:
    for name in ("scenario.yaml", "pools.yaml", "day.csv.gz"):
        (tmp_path / name).write_bytes((DEMO.parent / name).read_bytes())
    manifest = (DEMO.parent / "captions.yaml").read_text().replace("latency: 1s", f"latency: {sla}")
    (tmp_path / "captions.yaml").write_text(manifest)
    assert max_lag_s(load_scenario(tmp_path / "scenario.yaml")) == pytest.approx(most_s)


def test_manifests_are_checked_too(tmp_path: Path) -> None:
    for name in ("scenario.yaml", "captions.yaml", "day.csv.gz"):
        (tmp_path / name).write_bytes((DEMO.parent / name).read_bytes())
    pools = (DEMO.parent / "pools.yaml").read_text().replace("instances: 4", "readyNodes: true")
    (tmp_path / "pools.yaml").write_text(pools)

    with pytest.raises(UnsupportedManifest, match=r"ComputePool cpu: spec\.capacity\.instances"):
        check(load_scenario(tmp_path / "scenario.yaml"), seed=1)


class Applied(Exception):
    """The cluster has been asked to apply the resources."""


class Cluster:
    """Receives what a run applies."""

    kubernetes_version = kubeconfig = ""

    def __init__(
        self, folder: Path, binaries: object, *, seed: int, scrape_interval_s: float, flags: Mapping[str, object]
    ) -> None:
        del folder, binaries, seed, flags
        self.scrape_interval_s = scrape_interval_s

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None: ...

    def apply(
        self,
        documents: Iterable[Mapping[str, Any]],
        pipelines: tuple[PipelineSpec, ...],
        pools: tuple[PoolSpec, ...],
        pod: PodOf,
    ) -> None:
        del pools
        raise Applied(list(documents), pipelines, pod, self.scrape_interval_s)


def demo(folder: Path, *lines: str) -> Scenario:
    """Return the demo with further lines in its scenario file."""
    for name in ("captions.yaml", "pools.yaml", "day.csv.gz"):
        (folder / name).write_bytes((DEMO.parent / name).read_bytes())
    (folder / "scenario.yaml").write_text("\n".join([DEMO.read_text(), *lines]))
    return load_scenario(folder / "scenario.yaml")


def test_the_cluster_gets_the_declared_resources_and_workers_with_the_true_service_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runs, "LabCluster", Cluster)
    scenario = demo(tmp_path, 'profileError: {vad: "0.5"}', 'speedSpread: "0.2"', "scrapeInterval: 30s")
    view = cast("RunView", SimpleNamespace(say=lambda _: None))
    with (
        pytest.raises(Applied) as applied,
        runs.run(scenario, Options(seed=1), tmp_path, cast("Binaries", None), view),
    ):
        pass
    documents, pipelines, pod, scrape_interval_s = applied.value.args

    (declared,) = (document for document in documents if document["kind"] == "SpeechPipeline")
    (true,) = scenario.documents["SpeechPipeline/speech/captions"]["spec"]["stages"][0]["placements"]
    (placement,) = declared["spec"]["stages"][0]["placements"]
    assert (true["serviceTime"]["fixed"], placement["serviceTime"]["fixed"]) == ("12ms", "6000us")
    assert pipelines[0].stages[0].placements[0].prior.service.fixed_s == 0.012
    stage = pipelines[0].stages[0]
    worker = WorkerSpec.from_json(pod(pipelines[0], stage, stage.placements[0]).annotations[WORKER_ANNOTATION])
    assert (worker.speed_spread, worker.service.fixed_s) == (0.2, 0.012)
    assert scrape_interval_s == 30


def loaded(
    monkeypatch: pytest.MonkeyPatch, folder: Path, scenario: Scenario, tell_ingress: Callable[..., None] | None = None
) -> tuple[IngressConfig, GeneratorConfig]:
    """Return the configurations of ingress and generator; `tell_ingress` gets what is sent to the ingress at the begin,
    second 100."""
    running = SimpleNamespace(wait_until=lambda *_: None)
    monkeypatch.setattr(_Load, "_start", lambda *_: running)
    pipelines, _ = _specs(scenario)
    schedules = pipeline_schedules(scenario, seed=7)
    cluster = cast(
        "LabCluster", SimpleNamespace(folder=folder, ingress_port=1, kubeconfig="k", tell_ingress=tell_ingress)
    )
    own = {pipeline.key: schedules[pipeline.key] for pipeline in pipelines}
    load = _Load(cluster, scenario, pipelines, own, 7, StageWorkers(scenario, 7))
    load.begin(100.0)
    load.close()
    return (
        IngressConfig.from_json((folder / "ingress.json").read_text()),
        GeneratorConfig.from_json((folder / "generator.json").read_text()),
    )


def test_ingress_and_generator_draw_as_the_simulator_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ingress, generator = loaded(monkeypatch, tmp_path, demo(tmp_path))

    assert (ingress.pipelines[0].seed, generator.loads[0].seed) == (item_seed(7, 0), item_seed(7, 0))
    assert (ingress.sheds, ingress.pipelines[0].overhead_s, generator.loads[0].reconnects) == (True, 0, True)


def test_ingress_and_generator_know_the_properties_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scenario = demo(tmp_path, "overhead: 20ms", "sheds: false")
    (load,) = scenario.file.load
    assert load.session is not None
    session = load.session.model_copy(update={"reconnect": "never"})
    file = scenario.file.model_copy(update={"load": [load.model_copy(update={"session": session})]})
    ingress, generator = loaded(monkeypatch, tmp_path, replace(scenario, file=file))

    assert (ingress.sheds, ingress.pipelines[0].overhead_s, generator.loads[0].reconnects) == (False, 0.02, False)


def test_the_items_of_a_backlog_are_in_the_ingress_and_not_sent_by_the_generator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = load_scenario(BACKLOG, live=True)
    captions, archive = scenario.file.load
    later = archive.model_copy(update={"backlog": BacklogLoad(items=20, at="1m")})
    file = scenario.file.model_copy(update={"load": [captions, archive, later]})
    said: dict[str, Any] = {}
    ingress, generator = loaded(monkeypatch, tmp_path, replace(scenario, file=file), said.__setitem__)

    assert said == {"backlogs/speech/archive": {"start_s": 100.0, "items": [(0.0, 1000), (60.0, 20)]}}
    index = [pipeline.name for pipeline in ingress.pipelines].index("archive")
    assert [len(Schedule.load(load.schedule)) > 0 for load in generator.loads] == [k != index for k in range(2)]
