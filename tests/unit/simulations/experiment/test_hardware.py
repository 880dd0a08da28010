"""Which pool an autoscaler of single workloads is set up on."""

from dataclasses import replace
from importlib import resources
from pathlib import Path

from controller.resources.pipeline import SpeechPipeline
from simulations.experiment.experiment import run_one
from simulations.experiment.hardware import cheapest_first
from simulations.policies.autoscaler import Hardware
from simulations.policies.hpa import HpaSettings
from simulations.results.results import RunResult
from simulations.scenario.scenario import load_scenario

STEADY = load_scenario(Path(str(resources.files("simulations.scenarios"))) / "steady" / "scenario.yaml")
SHORT = replace(STEADY, file=STEADY.file.model_copy(update={"duration": "2m", "warmup": "1m"}))


def pools(pipelines: tuple[SpeechPipeline, ...], stage: str) -> list[str]:
    (pipeline,) = pipelines
    (found,) = (each for each in pipeline.spec.stages if each.name == stage)
    return [placement.pool for placement in found.placements or []]


def ready(result: RunResult, stage: str) -> dict[str, int]:
    """Return the ready replicas of a stage at the end, by pool."""
    (pipeline,) = result.series.pipelines
    return {each.placement: each.ready[-1] for each in pipeline.placements if each.stage == stage}


def test_the_cheapest_per_item_at_full_batches_comes_first() -> None:
    # A decoder replica: 129 items/s for 0.379 USD on inferentia, 444 items/s for 1.006 USD on gpu.
    assert pools(STEADY.pipelines, "decoder") == ["inferentia", "gpu"]
    assert pools(cheapest_first(STEADY).pipelines, "decoder") == ["gpu", "inferentia"]


def test_a_baseline_that_is_set_up_on_the_cheapest_runs_there_alone() -> None:
    first = run_one(SHORT, policy="hpa", seed=1, settings=HpaSettings())
    cheapest = run_one(SHORT, policy="hpa", seed=1, settings=HpaSettings(hardware=Hardware.CHEAPEST))
    assert ready(first, "decoder")["gpu"] == 0 < ready(first, "decoder")["inferentia"]
    assert ready(cheapest, "decoder")["inferentia"] == 0 < ready(cheapest, "decoder")["gpu"]
