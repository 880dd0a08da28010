"""The sessions of single pods, the models of servers, and the number of queries."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, PlacementTarget, PodEndpoint, Quantity
from profiler.sources.base import ReadRequest
from profiler.sources.presets import PresetFiles
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
PRESETS = PresetFiles().load()
AGES_S = {"old": "1", "young": "1", "odd": "1", "silent": "1", "stale": "50", "foreign": "1"}
SESSIONS = {"old": "7", "young": "2", "odd": "NaN", "stale": "9", "foreign": "1"}


def series(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"metric": {"namespace": "speech", "pod": pod}, "value": [1.0, value]} for pod, value in values.items()]


def planned(target: PlacementTarget = TARGET) -> QueryPlan:
    return query_plan(ReadRequest(placements=(target,), scalars={}, deadline_s=1.0), PRESETS)


def answers(found: QueryPlan) -> dict[str, Any]:
    ages, sessions = found.placements[PLACEMENT].readings[Quantity.SESSIONS].queries
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
    assert planned(replace(TARGET, overrides={Quantity.SESSIONS: "sum(mine)"})).placements[PLACEMENT].sessions is None


def of_models(pods: Mapping[str, Mapping[str, str]], **labels: str) -> list[dict[str, Any]]:
    """Return one series per pod and model, as `{pod: {model: value}}`."""
    return [
        {"metric": {"namespace": "speech", "pod": pod, "model": model, **labels}, "value": [1.0, value]}
        for pod, models in pods.items()
        for model, value in models.items()
    ]


def completions(ages_s: Mapping[str, Mapping[str, str]], rates: Mapping[str, Mapping[str, str]], **target: Any) -> Any:
    """Return the completions of a Triton stage whose pods report models of these ages and rates."""
    found = planned(replace(TARGET, pods=frozenset(ages_s), preset="triton", **target))
    ages, value = found.placements[PLACEMENT].readings[Quantity.COMPLETION_RATE].queries
    results = {**{query: [] for query in found.pod_queries()}, ages: of_models(ages_s), value: of_models(rates)}
    return found.answer(results, {}, {}).placements[PLACEMENT].of(Quantity.COMPLETION_RATE)


def test_only_requests_of_the_selected_model_count() -> None:
    both = {"asr-0": {"ensemble": "1", "encoder": "1"}}
    rates = {"asr-0": {"ensemble": "10", "encoder": "40"}}
    assert completions(both, rates, model="ensemble") == 10.0
    assert completions(both, rates, model="encoder") == 40.0
    assert isinstance(completions(both, rates), Absence)


def test_a_model_that_was_unloaded_does_not_make_the_other_ambiguous() -> None:
    """The rate of a model that is gone lasts until its samples have left the window."""
    ages, rates = {"asr-0": {"v2": "1", "v1": "50"}}, {"asr-0": {"v2": "10", "v1": "3"}}
    assert completions(ages, rates) == 10.0


def test_pods_that_do_not_report_any_more_are_stale_and_not_without_the_model() -> None:
    for model in (None, "asr"):
        absence = completions({"asr-0": {"asr": "50"}}, {"asr-0": {"asr": "3"}}, model=model)
        assert isinstance(absence, Absence)
        assert absence.reason is AbsenceReason.STALE


def test_stages_with_different_models_share_their_queries() -> None:
    targets = tuple(
        replace(TARGET, stage=StageName(name), preset="triton", model=name) for name in ("ensemble", "encoder", "lm")
    )
    one = query_plan(ReadRequest(placements=targets[:1], scalars={}, deadline_s=1.0), PRESETS)
    all_three = query_plan(ReadRequest(placements=targets, scalars={}, deadline_s=1.0), PRESETS)
    assert all_three.pod_queries() == one.pod_queries()


def test_a_service_time_of_zero_is_absent() -> None:
    """As of an ensemble whose steps report no compute time."""
    found = planned(replace(TARGET, pods=frozenset({"asr-0"}), preset="triton"))
    _, compute, _ = found.placements[PLACEMENT].readings[Quantity.SERVICE_TIME].queries
    results = {query: of_models({"asr-0": {"ensemble": "10"}}) for query in found.pod_queries()}
    results[compute] = of_models({"asr-0": {"ensemble": "0"}})
    reading = found.answer(results, {}, {}).placements[PLACEMENT].of(Quantity.SERVICE_TIME)
    assert reading == Absence(reason=AbsenceReason.UNSUPPORTED, detail="the server reports 0 for every item")
