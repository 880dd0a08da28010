"""The simulated cluster as a policy meets it: what it sees when, what becomes of its decisions, what faults do."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_scenarios import ASR_CPU, ASR_GPU, PIPELINE, POOLS, VAD_CPU, a_scenario

from controller.core.cycle import decide
from controller.core.state.decision import BatchWrite
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, TargetMissing, TargetState
from controller.core.state.spec import ConfigKey
from optimizer.model import BatchSettings, PipelineKey, PlacementId, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, Quantity, Reading
from simulations.cluster.refusals import UnsupportedScenario
from simulations.cluster.simulated import BATCHING_SYNC_S, SETTLING_S, SimulatedCluster
from simulations.policies.autoscaler import decision_of
from simulations.scenario.scenario import load_scenario

CAPTIONS = PipelineKey("speech/captions")
REFUSAL_S = 180.0  # the default of scenarios
INTERVAL_S = 5.0
EVERY_OUTCOME = ("served", "filtered", "shed", "refused", "lost", "in_flight")


class World:
    """A cluster whose policy is the test: everything has to be asked for."""

    def __init__(self, folder: Path, *, seed: int = 1, interval_s: float = INTERVAL_S, **scenario: Any) -> None:
        self.cluster = SimulatedCluster(a_scenario(folder, **scenario), seed=seed, interval_s=interval_s)

    def at(self, t_s: float) -> PipelineState:
        """What is seen at an instant."""
        self.cluster.advance(t_s)
        (state,) = self.cluster.snapshot().pipelines
        return state

    def ask(self, **replicas: int) -> None:
        """Ask for replicas now: `asr_gpu=3`."""
        wanted: dict[PlacementId, int] = {
            (CAPTIONS, StageName(name.split("_")[0]), PoolName(name.split("_")[1])): n for name, n in replicas.items()
        }
        snapshot = self.cluster.snapshot()
        self.cluster.apply(decision_of(snapshot, wanted, "asked for", Policy()))

    def target(self, t_s: float, place: tuple[str, str]) -> TargetState:
        target = self.at(t_s).target(StageName(place[0]), PoolName(place[1]))
        assert not isinstance(target, TargetMissing)
        return target

    def reading(self, t_s: float, place: tuple[str, str], quantity: Quantity) -> Reading:
        return self.at(t_s).samples[StageName(place[0]), PoolName(place[1])].of(quantity)

    def number(self, t_s: float, place: tuple[str, str], quantity: Quantity) -> float:
        found = self.reading(t_s, place, quantity)
        assert not isinstance(found, Absence), found
        return found


def reason(reading: Reading | None) -> AbsenceReason:
    assert isinstance(reading, Absence), reading
    return reading.reason


# -- the start


def test_every_stage_has_a_replica_that_serves_before_the_load_begins(tmp_path: Path) -> None:
    world = World(tmp_path)

    assert world.cluster.now_s == -INTERVAL_S * math.ceil((SETTLING_S + 20) / INTERVAL_S)
    for place, replicas in ((VAD_CPU, 1), (ASR_GPU, 1), (ASR_CPU, 0)):
        target = world.target(world.cluster.now_s, place)
        assert (target.desired, target.existing, target.ready) == (replicas, replicas, replicas)


def test_before_the_load_there_is_no_traffic_and_that_is_known(tmp_path: Path) -> None:
    world = World(tmp_path)

    assert world.at(-1.0).demand == 0.0
    assert world.number(-1.0, VAD_CPU, Quantity.ARRIVAL_RATE) == 0.0
    assert reason(world.reading(-1.0, VAD_CPU, Quantity.LATENCY_P95)) is AbsenceReason.NO_TRAFFIC


def test_a_budget_for_whole_nodes_is_spent_on_nodes_and_the_policy_sees_them(tmp_path: Path) -> None:
    whole = PIPELINE.replace('{perHour: "30"}', '{perHour: "30", basis: Instances}')
    assert whole != PIPELINE
    shares, nodes = World(tmp_path / "shares"), World(tmp_path / "nodes", pipeline=whole)
    for world in (shares, nodes):
        world.at(1.0)
        world.ask(vad_cpu=3, asr_gpu=1)
        world.at(40.0)
    # Two of the three replicas of vad share a node for 0.5.
    assert shares.cluster.observations[-1].spend_per_hour[CAPTIONS] == pytest.approx(1.5 * 0.5 + 2)
    assert nodes.cluster.observations[-1].spend_per_hour[CAPTIONS] == pytest.approx(2 * 0.5 + 2)
    assert nodes.cluster.observations[-1].cost_per_hour == pytest.approx(2 * 0.5 + 2)
    snapshot = nodes.cluster.snapshot()
    assert sorted(snapshot.pools[PoolName("cpu")].nodes) == ["cpu-0", "cpu-1"]
    assert nodes.target(40.0, VAD_CPU).nodes == {"cpu-0": 2, "cpu-1": 1}
    assert shares.target(40.0, VAD_CPU).nodes == {}


@pytest.mark.parametrize("basis", ["Instances", "Replicas"])
def test_what_is_spent_on_the_basis_of_a_budget_stays_within_it_while_the_load_asks_for_more(
    tmp_path: Path, basis: str
) -> None:
    tight = PIPELINE.replace('{perHour: "30"}', f'{{perHour: "4.5", basis: {basis}}}')
    world = World(tmp_path, pipeline=tight, load=((0.0, 8.0), (20.0, 200.0)), duration_s=200)
    limits = set()
    for step in range(-10, 40):
        world.cluster.advance(step * INTERVAL_S)
        decision = decide(world.cluster.snapshot(), Policy())
        world.cluster.apply(decision)
        limits.add(str(decision.pipelines[0].plan and decision.pipelines[0].plan.limited_by))
    spent = [seen.spend_per_hour[CAPTIONS] for seen in world.cluster.observations]
    assert "Budget" in limits
    assert max(spent) <= 4.5
    assert max(spent) > 4.0, "it is used"


# -- what is seen


def test_demand_and_rates_are_those_of_the_load(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 12.0),))
    state = world.at(100.0)

    assert state.demand == pytest.approx(12.0, rel=0.3)
    assert world.number(100.0, VAD_CPU, Quantity.ARRIVAL_RATE) == pytest.approx(state.demand, rel=0.02)
    assert world.number(100.0, ASR_GPU, Quantity.COMPLETION_RATE) == pytest.approx(6.0, rel=0.5)
    assert world.number(100.0, ASR_GPU, Quantity.SERVICE_TIME) == pytest.approx(0.040, rel=0.1)
    assert isinstance(state.latency_s, float)
    assert 0.05 < state.latency_s < 0.5


def test_a_step_in_the_load_is_seen_as_late_as_the_metrics_are(tmp_path: Path) -> None:
    """The rate is over ten seconds of samples that are half a second old: after six, about 60 % of a step is in it."""
    world = World(tmp_path, load=((0.0, 10.0), (60.0, 50.0)))
    before, soon, later = (world.at(t_s).demand for t_s in (59.0, 66.0, 72.0))

    assert before == pytest.approx(10.0, rel=0.4)
    assert soon == pytest.approx(10 + 0.55 * 40, rel=0.25)
    assert later == pytest.approx(50.0, rel=0.2)


def test_streams_under_way_are_the_demand_of_a_pipeline_of_streams(tmp_path: Path) -> None:
    world = World(tmp_path, streams=True, load=((0.0, 10.0), (60.0, 16.0)))

    assert world.at(50.0).demand == 10.0
    assert world.at(63.0).demand == 16.0


def test_a_new_replica_serves_after_its_start_up_and_reports_after_the_grace(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.at(10.0)
    world.ask(asr_gpu=2)

    assert world.target(29.9, ASR_GPU).ready == 1
    assert world.target(30.1, ASR_GPU).ready == 2
    # It would be missed after four scrapes, and has two samples by then.
    assert isinstance(world.reading(31.0, ASR_GPU, Quantity.ARRIVAL_RATE), float)
    assert isinstance(world.reading(35.0, ASR_GPU, Quantity.ARRIVAL_RATE), float)
    replicas = world.cluster.snapshot().replicas[CAPTIONS, StageName("asr"), PoolName("gpu")]
    assert [round(replica.ready_since_s) for replica in replicas] == [-50, 30]


def test_a_replica_that_starts_at_once_is_scraped_when_prometheus_has_found_it(tmp_path: Path) -> None:
    world = World(tmp_path, pipeline=PIPELINE.replace("startup: 5s", "startup: 500ms"))
    world.at(10.0)
    world.ask(vad_cpu=2)

    def seen(t_s: float) -> int:
        world.cluster.advance(t_s)
        return len(world.cluster.snapshot().replicas[CAPTIONS, StageName("vad"), PoolName("cpu")])

    # Found two seconds after it began to run, at 12; scraped at 12.5 and 13.5: a rate needs both.
    assert [seen(t_s) for t_s in (12.0, 13.0, 14.0)] == [1, 1, 2]


def test_what_is_seen_of_each_replica_adds_up_to_what_is_seen_of_all(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 20.0),))
    world.ask(asr_gpu=3)
    world.cluster.advance(100.0)
    snapshot = world.cluster.snapshot()
    replicas = snapshot.replicas[CAPTIONS, StageName("asr"), PoolName("gpu")]

    assert len(replicas) == 3
    total = sum(replica.arrival_rate_rps for replica in replicas)
    assert total == pytest.approx(world.number(100.0, ASR_GPU, Quantity.ARRIVAL_RATE))
    assert all(0 < replica.utilization < 1 for replica in replicas)
    assert snapshot.ingress[CAPTIONS].offered_rps == pytest.approx(20.0, rel=0.3)


def test_a_snapshot_stays_what_it_was_whatever_happens_later(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 10.0), (60.0, 80.0)))
    world.cluster.advance(60.0)
    early, late = world.cluster.snapshot(), world.cluster.snapshot()
    looked_at_once = {key: dict(samples.readings) for key, samples in early.pipelines[0].samples.items()}
    world.cluster.advance(110.0)

    assert {key: dict(samples.readings) for key, samples in late.pipelines[0].samples.items()} == looked_at_once


# -- what becomes of decisions


def test_items_are_conserved_and_drained_replicas_lose_none(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 30.0),), streams=False)
    for t_s, replicas in ((0.0, 4), (30.0, 2), (60.0, 4), (80.0, 3)):
        world.at(t_s)
        world.ask(asr_gpu=replicas, vad_cpu=replicas)
    world.cluster.advance(120.0)
    score = world.cluster.tally(CAPTIONS).score()

    assert score.offered == sum(getattr(score, outcome) for outcome in EVERY_OUTCOME)
    assert score.offered > 3000
    assert score.lost == 0


def test_a_drained_replica_is_paid_until_its_streams_are_over_or_its_time_is(tmp_path: Path) -> None:
    memory = PIPELINE.replace(
        'serviceTime: {fixed: 40ms, cv: "0.3"}',
        'serviceTime: {fixed: 10ms, cv: "0.3"}\n          memory: {sessions: 64}',
    )
    world = World(tmp_path, streams=True, pipeline=memory, load=((0.0, 6.0),))
    world.ask(asr_gpu=2)
    world.at(60.0)
    world.ask(asr_gpu=1)

    assert (world.target(67.9, ASR_GPU).ready, world.target(67.9, ASR_GPU).terminating) == (1, 1)
    assert world.target(70.0, ASR_GPU).terminating == 0
    assert 0 < world.cluster.sessions_cut <= 6
    price = {seen.t_s: seen.cost_per_hour for seen in world.cluster.observations}
    before, after = (max(t for t in price if t <= until) for until in (67.9, 70.0))
    assert price[before] - price[after] == pytest.approx(2.0)


def test_more_is_admitted_than_the_decision_allows_only_until_the_ingress_has_read_it(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 20.0),))
    world.at(30.5)
    decision = decision_of(world.cluster.snapshot(), {}, "shed", Policy())
    (pipeline,) = decision.pipelines
    world.cluster.apply(replace(decision, pipelines=(replace(pipeline, admissible=5.0),)))

    world.cluster.advance(30.99)
    assert world.cluster.tally(CAPTIONS).score().shed == 0
    world.cluster.advance(90.0)
    # VAD would have filtered half of them, which count as filtered.
    assert world.cluster.tally(CAPTIONS).score().shed == pytest.approx(15 * 59 / 2, rel=0.15)


BATCHED = PIPELINE.replace(
    'serviceTime: {fixed: 40ms, cv: "0.3"}\n',
    'serviceTime: {fixed: 40ms, cv: "0.3"}\n'
    "          batching: {sizes: [1, 8], waits: [0ms, 500ms], apply: {configMap: batching, key: asr-gpu}}\n",
    1,
)


def test_servers_read_batch_settings_a_minute_after_they_were_written(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 20.0),), duration_s=240, pipeline=BATCHED)
    world.ask(vad_cpu=2, asr_gpu=2, asr_cpu=0)
    found = world.at(60.0).batching
    assert list(found) == [ASR_GPU]
    assert found[StageName("asr"), PoolName("gpu")].settings is None
    before = world.number(60.0, ASR_GPU, Quantity.BATCH_SIZE)
    decision = decision_of(world.cluster.snapshot(), {}, "batching", Policy())
    (pipeline,) = decision.pipelines
    settings = BatchSettings(limit=8, wait_s=0.5)
    write = BatchWrite(
        stage=StageName("asr"),
        placement=PoolName("gpu"),
        at=ConfigKey(config_map="batching", key="asr-gpu"),
        settings=settings,
        before=None,
        restores=False,
    )
    world.cluster.apply(replace(decision, pipelines=(replace(pipeline, batch_writes=(write,)),)))
    assert world.at(61.0).batching[StageName("asr"), PoolName("gpu")].settings == settings
    assert world.number(60.0 + BATCHING_SYNC_S - 1, ASR_GPU, Quantity.BATCH_SIZE) < 1.2 * before
    assert world.number(60.0 + BATCHING_SYNC_S + 30, ASR_GPU, Quantity.BATCH_SIZE) > 1.5 * before


def test_the_operator_writes_what_it_decides_to_a_key_that_is_missing(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 20.0),), pipeline=BATCHED)
    world.cluster.advance(40.0)
    world.cluster.apply(decide(world.cluster.snapshot(), Policy()))
    settings = world.at(41.0).batching[StageName("asr"), PoolName("gpu")].settings
    assert settings == BatchSettings(limit=8)


# -- properties of a run


def latencies(world: World, until_s: float = 120.0) -> list[float]:
    world.cluster.advance(until_s)
    score = world.cluster.tally(CAPTIONS).score()
    assert score.p50_s is not None
    assert score.p95_s is not None
    return [score.p50_s, score.p95_s]


def test_an_ingress_that_does_not_obey_admits_everything(tmp_path: Path) -> None:
    world = World(tmp_path, load=((0.0, 20.0),), properties="sheds: false")
    world.at(30.5)
    decision = decision_of(world.cluster.snapshot(), {}, "shed", Policy())
    (pipeline,) = decision.pipelines
    world.cluster.apply(replace(decision, pipelines=(replace(pipeline, admissible=5.0),)))
    world.cluster.advance(120.0)

    assert world.cluster.tally(CAPTIONS).score().shed == 0


@pytest.mark.parametrize(("reconnect", "comes_back"), [("backoff", True), ("never", False)])
def test_refused_streams_come_back_unless_the_scenario_says_otherwise(
    tmp_path: Path, reconnect: str, comes_back: bool
) -> None:
    memory = PIPELINE.replace(
        'serviceTime: {fixed: 40ms, cv: "0.3"}',
        'serviceTime: {fixed: 10ms, cv: "0.3"}\n          memory: {sessions: 4}',
    )
    path = tmp_path / "scenario.yaml"
    a_scenario(tmp_path, streams=True, pipeline=memory)
    (tmp_path / "load.csv").write_text("t_s,arrivals\n0,16\n" + "".join(f"{t_s},0\n" for t_s in range(1, 120)))
    session = f'column: arrivals, session: {{mean: 60s, cv: "1", reconnect: {reconnect}}}'
    path.write_text(path.read_text().replace("column: streams", session))
    cluster = SimulatedCluster(load_scenario(path), seed=1, interval_s=INTERVAL_S)

    cluster.advance(60.0)
    first = cluster.tally(CAPTIONS).score()
    cluster.advance(119.0)
    last = cluster.tally(CAPTIONS).score()

    # All ask at once, and four find a slot. By and by these streams end.
    assert first.refused > first.served
    assert (last.served > first.served) is comes_back
    assert last.lost == last.shed == 0


def test_overhead_is_in_the_latency_from_end_to_end_and_in_that_of_no_stage(tmp_path: Path) -> None:
    plain, slow = World(tmp_path / "a"), World(tmp_path / "b", properties="overhead: 150ms")
    fast_s, slow_s = plain.at(60.0).latency_s, slow.at(60.0).latency_s

    assert isinstance(fast_s, float)
    assert isinstance(slow_s, float)
    assert slow_s - fast_s == pytest.approx(0.150, abs=0.03)
    for place in (VAD_CPU, ASR_GPU):
        assert slow.number(60.0, place, Quantity.LATENCY_MEAN) == plain.number(60.0, place, Quantity.LATENCY_MEAN)
    assert [a - b for a, b in zip(latencies(slow), latencies(plain), strict=True)] == pytest.approx(
        [0.150] * 2, rel=0.01
    )


def test_a_roll_out_replaces_the_pods_of_its_stage_alone(tmp_path: Path) -> None:
    world = World(tmp_path, faults="[{at: 40s, rollOut: asr}]")

    def names(t_s: float, place: tuple[str, str]) -> set[str]:
        return {pod.name for pod in world.target(t_s, place).serving}

    vad, asr = names(39.0, VAD_CPU), names(39.0, ASR_GPU)
    assert names(110.0, VAD_CPU) == vad
    assert names(110.0, ASR_GPU).isdisjoint(asr)
    assert len(names(110.0, ASR_GPU)) == len(asr) > 0


def test_replicas_on_one_instance_slow_each_other_by_their_share_of_busy_time(tmp_path: Path) -> None:
    slow = PIPELINE.replace("fixed: 10ms, cv", "fixed: 200ms, cv")
    load = ((0.0, 8.0),)
    alone = World(tmp_path / "a", pipeline=slow, load=load)
    beside = World(tmp_path / "b", pipeline=slow, load=load, properties='interference: {"vad,vad": "3"}')
    for world in (alone, beside):
        world.at(1.0)
        world.ask(vad_cpu=2, asr_gpu=1)
    own_s, slowed_s = (world.number(80.0, VAD_CPU, Quantity.SERVICE_TIME) for world in (alone, beside))
    # Two replicas with 4 items/s each: busy ρ = 4·0.2·(1 + 2ρ), so that ρ is above what one of them can be.
    assert own_s == pytest.approx(0.2, rel=0.1)
    assert slowed_s == pytest.approx(0.6, rel=0.1)
    serving = beside.target(80.0, VAD_CPU).serving
    assert len({replica.node for replica in serving}) == 1


def test_a_replica_with_an_instance_of_its_own_is_slowed_by_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, properties='interference: {"asr,vad": "9"}')
    assert world.number(60.0, ASR_GPU, Quantity.SERVICE_TIME) == pytest.approx(0.04, rel=0.1)


def test_a_first_token_leaves_early(tmp_path: Path) -> None:
    vllm = PIPELINE.replace("asr\n      metrics: {window", "asr\n      metrics: {preset: vllm, answer: First, window")
    whole = World(tmp_path / "a", pipeline=vllm)
    early = World(tmp_path / "b", pipeline=vllm, properties='firstToken: {asr: "0.2"}')

    assert early.number(60.0, ASR_GPU, Quantity.LATENCY_MEAN) < 0.5 * whole.number(60.0, ASR_GPU, Quantity.LATENCY_MEAN)


def test_further_models_make_a_stage_ambiguous_unless_it_selects_its_own(tmp_path: Path) -> None:
    several = PIPELINE.replace("asr\n      metrics: {window", "asr\n      metrics: {preset: triton, window")
    chosen = several.replace("preset: triton", "preset: triton, model: asr")
    models = "otherModels: {asr: [preprocess]}"
    blind = World(tmp_path / "a", pipeline=several, properties=models)
    sees, alone = World(tmp_path / "b", pipeline=chosen, properties=models), World(tmp_path / "c", pipeline=several)

    assert reason(blind.reading(60.0, ASR_GPU, Quantity.ARRIVAL_RATE)) is AbsenceReason.AMBIGUOUS
    assert sees.number(60.0, ASR_GPU, Quantity.ARRIVAL_RATE) == alone.number(60.0, ASR_GPU, Quantity.ARRIVAL_RATE)


def test_declared_service_times_may_be_wrong_while_the_servers_are_as_they_are(tmp_path: Path) -> None:
    plain = World(tmp_path / "a")
    wrong = World(tmp_path / "b", properties='profileError: {asr: "0.2"}')
    state, told = plain.at(60.0), wrong.at(60.0)

    assert told.samples == state.samples
    laws = {key[0]: placement.prior.service.mean_s(1) for key, placement in told.spec.placements().items()}
    assert laws == pytest.approx({"vad": 0.010, "asr": 0.012})
    assert latencies(wrong) == latencies(plain)


def test_hidden_profiles_are_declared_to_no_policy_while_the_servers_are_as_they_are(tmp_path: Path) -> None:
    plain, hidden = World(tmp_path / "a"), World(tmp_path / "b", properties="hideProfiles: true")
    placements = hidden.at(60.0).spec.placements().values()

    assert not any(placement.declared.service or placement.declared.startup for placement in placements)
    assert all(placement.declared.service for placement in plain.at(60.0).spec.placements().values())
    assert latencies(hidden) == latencies(plain)


def test_unequal_replicas_serve_at_different_speeds_the_same_in_every_run_of_a_seed(tmp_path: Path) -> None:
    def service_s(folder: str, properties: str = "") -> list[float]:
        world = World(tmp_path / folder, load=((0.0, 150.0),), properties=properties)
        world.at(0.0)
        world.ask(vad_cpu=3, asr_gpu=4)
        world.cluster.advance(110.0)
        readings = world.cluster.snapshot().replicas[(CAPTIONS, StageName("asr"), PoolName("gpu"))]
        return [reading.utilization / reading.completion_rate_rps for reading in readings]

    equal, spread = service_s("a"), service_s("b", 'speedSpread: "0.4"')
    assert len(equal) == len(spread) == 4
    assert equal == pytest.approx([0.040] * 4, rel=0.15)
    assert max(spread) / min(spread) > 1.3
    assert spread == service_s("c", 'speedSpread: "0.4"')


def test_a_step_in_the_load_is_seen_with_the_next_scrape(tmp_path: Path) -> None:
    def demand(properties: str, t_s: float) -> Reading:
        world = World(tmp_path / f"{t_s:g}{properties[-3:]}", load=load, streams=True, properties=properties)
        return world.at(t_s).demand

    load = ((0.0, 10.0), (60.0, 50.0))
    assert (demand("", 62.0), demand("scrapeInterval: 30s", 62.0)) == (50.0, 10.0)
    assert (demand("scrapeInterval: 30s", 84.0), demand("scrapeInterval: 30s", 86.0)) == (10.0, 50.0)


def test_a_rate_over_less_than_two_scrapes_is_missing(tmp_path: Path) -> None:
    state = World(tmp_path, properties="scrapeInterval: 30s").at(90.0)

    assert reason(state.demand) is AbsenceReason.MISSING
    assert reason(state.latency_s) is AbsenceReason.MISSING


def test_memory_goes_from_decision_to_decision(tmp_path: Path) -> None:
    world = World(tmp_path)
    state = world.at(0.0)
    assert state.memory.demand is None
    decision = decision_of(world.cluster.snapshot(), {}, "", Policy())
    (pipeline,) = decision.pipelines
    world.cluster.apply(replace(decision, pipelines=(replace(pipeline, memory=replace(state.memory, demand=7.0)),)))
    assert world.at(5.0).memory.demand == 7.0


# -- faults


def test_no_replica_starts_while_its_pool_is_unavailable_and_it_is_seen_pending(tmp_path: Path) -> None:
    world = World(tmp_path, duration_s=400, faults="[{at: 10s, for: 60s, poolUnavailable: gpu}]")
    world.at(20.0)
    world.ask(asr_gpu=3)
    seen = world.target(70.0, ASR_GPU)

    assert (seen.desired, seen.existing, seen.ready, len(seen.pending)) == (3, 3, 1, 2)
    assert {replica.since_s for replica in seen.pending} == {20}
    assert "4 node(s) were unschedulable" in seen.pending[0].reason
    assert world.cluster.snapshot().pools[PoolName("gpu")].ready_instances == 4, "its nodes are there"
    assert world.cluster.observations[-1].cost_per_hour == 2.25, "what waits for a node is not paid"
    assert world.target(20 + REFUSAL_S + 19.0, ASR_GPU).ready == 1
    assert world.cluster.observations[-1].cost_per_hour == 6.25, "what starts is"
    assert world.cluster.observations[-1].t_s == 20 + REFUSAL_S
    assert world.target(20 + REFUSAL_S + 21.0, ASR_GPU).ready == 3


@pytest.mark.parametrize(
    ("properties", "until_s"), [("refusalCache: 0s", 70.0), ("pace: 3", 80.0), ("refusalCache: 120s\npace: 2", 80.0)]
)
def test_a_pool_delivers_again_when_the_refusal_is_forgotten(tmp_path: Path, properties: str, until_s: float) -> None:
    faults = "[{at: 10s, for: 60s, poolUnavailable: gpu}]"
    world = World(tmp_path, duration_s=400, faults=faults, properties=properties)
    world.at(20.0)
    world.ask(asr_gpu=3)

    assert len(world.target(until_s - 1.0, ASR_GPU).pending) == 2
    assert len(world.target(until_s + 1.0, ASR_GPU).pending) == 0


def test_a_lost_pool_has_no_nodes_and_what_ran_there_is_served_again_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path, faults="[{at: 40s, for: 30s, poolLost: gpu}]")
    world.ask(asr_cpu=2)
    assert world.target(39.0, ASR_GPU).ready == 1
    lost = world.target(41.0, ASR_GPU)

    assert (lost.ready, len(lost.pending)) == (0, 1)
    assert world.cluster.snapshot().pools[PoolName("gpu")].ready_instances == 0
    assert world.target(69.0, ASR_GPU).ready == 0
    assert world.target(91.0, ASR_GPU).ready == 1
    world.cluster.advance(120.0)
    assert world.cluster.tally(CAPTIONS).score().lost == 0


def test_reclaimed_nodes_come_back_when_a_provisioner_has_replaced_them(tmp_path: Path) -> None:
    world = World(tmp_path, duration_s=300, faults='[{at: 40s, spotReclaim: {pool: gpu, share: "0.5"}}]')
    world.at(0.0)
    world.ask(asr_gpu=4)
    assert world.target(39.0, ASR_GPU).ready == 4
    seen = world.target(41.0, ASR_GPU)

    assert (seen.ready, len(seen.pending)) == (2, 2)
    assert world.cluster.snapshot().pools[PoolName("gpu")].ready_instances == 2
    assert world.target(95.0, ASR_GPU).ready == 2, "a node takes a minute at least"
    assert world.target(245.0, ASR_GPU).ready == 4, "three at most, and then the replica starts"


def test_reclaimed_nodes_of_a_fault_with_an_end_come_back_at_it(tmp_path: Path) -> None:
    world = World(tmp_path, faults="[{at: 40s, for: 20s, spotReclaim: {pool: gpu, share: 1}}]")
    world.at(59.0)
    assert world.cluster.snapshot().pools[PoolName("gpu")].ready_instances == 0
    world.at(61.0)
    assert world.cluster.snapshot().pools[PoolName("gpu")].ready_instances == 4


def test_lost_metrics_are_missing_with_their_reasons_and_come_back(tmp_path: Path) -> None:
    world = World(tmp_path, faults='[{at: 40s, for: 30s, metricsLost: "*"}]')
    assert isinstance(world.at(39.0).demand, float)
    state = world.at(41.0)

    assert reason(state.demand) is AbsenceReason.MISSING
    assert reason(state.latency_s) is AbsenceReason.MISSING
    assert reason(state.samples[StageName("vad"), PoolName("cpu")].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.MISSING
    snapshot = world.cluster.snapshot()
    assert not any(snapshot.replicas.values())
    assert not snapshot.ingress
    # Prometheus went on scraping: nothing has to be learned again.
    assert isinstance(world.at(70.5).demand, float)
    assert world.number(70.5, VAD_CPU, Quantity.ARRIVAL_RATE) == pytest.approx(8.0, rel=0.5)


def test_a_loss_may_be_of_one_pipeline(tmp_path: Path) -> None:
    world = World(tmp_path, faults="[{at: 40s, for: 30s, metricsLost: speech/captions}]")
    assert reason(world.at(41.0).demand) is AbsenceReason.MISSING


def test_stale_metrics_age_until_they_count_as_stale(tmp_path: Path) -> None:
    world = World(tmp_path, faults="[{at: 40s, for: 60s, metricsStale: speech/captions}]")

    assert isinstance(world.reading(46.0, VAD_CPU, Quantity.QUEUE_DEPTH), float), "three quarters of the window"
    assert reason(world.reading(48.0, VAD_CPU, Quantity.QUEUE_DEPTH)) is AbsenceReason.STALE
    assert reason(world.at(51.0).demand) is AbsenceReason.MISSING, "no sample is left in the window of its rate"
    assert isinstance(world.at(110.0).demand, float)


def test_metrics_of_a_part_of_the_pods_are_partial_and_the_same_part_stays_away(tmp_path: Path) -> None:
    world = World(tmp_path, faults='[{at: 40s, for: 60s, metricsPartial: {share: "0.5"}}]', load=((0.0, 30.0),))
    world.ask(vad_cpu=8)
    world.at(45.0)

    seen = world.reading(45.0, VAD_CPU, Quantity.ARRIVAL_RATE)
    assert reason(seen) is AbsenceReason.PARTIAL
    assert isinstance(seen, Absence)
    assert world.reading(80.0, VAD_CPU, Quantity.ARRIVAL_RATE) == seen
    shown = world.cluster.snapshot().replicas[CAPTIONS, StageName("vad"), PoolName("cpu")]
    assert 0 < len(shown) < 8
    assert isinstance(world.at(80.0).demand, float), "the ingress is no pod"
    assert isinstance(world.reading(101.0, VAD_CPU, Quantity.ARRIVAL_RATE), float)


def test_noise_has_the_mean_of_what_it_is_on_and_the_variation_that_was_asked_for(tmp_path: Path) -> None:
    quiet = World(tmp_path / "quiet", streams=True, load=((0.0, 10.0),), duration_s=300)
    noisy = World(
        tmp_path / "noisy",
        streams=True,
        load=((0.0, 10.0),),
        duration_s=300,
        faults='[{at: 0s, metricsNoisy: {cv: "0.3"}}]',
    )
    ratios = []
    for t_s in range(20, 300):
        noise, true = noisy.at(float(t_s)).demand, quiet.at(float(t_s)).demand
        assert isinstance(noise, float)
        assert isinstance(true, float)
        ratios.append(noise / true)
    mean = sum(ratios) / len(ratios)
    cv = math.sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / len(ratios)) / mean

    assert mean == pytest.approx(1.0, abs=0.06)
    assert cv == pytest.approx(0.3, rel=0.2)
    assert quiet.cluster.tally(CAPTIONS).score() == noisy.cluster.tally(CAPTIONS).score(), "readings only"


def test_a_slow_start_takes_as_much_longer_as_it_says(tmp_path: Path) -> None:
    world = World(tmp_path, faults="[{at: 0s, for: 10s, slowStart: {pool: gpu, factor: 2}}]")
    world.at(5.0)
    world.ask(asr_gpu=2)
    world.at(12.0)
    world.ask(asr_gpu=3)

    assert world.target(33.0, ASR_GPU).ready == 2, "the one that began after the fault is first"
    assert world.target(46.0, ASR_GPU).ready == 3


def test_a_slow_stage_serves_slower_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    fault = "[{at: 40s, for: 30s, slowStage: {stage: speech/captions/asr, factor: 2}}]"
    world = World(tmp_path, faults=fault, load=((0.0, 10.0),))

    assert [round(world.number(t_s, ASR_GPU, Quantity.SERVICE_TIME), 2) for t_s in (39.0, 65.0, 100.0)] == [
        0.04,
        0.08,
        0.04,
    ]


def test_a_patch_changes_the_resource_for_as_long_as_it_lasts_and_nothing_that_runs(tmp_path: Path) -> None:
    patch = "{ComputePool/gpu: {spec: {price: {perHour: '3'}, capacity: {instances: 1}}}}"
    world = World(tmp_path, faults=f"[{{at: 40s, for: 30s, set: {patch}}}]")

    def gpu(t_s: float) -> tuple[float, int | None, int, float]:
        world.at(t_s)
        pool = world.cluster.snapshot().pools[PoolName("gpu")]
        return (
            pool.spec.price_per_hour,
            pool.spec.instances,
            pool.ready_instances,
            world.cluster.observations[-1].cost_per_hour,
        )

    assert gpu(39.0) == (2.0, 4, 4, 2.25)
    assert gpu(41.0) == (3.0, 1, 4, 3.25)
    assert gpu(71.0) == (2.0, 4, 4, 2.25)


def test_a_placement_that_a_patch_points_elsewhere_is_missing_and_what_ran_there_is_still_paid(tmp_path: Path) -> None:
    stages = yaml.safe_load(PIPELINE)["spec"]["stages"]
    stages[1]["placements"][0]["target"]["name"] = "elsewhere"
    patch = json.dumps({"SpeechPipeline/speech/captions": {"spec": {"stages": stages}}})
    world = World(tmp_path, faults=f"[{{at: 10s, for: 30s, set: {patch}}}]")
    seen = world.at(20.0).target(StageName("asr"), PoolName("gpu"))

    assert seen == TargetMissing(reason="Deployment/elsewhere: not found")
    assert reason(world.reading(20.0, ASR_GPU, Quantity.ARRIVAL_RATE)) is AbsenceReason.TOO_NEW
    assert world.cluster.observations[-1].cost_per_hour == pytest.approx(2.25)
    assert world.target(50.0, ASR_GPU).ready == 1


# -- the same again, and what is refused


def test_a_seed_is_a_run(tmp_path: Path) -> None:
    def run(seed: int) -> object:
        world = World(tmp_path, seed=seed, load=((0.0, 20.0),))
        world.ask(asr_gpu=2)
        state = world.at(100.0)
        return state.demand, dict(state.samples[StageName("vad"), PoolName("cpu")].readings)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_what_is_not_simulated_is_refused_when_a_run_is_set_up(tmp_path: Path) -> None:
    patch = "{SpeechPipeline/speech/captions: {spec: {demand: {query: sum(up)}}}}"
    with pytest.raises(
        UnsupportedScenario, match=r"^SpeechPipeline/speech/captions: spec\.demand\.query: 'sum\(up\)': "
    ):
        World(tmp_path, faults=f"[{{at: 40s, set: {patch}}}]")


def test_a_replica_on_a_nodepool_waits_for_its_node_as_long_as_the_scenario_says(tmp_path: Path) -> None:
    launched = POOLS.replace("capacity: {instances: 4}", "capacity: {instances: 4, nodePool: gpu}")
    world = World(tmp_path, pools=launched, properties="nodeStartup: {min: 30s, max: 30s}")
    world.at(0.0)
    assert world.cluster.snapshot().pools[PoolName("gpu")].ready_instances == 1
    world.ask(asr_gpu=2)

    (pending,) = world.target(29.0, ASR_GPU).pending
    pool = world.cluster.snapshot().pools[PoolName("gpu")]
    assert pool.node_pool is not None
    assert pool.node_pool.claims == pending.expected
    assert pool.ready_instances == 1
    started = world.target(31.0, ASR_GPU)
    assert (len(started.pending), len(started.starting)) == (0, 1)
    assert world.cluster.snapshot().pools[PoolName("gpu")].ready_instances == 2
    assert world.target(49.0, ASR_GPU).ready == 1
    assert world.target(51.0, ASR_GPU).ready == 2
    assert world.cluster.snapshot().pools[PoolName("cpu")].node_pool is None


def test_nodes_take_one_to_three_minutes_by_default(tmp_path: Path) -> None:
    launched = POOLS.replace("capacity: {instances: 4}", "capacity: {instances: 4, nodePool: gpu}")
    world = World(tmp_path, pools=launched, duration_s=300)
    world.at(0.0)
    world.ask(asr_gpu=4)
    assert len(world.target(59.0, ASR_GPU).pending) == 3
    assert not world.target(181.0, ASR_GPU).pending
