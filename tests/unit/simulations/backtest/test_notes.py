"""What a backtest says about its record: gaps, differences from the manifests, assumptions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_scenarios import a_scenario

from controller.core.state.spec import PoolSpec
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import PoolName
from profiler.sources.prometheus_api import Period
from simulations.backtest.notes import Notes, notes_of
from simulations.backtest.pieces import Piece
from simulations.backtest.record import PipelineRecord

PERIOD = Period(start_s=1_600_000_000, step_s=60, count=100)
PIECE = Piece(first=0, scored=10, end=60)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[PipelineRecord, dict[PoolName, PoolSpec]]:
    scenario = a_scenario(Path(tmp_path_factory.mktemp("notes")))
    spec = pipeline_spec(scenario.pipelines[0])
    steps = np.ones(PERIOD.count)
    found = PipelineRecord(
        spec=spec, demand=steps, latency_s=steps, replicas=dict.fromkeys(spec.placements(), steps), notes=("a note",)
    )
    return found, {pool.name: pool for pool in map(pool_spec, scenario.pools)}


def notes(record: PipelineRecord, pools: dict[PoolName, PoolSpec], cpu: int = 10) -> Notes:
    instances = {PoolName("cpu"): cpu, PoolName("gpu"): 4}
    return notes_of([record], pools, instances, [PIECE], PERIOD, session_s=None)


def test_a_whole_record_has_only_its_own_notes(whole: tuple[PipelineRecord, dict[PoolName, PoolSpec]]) -> None:
    found = notes(*whole)
    assert (found.gaps, found.differences) == ((), ("speech/captions: a note",))
    assert found.assumed[0].startswith("replayed in 1 part")
    assert found.all() == (*found.differences, *found.assumed)


def test_parts_that_are_too_short_and_gaps_are_named(whole: tuple[PipelineRecord, dict[PoolName, PoolSpec]]) -> None:
    record, pools = whole
    demand = record.demand.copy()
    demand[60:70] = np.nan
    demand[75:] = np.nan
    found = notes(replace(record, demand=demand), pools)
    assert [line.partition(":")[0] for line in found.gaps[-1:]] == ["1 part of the record shorter than 30 min"]
    assert len(found.gaps) == 3


def test_replicas_outside_bounds_and_capacity_are_named(
    whole: tuple[PipelineRecord, dict[PoolName, PoolSpec]],
) -> None:
    record, pools = whole
    many = {key: np.full(PERIOD.count, 12.0 if key[0] == "vad" else 0.0) for key in record.spec.placements()}
    text = "\n".join(notes(replace(record, replicas=many), pools, cpu=5).differences)
    assert "vad on cpu: up to 12 replicas ran; replayed with replicas.max 10" in text
    assert "pool cpu: replicas of 6 instances ran, replayed with 5" in text
    none = {key: np.zeros(PERIOD.count) for key in record.spec.placements()}
    low = "\n".join(notes(replace(record, replicas=none), pools).differences)
    assert "vad on cpu: only 0 replicas ran at times; replayed with replicas.min 1" in low


def test_a_pool_without_a_price_and_steps_without_a_latency_are_named(
    whole: tuple[PipelineRecord, dict[PoolName, PoolSpec]],
) -> None:
    record, pools = whole
    free = {**pools, PoolName("gpu"): replace(pools[PoolName("gpu")], price_per_hour=0.0)}
    latency_s = record.demand.copy()
    latency_s[:7] = np.nan
    text = "\n".join(notes(replace(record, latency_s=latency_s), free).differences)
    assert "pool gpu: price.perHour is 0: its replicas count as free" in text
    assert "sla.query has no number in 7 known steps" in text
