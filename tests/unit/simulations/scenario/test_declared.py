"""What a scenario declares to the policies: the true service times, or wrong ones."""

from pathlib import Path

import pytest
from small_scenarios import a_scenario

from controller.core.state.spec import PipelineSpec
from controller.resources.translate import pipeline_spec
from simulations.scenario.declared import declared
from simulations.scenario.scenario import ScenarioFile


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineSpec:
    return pipeline_spec(a_scenario(tmp_path).pipelines[0])


@pytest.fixture
def file(tmp_path: Path) -> ScenarioFile:
    return a_scenario(tmp_path).file


def service_s(pipeline: PipelineSpec) -> dict[tuple[str, str], float]:
    return {key: placement.prior.service.mean_s(1) for key, placement in pipeline.placements().items()}


def test_without_an_error_the_pipeline_is_declared_as_it_is(pipeline: PipelineSpec, file: ScenarioFile) -> None:
    assert declared(pipeline, file) is pipeline


@pytest.mark.parametrize("name", ["asr", "speech/captions/asr"])
def test_an_error_is_of_all_placements_of_its_stage_and_of_no_other(
    pipeline: PipelineSpec, file: ScenarioFile, name: str
) -> None:
    wrong = service_s(declared(pipeline, file.model_copy(update={"profile_error": {name: 0.2}})))

    assert wrong == pytest.approx({("vad", "cpu"): 0.010, ("asr", "gpu"): 0.008, ("asr", "cpu"): 0.012})


def test_a_stage_of_another_pipeline_is_as_it_is(pipeline: PipelineSpec, file: ScenarioFile) -> None:
    assert declared(pipeline, file.model_copy(update={"profile_error": {"speech/others/asr": 5.0}})) is pipeline


def test_the_more_exact_name_counts(pipeline: PipelineSpec, file: ScenarioFile) -> None:
    both = file.model_copy(update={"profile_error": {"asr": 5.0, "speech/captions/asr": 2.0}})

    assert service_s(declared(pipeline, both))["asr", "gpu"] == pytest.approx(0.080)


def test_the_spread_of_service_times_stays(pipeline: PipelineSpec, file: ScenarioFile) -> None:
    wrong = declared(pipeline, file.model_copy(update={"profile_error": {"asr": 5.0}}))

    assert {placement.prior.service.cv for placement in wrong.placements().values()} == {0.3}
