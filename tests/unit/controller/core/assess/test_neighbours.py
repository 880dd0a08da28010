"""Which replicas are beside which, now and on full instances."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import VAD, a_placement, a_snapshot, a_spec, a_stage, a_state, a_target, seen

from controller.core.assess.neighbours import PLANNED_BUSY, neighbours_of
from controller.core.state.snapshot import PipelineState, ServingReplica
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from profiler.neighbours import Neighbour
from profiler.samples import Absence, AbsenceReason, Quantity, Reading

LM: PlacementKey = (StageName("lm"), PoolName("cpu"))
CAPTIONS = PipelineKey("speech/captions")


def a_world(
    vad: Sequence[str], lm: Sequence[str], *, busy: Reading = 0.5, name: str = "captions", fit: int = 2
) -> PipelineState:
    """Return a pipeline of two stages on one pool, whose replicas are on the nodes `vad` and `lm`."""
    spec = a_spec(
        a_stage("vad", a_placement("cpu", per_instance=fit)),
        a_stage("lm", a_placement("cpu", per_instance=fit), after=["vad"]),
        name=name,
    )
    found = {}
    for key, nodes in ((VAD, vad), (LM, lm)):
        serving = tuple(ServingReplica(name=f"{key[0]}-{k}", node=node) for k, node in enumerate(nodes))
        found[key] = replace(a_target(len(nodes)), serving=serving)
    readings = {**seen().readings, Quantity.UTILIZATION: busy}
    samples = {key: replace(seen(), readings=readings) for key in (VAD, LM)}
    return a_state(spec, replicas=found, samples=samples)


def beside(*states: PipelineState, key: PlacementKey = VAD) -> dict[str, Neighbour]:
    return {own.name: own for own in neighbours_of(a_snapshot(*states))[CAPTIONS][key]}


def test_replicas_on_one_node_are_neighbours_and_their_number_is_the_mean() -> None:
    found = beside(a_world(["a", "b"], ["a"]))
    assert found["speech/captions/lm"].count == 0.5
    assert found["speech/captions/vad"].count == 0
    assert found["speech/captions/lm"].busy == 0.5


def test_plans_count_on_full_instances_whatever_is_beside_a_replica_now() -> None:
    found = beside(a_world(["a"], []))
    assert found["speech/captions/vad"].planned == pytest.approx(PLANNED_BUSY)
    assert found["speech/captions/vad"].exposure == 0
    mixed = beside(a_world(["a", "b"], ["a", "b"]))
    assert sum(own.planned for own in mixed.values()) == pytest.approx(PLANNED_BUSY)


def test_a_neighbour_that_cannot_lose_replicas_stays_as_busy_as_it_is() -> None:
    alone = beside(a_world(["a"], ["a"], busy=0.1))
    assert alone["speech/captions/lm"].planned == pytest.approx(0.05)


def test_replicas_of_other_pipelines_are_neighbours_too() -> None:
    others = a_world(["a"], [], name="others")
    assert beside(a_world(["a"], []), others)["speech/others/vad"].count == 1


def test_a_busy_share_that_is_not_known_is_no_idle_neighbour() -> None:
    unknown = Absence(reason=AbsenceReason.STALE)
    found = beside(a_world(["a"], ["a"], busy=unknown))
    assert found["speech/captions/lm"].exposure is None


def test_replicas_with_an_instance_of_their_own_have_no_neighbours_nor_those_whose_node_is_not_known() -> None:
    assert neighbours_of(a_snapshot(a_world(["a", "b"], ["a"], fit=1))) == {}
    assert neighbours_of(a_snapshot(a_world(["", ""], [""]))) == {}
