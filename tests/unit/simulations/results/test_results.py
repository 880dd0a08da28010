"""What an experiment found: means over seeds, spreads, dominance, and the JSON that the interface promises."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from experiments import a_check, a_result, a_series, a_whole_experiment, an_experiment

from simulations.results.diagnoses import Episode, NamedCause
from simulations.results.results import BoundResult, Tuning, dominated_by, dominates, to_json

RUN = ["policy", "tuning", "what_if", "cost", "cost_over_bound", "windows", "sla_windows_met", "sla_windows_met_calm"]
RUN += ["within_sla_share", "p50_s", "p95_s", "p99_s", "offered", "served", "filtered", "shed", "lost", "in_flight"]
RUN += ["sessions_cut", "out_of_memory", "replica_changes", "cap_violations", "simulated_s", "wall_s"]


def bound(cost: float | None, *, seed: int = 1, what_if: str | None = None) -> BoundResult:
    return BoundResult(what_if=what_if, seed=seed, cost=cost, windows_share=0.995, cost_per_hour=None)


def document(*args: Any, **kwargs: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(to_json(an_experiment(*args, **kwargs)), allow_nan=False))
    return found


def test_the_document_has_the_promised_fields() -> None:
    found = document()
    assert list(found)[:5] == ["scenario", "seeds", "bounds", "runs", "self_checks"]
    assert [list(bound) for bound in found["bounds"]] == [["what_if", "cost", "windows_share"]]
    assert [name for name in found["runs"][0] if name in RUN] == RUN
    assert list(found["self_checks"][0]) == ["name", "expected", "simulated", "half_width", "ok"]
    assert found["runs"][0] | {"policy": "sluice", "tuning": "default", "what_if": None} == found["runs"][0]


def test_the_document_has_the_diagnosis_of_every_seed() -> None:
    named = NamedCause(
        cause="ColdStart",
        because="FromZero",
        stage="asr",
        confidence=0.7,
        evidence=("none is ready",),
        remedy="replicas.min of 1",
        cost_per_hour=None,
    )
    episode = Episode(pipeline="speech/live-captions", from_s=30.0, until_s=60.0, named=named)
    told, quiet = document(
        replace(a_result(), diagnosis=(episode,)), replace(a_result(seed=2), diagnosis=(episode,)), a_result("hpa")
    )["runs"]
    assert told["diagnosis"] == [{"seed": seed, **episode.to_json()} for seed in (1, 2)]
    assert quiet["diagnosis"] == []


def test_a_run_is_the_mean_over_its_seeds_with_the_spread_beside_it() -> None:
    found = document(a_result(seed=1, cost=9.0), a_result(seed=2, cost=12.0), a_result(seed=3, cost=9.6))
    (run,) = found["runs"]
    assert run["cost"] == pytest.approx(10.2)
    assert run["spread"]["cost"] == [9.0, 12.0]
    assert run["offered"] == 1000
    assert run["spread"]["offered"] == [1000, 1000]


def test_an_infinite_percentile_of_one_seed_makes_the_mean_infinite() -> None:
    found = document(a_result(seed=1), replace(a_result(seed=2), p95_s=None))
    assert found["runs"][0]["p95_s"] is None
    assert found["runs"][0]["spread"]["p95_s"] is None
    assert found["runs"][0]["p50_s"] is not None


def test_cost_over_bound_is_that_of_the_means_and_its_spread_that_of_the_seeds() -> None:
    found = document(
        a_result(seed=1, cost=10.0), a_result(seed=2, cost=20.0), bounds=[bound(8.0, seed=1), bound(10.0, seed=2)]
    )
    assert found["bounds"] == [{"what_if": None, "cost": 9.0, "windows_share": 0.995}]
    assert found["runs"][0]["cost_over_bound"] == pytest.approx(15 / 9)
    assert found["runs"][0]["spread"]["cost_over_bound"] == [pytest.approx(1.25), pytest.approx(2.0)]


def test_without_a_bound_for_every_seed_there_is_none() -> None:
    found = document(a_result(seed=1), a_result(seed=2), bounds=[bound(8.0, seed=1), bound(None, seed=2)])
    assert found["bounds"][0]["cost"] is None
    assert found["runs"][0]["cost_over_bound"] is None


def test_every_what_if_has_its_own_bound() -> None:
    found = document(
        a_result(cost=12.0),
        a_result(what_if="half", cost=12.0),
        bounds=[bound(10.0), bound(6.0, what_if="half")],
    )
    assert [run["cost_over_bound"] for run in found["runs"]] == [pytest.approx(1.2), pytest.approx(2.0)]


def test_runs_keep_the_order_in_which_they_first_come() -> None:
    runs = an_experiment(a_result("hpa"), a_result(), a_result("hpa", tuning=Tuning.TRAINED)).runs()
    assert [(run.policy, run.tuning.value) for run in runs] == [
        ("hpa", "default"),
        ("sluice", "default"),
        ("hpa", "trained"),
    ]


@pytest.mark.parametrize(
    ("cost", "met", "violations", "dominated"),
    [
        (11.0, 0.99, 0, True),  # dearer and later
        (10.0, 0.99, 0, True),  # as dear and later
        (11.0, 0.996, 0, True),  # dearer and as late
        (10.0, 0.996, 0, False),  # the same
        (9.0, 0.99, 0, False),  # cheaper
        (11.0, 0.999, 0, False),  # better
        (11.0, 0.99, 1, False),  # spent above the cap: not judged
    ],
)
def test_dominance(cost: float, met: float, violations: int, dominated: bool) -> None:
    experiment = an_experiment(
        a_result(cost=10.0, met=0.996), a_result("hpa", cost=cost, met=met, violations=violations)
    )
    ours, theirs = experiment.runs()
    assert dominates(ours, theirs) is dominated
    assert [run.policy for run in dominated_by(theirs, experiment.runs())] == (["sluice"] if dominated else [])


def test_who_sheds_load_dominates_nobody_by_it() -> None:
    shedding = replace(a_result(cost=9.0, met=0.999), within_sla_share=0.4)
    ours, theirs = an_experiment(shedding, a_result("hpa", cost=10.0, met=0.99)).runs()
    assert not dominates(ours, theirs)


def test_one_seed_above_the_cap_is_enough_to_take_a_run_out() -> None:
    ours, theirs = an_experiment(
        a_result(seed=1, cost=1.0),
        a_result(seed=2, cost=1.0, violations=1),
        a_result("hpa", seed=1, cost=9.0),
        a_result("hpa", seed=2, cost=9.0),
    ).runs()
    assert ours.breaks_caps
    assert not dominates(ours, theirs)


def test_runs_of_different_what_ifs_are_not_compared() -> None:
    as_it_is, half = an_experiment(a_result(cost=1.0), a_result("hpa", what_if="half", cost=9.0, met=0.1)).runs()
    assert not dominates(as_it_is, half)


def test_a_failed_self_check_is_told() -> None:
    assert an_experiment().trustworthy
    failed = an_experiment(checks=[a_check(), a_check(ok=False)])
    assert not failed.trustworthy
    assert [check["ok"] for check in to_json(failed)["self_checks"]] == [True, False]


def test_only_the_time_it_took_differs_when_an_experiment_is_repeated() -> None:
    once, again = a_whole_experiment(windows=3, decisions=1), a_whole_experiment(windows=3, decisions=1)
    again = replace(again, results=tuple(replace(result, wall_s=9.9) for result in again.results))
    texts = [json.dumps({**run, "wall_s": 0}) for e in (once, again) for run in to_json(e)["runs"]]
    assert texts[: len(texts) // 2] == texts[len(texts) // 2 :]
    assert all(math.isclose(run["wall_s"], 9.9) for run in to_json(again)["runs"])


def test_a_series_with_a_window_too_few_is_refused() -> None:
    series = a_series(windows=4)
    short = replace(series.pipelines[0], served_rps=(1.0,) * 3)
    with pytest.raises(
        ValueError, match="served_rps of speech/live-captions: 3 entries: must be one for each of the 4"
    ):
        replace(series, pipelines=(short,))
    placement = replace(series.pipelines[0].placements[0], ready=(1,))
    with pytest.raises(ValueError, match="ready of speech/live-captions vad on cpu: 1 entries"):
        replace(series, pipelines=(replace(series.pipelines[0], placements=(placement,)),))
