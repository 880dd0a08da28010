import json
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Any

import pytest
import sharing
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    default_pools,
    pools,
)

from controller.core.cycle import decide
from controller.core.messages.conditions import unusable_condition
from controller.core.messages.phrases import timestamp
from controller.core.messages.reasons import ConditionReason, ConditionType
from controller.core.state.carry_over import FeedbackFloor, FeedbackMemory, FeedbackStep, PipelineMemory, PoolMemory
from controller.core.state.decision import BudgetDecision, ShortPipeline
from controller.core.state.policy import Policy
from controller.core.state.schedule import EventFloor
from controller.core.state.shards import Allowance, Entry, Want
from controller.core.state.snapshot import BudgetState, ExpectedNode, NodePoolState, Snapshot, TargetMissing
from controller.core.state.spec import BudgetSpec, Declared, LabelSelector, Mode
from controller.kube.durable import memory_from
from controller.kube.shard_entries import entry_documents
from controller.kube.status import (
    budget_status,
    divided_pool_status,
    invalid_status,
    number,
    pipeline_status,
    pool_status,
)
from controller.kube.workloads import seconds
from controller.resources.budget import BudgetStatus
from controller.resources.pipeline_status import PipelineStatus
from controller.resources.pool import PoolStatus
from optimizer.model import PipelineKey, PoolName
from optimizer.plan import Advice, ReplayCheck
from profiler.batch_times import BatchTimes
from profiler.samples import Absence, AbsenceReason, DeviceQuantity, Quantity
from profiler.slots import MOST_SLOTS
from profiler.stages import Correction, Learned

INVALID = unusable_condition(ConditionType.READY, ConditionReason.INVALID_SPEC, "spec.stages: required")


def status_of(snapshot: Snapshot, old: dict[str, Any] | None = None) -> dict[str, Any]:
    decision = decide(snapshot, Policy())
    return pipeline_status(snapshot, snapshot.pipelines[0], decision.pipelines[0], decision, old or {})


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in status["conditions"] if each["type"] == kind)
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.0, "1200"),
        (0.1268, "0.13"),
        (0.000_012_34, "0.000012"),
        (9.96, "10"),
        (-2.55, "-2.6"),
        (1.0, "1"),
        (1e-30, "0"),
        (1.8e19, "18000000000000000000"),
        (1e300, None),
        (float("nan"), None),
        (None, None),
        (Absence(reason=AbsenceReason.STALE), None),
    ],
)
def test_an_observed_number_has_two_significant_digits_and_no_exponent(value: Any, text: str | None) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.9996, "0.999"), (419.9, "419"), (1.0, "1")])
def test_what_may_be_relied_on_is_rounded_down(value: float, text: str) -> None:
    assert number(value, rounding=ROUND_FLOOR) == text


@pytest.mark.parametrize(("value", "text"), [(24.801, "24.9"), (0.4551, "0.456"), (31.2, "31.2")])
def test_what_is_needed_is_rounded_up(value: float, text: str) -> None:
    assert number(value, rounding=ROUND_CEILING) == text


def test_a_placeholder_is_no_prior() -> None:
    undeclared = replace(a_placement("cpu"), declared=Declared(service=False, cv=False))
    spec = a_spec(a_stage("vad", undeclared), a_stage("encoder", a_placement("gpu", service_s=0.02), after=["vad"]))
    stages = status_of(a_snapshot(a_state(spec, replicas={VAD: 1})))["stages"]
    found = [stage["placements"][0]["serviceTime"] for stage in stages]
    assert (found[0].get("priorSeconds"), found[0].get("factor")) == (None, None)
    assert (found[1]["priorSeconds"], found[1]["factor"]) == ("0.02", "1")


@pytest.mark.parametrize(
    "snapshot",
    [
        a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1})),
        a_snapshot(a_state(demand=Absence(reason=AbsenceReason.MISSING))),
        a_snapshot(a_state(replicas={VAD: TargetMissing(reason="gone")})),
        a_snapshot(a_state(a_spec(budget=0.6), demand=500.0, replicas={VAD: 1})),
    ],
    ids=["scaling", "blind", "missing", "overloaded"],
)
def test_a_status_is_what_the_resource_declares_without_nulls_and_floats(snapshot: Snapshot) -> None:
    status = status_of(snapshot)
    interface = {key: value for key, value in status.items() if key != "memory"}
    assert PipelineStatus.model_validate(interface, extra="forbid")
    text = json.dumps(interface, allow_nan=False)
    assert "null" not in text
    assert not [value for value in _scalars(json.loads(text)) if isinstance(value, float)]


