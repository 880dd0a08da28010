"""The loop closes on the measured latency: cycles of `decide` in small worlds whose stages are not as modelled."""

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from builders import (
    NOW_S,
    a_placement,
    a_pool,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    applied,
    pools,
    seen,
)

from controller.core.bounds.feedback import GIVE_BACK_S, USELESS_S, WINDOWS
from controller.core.cycle import decide
from controller.core.state.carry_over import FeedbackMemory, PipelineMemory
from controller.core.state.decision import ChangeReason, Hold, HoldReason, PipelineDecision, ReplicaChange
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, PoolState, Snapshot
from controller.core.state.spec import Declared, Mode, PipelineSpec, StepPolicy
from controller.kube.durable import memory_document, memory_from
from optimizer.model import PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, Reading
from profiler.stages import LatencySource, Learned

VAD: PlacementKey = (StageName("vad"), PoolName("cpu"))
ENCODER: PlacementKey = (StageName("encoder"), PoolName("gpu"))
DEMAND_RPS = 60.0
SLA_S = 0.5
CYCLE_S = 15.0
TRIAL_CYCLES = int(WINDOWS * 60 / CYCLE_S)
FLEET = pools(a_pool("cpu", price=0.5, instances=40), a_pool("gpu", price=1.0, instances=40))
MISSING = Absence(reason=AbsenceReason.MISSING)

