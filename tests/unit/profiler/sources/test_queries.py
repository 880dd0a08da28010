"""The sessions of single pods, from the queries of the placement's sessions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, PlacementTarget, PodEndpoint, Quantity
from profiler.sources.base import ReadRequest
from profiler.sources.presets import load_presets
from profiler.sources.queries import QueryPlan, query_plan

PLACEMENT = (PipelineKey("speech/captions"), StageName("asr"), PoolName("gpu"))
TARGET = PlacementTarget(
    pipeline=PLACEMENT[0],
    stage=PLACEMENT[1],
    pool=PLACEMENT[2],
    namespace="speech",
    pods=frozenset({"old", "stale", "silent", "odd"}),
    preset="generic",
    window_s=60.0,
    concurrency=1,
    batch_limit=1,
    overrides={},
    endpoints={"young": PodEndpoint(host="10.0.0.1")},
)
AGES_S = {"old": "1", "young": "1", "odd": "1", "silent": "1", "stale": "50", "foreign": "1"}
SESSIONS = {"old": "7", "young": "2", "odd": "NaN", "stale": "9", "foreign": "1"}


def series(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"metric": {"namespace": "speech", "pod": pod}, "value": [1.0, value]} for pod, value in values.items()]


def planned(target: PlacementTarget = TARGET) -> QueryPlan:
    return query_plan(ReadRequest(placements=(target,), scalars={}, deadline_s=1.0), load_presets())


def answers(found: QueryPlan) -> dict[str, Any]:
    ages, sessions = found.placements[PLACEMENT][Quantity.SESSIONS].queries
    return {**{key: [] for key in found.pod_queries()}, ages: series(AGES_S), sessions: series(SESSIONS)}


def test_pods_with_recent_samples_have_sessions_and_so_have_young_ones() -> None:
    found = planned()
    answer = found.answer(answers(found), {}, {})
    assert answer.placements[PLACEMENT].sessions == {"old": 7.0, "young": 2.0}


def test_a_back_end_that_does_not_answer_has_no_sessions_of_single_pods() -> None:
    found = planned()
    gone = dict.fromkeys(found.pod_queries(), Absence(reason=AbsenceReason.UNAVAILABLE))
    assert found.answer(gone, {}, {}).placements[PLACEMENT].sessions == {}


def test_an_override_has_no_sessions_of_single_pods() -> None:
    assert planned(replace(TARGET, overrides={Quantity.SESSIONS: "sum(mine)"})).sessions == {}