def _scalars(document: Any) -> list[Any]:
    if isinstance(document, dict):
        return [scalar for value in document.values() for scalar in _scalars(value)]
    if isinstance(document, list):
        return [scalar for value in document for scalar in _scalars(value)]
    return [document]


def test_a_condition_keeps_the_time_of_its_last_transition() -> None:
    snapshot = a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}))
    first = status_of(snapshot)
    later = status_of(replace(snapshot, now_s=NOW_S + 60), first)
    assert condition(later, "TargetsFound") == condition(first, "TargetsFound")
    lost = a_snapshot(a_state(replicas={VAD: TargetMissing(reason="gone")}), now_s=NOW_S + 120)
    assert condition(status_of(lost, later), "TargetsFound")["lastTransitionTime"] == timestamp(NOW_S + 120)


def test_the_last_decision_stays_until_there_is_another() -> None:
    changing = status_of(a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1})))
    assert changing["lastDecision"]["reason"] in {"Demand", "Sla"}
    steady = status_of(a_snapshot(a_state(a_spec(), replicas={VAD: 1, ENCODER: 1}, demand=1.0)), changing)
    assert steady["lastDecision"] == changing["lastDecision"]


def test_a_plan_says_how_sure_it_is_what_it_moves_and_what_it_would_take() -> None:
    snapshot = a_snapshot(a_state(a_spec(budget=0.6), demand=500.0, replicas={VAD: 1}))
    decision = decide(snapshot, Policy())
    (own,) = decision.pipelines
    assert own.plan is not None
    plan = replace(
        own.plan,
        latency_error=0.06,
        replay=ReplayCheck(latency_s=0.391),
        moved_replicas=3,
        switching_cost_per_hour=0.15,
        advice=Advice(required_budget_per_hour=31.191, best_latency_s=0.6551),
    )
    told = replace(decision, pipelines=(replace(own, plan=plan),))
    status = pipeline_status(snapshot, snapshot.pipelines[0], told.pipelines[0], told, {})
    assert PipelineStatus.model_validate({key: value for key, value in status.items() if key != "memory"})
    assert status["latency"]["predictedError"] == "0.06"
    assert status["latency"]["replayedSeconds"] == "0.39"
    assert status["latency"]["bestSeconds"] == "0.656"
    assert (status["movedReplicas"], status["switchingCostPerHour"]) == (3, "0.15")
    assert status["requiredBudgetPerHour"] == "31.2"


def test_a_budget_that_is_too_small_says_which_would_do_and_what_it_can_have() -> None:
    def status_with(budget: float) -> dict[str, Any]:
        return status_of(a_snapshot(a_state(a_spec(budget=budget), demand=40.0, replicas={VAD: 1, ENCODER: 1})))

    short = status_with(2.0)
    assert short["limitedBy"] == "Budget"
    needed = float(short["requiredBudgetPerHour"])
    assert needed > 2.0
    assert status_with(needed)["servedFraction"] == "1"
    assert "requiredBudgetPerHour" not in status_with(needed)
    assert float(status_with(0.97 * needed - 0.02)["servedFraction"]) < 1
    # With the whole demand, two dollars do not even carry the load.
    assert "bestSeconds" not in short


def test_what_was_learned_of_a_stage_is_in_its_status() -> None:
    learned = Learned(
        latency_corrections={VAD[0]: Correction(factor=1.5, smoothed=1.5, learned_at_s=NOW_S)},
        throughput_corrections={VAD: Correction(factor=0.6, smoothed=0.6, learned_at_s=NOW_S)},
    )
    memory = PipelineMemory(learned=learned)
    status = status_of(a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}, memory=memory)))
    assert [stage["latencyFactor"] for stage in status["stages"]] == ["1.5", "1"]
    (vad,) = status["stages"][0]["placements"]
    assert vad["saturationRate"] == "60"
    assert "saturationRate" not in status["stages"][1]["placements"][0]


