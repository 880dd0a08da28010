"""The histories of the demand: read rarely, continued by every cycle, and kept while they cannot be read."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import a_placement, a_spec, a_stage

from controller.core.state.spec import HistorySpec, PipelineSpec
from controller.kube.demand_histories import JITTER, READ_S, RETRY_S, DemandHistories, continued
from optimizer.model import PipelineKey
from profiler.samples import MISSING, Absence, AbsenceReason
from profiler.season import DemandHistory, packed
from profiler.sources.prometheus_api import Period

NOW_S = 1_800_000_000.0
DAILY = HistorySpec(season_s=86_400.0, seasons=7, step_s=300.0)
SPEC = replace(a_spec(a_stage("a", a_placement("cpu"))), history=DAILY)
DOWN = Absence(reason=AbsenceReason.UNAVAILABLE, detail="connection refused")


class Recorded:
    """A source that has 5 everywhere, or says why it has nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Period]] = []
        self.problem: Absence | None = None

    def levels(self, query: str, namespace: str, period: Period) -> Sequence[float | None] | Absence:
        self.asked.append((query, namespace, period))
        return self.problem or [5.0] * period.count


class World:
    def __init__(self) -> None:
        self.now_s = NOW_S
        self.source = Recorded()
        self.histories = DemandHistories(self.source, clock=lambda: self.now_s)
        self.histories._stopped = True  # the test reads, no thread does

    def read(self, *specs: PipelineSpec) -> int:
        """Read everything that is due, and return how many queries that took."""
        before = len(self.source.asked)
        self.histories.watch(specs)
        while self.histories.read_due():
            pass
        return len(self.source.asked) - before

    def of(self, spec: PipelineSpec = SPEC, demand: float | Absence = 5.0) -> DemandHistory | Absence | None:
        return self.histories.of(spec, demand, self.now_s)


@pytest.fixture
def world() -> World:
    return World()


def levels(history: object) -> list[float]:
    assert isinstance(history, DemandHistory)
    return [float(level) for level in np.frombuffer(history.levels, np.float32)]


def test_it_reads_eight_days_of_the_demand_query_at_most_once_an_hour(world: World) -> None:
    world.histories.watch([SPEC])
    found = world.of()
    assert isinstance(found, Absence)
    assert "not read yet" in found.detail
    assert world.read(SPEC) == 1
    query, namespace, period = world.source.asked[0]
    assert (query, namespace) == (SPEC.queries.demand, SPEC.namespace)
    assert period.end_s - period.start_s == pytest.approx(8 * 86_400, rel=0.01)
    assert set(levels(world.of())) == {5.0}
    world.now_s += READ_S - 1
    assert world.read(SPEC) == 0
    world.now_s += READ_S * JITTER + 1
    assert world.read(SPEC) == 1


def test_a_pipeline_without_history_is_not_asked_about(world: World) -> None:
    without = replace(SPEC, history=None)
    assert world.read(without) == 0
    assert world.of(without) is None


def test_a_failure_keeps_the_old_history_and_says_so(world: World) -> None:
    world.read(SPEC)
    world.source.problem = DOWN
    world.now_s += READ_S * (1 + JITTER)
    world.read(SPEC)
    found = world.of()
    assert isinstance(found, DemandHistory)
    assert found.problem == "connection refused"
    assert 5.0 in levels(found)


def test_without_any_history_it_is_tried_again_sooner(world: World) -> None:
    world.source.problem = DOWN
    world.read(SPEC)
    assert world.of() == DOWN
    world.now_s += RETRY_S * (1 + JITTER)
    world.source.problem = None
    assert world.read(SPEC) == 1
    assert isinstance(world.of(), DemandHistory)


def test_a_fleet_is_not_read_again_all_at_once(world: World) -> None:
    fleet = [replace(SPEC, key=PipelineKey(f"speech/p{index}")) for index in range(200)]
    assert world.read(*fleet) == 200
    world.now_s += READ_S * (1 + JITTER / 2)
    assert 60 < world.read(*fleet) < 140


def test_a_changed_query_is_read_at_once(world: World) -> None:
    world.read(SPEC)
    assert world.read(replace(SPEC, history=replace(DAILY, query="recorded:demand"))) == 1
    assert world.source.asked[-1][0] == "recorded:demand"


def test_a_history_of_another_query_gets_its_unit_from_the_demand_beside_it(world: World) -> None:
    other = replace(SPEC, history=replace(DAILY, query="per_minute"))
    world.read(other)
    unknown = world.of(other, MISSING)
    assert isinstance(unknown, DemandHistory)
    assert unknown.unit is None
    known = world.of(other, 10.0)
    assert isinstance(known, DemandHistory)
    assert known.unit == 2.0
    world.now_s += 2_000.0
    later = world.of(other, 50.0)
    assert isinstance(later, DemandHistory)
    assert later.unit == 2.0, "a level that is not beside the demand says nothing of the unit"


def test_cycles_continue_it(world: World) -> None:
    world.read(SPEC)
    before = levels(world.of())
    world.now_s += 300.0
    found = world.of(demand=8.0)
    assert levels(found)[-2:] == [5.0, 8.0]
    assert len(levels(found)) == len(before)
    assert isinstance(found, DemandHistory)
    assert world.now_s - 300.0 < found.end_s <= world.now_s


def test_what_was_not_observed_is_a_gap() -> None:
    history = DemandHistory(begin_s=0.0, step_s=15.0, season_s=600.0, most=7, levels=packed([1.0, 2.0, 3.0, 4.0]))
    assert levels(continued(history, MISSING, 60.0)) == [2.0, 3.0, 4.0, -1.0]
    assert levels(continued(history, 9.0, 75.0)) == [3.0, 4.0, 9.0, 9.0], "a cycle that came late is no outage"
    assert levels(continued(history, 9.0, 105.0)) == [-1.0, -1.0, -1.0, 9.0]
    assert continued(history, 9.0, 59.0) is history
