"""A stage of which not enough is known keeps its replicas, and doubles them while it refuses; learned numbers count."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

import pytest
from bounded import bounded, floors_of
from builders import (
    NOW_S,
    a_placement,
    a_pool,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    applied,
    default_pools,
    pools,
    seen,
)
from explained import explain, section

from controller.core.assess.assessment import Assessment
from controller.core.assess.learned_numbers import with_learned_numbers
from controller.core.bounds.learning import LEARN
from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import ChangeReason, Decision, Hold, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, ServingReplica, TargetState
from controller.core.state.spec import (
    UNDECLARED_CV,
    UNDECLARED_SERVICE,
    UNDECLARED_STARTUP_S,
    Declared,
    DemandUnit,
    PipelineSpec,
    PlacementSpec,
)
from optimizer.latency.stage import StageLoad, predict
from optimizer.model import Placement, PlacementKey, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.batch_times import BatchTimes
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Reading
from profiler.stages import Learned

ASR, KEY = StageName("asr"), (StageName("asr"), PoolName("cpu"))
UNSUPPORTED = Absence(reason=AbsenceReason.UNSUPPORTED)
FLEET = pools(a_pool("cpu", price=1.0, instances=40), a_pool("gpu", price=1.0, instances=40))

World = Callable[[Mapping[PlacementKey, int]], Mapping[PlacementKey, PlacementSamples]]
"""What is measured with so many ready replicas."""


def a_server(*, memory: bool = False, service: bool = True, cv: bool = True, startup: bool = True) -> PlacementSpec:
    placement = a_placement("cpu", service_s=0.01)
    declared = Declared(service=service, cv=service and cv, startup=startup, memory=memory)
    return replace(placement, declared=declared)


def streams(placement: PlacementSpec) -> PipelineSpec:
    stage = replace(a_stage("asr", placement), routing=Routing.STICKY)
    return replace(a_spec(stage), unit=DemandUnit.STREAMS, chunk_s=1.0)


def a_stage_that_refuses(
    *,
    refused: Reading = 0.5,
    sessions: Reading = UNSUPPORTED,
    placement: PlacementSpec | None = None,
    learned: Learned | None = None,
    moved_s_ago: float = 1e6,
) -> PipelineState:
    """Four replicas, 100 streams offered."""
    return a_state(
        streams(placement or a_server()),
        demand=100.0,
        replicas={KEY: a_target(4)},
        samples={KEY: seen(session_refusals=refused, sessions=sessions)},
        memory=PipelineMemory(learned=learned or Learned(), stages_moved_at_s={ASR: NOW_S - moved_s_ago}),
    )


def assessed(state: PipelineState) -> Assessment:
    return bounded(state)


class TestRefusals:
    def test_a_stage_that_refuses_doubles_while_nothing_says_how_many_it_holds(self) -> None:
        assert floors_of(assessed(a_stage_that_refuses()), LEARN) == {ASR: 8}

    def test_it_doubles_once_per_window(self) -> None:
        assert floors_of(assessed(a_stage_that_refuses(moved_s_ago=30.0)), LEARN) == {ASR: 4}

    def test_once_the_slots_are_known_the_plan_says_how_many_replicas(self) -> None:
        first = assessed(a_stage_that_refuses(sessions=40.0))
        assert first.learned.session_slots == {KEY: 10}
        assert floors_of(first, LEARN) == {}
        state = a_stage_that_refuses(sessions=40.0, learned=first.learned)
        decision = decide(a_snapshot(state, fleet=default_pools()), Policy())
        (pipeline,) = decision.pipelines
        assert [(change.before, change.after) for change in pipeline.changes] == [(4, 11)], "a slot for 101 streams"

    def test_refusals_while_all_offered_streams_are_held_double_nothing(self) -> None:
        """They have another cause: clients without rights, another model of the server."""
        found = assessed(a_stage_that_refuses(sessions=100.0))
        assert floors_of(found, LEARN) == {}
        assert found.learned.session_slots == {}
        assert assessed(a_stage_that_refuses(sessions=40.0)).learned.session_slots == {KEY: 10}

    @pytest.mark.parametrize("refused", [0.0, UNSUPPORTED])
    def test_without_refusals_nothing_is_added(self, refused: Reading) -> None:
        assessment = assessed(a_stage_that_refuses(refused=refused))
        assert floors_of(assessment, LEARN) == {}
        assert not assessment.never_down, "a server need not export refusals"

    def test_declared_memory_is_believed(self) -> None:
        assert floors_of(assessed(a_stage_that_refuses(placement=a_server(memory=True))), LEARN) == {}

    def test_a_stage_whose_service_law_is_not_known_keeps_its_replicas_and_doubles_too(self) -> None:
        bare = a_server(service=False)
        assert floors_of(assessed(a_stage_that_refuses(placement=bare)), LEARN) == {ASR: 8}
        assert floors_of(assessed(a_stage_that_refuses(placement=bare, refused=0.0)), LEARN) == {ASR: 4}


def a_stage_that_queues(
    readings: Mapping[str, Reading] = MappingProxyType({}), *, moved_s_ago: float = 1e6, known: bool = False
) -> PipelineState:
    """Four replicas that complete 100 items/s; nothing is declared, and the SLA is 500 ms."""
    calm: dict[str, Reading] = {"arrival_rate": 100.0, "completion_rate": 100.0, "utilization": 0.6, "queue_depth": 1.0}
    times = BatchTimes(weight=50.0, batch=1.0, time_s=0.024)
    return a_state(
        a_spec(a_stage("asr", a_server(service=False)), sla_s=0.5),
        demand=100.0,
        replicas={KEY: a_target(4)},
        samples={KEY: seen(**{**calm, **readings})},
        memory=PipelineMemory(
            learned=Learned(batch_times={KEY: times}) if known else Learned(),
            stages_moved_at_s={ASR: NOW_S - moved_s_ago},
        ),
    )


class TestQueues:
    @pytest.mark.parametrize(
        ("readings", "replicas"),
        [
            ({"queue_depth": 12.0}, 4),  # a quarter of the SLA is 125 ms, in which 12.5 items are completed
            ({"queue_depth": 13.0}, 8),
            ({"arrival_rate": 104.0}, 4),
            ({"arrival_rate": 106.0}, 8),
            ({"utilization": 0.89}, 4),
            ({"utilization": 0.91}, 8),
            ({"utilization": 0.99, "batch_size": 4.0}, 4),  # busy from well below its limit on
            ({"utilization": UNSUPPORTED, "queue_depth": UNSUPPORTED}, 4),
        ],
    )
    def test_a_stage_whose_service_law_is_not_known_doubles_while_it_queues(
        self, readings: dict[str, Reading], replicas: int
    ) -> None:
        assert floors_of(assessed(a_stage_that_queues(readings)), LEARN) == {ASR: replicas}

    @pytest.mark.parametrize("readings", [{"queue_depth": 50.0}, {"arrival_rate": 120.0}, {"utilization": 0.99}])
    def test_once_per_window_and_until_the_law_is_known(self, readings: dict[str, Reading]) -> None:
        assert replicas_after(a_stage_that_queues(readings))[KEY] == 8
        assert floors_of(assessed(a_stage_that_queues(readings, moved_s_ago=30.0)), LEARN) == {ASR: 4}
        assert floors_of(assessed(a_stage_that_queues(readings, known=True)), LEARN) == {}


class TestSaid:
    """A user reads why nothing is removed."""

    WORDS = "asr: learning: service times or slots are measured; no replica is removed until they are known"

    @pytest.mark.parametrize("state", [a_stage_that_queues(), a_stage_that_refuses()])
    def test_a_stage_that_learns_says_so(self, state: PipelineState) -> None:
        decision = decide(a_snapshot(state, fleet=FLEET), Policy())
        (pipeline,) = decision.pipelines
        assert Hold(reason=HoldReason.LEARNING, stage=ASR) in pipeline.holds
        assert self.WORDS in section(explain(decision, state.spec.key), "Why not now")

    def test_one_that_is_known_does_not(self) -> None:
        state = a_stage_that_queues(known=True)
        decision = decide(a_snapshot(state, fleet=FLEET), Policy())
        assert HoldReason.LEARNING not in {hold.reason for hold in decision.pipelines[0].holds}
        assert "are measured" not in " ".join(explain(decision, state.spec.key))


class TestStartup:
    """The start-up time of a stage that declares none is that of its pods."""

    PODS = tuple(ServingReplica(name=str(n), startup_s=time_s) for n, time_s in enumerate((20.0, 500.0, 30.0, None)))

    def decided(self, placement: PlacementSpec, *, pods: bool = True, learned: Learned | None = None) -> Decision:
        target = replace(a_target(4), serving=self.PODS) if pods else a_target(4, ready=0)
        memory = PipelineMemory(learned=learned or Learned())
        state = a_state(a_spec(a_stage("asr", placement)), replicas={KEY: target}, memory=memory)
        return decide(a_snapshot(state, fleet=FLEET), Policy())

    def test_the_median_is_learned_told_and_planned_with(self) -> None:
        bare = replace(a_server(startup=False), startup_s=UNDECLARED_STARTUP_S)
        first = self.decided(bare)
        learned = first.pipelines[0].memory.learned
        assert learned.startups_s == {KEY: 30.0}
        assert "asr on cpu: replicas start in 30 s, measured; not declared" in section(
            explain(first, first.pipelines[0].key), "Why"
        )
        later = self.decided(bare, pods=False, learned=learned).pipelines[0]
        assert later.spec.placements()[KEY].startup_s == 30.0
        assert later.memory.learned.startups_s == {KEY: 30.0}, "it lasts while no pod is ready"

    def test_a_declared_one_is_believed(self) -> None:
        assert self.decided(a_server()).pipelines[0].memory.learned.startups_s == {}


class TestLearnedNumbers:
    LEARNED = Learned(cvs={KEY: 0.7}, startups_s={KEY: 33.0}, session_slots={KEY: 12}, engines={KEY: 2})

    def filled(self, placement: PlacementSpec) -> PlacementSpec:
        state = a_state(a_spec(a_stage("asr", placement)), memory=PipelineMemory(learned=self.LEARNED))
        (pipeline,) = with_learned_numbers(a_snapshot(state)).pipelines
        (filled,) = pipeline.spec.stages[0].placements
        return filled

    def test_they_take_the_place_of_those_that_are_not_declared(self) -> None:
        found = self.filled(a_server(cv=False, startup=False))
        assert found.prior.service.cv == pytest.approx(0.7, rel=0.01)
        assert (found.prior.service.fixed_s, found.startup_s, found.prior.session_slots) == (0.01, 33.0, 12)

    def test_declared_numbers_stay_but_a_replica_has_the_engines_that_it_tells(self) -> None:
        declared = a_stage("asr", a_server(memory=True)).placements[0]
        several = replace(declared, prior=replace(declared.prior, concurrency=2))
        assert self.filled(a_server(memory=True)) == several
        more = replace(a_server(memory=True), prior=replace(a_server(memory=True).prior, concurrency=3))
        assert self.filled(more).prior.concurrency == 3

    def test_the_law_of_a_server_without_any_is_that_of_the_profile(self) -> None:
        bare = a_server(service=False)
        placeholder = replace(bare, prior=replace(bare.prior, service=ServiceLaw(fixed_s=0.05, cv=UNDECLARED_CV)))
        assert self.filled(placeholder).prior.service.cv == UNDECLARED_CV


GPU: PlacementKey = (ASR, PoolName("gpu"))


def two_pools(*, room: float = 0.5, known: bool = True, budget: float = 100.0) -> PipelineState:
    """Eight replicas on a measured pool, none on another that declares nothing; `room` is latency over SLA."""
    nothing = Declared(service=False, cv=False, startup=False, memory=False)
    placements = [replace(a_placement(pool, service_s=0.05), declared=nothing) for pool in ("cpu", "gpu")]
    spec = a_spec(a_stage("asr", *placements), sla_s=1.0, budget=budget)
    times = BatchTimes(weight=50.0 if known else 0.5, batch=1.0, time_s=0.05)
    return replace(
        a_state(
            spec,
            demand=100.0,
            replicas={KEY: a_target(8)},
            samples={KEY: seen(arrival_rate=100.0, completion_rate=100.0, service_time=0.05, utilization=0.6)},
            memory=PipelineMemory(learned=Learned(batch_times={KEY: times}, cvs={KEY: 0.3})),
        ),
        latency_s=room,
    )


def replicas_after(state: PipelineState) -> dict[PlacementKey, int]:
    (pipeline,) = decide(a_snapshot(state, fleet=FLEET), Policy()).pipelines
    return dict(pipeline.desired)


LM, LM_KEY = StageName("lm"), (StageName("lm"), PoolName("gpu"))
NOTHING = Declared(service=False, cv=False, startup=False, memory=False)
CYCLE_S = 15.0
WINDOW_CYCLES = 4
"""The cycles of a window of the metrics."""


def undeclared(pool: str) -> PlacementSpec:
    placement = a_placement(pool)
    prior = replace(placement.prior, service=UNDECLARED_SERVICE)
    return replace(placement, declared=NOTHING, prior=prior, startup_s=UNDECLARED_STARTUP_S)


def queueing(
    offered_rps: float, replicas: int, waiting: float, service_s: float, *, busy: bool
) -> tuple[PlacementSamples, float, float]:
    """What replicas with a queue of at most 200 items show in a cycle, the items/s that leave, and what waits then.

    Without `busy` they do not export for how much of the time they are busy.
    """
    left_rps = min(offered_rps + waiting / CYCLE_S, replicas / service_s)
    waiting = min(200.0, max(0.0, waiting + (offered_rps - left_rps) * CYCLE_S))
    model = Placement(pool=PoolName("any"), service=ServiceLaw(fixed_s=service_s, cv=0.3), max_replicas=20)
    load = StageLoad(rate_rps=offered_rps)
    calm = predict(load, model, replicas, batch=1, routing=Routing.LEAST_LOADED, percentile=95) if replicas else None
    samples = seen(
        arrival_rate=offered_rps,
        completion_rate=left_rps,
        utilization=left_rps * service_s / max(1, replicas) if busy else UNSUPPORTED,
        queue_depth=waiting,
        latency_p95=10.0 if waiting or calm is None else calm.percentile_s,
    )
    return samples, left_rps, waiting


def refusing(offered: float, replicas: int, *, sessions: bool) -> PlacementSamples:
    """What replicas with ten slots each show; without `sessions` they do not export how many they hold."""
    held = min(offered, 10.0 * replicas)
    return seen(
        arrival_rate=held,
        completion_rate=held,
        utilization=0.01 * held / max(1, replicas),
        queue_depth=0.0,
        latency_p95=0.03,
        sessions=held if sessions else UNSUPPORTED,
        session_refusals=0.3 * (offered - held),
    )


def started_from(state: PipelineState, cycles: int, world: World) -> list[PipelineDecision]:
    """Run cycles from `state`; replicas that are decided are ready in the cycle after the next."""
    snapshot = a_snapshot(state, fleet=FLEET)
    found: list[PipelineDecision] = []
    for _ in range(cycles):
        (state,) = snapshot.pipelines
        state = replace(state, samples=world({key: state.ready(*key) for key in state.spec.placement_keys()}))
        decision = decide(replace(snapshot, pipelines=(state,)), Policy())
        found.append(decision.pipelines[0])
        up = replace(state, targets={key: a_target(state.desired(*key)) for key in state.targets})
        snapshot = applied(replace(snapshot, pipelines=(up,)), decision, ready=False, after_s=CYCLE_S)
    return found


def counts(found: Sequence[PipelineDecision], key: PlacementKey) -> list[int]:
    return [decision.desired[key] for decision in found]


def each_for(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """How many cycles each number stays."""
    return [(number, len(list(cycles))) for number, cycles in groupby(numbers)]


class TestFromZero:
    """Nothing is declared, and no replica runs."""

    TRUE_S: Mapping[PlacementKey, float] = {KEY: 0.08, LM_KEY: 0.04}

    def queued(self, *, busy: bool) -> tuple[list[PipelineDecision], float]:
        """Half an hour with 40 requests/s, which four replicas of asr and two of lm carry; the last throughput."""
        waiting, completed = dict.fromkeys(self.TRUE_S, 0.0), 0.0

        def world(replicas: Mapping[PlacementKey, int]) -> Mapping[PlacementKey, PlacementSamples]:
            nonlocal completed
            samples, completed = {}, 40.0
            for key, service_s in self.TRUE_S.items():
                samples[key], completed, waiting[key] = queueing(
                    completed, replicas[key], waiting[key], service_s, busy=busy
                )
            return samples

        spec = a_spec(a_stage("asr", undeclared("cpu")), a_stage("lm", undeclared("gpu"), after=["asr"]), sla_s=1.0)
        return started_from(a_state(spec, demand=40.0), 120, world), completed

    def test_each_stage_gets_one_replica_and_doubles_while_it_queues_until_the_load_is_carried(self) -> None:
        """Nothing says how long its services take."""
        found, completed = self.queued(busy=False)
        asr, lm = each_for(counts(found, KEY)), each_for(counts(found, LM_KEY))
        assert [replicas for replicas, _ in asr] == [1, 2, 4]
        assert [replicas for replicas, _ in lm] == [1, 2]
        assert all(cycles > WINDOW_CYCLES for _, cycles in (*asr, *lm)), "new ones must show first what they carry"
        assert completed == 40.0

    def test_where_replicas_say_how_busy_they_are_the_first_one_shows_how_many_are_needed(self) -> None:
        found, completed = self.queued(busy=True)
        assert [replicas for replicas, _ in each_for(counts(found, KEY))] == [1, 4]
        assert [replicas for replicas, _ in each_for(counts(found, LM_KEY))] == [1, 2]
        assert completed == 40.0
        holds = [{hold.stage for hold in each.holds if hold.reason is HoldReason.LEARNING} for each in found]
        assert holds[0] == holds[10] == {ASR, LM}
        assert holds[-1] == set(), "the laws are known"
        assert found[-1].profile.stages[0].placements[0].service.fixed_s == pytest.approx(0.08, rel=0.01)

    def refused(self, cycles: int, *, sessions: bool) -> list[tuple[int, int]]:
        """40 streams, of which each replica holds ten."""
        spec = replace(streams(undeclared("cpu")), sla=Sla(latency_s=1.0))
        world: World = lambda replicas: {KEY: refusing(40.0, replicas[KEY], sessions=sessions)}  # noqa: E731
        return each_for(counts(started_from(a_state(spec, demand=40.0), cycles, world), KEY))

    def test_replicas_double_while_they_refuse_streams_until_all_are_held(self) -> None:
        found = self.refused(16, sessions=False)
        assert [replicas for replicas, _ in found] == [1, 2, 4]
        assert min(cycles for _, cycles in found[:-1]) > WINDOW_CYCLES

    def test_where_replicas_say_how_many_streams_they_hold_the_first_one_shows_how_many_are_needed(self) -> None:
        found = self.refused(120, sessions=True)
        assert [replicas for replicas, _ in found] == [1, 5], "a slot for 41 streams"


UNREADY = pytest.mark.parametrize(
    "target",
    [
        a_target(4, ready=3, starting_since_s=[NOW_S - 30], words="CrashLoopBackOff"),
        a_target(4, ready=3, pending_since_s=[NOW_S - 30]),
    ],
    ids=["crash loop", "pending"],
)


@UNREADY
@pytest.mark.parametrize(("broken", "other"), [(KEY, LM_KEY), (LM_KEY, KEY)], ids=["first stage", "second stage"])
class TestOtherStages:
    """A pod that is not ready stops what is learned of its own stage alone."""

    def decided(
        self, broken: PlacementKey, target: TargetState, *, known: bool, **readings: Reading
    ) -> PipelineDecision:
        """Two stages of four replicas with 100 items/s each; `target` is that of the placement `broken`."""
        usual: dict[str, Reading] = {"arrival_rate": 100.0, "completion_rate": 100.0, "queue_depth": 0.0}
        times = BatchTimes(weight=50.0, batch=1.0, time_s=0.02)
        spec = a_spec(a_stage("asr", undeclared("cpu")), a_stage("lm", undeclared("gpu"), after=["asr"]), sla_s=1.0)
        keys = (KEY, LM_KEY)
        learned = Learned(batch_times=dict.fromkeys(keys, times) if known else {}, cvs=dict.fromkeys(keys, 0.3))
        state = a_state(
            spec,
            demand=100.0,
            replicas={key: target if key == broken else a_target(4) for key in keys},
            samples=dict.fromkeys(keys, seen(**(usual | readings))),
            memory=PipelineMemory(learned=learned),
        )
        (pipeline,) = decide(a_snapshot(state, fleet=FLEET), Policy()).pipelines
        return pipeline

    def test_the_others_learn_their_variation(
        self, broken: PlacementKey, other: PlacementKey, target: TargetState
    ) -> None:
        """Their p95 is ten service times, far above what the variation learned so far explains."""
        learned = self.decided(broken, target, known=True, utilization=0.5, latency_p95=0.2).memory.learned
        assert learned.cvs[other] > 0.31
        assert learned.cvs[broken] == 0.3

    def test_the_others_double_while_they_queue(
        self, broken: PlacementKey, other: PlacementKey, target: TargetState
    ) -> None:
        found = self.decided(broken, target, known=False, arrival_rate=120.0, utilization=UNSUPPORTED)
        assert (found.desired[other], found.desired[broken]) == (8, 4)


class TestProbe:
    def test_one_replica_is_started_where_nothing_was_measured(self) -> None:
        (pipeline,) = decide(a_snapshot(two_pools(), fleet=FLEET), Policy()).pipelines
        assert pipeline.desired[GPU] == 1
        assert {change.reason for change in pipeline.changes if change.placement == "gpu"} == {ChangeReason.PROBE}

    def test_it_is_not_while_the_latency_leaves_no_room(self) -> None:
        assert replicas_after(two_pools(room=0.95))[GPU] == 0

    def test_it_is_not_while_the_law_of_what_runs_is_not_known(self) -> None:
        found = replicas_after(two_pools(known=False))
        assert found[GPU] == 0
        assert found[KEY] >= 8, "what carries the load stays"

    def test_it_is_not_above_the_budget(self) -> None:
        state = two_pools()
        planned = decide(a_snapshot(state, fleet=FLEET), Policy()).pipelines[0].plan
        assert planned is not None
        assert replicas_after(two_pools(budget=planned.cost_per_hour + 0.5))[GPU] == 0

    def test_a_placement_without_numbers_is_a_fallback_where_the_measured_pool_has_too_few_instances(self) -> None:
        short = pools(a_pool("cpu", price=1.0, instances=3), a_pool("gpu", price=0.1, instances=40))
        (pipeline,) = decide(a_snapshot(two_pools(), fleet=short), Policy()).pipelines
        assert pipeline.plan is not None
        assert pipeline.plan.replicas()[GPU] > 0
        enough = pools(a_pool("cpu", price=1.0, instances=40), a_pool("gpu", price=0.1, instances=40))
        (pipeline,) = decide(a_snapshot(two_pools(), fleet=enough), Policy()).pipelines
        assert pipeline.plan is not None
        assert pipeline.plan.replicas().get(GPU, 0) == 1, "a lower price alone is a reason to measure it"