def test_receive_pressure_and_devices_are_in_the_status_of_the_stages_that_have_them() -> None:
    state = a_state(replicas={VAD: 1, ENCODER: 1})
    vad, encoder = state.samples[VAD], state.samples[ENCODER]
    devices = {DeviceQuantity.UTILIZATION: 0.83, DeviceQuantity.COLLECTIVE_ACTIVITY: 0.25}
    samples = {
        VAD: replace(vad, readings={**vad.readings, Quantity.RX_QUEUE_PRESSURE: 0.91}),
        ENCODER: replace(encoder, devices=devices),
    }
    first, second = status_of(a_snapshot(replace(state, samples={**state.samples, **samples})))["stages"]
    assert first["rxQueuePressure"] == "0.91"
    assert first.keys() & {"deviceUtilization", "collectiveActivity"} == set()
    assert (second["deviceUtilization"], second["collectiveActivity"]) == ("0.83", "0.25")
    assert "rxQueuePressure" not in second


def test_a_learned_law_is_in_the_status_with_its_error_and_the_start_up_time() -> None:
    undeclared = replace(a_placement("cpu"), declared=Declared(service=False, cv=False, startup=False))
    spec = a_spec(a_stage("vad", undeclared), a_stage("encoder", a_placement("gpu", service_s=0.02), after=["vad"]))
    learned = Learned(
        batch_times={VAD: BatchTimes(weight=20.0, batch=1.0, time_s=0.023)},
        startups_s={VAD: 42.0, ENCODER_GPU: 7.0},
        service_factors={ENCODER_GPU: 1.5},
        overhead_s=0.042,
    )
    state = a_state(spec, replicas={VAD: 1, ENCODER_GPU: 1}, memory=PipelineMemory(learned=learned))
    status = status_of(a_snapshot(state))
    vad, encoder = (stage["placements"][0] for stage in status["stages"])
    law = {"fixedSeconds": "0.023", "perItemSeconds": "0", "cv": "1", "relativeError": "0.0045", "measuredBatch": "1"}
    assert vad["serviceTime"] == law
    assert vad["startupSeconds"] == "42"
    assert (encoder["serviceTime"]["fixedSeconds"], encoder["serviceTime"]["priorSeconds"]) == ("0.03", "0.02")
    assert "startupSeconds" not in encoder, "it is declared"
    assert "relativeError" not in encoder["serviceTime"]
    assert status["latency"]["overheadSeconds"] == "0.042"


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_recommended_is_in_the_status_in_mode_recommend_alone(mode: Mode) -> None:
    status = status_of(a_snapshot(a_state(a_spec(mode=mode), demand=50.0, replicas={VAD: 1, ENCODER: 1})))
    found = [placement.get("recommended") for stage in status["stages"] for placement in stage["placements"]]
    assert all(count is not None for count in found) is (mode is Mode.RECOMMEND)
    assert any(count is not None for count in found) is (mode is Mode.RECOMMEND)


def test_what_is_not_known_is_not_in_the_status() -> None:
    undeclared = replace(a_placement("cpu"), declared=Declared(service=False, cv=False, startup=False))
    spec = a_spec(a_stage("vad", undeclared))
    status = status_of(a_snapshot(a_state(spec, replicas={VAD: 1})))
    (vad,) = status["stages"][0]["placements"]
    assert not {"fixedSeconds", "perItemSeconds", "cv", "relativeError"} & vad.get("serviceTime", {}).keys()
    assert "startupSeconds" not in vad
    assert "overheadSeconds" not in status["latency"]


