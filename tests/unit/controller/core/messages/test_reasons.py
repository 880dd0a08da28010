"""The list of reasons, the reasons that the code emits, and the document are the same."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import ENCODER, NOW_S, VAD, a_pool, a_snapshot, a_state
from corpus import ROOT
from planning import Planner
from reasons_document import DOCUMENT, ListedReason, first_looks, kinds, listed_reasons, renewed, tables

from controller.core.cycle import decide
from controller.core.messages.conditions import (
    ConditionValue,
    budget_condition,
    conditions,
    not_assessed,
    pool_conditions,
    unusable_condition,
)
from controller.core.messages.events import batching_event, events
from controller.core.messages.phrases import MOST_CHARACTERS
from controller.core.messages.reasons import ConditionReason, ConditionType, EventReason
from controller.core.messages.sentences import CHANGES, HOLDS
from controller.core.messages.summary import Health
from controller.core.state.carry_over import PoolMemory
from controller.core.state.cloud import (
    IMPLAUSIBLE,
    PriceOrigin,
    PriceQuote,
    Purchase,
    QuotaReading,
    QuotaSource,
)
from controller.core.state.decision import (
    BacklogOutlook,
    BatchWrite,
    BudgetDecision,
    ChangeReason,
    CrowdedReplica,
    FaultyReplica,
    Hold,
    HoldReason,
    LateReason,
    MetricsUse,
    Mismatch,
    OutOfMemory,
    PipelineDecision,
    RuleState,
    Skew,
)
from controller.core.state.diagnosis import Cause, Finding
from controller.core.state.policy import Policy
from controller.core.state.provider_errors import ErrorClass, ProviderError
from controller.core.state.snapshot import NodePoolProblem, NodePoolState, Orphan
from controller.core.state.spec import ConfigKey, Target
from controller.kube.actuator import WriteOutcome
from controller.resources.schema import CRDS, Crd, structural_schema
from optimizer.model import LATENCY_FACTORS, BatchSettings, PipelineKey, PoolName, StageName
from optimizer.plan import ReplayCheck
from profiler.samples import Absence, AbsenceReason, DeviceFault, DeviceQuantity, MetricsTier, Scrapes
from profiler.stages import LatencySource

OF_POOLS = {
    ConditionType.AVAILABLE,
    ConditionType.CAPACITY_KNOWN,
    ConditionType.NODES_EXCLUSIVE,
    ConditionType.REPLICAS_OWNED,
    ConditionType.GROWTH_OPEN,
    ConditionType.PRICE_CURRENT,
    ConditionType.QUOTA_SUFFICES,
    ConditionType.PROVIDER_PERMITS,
}
QUOTA = QuotaSource(code="L-1945791B", region="us-east-1", vcpus=4, purchase=Purchase.ON_DEMAND, name="Inf OnDemand")
ABSENT = Absence(reason=AbsenceReason.STALE)

NAMES = ("asr-0", "asr-1", "asr-2")


@pytest.fixture
def decision(planner: Planner) -> PipelineDecision:
    """A decision without changes, holds or problems."""
    planner.wants({VAD: 4, ENCODER: 4})
    state = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    return decide(a_snapshot(state), Policy()).pipelines[0]


def variants(decision: PipelineDecision) -> Iterator[PipelineDecision]:
    """Yield decisions with every hold, reading, source, outcome of the plan, and spend."""
    assert decision.plan is not None
    yield decision
    yield replace(decision, plan=replace(decision.plan, feasible=False))
    yield replace(decision, admissible=5.0)
    yield replace(decision, admissible=5.0, admitted_meanwhile=5.0)
    yield replace(decision, admissible=0.0, holds=(Hold(reason=HoldReason.IDLE),))
    yield replace(decision, spec=replace(decision.spec, sheds=False))
    yield from (replace(decision, holds=(Hold(reason=reason),)) for reason in HoldReason)
    late = replace(decision, profile=replace(decision.profile, latency_s=2.0))
    yield replace(late, holds=(Hold(reason=HoldReason.CONFLICT),))
    for reason in AbsenceReason:
        yield replace(decision, profile=replace(decision.profile, latency_s=Absence(reason=reason)))
    for source in LatencySource:
        for latency_s in (0.2, 2.0):
            yield replace(decision, profile=replace(decision.profile, latency_s=latency_s, latency_source=source))
    for tier in MetricsTier:
        for lost_for_s in (None, 10.0, 1000.0):
            use = MetricsUse(tier=tier, lost_for_s=lost_for_s)
            yield replace(decision, metrics=use)
            yield replace(decision, metrics=use, holds=(Hold(reason=HoldReason.METRICS_MISSING),))
    for until_s in (None, NOW_S):
        memory = replace(decision.memory, excess_excused_until_s=until_s)
        yield replace(decision, spend_per_hour=1e6, memory=memory)
    silent = RuleState(stage=StageName("vad"), name="queue", reading=ABSENT, floor=None)
    yield replace(decision, rules=(silent,))
    mismatches: list[dict[str, Any]] = [
        {"outside": {"vad-0": "n-1"}, "fits": None},
        {"outside": {}, "fits": 2},
        {"outside": {}, "fits": None, "resized_by": "VerticalPodAutoscaler/vad"},
    ]
    for mismatch in mismatches:
        found = Mismatch(stage=StageName("vad"), placement=PoolName("cpu"), per_instance=4, **mismatch)
        yield replace(decision, mismatches=(found,))
    for scrapes in (Scrapes(unlabelled="no pod"), Scrapes(excused=("vad-0",)), Scrapes(duplicated=("vad-0",))):
        yield replace(decision, scrapes={VAD: scrapes})
    for fault in (DeviceFault(errors=1.0), DeviceFault(throttled=0.5)):
        replica = FaultyReplica(stage=VAD[0], placement=VAD[1], pod="vad-0", node="n-1", fault=fault)
        yield replace(decision, faulty=(replica,))
    killed = OutOfMemory(stage=VAD[0], placement=VAD[1], pod="vad-0", at_s=NOW_S, slots=10)
    yield replace(decision, out_of_memory=(killed,))
    for cause in Cause:
        numbers = defaultdict[str, float](lambda: 1.0)
        found_cause = Finding(cause=cause, confidence=0.9, stage=VAD[0], placement=VAD[1], numbers=numbers, names=NAMES)
        yield replace(decision, diagnosis=(found_cause,))
    vad, *others = decision.profile.stages
    unread = replace(vad, devices={DeviceQuantity.ERRORS: ABSENT})
    yield replace(decision, profile=replace(decision.profile, stages=(unread, *others)))
    extreme = replace(vad, latency_factor=LATENCY_FACTORS[1])
    yield replace(decision, profile=replace(decision.profile, stages=(extreme, *others)))
    crowded = CrowdedReplica(pod="vad-0", placement=VAD[1], sessions=61.0, give_up=27)
    skew = Skew(stage=VAD[0], sessions=100.0, replicas=3, utilization=1.2, crowded=(crowded,))
    yield replace(decision, skews=(skew,))
    yield replace(decision, sessions_unread=(VAD[0],))
    assert decision.plan is not None
    yield replace(decision, plan=replace(decision.plan, replay=ReplayCheck(left_out=True)))
    runs = BacklogOutlook(left=10.0, due_s=NOW_S, required_rps=1.0, rate_rps=1.0, finish_s=NOW_S, met=True)
    for own in (
        runs,
        replace(runs, left=0.0),
        replace(runs, left=ABSENT, met=None),
        replace(runs, waits_until_s=NOW_S),
        replace(runs, rate_rps=None, finish_s=None, met=None, unmeasured=VAD[0]),
        *(replace(runs, met=False, late=late_reason) for late_reason in LateReason),
    ):
        yield replace(decision, backlog=own)


def of_pools() -> Iterator[ConditionValue]:
    failed = PoolMemory(unavailable_until_s=NOW_S, backoff_s=60.0, reason="pod-0: no nodes")
    yield from pool_conditions(a_pool("gpu"), PoolMemory(), NOW_S)
    yield from pool_conditions(a_pool("gpu", unread="403"), PoolMemory(), NOW_S)
    yield from pool_conditions(a_pool("gpu"), failed, NOW_S - 1)
    yield from pool_conditions(a_pool("gpu"), failed, NOW_S + 1)
    yield from pool_conditions(a_pool("gpu", shared_nodes={PoolName("cpu"): ("n-1",)}), PoolMemory(), NOW_S)
    orphan = Orphan(
        namespace="speech",
        target=Target(api_version="apps/v1", kind="Deployment", name="asr"),
        pipeline=PipelineKey("speech/old"),
        pool=PoolName("gpu"),
        per_instance=1,
        replicas=2,
    )
    yield from pool_conditions(replace(a_pool("gpu"), orphans=(orphan,)), PoolMemory(), NOW_S, claimed=3)
    known = [NodePoolState(problem=problem, detail="why") for problem in NodePoolProblem]
    for node_pool in (NodePoolState(instances=4), NodePoolState(instances=1, unseen=True), *known):
        yield from pool_conditions(a_pool("gpu", instances=None, node_pool=node_pool), PoolMemory(), NOW_S)
    for kind in ErrorClass:
        errors = (ProviderError(kind=kind, at_s=NOW_S, text="why"),)
        failing = a_pool("gpu", node_pool=NodePoolState(instances=4, errors=errors))
        yield from pool_conditions(failing, PoolMemory(), NOW_S)
    for origin in PriceOrigin:
        for problem in ("", "no answer", f"{IMPLAUSIBLE}: 0"):
            quote = PriceQuote(per_hour=1.0, origin=origin, as_of_s=NOW_S, problem=problem)
            pool = a_pool("gpu")
            yield from pool_conditions(replace(pool, spec=replace(pool.spec, price=quote)), PoolMemory(), NOW_S)
    for limit, others in ((0.0, 0.0), (4.0, 4.0), (64.0, 0.0), (None, None)):
        reading = QuotaReading(limit_vcpus=limit, others_vcpus=others, as_of_s=NOW_S)
        pool = a_pool("gpu")
        bounded = replace(pool, spec=replace(pool.spec, quota=QUOTA), quota=reading)
        yield from pool_conditions(bounded, PoolMemory(), NOW_S)
    yield unusable_condition(ConditionType.AVAILABLE, ConditionReason.INVALID_SPEC, "spec")


def of_budgets() -> Iterator[ConditionValue]:
    budget = BudgetDecision(
        name="team", limit_per_hour=1.0, spend_per_hour=1.0, planned_per_hour=1.0, pipelines=(), short=()
    )
    yield budget_condition(budget, "")
    yield budget_condition(budget, "403")
    yield budget_condition(replace(budget, spend_per_hour=2.0), "")
    yield unusable_condition(ConditionType.WITHIN_BUDGET, ConditionReason.INVALID_SPEC, "spec")


def unusable_pipelines() -> Iterator[ConditionValue]:
    for reason in (
        ConditionReason.INVALID_SPEC,
        ConditionReason.INTERNAL_ERROR,
        ConditionReason.SHARED_STAGE_MISSING,
    ):
        yield unusable_condition(ConditionType.READY, reason, "spec")
    yield unusable_condition(ConditionType.ONE_OPERATOR, ConditionReason.SCALED_BY_ANOTHER_OPERATOR, "a/b")


def listed() -> Mapping[str | None, list[ListedReason]]:
    found: dict[str | None, list[ListedReason]] = {}
    for each in listed_reasons():
        found.setdefault(each.type, []).append(each)
    return found


def test_the_conditions_have_the_listed_reasons_and_statuses(decision: PipelineDecision, planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 8})
    growing = decide(a_snapshot(a_state(replicas={VAD: 4, ENCODER: 4})), Policy()).pipelines[0]
    emitted = {
        (condition.type, condition.reason, condition.status)
        for variant in (growing, *variants(decision))
        for condition in conditions(variant)
    }
    others = (*of_pools(), *of_budgets(), *unusable_pipelines(), not_assessed())
    emitted |= {(each.type, each.reason, each.status) for each in others}
    assert emitted == {
        (each.type, each.reason, status)
        for each in listed_reasons()
        if each.type is not None
        for status in each.state.split(", ")
    }


def a_batch_write(*, restores: bool) -> BatchWrite:
    at, settings = ConfigKey(config_map="c", key="k"), BatchSettings(limit=8)
    return BatchWrite(stage=VAD[0], placement=VAD[1], at=at, settings=settings, before=None, restores=restores)


def test_the_events_have_the_listed_reasons_and_types(decision: PipelineDecision, planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 8})
    growing = decide(a_snapshot(a_state(replicas={VAD: 4, ENCODER: 4})), Policy()).pipelines[0]
    types = [each.value for each in ConditionType]
    emitted: set[tuple[str, str]] = set()
    for variant in (growing, *variants(decision)):
        for before in ({}, dict.fromkeys(types, "True"), dict.fromkeys(types, "False")):
            for event in events(variant, before, {"MetricsAvailable": "Another"}):
                assert 0 < len(event.message) <= MOST_CHARACTERS
                emitted.add((event.reason, "Warning" if event.warning else "Normal"))
    emitted |= {(outcome.value, "Warning") for outcome in WriteOutcome if outcome is not WriteOutcome.APPLIED}
    assert (WriteOutcome.APPLIED.value, "Normal") in emitted
    emitted.add((EventReason.STATUS_REFUSED.value, "Warning"))  # of the reporter
    for restores, problem in ((False, ""), (True, ""), (False, "ConfigMap c, key k: cannot be written: why")):
        event = batching_event(a_batch_write(restores=restores), problem)
        emitted.add((event.reason, "Warning" if event.warning else "Normal"))
    for condition in (*of_pools(), *of_budgets(), *unusable_pipelines()):
        emitted.add((condition.reason, "Normal" if condition.status == "True" else "Warning"))
    assert emitted == {(each.reason, each.state) for each in listed()[None]}


def test_a_reason_is_one_camel_case_word_and_is_listed_once() -> None:
    for reasons in listed().values():
        names = [each.reason for each in reasons]
        assert len(names) == len(set(names))
        assert all(re.fullmatch(r"([A-Z]+[a-z]*)+", name) for name in names)
    assert all(each.meaning.endswith(".") and each.remedy.endswith(".") for each in listed_reasons())


def test_no_other_module_names_a_reason_in_a_text_of_its_own() -> None:
    literal = re.compile(r"""\breason\s*(?::\s*str\s*)?=\s*f?["'][A-Z]""")
    for folder in ("controller/core", "controller/kube"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not literal.search(path.read_text()), path


def test_every_change_and_every_hold_has_a_text() -> None:
    assert CHANGES.keys() == set(ChangeReason)
    assert HOLDS.keys() == set(HoldReason)


def test_the_document_has_the_reasons_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert kinds(text) == [*(each.value for each in ConditionType), "Event", *tables()]
    assert text == renewed(text), "make docs-renew"


def test_the_runbook_has_a_first_look_for_every_health_condition_and_event() -> None:
    of_ready = [each.reason for each in listed()[ConditionType.READY.value]]
    assert {each.value for each in Health} <= set(of_ready)
    looks = first_looks()
    assert looks.keys() == {"HEALTH", "condition", "Event"}
    assert sorted(looks["HEALTH"]) == sorted(of_ready)
    assert looks["condition"] == [each.value for each in ConditionType]
    assert sorted(looks["Event"]) == sorted(each.reason for each in listed()[None])


def test_a_table_that_is_out_of_date_is_renewed() -> None:
    stale = "a\n<!-- reasons of hold -->\n| old |\n<!-- end -->\nb\n"
    assert renewed(stale) == f"a\n<!-- reasons of hold -->\n{tables()['hold']}<!-- end -->\nb\n"


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd.kind)
def test_the_resource_documents_every_condition_type(crd: Crd) -> None:
    status: Any = structural_schema(crd.model)["properties"]["status"]
    text = status["properties"]["conditions"]["description"]
    others = {"ComputePool": OF_POOLS, "ComputeBudget": {ConditionType.WITHIN_BUDGET}}
    elsewhere = {each for of_kind in others.values() for each in of_kind}
    types = {each.value for each in others.get(crd.kind, set(ConditionType) - elsewhere)}
    assert types <= set(re.findall(r"\w+", text))


def test_the_fields_that_a_text_names_are_those_of_the_resource() -> None:
    spec: Any = structural_schema(CRDS[0].model)["properties"]["spec"]
    for text in (*CHANGES.values(), *HOLDS.values()):
        for path in re.findall(r"\bscaling(?:\.\w+)+", text):
            node = spec
            for name in path.split("."):
                assert name in node["properties"], f"{text}: {path}"
                node = node["properties"][name]
