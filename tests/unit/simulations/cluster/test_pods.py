"""Deployments on nodes: who gets one, who waits with which words, who goes first, and what faults do."""

from fractions import Fraction

from builders import a_placement, a_pool, a_spec, a_stage

from controller.core.state.snapshot import NodePoolState
from controller.core.state.spec import PipelineSpec
from optimizer.model import PoolName, StageName
from simulations.cluster.agenda import Agenda
from simulations.cluster.pods import BINDING_EACH_S, BINDING_S, Pod, WorkloadName, Workloads, initial_replicas

CPU, GPU = PoolName("cpu"), PoolName("gpu")
REFUSAL_S = 180.0
STARTUP_S = 20.0


class Recorder:
    """Servers that only take note; a drain is over when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Pod] = []
        self.drained: list[Pod] = []
        self.killed: list[Pod] = []

    def begin(self, pod: Pod) -> None:
        pod.number = len(self.begun)
        self.begun.append(pod)

    def drain(self, pod: Pod) -> None:
        self.drained.append(pod)

    def kill(self, pod: Pod) -> None:
        self.killed.append(pod)


class World:
    def __init__(self, *, cpu: int = 2, per_instance: int = 2, launched: bool = False) -> None:
        asr = a_placement("cpu", per_instance=per_instance, startup_s=STARTUP_S)
        lm = a_placement("gpu", startup_s=STARTUP_S)
        self.spec: PipelineSpec = a_spec(a_stage("asr", asr, lm))
        self.agenda = Agenda()
        self.servers = Recorder()
        self.now_s = 0.0
        self.cluster = Workloads(
            (self.spec,),
            [
                a_pool("cpu", instances=cpu, node_pool=NodePoolState() if launched else None).spec,
                a_pool("gpu", instances=1).spec,
            ],
            agenda=self.agenda,
            servers=self.servers,
            seed=1,
            refusal_s=REFUSAL_S,
            node_startup_s=(100.0, 100.0),
        )
        self.asr: WorkloadName = (self.spec.key, (StageName("asr"), CPU))
        self.cpu = self.cluster.pools[CPU]

    def pass_until(self, until_s: float) -> None:
        while (due_s := self.agenda.next_s()) is not None and due_s <= until_s:
            self.now_s = due_s
            self.agenda.take()()
        self.now_s = until_s

    def scale(self, replicas: int) -> None:
        self.cluster.scale(self.asr, replicas, self.now_s)

    @property
    def pods(self) -> list[Pod]:
        return self.cluster.workloads[self.asr].pods

    def state(self) -> tuple[int, int, int, int, int]:
        target = self.cluster.workloads[self.asr].target_state(self.cpu, now_s=self.now_s)
        return target.desired, target.existing, target.ready, target.terminating, len(target.pending)


def test_a_replica_serves_after_its_start_up_and_not_before() -> None:
    world = World()
    world.scale(2)
    world.pass_until(STARTUP_S + BINDING_S - 0.001)
    assert world.state() == (2, 2, 0, 0, 0)
    world.pass_until(STARTUP_S + BINDING_S)
    assert world.state() == (2, 2, 1, 0, 0)
    world.pass_until(STARTUP_S + BINDING_S + BINDING_EACH_S)
    assert world.state() == (2, 2, 2, 0, 0)


def test_what_has_no_node_waits_in_the_scheduler_s_words_until_there_is_one() -> None:
    world = World()
    world.pass_until(7.9)
    world.scale(5)

    (waiting,) = world.cluster.workloads[world.asr].target_state(world.cpu).pending
    assert waiting.since_s == 7
    assert waiting.reason == (
        "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector."
    )
    assert world.cluster.workloads[world.asr].replicas().scheduled == 4

    world.pass_until(60.0)
    world.scale(4)
    world.pass_until(61.0)
    assert world.state() == (4, 4, 4, 0, 0), "what waits goes first"
    assert not world.servers.drained


def test_nodes_are_filled_one_after_the_other() -> None:
    world = World()
    world.scale(2)

    assert len({id(node) for pod in world.pods for node in pod.nodes}) == 1
    assert [node.free for node in world.cpu.nodes] == [0, 1]


def test_shares_of_a_node_add_up_exactly() -> None:
    world = World(cpu=1, per_instance=7)
    world.scale(8)

    assert world.state() == (8, 8, 0, 0, 1)
    assert world.cpu.nodes[0].free == Fraction(0)


def test_fewer_replicas_drain_and_hold_their_node_until_they_are_empty() -> None:
    world = World(cpu=1)
    world.scale(2)
    world.pass_until(60.0)
    world.scale(1)

    assert world.state() == (1, 1, 1, 1, 0)
    world.scale(2)
    assert world.state() == (2, 2, 1, 1, 1), "its node is not free yet"
    world.cluster.ended(world.servers.drained[0], world.now_s)
    assert world.state() == (2, 2, 1, 0, 0)


def test_the_youngest_goes_first_among_those_that_serve() -> None:
    world = World(cpu=4, per_instance=1)
    for at_s, replicas in ((0.0, 1), (100.0, 2), (1000.0, 3)):
        world.pass_until(at_s)
        world.scale(replicas)
    world.pass_until(1030.0)
    third = world.servers.begun[2]
    world.scale(2)
    assert world.servers.drained == [third]


def test_what_does_not_serve_yet_goes_before_what_does() -> None:
    world = World(cpu=4, per_instance=1)
    world.scale(1)
    world.pass_until(500.0)
    world.scale(2)
    world.scale(1)

    assert not world.servers.drained
    assert world.state() == (1, 1, 1, 0, 0)
    world.pass_until(600.0)
    assert len(world.servers.begun) == 1, "a pod that was deleted while it started never serves"


def test_among_equals_chance_decides_and_the_seed_is_the_chance() -> None:
    def chosen(seed: int) -> str:
        world = World(cpu=8, per_instance=1)
        world.cluster._seed = seed
        world.scale(8)
        world.pass_until(300.0)
        world.scale(7)
        return world.servers.drained[0].name

    assert chosen(1) == chosen(1)
    assert len({chosen(seed) for seed in range(8)}) > 1


def test_no_replica_gets_a_node_of_an_unavailable_pool_and_running_ones_stay() -> None:
    world = World()
    world.scale(1)
    world.pass_until(100.0)
    world.cpu.outages += 1
    world.scale(2)
    world.pass_until(100.0 + 2.5 * REFUSAL_S)

    assert world.state() == (2, 2, 1, 0, 1)
    (waiting,) = world.cluster.workloads[world.asr].target_state(world.cpu).pending
    assert "2 node(s) were unschedulable" in waiting.reason


def test_after_an_outage_the_provider_is_asked_again_when_its_refusal_is_forgotten() -> None:
    world = World()
    world.cpu.outages += 1
    world.scale(1)
    world.pass_until(10.0)
    world.cpu.outages -= 1
    world.pass_until(REFUSAL_S - 1)
    assert world.state() == (1, 1, 0, 0, 1)
    world.scale(2)
    assert world.state() == (2, 2, 0, 0, 2), "the refusal is remembered for whatever asks"
    world.pass_until(REFUSAL_S)
    assert world.state() == (2, 2, 0, 0, 0)
    world.pass_until(REFUSAL_S + BINDING_S + STARTUP_S)
    assert world.state() == (2, 2, 2, 0, 0)


def test_a_lost_pool_takes_its_pods_and_they_come_back_with_it() -> None:
    world = World()
    world.scale(3)
    world.pass_until(100.0)
    world.cluster.change_absences(world.cpu, +1, world.now_s)

    assert len(world.servers.killed) == 3
    assert world.state() == (3, 3, 0, 0, 3)
    assert not world.cpu.present()
    world.pass_until(200.0)
    world.cluster.change_absences(world.cpu, -1, world.now_s)
    world.pass_until(230.0)
    assert world.state() == (3, 3, 3, 0, 0)


def test_reclaimed_nodes_take_only_what_ran_on_them() -> None:
    world = World()
    world.scale(4)
    world.pass_until(100.0)
    world.cluster.remove_nodes(world.cpu, [0], world.now_s)

    assert [pod.nodes for pod in world.servers.killed] == [(world.cpu.nodes[0],)] * 2
    assert world.state() == (4, 4, 2, 0, 2)
    world.cluster.restore_nodes(world.cpu, [0], 150.0)
    world.pass_until(200.0)
    assert world.state() == (4, 4, 4, 0, 0)


def test_a_node_that_two_faults_have_taken_is_back_when_both_have_given_it_back() -> None:
    world = World()
    for _ in range(2):
        world.cluster.remove_nodes(world.cpu, [0], world.now_s)
    world.cluster.restore_nodes(world.cpu, [0], world.now_s)
    assert len(world.cpu.present()) == 1
    world.cluster.restore_nodes(world.cpu, [0], world.now_s)
    assert len(world.cpu.present()) == 2


def test_a_draining_pod_on_a_node_that_vanishes_is_gone_and_not_replaced() -> None:
    world = World(cpu=1)
    world.scale(2)
    world.pass_until(60.0)
    world.scale(1)
    world.cluster.change_absences(world.cpu, +1, world.now_s)
    assert world.state() == (1, 1, 0, 0, 1)


def test_slow_starts_take_longer_for_those_that_begin_then() -> None:
    world = World()
    world.scale(1)
    world.cpu.start_factor = 3.0
    world.scale(2)
    world.pass_until(STARTUP_S + BINDING_S)
    assert world.state()[2] == 1
    world.pass_until(3 * STARTUP_S + BINDING_S)
    assert world.state()[2] == 2


def test_a_run_begins_with_a_replica_of_every_stage_where_there_are_instances() -> None:
    encoder = a_stage("encoder", a_placement("cpu"), a_placement("gpu"))
    vad = a_stage("vad", a_placement("cpu", bounds=(3, 9)), a_placement("gpu"))
    spec = a_spec(vad, encoder)
    pools = {CPU: a_pool("cpu", instances=0).spec, GPU: a_pool("gpu", instances=2).spec}

    assert dict(initial_replicas(spec, pools)) == {
        ("vad", "cpu"): 3,
        ("vad", "gpu"): 0,
        ("encoder", "cpu"): 0,
        ("encoder", "gpu"): 1,
    }


def rolled_out(replicas: int, *, cpu: int) -> World:
    """Return a world with ready replicas whose roll-out begins."""
    world = World(cpu=cpu)
    world.cluster.start_at_once(world.asr, replicas, 0.0)
    world.pass_until(100.0)
    world.cluster.roll_out(world.cluster.workloads[world.asr], world.now_s)
    return world


def test_a_roll_out_replaces_one_pod_at_a_time_and_keeps_as_many_ready() -> None:
    world = rolled_out(3, cpu=10)
    old = {pod.name for pod in world.pods if pod.outdated}
    step_s = STARTUP_S + BINDING_S

    assert world.state() == (3, 4, 3, 0, 0)
    for replaced in (1, 2):
        world.pass_until(100.0 + replaced * step_s + 0.01)
        assert world.state() == (3, 4, 3, replaced, 0)
    world.pass_until(1000.0)
    assert world.state() == (3, 3, 3, 3, 0)
    assert {pod.name for pod in world.servers.drained} == old


def test_on_a_full_pool_the_pod_of_a_roll_out_is_pending_until_there_is_room() -> None:
    world = rolled_out(4, cpu=2)
    world.pass_until(500.0)
    assert world.state() == (4, 5, 4, 0, 1)
    assert not world.servers.drained

    world.scale(3)
    world.cluster.ended(world.servers.drained[-1], world.now_s)
    world.pass_until(500.0 + STARTUP_S + 1)
    assert world.state() == (3, 4, 3, 1, 1)


def test_a_scale_up_during_a_roll_out_ends_with_the_desired_pods_all_new() -> None:
    world = rolled_out(2, cpu=10)
    old = {pod.name for pod in world.pods if pod.outdated}
    world.pass_until(105.0)
    world.scale(4)
    world.pass_until(1000.0)

    assert world.state() == (4, 4, 4, 2, 0)
    assert {pod.name for pod in world.servers.drained} == old


def test_a_node_of_a_nodepool_is_launched_for_pending_replicas_and_is_gone_when_it_is_empty() -> None:
    world = World(launched=True)
    world.pass_until(7.5)
    assert not world.cpu.ready(world.now_s)
    world.scale(2)
    world.pass_until(107.4)

    assert world.state() == (2, 2, 0, 0, 2), "both are pending until their node is up"
    (waiting, _) = world.cluster.workloads[world.asr].target_state(world.cpu, now_s=world.now_s).pending
    state = world.cpu.state(world.now_s)
    assert state is not None
    assert waiting.expected == state.claims
    assert [claim.since_s for claim in state.claims] == [7]
    assert (state.instances, state.launch_s) == (2, None)

    world.pass_until(107.5)
    assert world.state() == (2, 2, 0, 0, 0), "they start on it"
    assert len(world.cpu.ready(world.now_s)) == 1
    world.pass_until(107.5 + STARTUP_S + 1)
    assert world.state() == (2, 2, 2, 0, 0)
    state = world.cpu.state(world.now_s)
    assert state is not None
    assert (state.claims, state.launch_s, state.registered_at_s) == ((), 100, 107)

    world.scale(0)
    for pod in world.servers.drained:
        world.cluster.ended(pod, world.now_s)
    assert not world.cpu.ready(world.now_s)
    world.scale(1)
    world.pass_until(world.now_s + 99)
    assert world.state()[4] == 1, "the next replica needs a new node"


def test_replicas_at_the_begin_of_a_run_have_their_nodes() -> None:
    world = World(launched=True)
    world.cluster.start_at_once(world.asr, 1, 0.0)
    world.scale(2)
    world.pass_until(STARTUP_S + 1)

    assert world.state() == (2, 2, 2, 0, 0), "the second replica finds room on the node of the first"


def test_a_pool_without_a_nodepool_has_its_nodes_from_the_start() -> None:
    world = World()
    assert len(world.cpu.ready(0.0)) == 2
    assert world.cpu.state(0.0) is None
