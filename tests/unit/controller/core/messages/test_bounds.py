"""The bounds in an explanation: the binding ones first, those that were not kept with what outranks them."""

import json
from dataclasses import replace
from pathlib import Path

from builders import ENCODER, NOW_S, VAD, a_pool, a_rule, a_snapshot, a_spec, a_state, default_pools, default_stages
from click.testing import CliRunner
from explained import section

from controller.commands.explain import explain
from controller.core.cycle import decide
from controller.core.messages.explain import explain_pipeline
from controller.core.record import decision_record
from controller.core.state.carry_over import PipelineMemory, RuleMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from optimizer.model import StageName, pool_of
from profiler.samples import Absence, AbsenceReason


def with_a_rule(*, budget: float = 100.0) -> Snapshot:
    memory = PipelineMemory(demand=5.0, rules={(StageName("vad"), "busy"): RuleMemory(floor=6, fired=True)})
    spec = a_spec(*default_stages(vad_rules=[a_rule()]), budget=budget)
    return a_snapshot(a_state(spec, demand=5.0, replicas={VAD: 4, ENCODER: 1}, memory=memory))


def bounds_of(snapshot: Snapshot) -> list[str]:
    (pipeline,) = decide(snapshot, Policy()).pipelines
    return [line.strip() for line in section(explain_pipeline(pipeline, NOW_S), "Bounds").splitlines()]


def test_the_bound_that_makes_the_change_comes_first_with_its_evidence() -> None:
    lines = bounds_of(with_a_rule())
    assert lines[0].startswith("binds: ")
    assert "binds: threshold rule: vad at least 6; evidence: this pipeline" in lines


def test_a_floor_that_the_budget_has_no_room_for_says_so() -> None:
    lines = bounds_of(with_a_rule(budget=1.6))
    assert "not kept in full: a floor of stage vad: no capacity on cpu within Budget" in lines


def test_a_bound_that_lost_names_what_outranks_it() -> None:
    missing = Absence(reason=AbsenceReason.MISSING)
    state = a_state(demand=missing, replicas={VAD: 30, ENCODER: 1}, memory=PipelineMemory(demand=5.0))
    lines = bounds_of(a_snapshot(state, fleet={**default_pools(), pool_of(VAD[1]): a_pool("cpu", instances=40)}))
    assert "binds: never down on missing data: vad on cpu at least 30, encoder on inferentia at least 1" in lines[0]


def test_explain_shows_what_would_be_decided_without_a_mechanism(tmp_path: Path) -> None:
    snapshot = with_a_rule()
    record = tmp_path / "operator.log"
    record.write_text(json.dumps(decision_record(snapshot, decide(snapshot, Policy()))) + "\n")
    arguments = ["speech/captions", "--from-record", str(record), "--without"]
    shown = CliRunner().invoke(explain, [*arguments, "threshold rule"])
    assert shown.exit_code == 0, shown.output
    assert "Without threshold rule" in shown.output
    assert "4→6" not in shown.output.partition("Without threshold rule")[2]
    same = CliRunner().invoke(explain, [*arguments, "pin"])
    assert "the same: pin does not bind" in same.output


def test_an_unknown_mechanism_is_refused_with_the_names_of_all(tmp_path: Path) -> None:
    refused = CliRunner().invoke(explain, ["speech/captions", "--without", "rule"])
    assert refused.exit_code == 2
    assert "must be one of: mode, pause and conflict; " in refused.output
    alone = CliRunner().invoke(explain, ["speech/captions", "--without", "pin"])
    assert "needs --from-record and PIPELINE" in alone.output


def test_a_decision_without_a_mechanism_leaves_the_others_in_force() -> None:
    snapshot = with_a_rule()
    (state,) = snapshot.pipelines
    (own,) = decide(snapshot, Policy(), without="threshold rule").pipelines
    (quiet,) = decide(a_snapshot(replace(state, memory=replace(state.memory, rules={}))), Policy()).pipelines
    assert own.goal == quiet.goal
