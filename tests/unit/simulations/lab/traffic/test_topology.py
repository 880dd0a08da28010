"""The topology of a pipeline for the ingress."""

from pathlib import Path

import pytest

from controller.core.state.spec import DemandUnit
from controller.resources.translate import pipeline_spec
from controller.resources.validation import validate_files
from optimizer.model import Routing
from simulations.lab.traffic.topology import IngressConfig, pipeline_topology

CONTRACT = Path(__file__).parents[4] / "contract"


def captions() -> IngressConfig:
    (pipeline,) = validate_files([CONTRACT / "live-captions.yaml", CONTRACT / "pools.yaml"]).pipelines
    topology = pipeline_topology(pipeline_spec(pipeline), port=7, seed=3, overhead_s=0.02)
    return IngressConfig(
        metrics_port=8, records=Path("items"), summary=Path("summary"), pipelines=(topology,), sheds=False
    )


def test_the_stages_of_a_pipeline_are_taken_over_with_their_routing_and_memory() -> None:
    topology = captions().pipelines[0]

    assert (topology.namespace, topology.name, topology.sla_s) == ("speech", "live-captions", 0.25)
    assert topology.overhead_s == 0.02
    assert topology.unit is DemandUnit.STREAMS
    assert [(stage.name, stage.after) for stage in topology.stages] == [
        ("vad", ()),
        ("encoder", ("vad",)),
        ("decoder", ("encoder",)),
        ("lm", ("decoder",)),
    ]
    assert [(stage.routing, stage.memory) for stage in topology.stages] == [
        (Routing.LEAST_LOADED, False),
        (Routing.STICKY, True),
        (Routing.STICKY, True),
        (Routing.STICKY, True),
    ]
    assert topology.stages[0].pass_ratio == 0.45


def test_a_replica_weighs_what_it_can_serve() -> None:
    inferentia, gpu = captions().pipelines[0].stages[1].placements

    assert inferentia.weight == pytest.approx(8 / (0.014 + 8 * 0.003))
    assert gpu.weight == pytest.approx(16 / (0.008 + 16 * 0.001))
    assert (inferentia.limit, gpu.limit) == (8, 16)


def test_a_placement_is_the_pods_with_its_labels() -> None:
    placement = captions().pipelines[0].stages[1].placements[0]

    assert placement.selects({"app": "encoder-inferentia", "pod-template-hash": "x"})
    assert not placement.selects({"app": "encoder-gpu"})
    assert not placement.selects({})


def test_a_configuration_survives_its_file() -> None:
    assert IngressConfig.from_json(captions().to_json()) == captions()


def test_a_configuration_that_cannot_be_read_names_the_field() -> None:
    with pytest.raises(ValueError, match=r"ingress configuration: .*\n.*metrics_port"):
        IngressConfig.from_json('{"records": "a", "summary": "b", "pipelines": []}')