def test_the_status_of_the_largest_pipeline_of_which_all_is_learned_fits_into_etcd() -> None:
    undeclared = Declared(service=False, cv=False, startup=False)
    stage_names, pool_names = [f"stage-{i:057}" for i in range(20)], [f"pool-{i:058}" for i in range(8)]
    placements = [replace(a_placement(pool, bounds=(0, 5)), declared=undeclared) for pool in pool_names]
    stages = [
        a_stage(name, *placements, after=stage_names[max(0, index - 1) : index])
        for index, name in enumerate(stage_names)
    ]
    spec = a_spec(*stages, sla_s=20.0)
    keys = spec.placement_keys()
    learned = Learned(
        batch_times={key: BatchTimes(weight=2.0, batch=1.0, time_s=0.023) for key in keys},
        startups_s=dict.fromkeys(keys, 42.0),
        cvs=dict.fromkeys(keys, 2 / 3),
        session_slots=dict.fromkeys(keys, MOST_SLOTS),
        sessions_held=dict.fromkeys(keys, MOST_SLOTS),
        pass_ratios={key[0]: 2 / 3 for key in keys},
        throughput_corrections={key: Correction(factor=0.5, smoothed=0.5, learned_at_s=NOW_S) for key in keys},
        latency_corrections={key[0]: Correction(factor=1.5, smoothed=1.5, learned_at_s=NOW_S) for key in keys},
        overhead_s=1.0,
    )
    floor = FeedbackFloor(replicas=2 / 3, demand=2 / 3, planned=1 / 3)
    step = FeedbackStep(
        stage=keys[0][0], at_s=NOW_S + 1 / 3, before_s=1 / 3, demand=2 / 3, replicas=1, floor_before=floor
    )
    feedback = FeedbackMemory(
        floors={key[0]: floor for key in keys},
        kept={key[0]: replace(step, stage=key[0]) for key in keys},
        useless_until_s={key[0]: NOW_S + 60 for key in keys},
    )
    memory = PipelineMemory(learned=learned, feedback=feedback)
    state = a_state(spec, replicas=dict.fromkeys(keys, 1), memory=memory)
    fleet = pools(*(a_pool(name, instances=200, ready=200) for name in pool_names))
    status = status_of(a_snapshot(state, fleet=fleet))
    lines = status["memory"]["explanation"]["lines"]
    assert sum("being measured; not declared" in line for line in lines) == len(keys)
    # etcd takes 1.5 MiB by default, spec and managed fields included.
    assert len(json.dumps(status).encode()) < 512 * 1024


def test_the_entry_that_determines_the_demand_is_in_the_status() -> None:
    event = EventFloor(name="concert", demand=400.0, start_s=NOW_S, end_s=NOW_S + 60)
    state = a_state(replace(a_spec(), at_least=(event,)), demand=10.0, replicas={VAD: 1, ENCODER: 1})
    status = status_of(a_snapshot(state))
    assert (status["demand"], status["atLeast"], status["memory"]["floor"]) == ("400", "concert", 400.0)
    assert status["summary"]["demand"] == "400 requests/s (atLeast concert)"
    assert "atLeast" not in status_of(a_snapshot(replace(state, demand=500.0)))


def test_what_must_last_is_in_the_status() -> None:
    snapshot = a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1}))
    assert memory_from(status_of(snapshot)["memory"]).memory == decide(snapshot, Policy()).pipelines[0].memory


def test_an_unusable_resource_keeps_what_was_remembered() -> None:
    old = status_of(a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1})))
    status = invalid_status(old, 7, INVALID, NOW_S + 60)
    assert status["memory"] == old["memory"]
    assert status["observedGeneration"] == 7
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("False", "InvalidSpec", 7)
    assert len([each for each in status["conditions"] if each["type"] == "Ready"]) == 1


def test_an_unusable_resource_sheds_what_its_plan_did_and_not_what_was_short_for_a_moment() -> None:
    old = status_of(a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1})))

    def kept(by_plan: float | None) -> str | None:
        before = {**old, "admissible": "0", "memory": {**old["memory"], "admissible": by_plan}}
        found: str | None = invalid_status(before, 7, INVALID, NOW_S + 60).get("admissible")
        return found

    assert kept(None) is None
    assert kept(30.0) == "30"


@pytest.mark.parametrize(("until_s", "verdict"), [(None, "True"), (NOW_S + 60, "False"), (NOW_S - 60, "Unknown")])
def test_a_pool_that_cannot_deliver_says_so_until_it_has_proved_otherwise(until_s: float | None, verdict: str) -> None:
    memory = PoolMemory(unavailable_until_s=until_s, backoff_s=600.0, reason="pod-1: no nodes") if until_s else None
    fleet = default_pools()
    gpu = PoolName("gpu")
    if memory:
        fleet = {**fleet, gpu: replace(fleet[gpu], memory=memory)}
    snapshot = a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}), fleet=fleet)
    decided = next(pool for pool in decide(snapshot, Policy()).pools if pool.name == gpu)
    status = pool_status(snapshot.pools[gpu], decided, {}, NOW_S)
    assert PoolStatus.model_validate(status, extra="forbid")
    assert condition(status, "Available")["status"] == verdict
    assert status.get("unavailableUntil") == (timestamp(until_s) if until_s else None)


