"""The division of a pool between shards, as a model: every order of reads, writes, crashes and changes of the number.

The pool is an object with a version, as on an API server. Each shard has a process that works on the state that it read
last. Its writes may be refused, lost, or applied later. `docs/shards.md` has the properties.
"""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.core.plan.shards import Memory, Use, agreed, allowance, divided, without_gone
from controller.core.state.shards import Entry, Shard, Want, committed, shard_of

NAMESPACES = tuple(f"team-{index}" for index in range(5))
SECOND_S = 5.0
LABEL = "team"
QUIET, MOST_ROUNDS = 8, 200
READS = ("fresh", "fresh", "interrupted", "stale")
OUTCOMES = ("answered", "answered", "answered", "lost", "refused", "late")


@dataclass(slots=True)
class Pipeline:
    """A pipeline that takes one instance per replica. `version` changes with its claim."""

    namespace: str
    demand: int = 0
    replicas: int = 0
    operator: int | None = None
    version: int = 0


@dataclass(slots=True)
class Pool:
    limit: int
    version: int = 0
    entries: tuple[Entry, ...] = ()


@dataclass(slots=True)
class Process:
    """A leader of a shard, with what it read last: the pool, and the claims of all pipelines."""

    shard: Shard
    version: int
    entries: tuple[Entry, ...]
    claims: dict[str, tuple[int, int | None, int]]
    labels: dict[str, str]
    memory: Memory = field(default_factory=Memory)
    gone_since_s: dict[int, float] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    planned: bool = False

    def has(self, namespace: str) -> bool:
        return self.shard.has(namespace, {LABEL: self.labels[namespace]})


