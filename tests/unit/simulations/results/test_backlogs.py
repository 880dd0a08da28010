"""When the items of a backlog were done, whether that was in time, and what it cost."""

from dataclasses import replace

import numpy as np
import pytest
from live_runs import CPU, GPU, an_observation, observed, pipeline, replicas

from controller.core.state.spec import BacklogSpec, PipelineSpec
from optimizer.model import StageName
from simulations.results.backlogs import BacklogResult, backlog_result, backlog_words
from simulations.results.scoring import Clock, Items, Outcome

CLOCK = Clock(duration_s=40.0, warmup_s=10.0, window_s=10.0)
SERVED, FILTERED, IN_FLIGHT = Outcome.SERVED, Outcome.FILTERED, Outcome.IN_FLIGHT


def archive(backlog: BacklogSpec) -> PipelineSpec:
    return replace(pipeline("archive"), backlog=backlog)


def result(backlog: BacklogSpec, *items: tuple[float, float, Outcome]) -> BacklogResult:
    """Return the result of items, each with its arrival, its end or the end of the run, and its outcome."""
    spec = archive(backlog)
    keys = [(spec.key, StageName("asr"), pool) for pool in (CPU, GPU)]
    seen = observed(lambda t_s: an_observation(t_s, dict(zip(keys, (replicas(2), replicas(1)), strict=True))))
    arrival_s = np.array([arrival_s for arrival_s, _, _ in items])
    ended_s = np.array([ended_s for _, ended_s, _ in items])
    outcome = np.array([outcome for _, _, outcome in items], dtype=np.uint8)
    return backlog_result(spec, Items(arrival_s=arrival_s, latency_s=ended_s - arrival_s, outcome=outcome), seen, CLOCK)


WITHIN = BacklogSpec(within_s=20.0)


@pytest.mark.parametrize(
    ("backlog", "items", "due_s", "met"),
    [
        (WITHIN, [(0.0, 5.0, SERVED), (0.0, 20.0, SERVED)], 20.0, True),
        (WITHIN, [(0.0, 5.0, SERVED), (0.0, 20.5, SERVED)], 20.0, False),
        (WITHIN, [(0.0, 5.0, SERVED), (0.0, 40.0, IN_FLIGHT)], 20.0, False),
        (WITHIN, [(0.0, 5.0, SERVED), (0.0, 19.0, FILTERED)], 20.0, True),
        (BacklogSpec(within_s=60.0), [(0.0, 5.0, SERVED), (0.0, 40.0, IN_FLIGHT)], 60.0, None),
        (BacklogSpec(deadline_s=30.0), [(0.0, 5.0, SERVED), (25.0, 29.0, SERVED)], 30.0, True),
        (WITHIN, [(0.0, 5.0, SERVED), (10.0, 29.0, SERVED)], 30.0, True),  # empty in between: it begins anew
        (WITHIN, [(0.0, 12.0, SERVED), (10.0, 29.0, SERVED)], 20.0, False),  # not empty in between
        (WITHIN, [(0.0, 21.0, SERVED), (22.0, 29.0, SERVED)], 42.0, False),  # the first ones were late
    ],
)
def test_a_backlog_is_in_time_where_all_its_items_are(
    backlog: BacklogSpec, items: list[tuple[float, float, Outcome]], due_s: float, met: bool | None
) -> None:
    found = result(backlog, *items)
    assert (found.due_s, found.met) == (due_s, met)


def test_done_is_what_was_served_or_filtered_and_the_cost_is_that_of_the_whole_run() -> None:
    found = result(WITHIN, (0.0, 5.0, SERVED), (0.0, 7.0, FILTERED), (0.0, 40.0, IN_FLIGHT))
    assert (found.pipeline, found.items, found.done, found.last_done_s) == ("speech/archive", 3, 2, 7.0)
    assert found.cost == pytest.approx((2 * 1.0 + 1 * 2.0) * 40 / 3600)


def test_without_items_nothing_is_known_of_a_deadline() -> None:
    found = result(WITHIN)
    assert (found.items, found.done, found.last_done_s, found.due_s, found.met) == (0, 0, None, None, None)


def test_the_result_in_words() -> None:
    found = result(WITHIN, (0.0, 5.0, SERVED), (0.0, 7.0, SERVED))
    cost = "cost $0.0444"
    assert backlog_words(found) == (
        f"speech/archive: 2 of 2 items done, the last after 7 s; deadline 20 s: met; {cost}"
    )
    missed = result(WITHIN, (0.0, 40.0, IN_FLIGHT))
    assert backlog_words(missed) == f"speech/archive: 0 of 1 items done; deadline 20 s: missed; {cost}"