def test_a_roll_out_is_in_the_status_while_it_lasts() -> None:
    rolling = replace(a_target(1, existing=2), rolling=True, updated=1)
    for target, updated in ((rolling, 1), (a_target(1), None)):
        status = status_of(a_snapshot(a_state(replicas={VAD: target, ENCODER: 1})))
        assert status["stages"][0]["placements"][0].get("updated") == updated


def test_an_elastic_pool_says_its_bounds_and_the_nodes_on_their_way() -> None:
    coming = (ExpectedNode(name="gpu-x", since_s=NOW_S), ExpectedNode(name="gpu-y", since_s=NOW_S))
    gpu = a_pool("gpu", instances=9, node_pool=NodePoolState(instances=5, claims=coming))
    fixed = a_pool("inferentia", instances=None, ready=7, ready_nodes=True)
    snapshot = a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}), fleet=pools(a_pool("cpu"), fixed, gpu))
    decided = {pool.name: pool for pool in decide(snapshot, Policy()).pools}
    status = pool_status(gpu, decided[gpu.spec.name], {}, NOW_S)
    assert PoolStatus.model_validate(status, extra="forbid")
    assert (status["limit"], status["bounds"], status["arriving"]) == (5, {"instances": 9, "nodePool": 5}, 2)
    status = pool_status(fixed, decided[fixed.spec.name], {}, NOW_S)
    assert (status["limit"], status["bounds"], "arriving" in status) == (7, {"readyNodes": 7}, False)


def test_a_pool_whose_nodes_cannot_be_read_says_so() -> None:
    fleet, gpu = default_pools(), PoolName("gpu")
    fleet = {**fleet, gpu: replace(fleet[gpu], unread="403 nodes is forbidden")}
    snapshot = a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}), fleet=fleet)
    decided = next(pool for pool in decide(snapshot, Policy()).pools if pool.name == gpu)
    available = condition(pool_status(fleet[gpu], decided, {}, NOW_S), "Available")
    assert (available["status"], available["reason"]) == ("Unknown", "NodesUnreadable")
    assert available["message"].startswith("cannot list nodes; using the last known state: ")
    assert "403 nodes is forbidden" in available["message"]


def test_a_shared_stage_says_whose_it_is_and_which_share_of_its_cost_is_paid() -> None:
    snapshot = sharing.the_world(demands=(10.0, 30.0))
    decision = decide(snapshot, Policy())
    owner, borrower = (
        pipeline_status(snapshot, state, own, decision, {})
        for state, own in zip(snapshot.pipelines, decision.pipelines, strict=True)
    )
    assert (borrower["stages"][0]["sharedFrom"], borrower["stages"][0]["costShare"]) == (
        "speech/captions/encoder",
        "0.75",
    )
    assert (owner["stages"][0].get("sharedFrom"), owner["stages"][0]["costShare"]) == (None, "0.25")
    assert "costShare" not in owner["stages"][1]
    total = sum(float(status["billedPerHour"]) for status in (owner, borrower))
    assert total == pytest.approx(sum(float(status["costPerHour"]) for status in (owner, borrower)), rel=0.05)


def test_a_published_limit_has_an_end_and_goes_with_it() -> None:
    limited = a_state(replace(a_spec(), budget_per_hour=3.0), demand=500.0, replicas={VAD: 1, ENCODER: 1})
    status = status_of(a_snapshot(limited))
    assert "admissible" in status
    assert seconds(status["admissibleUntil"]) == NOW_S + 600
    assert condition(status, "Shedding")["status"] == "True"
    assert "admissibleUntil" not in status_of(a_snapshot(replace(limited, demand=1.0)))
    # A resource that cannot be used is not planned: nothing renews its limit.
    kept = invalid_status(status, 7, INVALID, NOW_S + 60)
    assert kept["admissibleUntil"] == status["admissibleUntil"]
    unlimited = {**status, "memory": {name: part for name, part in status["memory"].items() if name != "admissible"}}
    assert "admissibleUntil" not in invalid_status(unlimited, 7, INVALID, NOW_S + 60)