class Division(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.processes: dict[int, Process] = {}
        self.labels = dict.fromkeys(NAMESPACES, "")
        self.late: list[tuple[int, tuple[Entry, ...]]] = []
        self.changed = False

    @initialize(limit=st.integers(4, 16), count=st.integers(1, 3), used=st.lists(st.integers(0, 6), max_size=5))
    def begin(self, limit: int, count: int, used: list[int]) -> None:
        self.pool = Pool(limit=limit)
        self.pipelines = {name: Pipeline(namespace=name) for name in NAMESPACES}
        for pipeline, replicas in zip(self.pipelines.values(), used, strict=False):
            if self.running() + replicas <= limit:
                pipeline.replicas = pipeline.demand = replicas
        self.count = count
        for index in range(count):
            self.start(index)

    def running(self) -> int:
        return sum(each.replicas for each in self.pipelines.values())

    def start(self, index: int, count: int | None = None) -> None:
        shard = Shard(index=index, count=self.count if count is None else count, label=LABEL)
        self.processes[index] = Process(shard=shard, version=-1, entries=(), claims={}, labels={})
        self.look(self.processes[index])

    def look(self, process: Process) -> None:
        process.version, process.entries, process.labels = self.pool.version, self.pool.entries, dict(self.labels)
        process.claims = {name: (each.replicas, each.operator, each.version) for name, each in self.pipelines.items()}

    @rule(cycles=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(READS), st.sampled_from(OUTCOMES)), max_size=12))
    def cycles(self, cycles: list[tuple[int, str, str]]) -> None:
        """Some cycles, each of them after a read, on what was read before, or with a cycle of another between."""
        for index, read, outcome in cycles:
            process = self.processes[sorted(self.processes)[index % len(self.processes)]]
            if read != "stale":
                self.look(process)
            if read == "interrupted":
                for other in sorted(self.processes.values(), key=lambda each: each.shard.index):
                    if other is not process:
                        self.look(other)
                        self.run(other)
            self.run(process, outcome)
            self.is_within_the_limit()

    @rule(rounds=st.integers(1, 4))
    def quiet_cycles(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round()
            self.is_within_the_limit()

    def round(self) -> None:
        for process in sorted(self.processes.values(), key=lambda each: each.shard.index):
            self.look(process)
            self.run(process)

    def run(self, process: Process, outcome: str = "answered") -> None:
        self.now_s += SECOND_S
        own = process.shard
        mine = [name for name, each in self.pipelines.items() if each.operator == own.index and process.has(name)]
        process.leaving |= {
            name for name, each in self.pipelines.items() if each.operator == own.index and not process.has(name)
        }
        process.leaving = {name for name in process.leaving if process.claims[name][1] in {None, own.index}}
        # What it scales is known exactly, what others scale as it was read.
        others = {name: seen for name, seen in process.claims.items() if process.has(name) and name not in mine}
        foreign = [n for n, (_, operator, _) in others.items() if operator is not None and operator in self.processes]
        used = sum(self.pipelines[name].replicas for name in mine) + sum(seen[0] for seen in others.values())
        missing = {name: max(0, self.pipelines[name].demand - self.pipelines[name].replicas) for name in mine}
        lacking, wanted = sum(missing.values()), sum(self.pipelines[name].demand for name in mine)
        want = Want(lacking=lacking, unserved=lacking / max(1, wanted), least_priority=0 if used else None)
        use = Use(
            used=used, want=want if process.planned else None, awaiting=len(foreign), leaving=len(process.leaving)
        )
        before = {each.shard: each for each in process.entries}
        entry = agreed(before.get(own.index), own, use, self.now_s)
        after = tuple(sorted(({**before, own.index: entry}).values(), key=lambda each: each.shard))
        if own.divides:
            process.gone_since_s = {
                each.shard: process.gone_since_s.get(each.shard, self.now_s)
                for each in after
                if each.shard not in self.processes
            }
            after = without_gone(after, own.count, process.gone_since_s)
            found = divided(after, own.count, self.pool.limit, self.now_s, process.memory)
            after, process.memory = found.entries, found.memory
            entry = next(each for each in after if each.shard == own.index)
        process.planned = True
        written = self.write(process, after, outcome)
        stored = entry if written else before.get(own.index)
        room = allowance(entry, written=stored).amount - used
        for name in mine:
            pipeline = self.pipelines[name]
            if pipeline.demand < pipeline.replicas:
                pipeline.replicas -= 1
            elif missing[name] and room > 0:
                grown = min(missing[name], room)
                pipeline.replicas += grown
                room -= grown
        given = allowance(entry, written=stored)
        if given.firm:
            for name in mine:
                gone = min(max(0, used - given.amount), self.pipelines[name].replicas)
                self.pipelines[name].replicas -= gone
                used -= gone
        if written:
            self.hand_over(process, foreign)

    def hand_over(self, process: Process, foreign: list[str]) -> None:
        """Claim what has no operator in this shard, and release what is outside of it."""
        for name, pipeline in self.pipelines.items():
            _, _, version = process.claims[name]
            if process.has(name) and name not in foreign and pipeline.version == version:
                if pipeline.operator != process.shard.index:
                    pipeline.operator, pipeline.version = process.shard.index, pipeline.version + 1
            elif name in process.leaving and pipeline.operator == process.shard.index:
                pipeline.operator, pipeline.version = None, pipeline.version + 1

    def write(self, process: Process, entries: tuple[Entry, ...], outcome: str) -> bool:
        """Write `entries` as `outcome` says, and return whether the process knows that they are stored."""
        if process.version != self.pool.version or outcome == "refused":
            return False
        if outcome == "late":
            self.late.append((process.version, entries))
            return False
        self.pool.entries, self.pool.version = entries, self.pool.version + 1
        if outcome == "lost":
            return False
        process.entries, process.version = self.pool.entries, self.pool.version
        return True

    @precondition(lambda self: self.late)
    @rule()
    def arrives(self) -> None:
        version, entries = self.late.pop(0)
        if version == self.pool.version:
            self.pool.entries, self.pool.version = entries, self.pool.version + 1

    @rule(name=st.sampled_from(NAMESPACES), demand=st.sampled_from([0, 3, 20]))
    def load(self, name: str, demand: int) -> None:
        self.pipelines[name].demand = demand

    @rule(name=st.sampled_from(NAMESPACES), label=st.sampled_from(["", "a", "b", "c"]))
    def relabel(self, name: str, label: str) -> None:
        """A namespace moves to the shard of another team."""
        self.changed = True
        self.labels[name] = label

    @rule(more=st.integers(1, 10))
    def grow(self, more: int) -> None:
        self.pool.limit += more

    @rule(index=st.integers(0, 3))
    def restart(self, index: int) -> None:
        """A process starts again, for the number of shards that it had."""
        if index in self.processes:
            self.start(index, self.processes[index].shard.count)

    @rule(seconds=st.sampled_from([60.0, 700.0]))
    def passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(count=st.integers(1, 4))
    def other_number(self, count: int) -> None:
        """From now on processes that start are for another number of shards."""
        self.changed = self.changed or count != self.count
        self.count = count

    @rule(index=st.integers(0, 3))
    def replaced(self, index: int) -> None:
        """A pod of a shard is replaced by one for the present number, or ends where there is no such shard any more."""
        if index < self.count:
            self.start(index)
        elif len(self.processes) > 1:
            self.processes.pop(index, None)

    @invariant()
    def is_within_the_limit(self) -> None:
        if hasattr(self, "pool"):
            assert self.running() <= self.pool.limit
            if not self.changed:
                assert committed(self.pool.entries) <= self.pool.limit

    def teardown(self) -> None:
        """When all is quiet, all is handed over, divided and served."""
        if not hasattr(self, "pool"):
            return
        self.processes = {}
        for index in range(self.count):
            self.start(index)
        quiet = rounds = 0
        while quiet < QUIET:
            before = self.pool.entries
            self.round()
            self.is_within_the_limit()
            quiet, rounds = quiet + 1 if self.same(before) else 0, rounds + 1
            assert rounds < MOST_ROUNDS, before
        for name, pipeline in self.pipelines.items():
            assert pipeline.operator == shard_of(self.labels[name] or name, self.count)
        demand = sum(each.demand for each in self.pipelines.values())
        served = sum(min(each.demand, each.replicas) for each in self.pipelines.values())
        assert served >= min(demand, self.pool.limit), (demand, self.pool)

    def same(self, before: tuple[Entry, ...]) -> bool:
        """Return whether the entries are as `before`, but for the time of their renewal."""
        return [replace(each, renewed_at_s=0.0) for each in before] == [
            replace(each, renewed_at_s=0.0) for each in self.pool.entries
        ]


TestDivision = Division.TestCase
TestDivision.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("seed", range(120))
def test_long_random_walks_keep_the_limit_and_end_with_all_served(seed: int) -> None:
    draw, model = Random(seed), Division()
    model.begin(limit=draw.randint(4, 16), count=draw.randint(1, 3), used=[draw.randint(0, 6) for _ in range(5)])
    for _ in range(40):
        step(draw, model)
        model.is_within_the_limit()
    model.teardown()


def step(draw: Random, model: Division) -> None:
    """Take one step: most are cycles, of one process or of all, often with the same outcome."""
    name, index = draw.choice(NAMESPACES), draw.randint(0, 3)
    kinds = ("cycles", "quiet", "late", "load", "grow", "relabel", "restart", "passes", "number", "replaced")
    match draw.choices(kinds, weights=(45, 15, 5, 15, 1, 4, 4, 1, 4, 6))[0]:
        case "cycles":
            outcomes = (draw.choice(OUTCOMES),) if draw.random() < 0.5 else OUTCOMES
            indexes = (index,) if draw.random() < 0.4 else range(4)
            count = draw.randint(1, 8)
            model.cycles(
                cycles=[(draw.choice(indexes), draw.choice(READS), draw.choice(outcomes)) for _ in range(count)]
            )
        case "quiet":
            model.quiet_cycles(rounds=draw.randint(1, 4))
        case "late":
            if model.late:
                model.arrives()
        case "load":
            model.load(name=name, demand=draw.choice([0, 3, 20]))
        case "grow":
            model.grow(more=draw.randint(1, 4))
        case "relabel":
            model.relabel(name=name, label=draw.choice(["", "a", "b", "c"]))
        case "restart":
            model.restart(index=index)
        case "passes":
            model.passes(seconds=draw.choice([60.0, 700.0]))
        case "number":
            model.other_number(count=draw.randint(1, 4))
        case "replaced":
            model.replaced(index=index)
