import copy
from collections.abc import Callable
from typing import Any

import pytest

from controller.core.state.carry_over import DemandSample, PipelineMemory, RuleMemory
from controller.kube.durable import memory_document
from controller.kube.significance import NEIGHBOURS_S, REFRESH_S, merge_patch, worth_writing
from optimizer.model import StageName
from profiler.stages import Learned

STATUS: dict[str, Any] = {
    "observedGeneration": 3,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Steady",
            "observedGeneration": 3,
            "message": "p95 120 ms of 250 ms",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
    "summary": {"latency": "120ms / 250ms"},
    "demand": "420",
    "latency": {"seconds": "0.12", "source": "Measured"},
    "stages": [
        {
            "name": "vad",
            "utilization": "0.5",
            "placements": [{"pool": "cpu", "current": 4, "ready": 4, "desired": 4, "unconstrained": 4}],
        }
    ],
    "memory": memory_document(
        PipelineMemory(
            demand=420.0,
            samples=(
                DemandSample(t_s=1000.0, observed=400.0, forecast=420.0),
                DemandSample(t_s=1015.0, observed=400.0, forecast=410.0),
            ),
            learned=Learned(pass_ratios={StageName("vad"): 0.45}),
            rules={(StageName("vad"), "rx"): RuleMemory(floor=6, fired=True)},
        )
    ),
}
Change = Callable[[dict[str, Any]], object]


def after(change: Change) -> dict[str, Any]:
    changed = copy.deepcopy(STATUS)
    change(changed)
    return changed


FOLLOWED = {"type": "Conflict", "status": "False", "reason": "Followed", "message": ""}
DECIDED: dict[str, Change] = {
    "first plan": lambda s: s["memory"].update(planned="packed"),
    "generation": lambda s: s.update(observedGeneration=4),
    "verdict": lambda s: s["conditions"][0].update(status="False", reason="MetricsMissing"),
    "desired": lambda s: s["stages"][0]["placements"][0].update(desired=5),
    "recommended": lambda s: s["stages"][0]["placements"][0].update(recommended=5),
    "ready": lambda s: s["stages"][0]["placements"][0].update(ready=3),
    "rolling out": lambda s: s["stages"][0]["placements"][0].update(updated=1),
    "limit": lambda s: s.update(limitedBy="Budget"),
    "admissible": lambda s: s.update(admissible="400"),
    "rule fired": lambda s: s["memory"]["rules"][0][1].update(floor=8),
    "excess": lambda s: s["memory"].update(excess_excused_until_s=2000.0),
    "capacity beyond the plan": lambda s: s["memory"].update(feedback={"floors": {"vad": 0.0125}}),
    "decision": lambda s: s.update(lastDecision={"time": "2026-01-01T00:00:00Z", "reason": "Demand", "message": "x"}),
}
OBSERVED: dict[str, Change] = {
    "latency": lambda s: s["latency"].update(seconds="0.14"),
    "gone": lambda s: s["latency"].pop("seconds"),
    "words": lambda s: s["conditions"][0].update(message="composed: p95 120 ms of 250 ms"),
    "highest sample": lambda s: s["memory"]["samples"][0].update(forecast=500),
    "correction": lambda s: s["memory"]["learned"]["pass_ratios"].update(vad=0.55),
    "rule cleared": lambda s: s["memory"]["rules"][0][1].update(clear_since_s=1010),
    "wanted": lambda s: s["stages"][0]["placements"][0].update(unconstrained=5),
}
NOISE: dict[str, Change] = {
    "nothing": lambda s: None,
    "explanation": lambda s: s["memory"].update(explanation={"time": "2026-01-01T00:00:00Z", "lines": ["What"]}),
    "latency by less than a tenth": lambda s: s["latency"].update(seconds="0.13"),
    "numbers in words": lambda s: s["conditions"][0].update(message="p95 131.5 ms of 250 ms"),
    "summary": lambda s: s["summary"].update(latency="130ms / 250ms"),
    "one more sample like the others": lambda s: s["memory"]["samples"].append(
        {"t_s": 1030, "observed": 405, "forecast": 415}
    ),
    "correction": lambda s: s["memory"]["learned"]["pass_ratios"].update(vad=0.46),
}


@pytest.mark.parametrize("name", DECIDED)
def test_what_was_decided_is_written_at_once(name: str) -> None:
    assert worth_writing(STATUS, after(DECIDED[name]), written_s_ago=0)


@pytest.mark.parametrize("name", OBSERVED)
def test_what_was_observed_is_written_once_a_minute(name: str) -> None:
    assert not worth_writing(STATUS, after(OBSERVED[name]), written_s_ago=59)
    assert worth_writing(STATUS, after(OBSERVED[name]), written_s_ago=60)


@pytest.mark.parametrize("name", NOISE)
def test_noise_is_never_written(name: str) -> None:
    assert not worth_writing(STATUS, after(NOISE[name]), written_s_ago=1e9)


def test_the_first_status_is_written() -> None:
    assert worth_writing({}, STATUS, written_s_ago=0)