Replicas = Mapping[PlacementKey, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is measured in one cycle: end to end, the 95th percentile of each stage, and arrivals at the encoder."""

    latency_s: Reading | None
    vad_s: Reading = 0.001
    encoder_s: Reading = 0.6
    arrivals: Reading = 0.1


World = Callable[[int, Replicas], Measured]
"""What is measured in a cycle with so many replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle: what went in, and what was decided."""

    state: PipelineState
    now_s: float
    decision: PipelineDecision

    @property
    def feedback(self) -> FeedbackMemory:
        return self.decision.memory.feedback

    @property
    def changes(self) -> tuple[ReplicaChange, ...]:
        return self.decision.changes

    def hold(self, reason: HoldReason) -> Hold | None:
        return next((hold for hold in self.decision.holds if hold.reason is reason and hold.detail), None)


def a_pipeline(
    *,
    encoders: tuple[int, int] = (0, 40),
    startup_s: float = 0.0,
    mode: Mode = Mode.AUTO,
    budget: float = 100.0,
    sla_s: float = SLA_S,
) -> PipelineSpec:
    return a_spec(
        a_stage("vad", a_placement("cpu", service_s=0.01)),
        a_stage("encoder", a_placement("gpu", bounds=encoders, startup_s=startup_s), after=["vad"]),
        sla_s=sla_s,
        mode=mode,
        budget=budget,
    )


def planned(spec: PipelineSpec, demand: float = DEMAND_RPS) -> Replicas:
    """The replicas of the plan alone."""
    state = a_state(spec, demand=demand, replicas={VAD: 1, ENCODER: 1})
    plan = decide(a_snapshot(state, fleet=FLEET), Policy()).pipelines[0].plan
    assert plan is not None
    return plan.replicas()


def constant(latency_s: Reading | None, **stages: Reading) -> World:
    return lambda _cycle, _replicas: Measured(latency_s=latency_s, **stages)


def improving(work_s: float) -> World:
    """An encoder whose latency falls with its replicas, otherwise than modelled."""
    return lambda _, replicas: Measured(
        latency_s=0.05 + work_s / replicas[ENCODER], encoder_s=work_s / replicas[ENCODER]
    )


def run(
    cycles: int,
    world: World,
    *,
    spec: PipelineSpec | None = None,
    demand: Callable[[int], Reading] = lambda _: DEMAND_RPS,
    replicas: Replicas | None = None,
    fleet: Mapping[PoolName, PoolState] = FLEET,
    policy: Policy | None = None,
    memory: PipelineMemory | None = None,
    ready: bool = True,
    start_s: float = NOW_S,
    kept: Callable[[PipelineMemory], PipelineMemory] = lambda memory: memory,
) -> Sequence[Cycle]:
    """Run `cycles` cycles from the replicas of the plan, or from `replicas`."""
    spec, policy = spec or a_pipeline(), policy or Policy()
    start = a_state(spec, demand=DEMAND_RPS, replicas=replicas or planned(spec), memory=memory)
    snapshot: Snapshot = a_snapshot(start, fleet=fleet, now_s=start_s)
    found: list[Cycle] = []
    for cycle in range(cycles):
        (state,) = snapshot.pipelines
        measured = world(cycle, {key: state.desired(*key) for key in (VAD, ENCODER)})
        encoder = seen(latency_p95=measured.encoder_s, arrival_rate=measured.arrivals)
        state = replace(
            state,
            demand=demand(cycle),
            latency_s=measured.latency_s,
            samples={VAD: seen(latency_p95=measured.vad_s), ENCODER: encoder},
            memory=kept(state.memory),
        )
        snapshot = replace(snapshot, pipelines=(state,))
        decision = decide(snapshot, policy)
        found.append(Cycle(state=state, now_s=snapshot.now_s, decision=decision.pipelines[0]))
        snapshot = applied(snapshot, decision, ready=ready, after_s=CYCLE_S)
    return found


def encoders(cycles: Sequence[Cycle]) -> list[int]:
    return [cycle.state.desired(*ENCODER) for cycle in cycles]


def steps(cycles: Sequence[Cycle]) -> list[tuple[int, StageName]]:
    """The cycles and stages of the steps that a measured miss led to."""
    return [
        (number, change.stage)
        for number, cycle in enumerate(cycles)
        for change in cycle.changes
        if change.reason is ChangeReason.MEASURED_MISS
    ]


class TestStep:
    def test_a_miss_that_persists_leads_to_one_step_within_three_cycles(self) -> None:
        found = run(6, constant(0.8))
        ((number, stage),) = steps(found)
        assert 1 <= number <= 2, "not for one bad sample"
        assert stage == "encoder"
        (change,) = found[number].changes
        assert change.before < change.after <= 1.25 * change.before + 1

    def test_one_cycle_above_the_sla_leads_to_none(self) -> None:
        world: World = lambda cycle, _: Measured(latency_s=0.8 if cycle % 3 == 0 else 0.45)  # noqa: E731
        assert not steps(run(40, world))

    def test_it_is_made_where_the_latency_most_exceeds_its_share(self) -> None:
        spec = a_pipeline()
        plan = run(1, constant(0.3), spec=spec)[0].decision.plan
        assert plan is not None
        shares = {stage.name: stage.latency_s or 0.0 for stage in plan.stages}
        vad_s, encoder_s = 4 * shares[VAD[0]], 2 * shares[ENCODER[0]]
        assert vad_s < encoder_s
        assert {stage for _, stage in steps(run(6, constant(0.8, vad_s=vad_s, encoder_s=encoder_s)))} == {"vad"}

    def test_it_is_made_although_the_plan_has_more_replicas_where_the_model_needs_none_of_them(self) -> None:
        spec = a_pipeline(sla_s=0.2)
        plan = planned(spec, 100.0)
        fewer = {VAD: plan[VAD], ENCODER: plan[ENCODER] - 1}
        found = run(6, constant(0.8), spec=spec, replicas=fewer, demand=lambda _: 100.0)
        assert found[0].decision.plan is not None
        assert found[0].decision.plan.replicas() == plan
        assert HoldReason.WITHIN_TOLERANCE in {hold.reason for hold in found[0].decision.holds}
        assert not found[0].changes, "by the model, the current replicas meet the SLA"
        assert steps(found)

    def test_it_is_not_made_while_the_plan_itself_adds_replicas(self) -> None:
        spec = replace(a_pipeline(), scaling=a_scaling(up=1))
        found = run(2, constant(0.8), spec=spec, replicas={**planned(spec), ENCODER: 1})
        assert [cycle.changes[0].after for cycle in found] == [2, 4], "it doubles in each cycle"
        assert not steps(found)
        assert not found[1].feedback.floors

    def test_it_is_not_made_before_a_window_is_of_the_replicas_that_were_added_and_started_at_once(self) -> None:
        spec = a_pipeline()
        found = run(12, constant(0.8), spec=spec, replicas={**planned(spec), ENCODER: 1})
        assert encoders(found)[:2] == [1, planned(spec)[ENCODER]]
        window_cycles = spec.stages[1].metrics_window_s / CYCLE_S
        assert steps(found)
        assert min(number for number, _ in steps(found)) > window_cycles

    def test_it_is_not_made_for_a_latency_of_before_another_stage_had_its_replicas(self) -> None:
        spec = a_pipeline()
        fewer = {**planned(spec, 100.0), VAD: 1}
        found = run(12, constant(0.8), spec=spec, replicas=fewer, demand=lambda _: 100.0)
        assert [change.stage for change in found[0].changes] == ["vad"]
        (first, *_) = steps(found)
        assert first[1] == "encoder"
        assert first[0] > spec.stages[0].metrics_window_s / CYCLE_S

    def test_it_is_made_after_three_windows_where_replicas_of_another_stage_never_rest(self) -> None:
        spec = a_pipeline()

        def restless(memory: PipelineMemory) -> PipelineMemory:
            return replace(memory, stages_moved_at_s={**memory.stages_moved_at_s, StageName("vad"): NOW_S + 3600})

        windows_s = 3 * spec.stages[0].metrics_window_s
        found = run(int(windows_s / CYCLE_S) + 4, constant(0.8), spec=spec, kept=restless)
        assert [number for number, _ in steps(found)] == [windows_s / CYCLE_S + 1]

    def test_it_is_not_made_while_replicas_of_another_stage_start(self) -> None:
        spec = a_pipeline()
        state = {**planned(spec), VAD: a_target(3, ready=2)}
        found = run(10, constant(0.8), spec=spec, replicas=state, ready=False)  # type: ignore[arg-type]
        assert not steps(found)

    def test_it_is_made_while_not_enough_is_known_of_another_stage(self) -> None:
        vad = replace(a_placement("cpu", service_s=0.01), declared=Declared(service=False, cv=False))
        encoder = a_stage("encoder", a_placement("gpu", bounds=(0, 40)), after=["vad"])
        spec = a_spec(a_stage("vad", vad), encoder, sla_s=SLA_S)
        found = run(6, constant(0.8), spec=spec, replicas=planned(a_pipeline()))
        learning = {hold.stage for hold in found[-1].decision.holds if hold.reason is HoldReason.LEARNING}
        assert learning == {"vad"}
        assert {stage for _, stage in steps(found)} == {"encoder"}

    def test_it_is_not_made_while_replicas_of_the_stage_start(self) -> None:
        spec = a_pipeline()
        plan = planned(spec)
        state = {**plan, ENCODER: a_target(plan[ENCODER], ready=plan[ENCODER] - 1)}
        found = run(10, constant(0.8), spec=spec, replicas=state, ready=False)  # type: ignore[arg-type]
        assert not steps(found)

    @pytest.mark.parametrize("latency_s", [None, MISSING])
    def test_it_is_not_made_without_a_measured_latency(self, latency_s: Reading | None) -> None:
        assert not steps(run(10, constant(latency_s, encoder_s=MISSING)))

    def test_it_is_not_made_while_the_demand_is_missing(self) -> None:
        found = run(12, constant(0.8), demand=lambda cycle: DEMAND_RPS if cycle == 0 else MISSING)
        assert not steps(found)

    @pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.PAUSED])
    def test_a_pipeline_that_does_not_act_makes_none(self, mode: Mode) -> None:
        found = run(10, constant(0.8), spec=a_pipeline(mode=mode))
        assert not found[-1].feedback.floors
        assert found[-1].feedback.step is None

    def test_a_miss_that_is_composed_of_the_stages_counts_too(self) -> None:
        found = run(6, constant(None))
        assert found[-1].decision.profile.latency_source is LatencySource.COMPOSED
        assert {stage for _, stage in steps(found)} == {"encoder"}

    def test_steps_go_on_until_the_sla_is_met(self) -> None:
        first = planned(a_pipeline())[ENCODER]
        found = run(120, improving(0.45 * 2.5 * first))
        counts = encoders(found)
        most = counts.index(max(counts))
        assert counts[: most + 1] == sorted(counts[: most + 1])
        assert counts[most] - counts[-1] <= 1, "the last step may be one replica too large"
        assert len(steps(found)) >= 3
        latency_s = found[-1].state.latency_s
        assert isinstance(latency_s, float)
        assert latency_s <= SLA_S
        assert counts[-1] <= 1.25 * 2.5 * first + 1, "no more than one step too many"
        assert all(later - earlier >= TRIAL_CYCLES for (earlier, _), (later, _) in pairwise(steps(found)))

    def test_noise_in_the_demand_adds_no_replica(self) -> None:
        first = planned(a_pipeline())[ENCODER]
        found = run(80, improving(0.44 * 1.2 * first), demand=lambda cycle: DEMAND_RPS * (1.02 if cycle > 30 else 1.0))
        ((number, _),) = steps(found)
        plans = {cycle.decision.plan.replicas()[ENCODER] for cycle in found if cycle.decision.plan is not None}
        assert plans == {first, first + 1}, "without and with the step"
        assert set(encoders(found[number + 1 :])) == {encoders(found)[number + 1]}

    def test_what_a_step_added_goes_up_and_down_with_the_demand(self) -> None:
        spec = replace(a_pipeline(), scaling=a_scaling(down_s=0.0))
        loads = [60.0] * 30 + [120.0] * 30 + [30.0] * 30
        found = run(
            90,
            lambda cycle, replicas: improving(0.44 * 1.2 * 4 * loads[cycle] / 60)(cycle, replicas),
            spec=spec,
            demand=lambda cycle: loads[cycle],
        )
        # With room for such a rise: this one has cost the SLA for more of the last minutes than it allows.
        assert [encoders(found)[cycle] for cycle in (29, 59, 89)] == [5, 12, 3]

    def test_a_step_is_no_larger_than_max_step(self) -> None:
        slow = StepPolicy(stabilization_s=0.0, max_share=0.0, max_replicas=2)
        spec = replace(a_pipeline(), scaling=replace(a_scaling(), up=slow))
        found = run(6, constant(0.8), spec=spec, demand=lambda _: 300.0, replicas=planned(spec, 300.0))
        ((number, _),) = steps(found)
        (change,) = found[number].changes
        assert change.after - change.before == 2
        assert not any(cycle.hold(HoldReason.SLA_MISSED) for cycle in found), "it is carried out"

    def test_a_plan_that_catches_up_is_not_multiplied(self) -> None:
        """The demand stays, the plan grows to what the step has added: nothing more is needed."""
        spec = a_pipeline()
        found = run(40, improving(0.44 * 1.2 * planned(spec)[ENCODER]), spec=spec)
        ((number, _),) = steps(found)
        after = found[number + 4]
        slower = Learned(service_factors={ENCODER: 1.25})
        grown = run(
            3,
            improving(0.3 * planned(spec)[ENCODER]),
            spec=spec,
            replicas={VAD: after.state.desired(*VAD), ENCODER: after.state.desired(*ENCODER)},
            memory=replace(after.decision.memory, learned=slower),
        )
        plan = grown[-1].decision.plan
        assert plan is not None
        assert plan.replicas()[ENCODER] > planned(spec)[ENCODER]
        assert encoders(grown)[-1] <= max(plan.replicas()[ENCODER], after.state.desired(*ENCODER))

    def test_a_replica_added_at_night_is_not_multiplied_with_the_load_of_the_day(self) -> None:
        """At 3 requests/s one replica more is twice the plan. At 300 requests/s the plan has 17."""
        fleet = pools(a_pool("cpu", price=0.5, instances=400), a_pool("gpu", price=1.0, instances=400))
        found = run(
            40,
            lambda cycle, _: Measured(latency_s=0.8 if cycle < 2 else 0.3),
            spec=a_pipeline(encoders=(0, 400), budget=1000.0),
            replicas={VAD: 1, ENCODER: 1},
            demand=lambda cycle: 3.0 if cycle < 20 else 300.0,
            fleet=fleet,
        )
        assert encoders(found)[19] == 2, "a step at night"
        plans = [plan.replicas()[ENCODER] for cycle in found[21:] if (plan := cycle.decision.plan) is not None]
        assert max(encoders(found)) <= max(plans) + 2

    def test_metrics_that_are_missing_now_and_then_do_not_multiply_what_was_added(self) -> None:
        """Without metrics nothing is removed, so the plan has what runs: a floor on top of it would grow every time."""
        missing = Absence(reason=AbsenceReason.PARTIAL, detail="1 of 2 pods")
        found = run(
            60,
            lambda cycle, _: Measured(
                latency_s=0.8 if cycle < 2 else 0.3, arrivals=missing if cycle % 3 == 2 and cycle > 20 else 0.1
            ),
            spec=replace(a_pipeline(encoders=(0, 400), budget=1000.0), scaling=a_scaling(down_s=0.0)),
            replicas={VAD: 1, ENCODER: 1},
            demand=lambda cycle: 3.0 if cycle < 20 else 60.0,
            fleet=pools(a_pool("cpu", price=0.5, instances=400), a_pool("gpu", price=1.0, instances=400)),
        )
        assert encoders(found)[19] == 2, "a step at night"
        assert any(cycle.hold(HoldReason.METRICS_MISSING) for cycle in found)
        assert len(set(encoders(found)[30:])) == 1

    def test_while_the_demand_rises_a_step_is_not_judged_useless(self) -> None:
        spec = replace(a_pipeline(), scaling=a_scaling(down_s=0.0))
        rising = TRIAL_CYCLES + 8
        found = run(
            3 * TRIAL_CYCLES + 8, constant(0.8), spec=spec, demand=lambda cycle: 60.0 * 1.02 ** min(cycle, rising)
        )
        assert [cycle.feedback.useless_until_s for cycle in found[:rising]] == [{}] * rising
        assert found[-1].feedback.useless_until_s, "it is, once the demand is steady"

    def test_a_clock_set_back_delays_neither_verdict_nor_next_step(self) -> None:
        hours = 86_400.0
        ahead = run(6, constant(0.8), start_s=NOW_S + hours)[-1]
        assert ahead.feedback.step is not None
        replicas = {VAD: ahead.state.desired(*VAD), ENCODER: ahead.state.desired(*ENCODER)}
        back = run(TRIAL_CYCLES + 6, constant(0.8), replicas=replicas, memory=ahead.decision.memory)
        useless = back[-1].feedback.useless_until_s
        assert useless
        again = run(2, constant(0.8), memory=back[-1].decision.memory, start_s=NOW_S - hours)[-1]
        assert max(again.feedback.useless_until_s.values()) <= again.now_s + USELESS_S


class TestUseless:
    """Steps that do not lower the latency."""

    def test_a_latency_that_only_varies_does_not_empty_the_budget(self) -> None:
        """Each percentile is by chance 10 % above or below, and no replica has an effect."""
        noise = random.Random(3)
        varying = [0.65 * math.exp(noise.gauss(0, 0.1)) for _ in range(240)]
        found = run(240, lambda cycle, _: Measured(latency_s=varying[cycle], encoder_s=0.3))
        assert max(encoders(found)) <= 1.25 * 1.25 * encoders(found)[0] + 1

    def test_a_step_without_effect_is_taken_back_after_its_start_up_and_three_windows(self) -> None:
        found = run(40, constant(0.8), spec=a_pipeline(startup_s=60.0))
        ((number, _),) = steps(found)
        before = encoders(found)[number]
        trial = TRIAL_CYCLES + int(60 / CYCLE_S)
        assert min(encoders(found)[number + 1 : number + 1 + trial]) > before
        assert encoders(found)[number + 2 + trial] == before

    def test_the_miss_is_named_with_its_evidence(self) -> None:
        hold = run(30, constant(0.8))[-1].hold(HoldReason.UNEXPLAINED)
        assert hold is not None
        assert "measured p95 800 ms of 500 ms" in hold.detail
        assert "more replicas of encoder did not lower it" in hold.detail
        assert "the time outside the stages is not known" in hold.detail

    def test_stages_without_a_measured_latency_are_named(self) -> None:
        found = run(4, constant(0.8, encoder_s=MISSING))
        hold = found[-1].hold(HoldReason.UNEXPLAINED)
        assert hold is not None
        assert "no p95 is measured at encoder" in hold.detail

    def test_no_second_step_is_made_there_for_half_an_hour(self) -> None:
        found = run(200, constant(0.8))
        (first, _), (second, _), *_ = steps(found)
        assert (second - first) * CYCLE_S >= USELESS_S
        assert max(encoders(found)) == encoders(found)[first + 1], "it does not grow over time"

    @pytest.mark.extended
    def test_in_vain_it_is_tried_ever_more_rarely(self) -> None:
        found = run(8 * 240, constant(0.8))
        tried = [number * CYCLE_S for number, _ in steps(found)]
        waits = [late - early for early, late in itertools.pairwise(tried)]
        assert len(tried) <= 5, "every half hour would be fifteen times"
        assert all(late >= 1.7 * early for early, late in itertools.pairwise(waits))

    def test_the_next_stage_is_tried(self) -> None:
        found = run(40, constant(0.8, vad_s=0.3, encoder_s=0.6))
        assert [stage for _, stage in steps(found)] in (["vad", "encoder"], ["encoder", "vad"])
        assert found[-1].state.targets == found[0].state.targets, "both are taken back"

    def test_time_outside_the_stages_is_named_as_such(self) -> None:
        memory = PipelineMemory(learned=Learned(overhead_s=0.4))
        found = run(40, constant(0.8, vad_s=0.005, encoder_s=0.1), memory=memory)
        hold = found[-1].hold(HoldReason.OVERHEAD)
        assert hold is not None
        assert "400 ms of it are outside the stages" in hold.detail

    def test_overhead_above_the_sla_is_named_too(self) -> None:
        memory = PipelineMemory(learned=Learned(overhead_s=0.7))
        found = run(20, constant(0.8, vad_s=0.005, encoder_s=0.1), memory=memory)
        assert found[-1].hold(HoldReason.OVERHEAD) is not None
        assert max(encoders(found)) <= encoders(found)[0] + 1, "one step is tried: overhead must not empty the budget"

    def test_a_step_whose_replicas_never_become_ready_is_judged_too(self) -> None:
        before = run(4, constant(0.8))[-1]
        assert before.feedback.step is not None
        assert before.feedback.step.stage == "encoder"
        replicas = before.state.desired(*ENCODER)
        failing = a_target(replicas, ready=replicas - 1, starting_since_s=[NOW_S - 3600.0])
        found = run(
            60,
            constant(0.8, vad_s=0.3),
            replicas={VAD: a_target(before.state.desired(*VAD)), ENCODER: failing},  # type: ignore[dict-item]
            memory=before.decision.memory,
            ready=False,
        )
        assert any(hold.reason is HoldReason.CANNOT_START for hold in found[0].decision.holds)
        assert "vad" in {stage for _, stage in steps(found)}, "the other stage gets its step"


class TestNoRoom:
    def hold(self, **options: object) -> Hold:
        spec = options.pop("spec", None) or a_pipeline()
        found = run(6, constant(0.8), spec=spec, **options)  # type: ignore[arg-type]
        assert not [change for cycle in found for change in cycle.changes]
        hold = found[-1].hold(HoldReason.SLA_MISSED)
        assert hold is not None
        assert hold.stage == "encoder"
        assert "leave no room for another replica" in hold.detail
        return hold

    def test_replicas_max(self) -> None:
        most = planned(a_pipeline())[ENCODER]
        self.hold(spec=a_pipeline(encoders=(0, most)))

    def test_the_budget_of_the_pipeline(self) -> None:
        plan = planned(a_pipeline())
        self.hold(spec=a_pipeline(budget=0.5 * plan[VAD] + plan[ENCODER] + 0.3))

    def test_the_budget_of_the_fleet(self) -> None:
        plan = planned(a_pipeline())
        self.hold(policy=Policy(budget_per_hour=0.5 * plan[VAD] + plan[ENCODER] + 0.3))

    def test_the_pool(self) -> None:
        most = planned(a_pipeline())[ENCODER]
        self.hold(fleet={**FLEET, **pools(a_pool("gpu", price=1.0, instances=most))})

    def test_a_demand_that_falls_meanwhile_refuses_no_replica(self) -> None:
        spec = replace(a_pipeline(), scaling=a_scaling(down_s=0.0))
        # No query: while a measured latency exceeds the SLA, no replica would be removed.
        found = run(14, constant(None), spec=spec, demand=lambda cycle: 60.0 if cycle < 4 else 30.0)
        ((number, _),) = steps(found)
        assert encoders(found)[number + 6] < encoders(found)[number + 1], "it falls with the demand"
        assert not any(cycle.hold(HoldReason.SLA_MISSED) for cycle in found)


class TestGivenBack:
    def test_what_was_added_is_given_back_by_halves_once_there_has_been_room_for_long(self) -> None:
        busy = run(120, improving(0.45 * 2.5 * planned(a_pipeline())[ENCODER]))
        most = encoders(busy)[-1]
        last = busy[-1]
        later = run(
            200,
            constant(0.2, encoder_s=0.1),
            replicas={VAD: last.state.desired(*VAD), ENCODER: most},
            memory=last.decision.memory,
        )
        counts = encoders(later)
        falls = [number for number in range(1, len(counts)) if counts[number] < counts[number - 1]]
        assert falls[0] * CYCLE_S >= GIVE_BACK_S
        assert all((after - before) * CYCLE_S >= GIVE_BACK_S for before, after in pairwise(falls))
        assert counts[falls[0]] >= most - (most - planned(a_pipeline())[ENCODER] + 1) // 2 - 1
        assert counts[-1] == planned(a_pipeline())[ENCODER]
        assert not later[-1].feedback.floors

    def test_without_room_it_is_kept(self) -> None:
        busy = run(120, improving(0.45 * 2.5 * planned(a_pipeline())[ENCODER]))
        last = busy[-1]
        later = run(
            100,
            constant(0.45, encoder_s=0.4),
            replicas={VAD: last.state.desired(*VAD), ENCODER: encoders(busy)[-1]},
            memory=last.decision.memory,
        )
        assert set(encoders(later)) == {encoders(busy)[-1]}


def test_a_restart_in_any_cycle_changes_no_decision() -> None:
    def restarted(memory: PipelineMemory) -> PipelineMemory:
        return memory_from(json.loads(json.dumps(memory_document(memory)))).memory

    world = improving(0.45 * 2.5 * planned(a_pipeline())[ENCODER])
    assert encoders(run(60, world, kept=restarted)) == encoders(run(60, world))
    assert encoders(run(60, constant(0.8), kept=restarted)) == encoders(run(60, constant(0.8)))
