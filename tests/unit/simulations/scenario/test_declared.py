"""What a scenario declares: specs to simulated policies, manifests to the lab's API server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.core.state.spec import Declared, PipelineSpec
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec
from optimizer.model import Routing
from simulations.scenario.declared import declared, declared_document, declared_patch
from simulations.scenario.scenario import ScenarioFile, load_scenario

CONTRACT = Path(__file__).parents[3] / "contract"
CAPTIONS = "speech/live-captions"


def a_file(**errors: float) -> ScenarioFile:
    return load_scenario(CONTRACT / "scenario.yaml").file.model_copy(update={"profile_error": errors or None})


def the_document(**metadata: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((CONTRACT / "live-captions.yaml").read_text())
    return {**document, "metadata": {**document["metadata"], **metadata}}


def spec(document: Any) -> PipelineSpec:
    return pipeline_spec(SpeechPipeline.model_validate(document))


def service_times(pipeline: PipelineSpec) -> list[float]:
    laws = [placement.prior.service for stage in pipeline.stages for placement in stage.placements]
    return [seconds for law in laws for seconds in (law.fixed_s, law.per_item_s)]


def without_times(pipeline: PipelineSpec) -> PipelineSpec:
    return replace(
        pipeline,
        stages=tuple(
            replace(
                stage,
                placements=tuple(
                    replace(
                        placement,
                        prior=replace(
                            placement.prior, service=replace(placement.prior.service, fixed_s=1, per_item_s=1)
                        ),
                    )
                    for placement in stage.placements
                ),
            )
            for stage in pipeline.stages
        ),
    )


@pytest.mark.parametrize(
    "errors",
    [{"decoder": 0.2}, {f"{CAPTIONS}/decoder": 5.0}, {"decoder": 3.0, "vad": 1 / 3, f"{CAPTIONS}/decoder": 0.7}],
)
def test_the_lab_declares_what_the_simulator_does(errors: dict[str, float]) -> None:
    file, true = a_file(**errors), spec(the_document())
    simulated, live = declared(true, file), spec(declared_document(the_document(), file))

    assert service_times(live) == pytest.approx(service_times(simulated), abs=0.5e-6)
    assert service_times(live) != service_times(true)
    assert without_times(live) == without_times(simulated) == without_times(true)


def test_the_error_of_a_stage_in_one_pipeline_goes_before_that_of_its_name() -> None:
    file = a_file(**{"decoder": 3.0, f"{CAPTIONS}/decoder": 0.5})
    here = declared_document(the_document(), file)["spec"]["stages"][2]
    elsewhere = declared_document(the_document(name="notes"), file)["spec"]["stages"][2]

    assert here["name"] == "decoder"
    assert here["placements"][0]["serviceTime"]["fixed"] == "11000us"
    assert elsewhere["placements"][0]["serviceTime"]["fixed"] == "66000us"


def test_without_errors_everything_is_declared_as_it_is_written() -> None:
    assert declared_document(the_document(), a_file()) == the_document()
    assert declared_document(the_document(), a_file(lm=1.0)) == the_document()
    pool = {"kind": "ComputePool", "metadata": {"name": "decoder"}, "spec": {"stages": [{"name": "decoder"}]}}
    assert declared_document(pool, a_file(decoder=2.0)) == pool


def test_a_time_that_is_not_declared_stays_so_and_none_becomes_zero() -> None:
    def placements(*times: Any) -> dict[str, Any]:
        stages = [{"name": "asr", "placements": [{"pool": "cpu", **time} for time in times]}]
        return {"kind": "SpeechPipeline", "metadata": {"name": "captions"}, "spec": {"stages": stages}}

    plain = placements({}, {"serviceTime": {"fixed": "3us", "cv": "0.2"}}, {"serviceTime": {"perItem": "0s"}})
    file = a_file(**{"default/captions/asr": 0.01})
    assert declared_document(plain, file) == placements(
        {}, {"serviceTime": {"fixed": "1us", "cv": "0.2"}}, {"serviceTime": {"perItem": "0us"}}
    )


def test_a_patch_declares_as_the_whole_document_does() -> None:
    file = a_file(decoder=0.2)
    stages = the_document()["spec"]["stages"]

    patched = declared_patch(f"SpeechPipeline/{CAPTIONS}", {"spec": {"stages": stages}}, file)
    assert patched == {"spec": {"stages": declared_document(the_document(), file)["spec"]["stages"]}}
    budget = {"spec": {"budget": {"perHour": "4"}}}
    assert declared_patch(f"SpeechPipeline/{CAPTIONS}", budget, file) == budget
    price = {"spec": {"price": {"perHour": "4"}}}
    assert declared_patch("ComputePool/gpu", price, file) == price


def test_without_profiles_the_policies_see_no_numbers_and_the_lab_declares_none() -> None:
    hidden = a_file().model_copy(update={"hide_profiles": True})
    seen = declared(spec(the_document()), hidden)
    for placement in seen.placements().values():
        assert placement.declared == Declared(service=False, cv=False, startup=False, memory=False)
        assert placement.prior.session_slots is None
    applied = declared_document(the_document(), hidden)
    assert spec(applied) == seen


def test_hidden_memory_changes_no_routing() -> None:
    hidden = a_file().model_copy(update={"hide_profiles": True})
    seen, true = declared(spec(the_document()), hidden), spec(the_document())
    assert [stage.routing for stage in seen.stages] == [stage.routing for stage in true.stages]
    assert Routing.STICKY in [stage.routing for stage in seen.stages]
    own = the_document()
    own["spec"]["stages"][2]["routing"] = "RoundRobin"
    assert spec(declared_document(own, hidden)).stages[2].routing is Routing.ROUND_ROBIN