def merged(document: Any, patch: Any) -> Any:
    """RFC 7386, as the API server applies it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@pytest.mark.parametrize("change", [*DECIDED.values(), *OBSERVED.values(), lambda s: s["memory"].pop("rules")])
def test_the_patch_turns_the_old_status_into_the_new_one_and_says_no_more(change: Change) -> None:
    new = after(change)
    patch = merge_patch(STATUS, new)
    assert merged(STATUS, patch) == new
    assert len(str(patch)) < len(str(new))


def test_there_is_no_patch_between_equals() -> None:
    assert merge_patch(STATUS, copy.deepcopy(STATUS)) == {}


def test_a_rule_without_a_floor_comes_back_from_the_server_without_the_field() -> None:
    memory = memory_document(PipelineMemory(rules={(StageName("vad"), "rx"): RuleMemory(fired=True)}))
    assert "'floor'" not in str(memory)
    assert not worth_writing({"memory": memory}, {"memory": memory}, 0.0)


@pytest.mark.parametrize(
    ("reason", "kept_fresh"), [("Followed", True), ("ScaledByAnother", True), ("NoConflict", False)]
)
def test_a_recommendation_that_an_autoscaler_may_follow_is_written_every_minute(reason: str, kept_fresh: bool) -> None:
    def recommend(status: dict[str, Any]) -> None:
        status["conditions"].append({**FOLLOWED, "reason": reason})
        status["stages"][0]["placements"][0]["recommended"] = 4

    status = after(recommend)
    assert not worth_writing(status, copy.deepcopy(status), 59.0)
    assert worth_writing(status, copy.deepcopy(status), 60.0) is kept_fresh


def test_without_a_recommendation_a_conflict_is_not_written_again() -> None:
    status = after(lambda status: status["conditions"].append(FOLLOWED))
    assert not worth_writing(status, copy.deepcopy(status), 600.0)


def test_a_plan_that_was_made_again_alone_is_not_written() -> None:
    before, now = (after(lambda s, text=text: s["memory"].update(planned=text)) for text in ("one", "another"))  # type: ignore[misc]
    assert not worth_writing(before, now, 3600.0)


def test_what_was_measured_beside_neighbours_alone_is_written_twice_an_hour() -> None:
    now = after(lambda s: s["memory"]["learned"].update(interference=[[["vad", "cpu"], {"square": 0.5}]]))
    assert not worth_writing(STATUS, now, NEIGHBOURS_S - 1)
    assert worth_writing(STATUS, now, NEIGHBOURS_S)


@pytest.mark.parametrize(
    ("limit", "written_s_ago", "renewed"), [("400", 299.0, False), ("400", 301.0, True), (None, 301.0, False)]
)
def test_a_limit_on_the_load_is_renewed_before_it_lapses(
    limit: str | None, written_s_ago: float, renewed: bool
) -> None:
    def shed(status: dict[str, Any]) -> None:
        if limit is not None:
            status.update(admissible=limit, admissibleUntil="2026-01-01T00:10:00Z")

    old = after(shed)
    later = {**old, **({} if limit is None else {"admissibleUntil": "2026-01-01T00:15:00Z"})}
    assert worth_writing(old, later, written_s_ago) is renewed


@pytest.mark.parametrize("field", ["deadline", "expectedFinish", "waitsUntil"])
@pytest.mark.parametrize(
    ("before", "now", "written"),
    [
        ("2026-01-01T02:00:00Z", "2026-01-01T02:04:00Z", False),
        ("2026-01-01T01:00:00Z", "2026-01-01T01:07:00Z", True),
        ("2026-01-01T01:07:00Z", "2026-01-01T01:00:00Z", True),
        ("2026-01-01T20:00:00Z", "2026-01-01T21:00:00Z", False),
        ("2026-01-01T20:00:00Z", "2026-01-01T23:00:00Z", True),
        ("2025-12-31T20:00:00Z", "2025-12-31T21:00:00Z", True),
        ("soon", "2026-01-01T20:00:00Z", True),
    ],
    ids=["minutes", "sooner", "later", "a tenth of a day", "hours", "past", "edited"],
)
def test_an_expected_time_is_written_where_it_moves_by_much_for_how_far_away_it_is(
    field: str, before: str, now: str, written: bool
) -> None:
    """At midnight of the new year."""
    old, new = (
        after(
            lambda s, time=time: s.update(  # type: ignore[misc]
                backlog={field: time}, memory={**s["memory"], "explanation": {"time": "2026-01-01T00:00:00Z"}}
            )
        )
        for time in (before, now)
    )
    assert not worth_writing(old, new, REFRESH_S - 1)
    assert worth_writing(old, new, REFRESH_S) is written


@pytest.mark.parametrize("part", ["price", "quota"])
@pytest.mark.parametrize(
    ("stored", "now", "written"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", True),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:59:00Z", False),
        ("today", "2026-01-01T00:00:00Z", True),
        (None, None, False),
    ],
)
def test_the_date_of_a_price_or_quota_that_stays_the_same_is_renewed_every_hour(
    part: str, stored: str | None, now: str | None, written: bool
) -> None:
    old, new = ({part: {"source": "Listed", "asOf": date}} for date in (stored, now))
    assert worth_writing(old, new, REFRESH_S) is written
    assert not worth_writing(old, new, REFRESH_S - 1)