def test_the_status_of_a_budget_names_what_is_short() -> None:
    spec = BudgetSpec(name="team", uid="u", generation=4, selector=LabelSelector(labels={}), per_hour=10.0)
    decision = BudgetDecision(
        name="team",
        limit_per_hour=10.0,
        spend_per_hour=9.751,
        planned_per_hour=9.5,
        pipelines=(PipelineKey("a/x"), PipelineKey("b/y")),
        short=(ShortPipeline(key=PipelineKey("b/y"), served_fraction=0.6129),),
    )
    state = BudgetState(spec=spec, namespaces=frozenset({"a", "b"}))
    declared = {"namespaceSelector": {}, "perHour": "10"}
    status = budget_status(state, decision, declared, {}, NOW_S)
    assert BudgetStatus.model_validate(status).short_count == 1
    numbers = [status[name] for name in ("limitPerHour", "spendPerHour", "plannedPerHour", "pipelines", "shortCount")]
    assert numbers == ["10", "9.76", "9.5", 2, 1]
    assert status["short"] == [{"pipeline": "b/y", "servedFraction": "0.612"}]
    assert status["reason"] == "$10.00/h is not enough to serve all load within the SLA: served are b/y 61.3%"
    (within,) = status["conditions"]
    assert (within["status"], within["reason"], within["observedGeneration"]) == ("True", "WithinBudget", 4)
    over = budget_status(state, replace(decision, spend_per_hour=12.0), declared, status, NOW_S + 15)["conditions"][0]
    assert (over["status"], over["reason"]) == ("False", "AboveBudget")
    unread = budget_status(replace(state, unread="403"), decision, declared, status, NOW_S)["conditions"][0]
    assert (unread["status"], unread["reason"]) == ("Unknown", "NamespacesUnreadable")


def test_the_status_of_a_budget_keeps_what_a_restart_needs() -> None:
    spec = BudgetSpec(name="team", uid="u", generation=4, selector=LabelSelector(labels={}), per_hour=10.0)
    decision = BudgetDecision(
        name="team",
        limit_per_hour=10.0,
        spend_per_hour=9.0,
        planned_per_hour=9.0,
        pipelines=(PipelineKey("b/y"), PipelineKey("a/x"), PipelineKey("a/z")),
        short=(),
    )
    state = BudgetState(spec=spec, namespaces=frozenset({"a", "b", "empty"}))
    status = budget_status(state, decision, {"perHour": "10"}, {}, NOW_S)
    assert (status["namespaces"], status["validSpec"]) == (["a", "b"], '{"perHour":"10"}')
    broken = replace(state, unread="403", problem="spec.periods[0].timeZone: must be; the last valid spec holds")
    after = budget_status(broken, replace(decision, pipelines=()), {"perHour": "20"}, status, NOW_S)
    assert (after["namespaces"], after["validSpec"]) == (["a", "b"], '{"perHour":"10"}')
    (condition,) = after["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert "the last valid spec holds; $9.00/h of $10.00/h is spent" in condition["message"]


def test_the_status_of_a_divided_pool_is_of_all_shards_and_keeps_their_entries_and_orphans() -> None:
    gpu = PoolName("gpu")
    entries = (
        Entry(shard=0, of=2, used=1, agreed=4, allowed=4, renewed_at_s=NOW_S),
        Entry(shard=1, of=2, used=7, agreed=9, allowed=9, want=Want(price_per_hour=2.5), renewed_at_s=NOW_S),
    )
    orphan = {"namespace": "theirs", "apiVersion": "apps/v1", "kind": "Deployment", "name": "asr", "replicas": 2}
    old = {"shards": entry_documents(entries), "orphans": [orphan]}
    snapshot = a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1, ENCODER_GPU: 1}))
    snapshot = replace(
        snapshot, pools={**snapshot.pools, gpu: replace(snapshot.pools[gpu], allowance=Allowance(amount=4))}
    )
    decided = next(pool for pool in decide(snapshot, Policy()).pools if pool.name == gpu)
    own = pool_status(snapshot.pools[gpu], decided, old, NOW_S)
    status = divided_pool_status(own, snapshot.pools[gpu], old, 0)
    assert (status["limit"], status["inUse"], status["free"]) == (20, "8", "12")
    assert status["planned"] == own["planned"] + 7
    assert status["shadowPricePerHour"] == "2.5"
    assert (status["shards"], status["orphans"]) == (old["shards"], [orphan])
