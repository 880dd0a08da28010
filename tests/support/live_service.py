"""The reference service on the lab for benchmarks: a live run, and the scenario in which its laws are as it learned."""

import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubernetes import client
from rich.console import Console

from controller.core.state.spec import PipelineSpec
from controller.resources.translate import pipeline_spec
from simulations.commands.lab import Followed, prepare_environment, speech_of
from simulations.experiment.provenance import provenance
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import ensure
from simulations.lab.session.live_result import live_experiment
from simulations.lab.session.report import lab_result
from simulations.lab.session.run import MAX_SPEECH_LAG_S, Options, run
from simulations.lab.session.view import LineView
from simulations.results.results import RunResult
from simulations.scenario.scenario import Scenario, load_scenario, with_documents
from simulations.speech.live.learned import declared_as_learned
from simulations.speech.live.result import SpeechResult

SCENARIO = Path(__file__).parents[1] / "bench" / "fidelity" / "speech.yaml"
MAX_LAG_S = MAX_SPEECH_LAG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """A live run: its result, what was heard, and its documents with what was learned of the service declared."""

    result: RunResult
    heard: SpeechResult
    learned: Mapping[str, Mapping[str, Any]]
    lag_p99_s: float


def lived(seed: int, interval_s: float, declared: Mapping[str, Mapping[str, Any]] | None = None) -> Lived:
    """Run the reference service on the lab; `declared` are documents that declare more than the manifests do."""
    prepare_environment()
    scenario = with_documents(load_scenario(SCENARIO, live=True), declared or {})
    quiet = LineView(Console(file=io.StringIO()))
    with tempfile.TemporaryDirectory(prefix="sluice-speech-") as name:
        folder = Path(name)
        speech = speech_of(scenario, folder / "corpus")
        assert speech is not None
        speech.synthesise(seed, quiet)
        options = Options(seed=seed, interval_s=interval_s)
        view = Followed(quiet, speech.predictions.follow)
        with run(scenario, options, folder, ensure(quiet.say), view, speech.workload) as (left, cluster):
            found = lab_result(left)
            told = provenance(scenario, ["sluice", "lab", "run"])
            (result,) = live_experiment(left, found, seed=seed, policy="sluice", provenance=told).results
            return Lived(
                result=result,
                heard=speech.result(cluster.folder, found, scenario.file.clock),
                learned=dict(_learned(scenario, cluster, [pipeline_spec(own) for own in scenario.pipelines])),
                lag_p99_s=left.generator_lag_p99_s,
            )


def _learned(scenario: Scenario, cluster: LabCluster, pipelines: list[PipelineSpec]) -> Mapping[str, Mapping[str, Any]]:
    with cluster.admin() as api:
        custom = client.CustomObjectsApi(api)
        found = {}
        for spec in pipelines:
            name = f"SpeechPipeline/{spec.key}"
            live = custom.get_namespaced_custom_object(
                "sluice.dev", "v1alpha1", spec.namespace, "speechpipelines", spec.name
            )
            found[name] = declared_as_learned(scenario.documents[name], live["status"])
        return found


def simulated(learned: Mapping[str, Mapping[str, Any]]) -> Scenario:
    """Return the scenario with servers of the laws that were `learned`, of which Sluice is declared nothing."""
    scenario = with_documents(load_scenario(SCENARIO, live=True), learned)
    return replace(scenario, file=scenario.file.model_copy(update={"speech": None, "hide_profiles": True}))
