"""What a scenario asks, in words."""

from pathlib import Path

import pytest
from backlogs import a_backlog
from experiments import a_scenario

from controller.resources.translate import pipeline_spec
from simulations.report.scenario_words import (
    bands,
    fault_words,
    item,
    load_words,
    path_of_an_item,
    sla_and_budget,
    what_if_words,
)
from simulations.scenario.scenario import Fault, load_scenario


def test_the_contract_scenario_in_words() -> None:
    scenario = a_scenario()
    (captions,) = map(pipeline_spec, scenario.pipelines)
    assert path_of_an_item(captions) == "vad → encoder → decoder → lm"
    assert sla_and_budget(captions) == "SLA: 95 % of the items answered within 250 ms; budget: $20.00 per hour"
    assert load_words(scenario.file.load[0]) == (
        "speech/live-captions: recording azure_llm_2023_conv_1s.csv.gz (sessions that start), 4 superposed copies, "
        "sessions of 40 s on average (log-normal, coefficient of variation 1.3)"
    )
    assert [(band.letter, band.from_s, band.until_s) for band in bands(scenario)] == [
        ("A", 900, 1620),
        ("B", 1920, 2100),
        ("C", 2400, 2400),
    ]
    assert [what_if_words(what_if) for what_if in scenario.file.what_if] == [
        "SpeechPipeline/speech/live-captions: spec.budget.perHour = 10",
        "ComputePool/inferentia: spec.capacity.instances = 0",
        "load with 8 superposed copies",
    ]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"poolUnavailable": "gpu"}, "new replicas get no node of gpu; running ones stay"),
        ({"poolLost": "gpu"}, "the nodes of gpu and the replicas on them are lost"),
        ({"metricsLost": "*"}, "metrics are lost"),
        ({"metricsLost": "a/b"}, "metrics of a/b are lost"),
        ({"metricsStale": "a/b"}, "metrics of a/b are stale"),
        ({"metricsPartial": {"share": "0.5"}}, "50.0 % of the metrics are missing"),
        ({"metricsNoisy": {"cv": "0.3"}}, "metrics are noisy (coefficient of variation 0.3)"),
        ({"spike": {"pipeline": "a/b", "factor": 3}}, "the load of a/b is multiplied by 3"),
        ({"slowStart": {"pool": "gpu", "factor": 2}}, "new replicas on gpu take 2 times as long to start"),
        ({"rollOut": "lm"}, "the pods of lm are replaced, one at a time"),
        ({"slowStage": {"stage": "lm", "factor": "1.5"}}, "batches of lm take 1.5 times as long"),
        ({"stuckReplica": "lm"}, "a replica of lm completes nothing"),
        ({"passRatio": {"stage": "vad", "ratio": "0.9"}}, "90.0 % of the items of vad go on"),
        ({"slowTransit": {"pipeline": "a/b", "by": "200ms"}}, "items of a/b take 200ms more outside the stages"),
        ({"retries": {"pipeline": "a/b", "factor": "1.5"}}, "clients of a/b send each item 1.5 times on average"),
        (
            {"coldCaches": {"stage": "lm", "factor": 3, "lasts": "30s"}},
            "new replicas of lm take 3 times as long for their first 30s",
        ),
        ({"spotReclaim": {"pool": "gpu", "share": "0.5"}}, "50.0 % of the nodes of gpu are reclaimed"),
        (
            {"set": {"ComputePool/gpu": {"spec": {"price": {"perHour": "1.6"}, "capacity": {"instances": 3}}}}},
            "ComputePool/gpu: spec.price.perHour = 1.6, spec.capacity.instances = 3",
        ),
    ],
)
def test_every_fault_has_words(fault: dict[str, object], words: str) -> None:
    assert fault_words(Fault.model_validate({"at": "1m", **fault})) == words


def test_louder_noise_is_marked_behind_the_faults() -> None:
    path = Path(__file__).parents[4] / "simulations" / "scenarios" / "speech" / "scenario.yaml"
    cut, noise = bands(load_scenario(path, live=True))
    assert (cut.letter, cut.from_s) == ("A", 165.0)
    assert (noise.letter, noise.from_s, noise.until_s) == ("B", 115.0, 160.0)
    assert noise.words == "noise: speech has 8 dB more power than it"


def test_a_backlog_has_a_deadline_in_place_of_an_sla() -> None:
    spec = a_backlog(within_s=3600.0, budget=8.0)
    assert sla_and_budget(spec) == "deadline: 3,600 s after the backlog was last empty; budget: $8.00 per hour"
    due = a_backlog(due_s=3600.0, budget=8.0)
    assert sla_and_budget(due) == "deadline: 1970-01-01T01:00:00Z; budget: $8.00 per hour"
    assert item(spec) == "an item waits until a replica takes it"
