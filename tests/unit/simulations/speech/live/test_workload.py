"""The pods of the reference service, and what its load is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.state.spec import PipelineSpec
from controller.resources.translate import pipeline_spec
from optimizer.model import Routing
from simulations.lab.cluster.deployments import UnsupportedManifest
from simulations.lab.pods.process import IMAGE
from simulations.lab.traffic.generator import GeneratorConfig
from simulations.lab.traffic.topology import pipeline_topology
from simulations.scenario.scenario import load_scenario
from simulations.speech.live.load import SpeechConfig
from simulations.speech.live.workload import SpeechWorkload
from simulations.speech.serving.replica import ENVIRONMENT, parser

SCENARIO = load_scenario(
    Path(__file__).parents[5] / "simulations" / "scenarios" / "speech" / "scenario.yaml", live=True
)
PIPELINE: PipelineSpec = pipeline_spec(SCENARIO.pipelines[0])
assert SCENARIO.file.speech is not None
WORKLOAD = SpeechWorkload(SCENARIO.file.speech, Path("corpus"))


def test_every_placement_runs_the_program_of_its_stage_with_the_limits_of_its_manifest() -> None:
    found = {}
    for stage in PIPELINE.stages:
        for placement in stage.placements:
            container = WORKLOAD.pod(PIPELINE, stage, placement).container
            assert container["image"] == IMAGE
            assert {own["name"]: own["value"] for own in container["env"]} == ENVIRONMENT
            python, flag, module, *arguments = container["command"]
            assert (python, flag, module) == ("python", "-m", "simulations.speech.serving.replica")
            found[placement.target.name] = parser().parse_args(arguments)
    assert list(found) == ["vad", "asr-large", "asr-small", "asr-tiny", "rescore"]
    assert [found[f"asr-{name}"].variant for name in ("large", "small", "tiny")] == ["large", "small", "tiny"]
    assert (found["vad"].stage, found["vad"].detector, found["vad"].share) == ("vad", "webrtc", 0.1)
    assert (found["asr-tiny"].batch_max, found["asr-tiny"].batch_wait, found["asr-tiny"].drain) == (16, 0.01, 4.0)
    assert (found["rescore"].stage, found["rescore"].share) == ("rescore", 0.2)


def test_sessions_grow_where_the_scenario_says_so() -> None:
    assert SCENARIO.file.speech is not None
    stages = [own.model_copy(update={"keeps_past": own.program == "asr"}) for own in SCENARIO.file.speech.stages]
    growing = SpeechWorkload(SCENARIO.file.speech.model_copy(update={"stages": stages}), Path("corpus"))
    vad, asr, _ = PIPELINE.stages
    for stage, grows in ((vad, False), (asr, True)):
        command = growing.pod(PIPELINE, stage, stage.placements[0]).container["command"]
        assert ("--keep-past" in command) is grows
        assert "--keep-past" not in WORKLOAD.pod(PIPELINE, stage, stage.placements[0]).container["command"]


def test_what_the_service_cannot_do_is_refused_with_the_field() -> None:
    vad, asr, _ = PIPELINE.stages
    pods = WORKLOAD.pod
    with pytest.raises(UnsupportedManifest, match=r"stage vad: metrics\.preset: 'triton': must be generic"):
        pods(PIPELINE, replace(vad, preset="triton"), vad.placements[0])
    with pytest.raises(UnsupportedManifest, match="stage asr: routing: LeastLoaded: must be Sticky: asr keeps state"):
        pods(PIPELINE, replace(asr, routing=Routing.LEAST_LOADED), asr.placements[0])
    other = replace(asr.placements[0], prior=replace(asr.placements[0].prior, variant="int8"))
    with pytest.raises(UnsupportedManifest, match="stage asr: variant: 'int8': must be one of tiny, small, large"):
        pods(PIPELINE, asr, other)


def test_the_service_filters_itself_and_only_recognition_holds_slots() -> None:
    declared = pipeline_topology(PIPELINE, port=1, seed=1, hands_over=True)
    declared = replace(declared, stages=tuple(replace(own, pass_ratio=0.5) for own in declared.stages))
    found = WORKLOAD.topology(declared)
    assert [(own.name, own.pass_ratio, own.memory) for own in found.stages] == [
        ("vad", 1.0, False),
        ("asr", 1.0, True),
        ("rescore", 1.0, False),
    ]
    assert (found.hands_over, found.carries_state) == (True, True)


def test_the_load_knows_the_corpus_and_the_noise() -> None:
    streams = GeneratorConfig(duration_s=10.0, drain_s=2.0, report=Path("r.json"), loads=())
    found = SpeechConfig.from_json(WORKLOAD.generator_config(streams))
    assert (found.streams, found.corpus) == (streams, Path("corpus"))
    assert found.snr_db == ((0.0, 30.0), (115.0, 8.0), (160.0, 30.0))


def test_the_news_are_the_last_words_of_one_stream(tmp_path: Path) -> None:
    assert WORKLOAD.news(tmp_path) == ()
    said = {"event": "words", "t_s": 1.0, "stream": 0, "variant": "small", "confidence": 1.0}
    lines = [
        {"event": "started"},
        {**said, "words": ["call"], "final": False},
        {**said, "words": ["call", "anna"], "final": True},
    ]
    log = tmp_path / "generator.log"
    log.write_text("\n".join(map(json.dumps, lines[:2])) + "\n")
    assert WORKLOAD.news(tmp_path) == ["one stream, by small: call …"]
    log.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert WORKLOAD.news(tmp_path) == ["one stream, by small: call anna."]
    log.write_text("\n".join(map(json.dumps, [*lines, *[{"event": "progress"}] * 999])) + "\n" + '{"event": "wor')
    assert WORKLOAD.news(tmp_path) == []
