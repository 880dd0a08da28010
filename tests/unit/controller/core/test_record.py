"""The decision record: made again from a file, refused when it is another's."""

import json

import pytest
from builders import ENCODER, VAD, a_snapshot, a_state, a_target
from planning import Planner

from controller.core.codec import InvalidRecord
from controller.core.cycle import decide
from controller.core.record import SCHEMA, decision_record, policy_from_record, snapshot_from_record
from controller.core.state.policy import Policy


def test_a_recorded_decision_can_be_made_again(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    snapshot = a_snapshot(a_state(replicas={VAD: 4, ENCODER: a_target(2, pending_since_s=[1.0])}))
    policy = Policy(budget_per_hour=30.0)
    decision = decide(snapshot, policy)
    record = json.loads(json.dumps(decision_record(snapshot, decision)))
    assert record["schema"] == SCHEMA
    assert record["decision"]["pipelines"]["speech/captions"]["outcome"] == "Scale"
    assert decide(snapshot_from_record(record), policy_from_record(record)) == decision


@pytest.mark.parametrize("broken", [{}, {"schema": "v0"}, {"schema": SCHEMA}, {"schema": SCHEMA, "snapshot": 1}])
def test_a_record_of_another_form_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(InvalidRecord):
        snapshot_from_record(broken)  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord):
        policy_from_record(broken)  # type: ignore[arg-type]
