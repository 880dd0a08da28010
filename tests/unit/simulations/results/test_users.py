"""Users from items: streams share the fate of their chunks, requests are counted."""

from dataclasses import replace

import numpy as np
import pytest
from corpus import CONTRACT

from controller.core.state.spec import DemandUnit, PipelineSpec
from controller.resources.translate import pipeline_spec
from controller.resources.validation import validate_files
from simulations.results.scoring import Clock, Items, Outcome, score_items
from simulations.results.users import Users, by_unit, mean_users, promise_kept, share_as_promised, users_of

CLOCK = Clock(duration_s=32.0, warmup_s=0.0, window_s=16.0)


def spec() -> PipelineSpec:
    (found,) = validate_files(CONTRACT[:2]).pipelines
    return pipeline_spec(found)


def items(*kinds: tuple[Outcome, float, int]) -> Items:
    """Return `count` items of each outcome and latency, spread over the run."""
    outcome = np.concatenate([np.full(count, kind, dtype=np.uint8) for kind, _, count in kinds])
    latency_s = np.concatenate([np.full(count, latency) for _, latency, count in kinds])
    return Items(arrival_s=np.linspace(0.0, 31.9, len(outcome)), latency_s=latency_s, outcome=outcome)


MIXED = items(
    (Outcome.SERVED, 0.1, 80),
    (Outcome.SERVED, 0.4, 10),
    (Outcome.REFUSED, 0.0, 4),
    (Outcome.SHED, 0.0, 2),
    (Outcome.LOST, 0.0, 4),
    (Outcome.FILTERED, 0.0, 100),
)


def users(unit: DemandUnit, share: float, offered: float = 100.0, promised: float = 0.95) -> Users:
    return Users(
        pipeline="speech/x",
        unit=unit,
        promised_share=promised,
        offered=offered,
        as_promised=offered * share,
        refused=0.0,
        late=offered * (1 - share),
        lost=0.0,
    )


def test_streams_are_the_mean_number_open_and_share_the_fate_of_their_chunks() -> None:
    pipeline = spec()
    assert pipeline.chunk_s == 0.32
    found = users_of(pipeline, score_items(MIXED, pipeline.sla, CLOCK), CLOCK)
    assert found.offered == pytest.approx(200 * 0.32 / 32)  # 200 chunks of 320 ms in 32 s: two open streams
    assert found.share == pytest.approx(0.8)
    assert [found.refused, found.late, found.lost] == pytest.approx([0.12, 0.2, 0.08])
    assert (found.promised_share, found.kept) == (0.95, False)


def test_requests_are_counted_without_those_that_are_filtered() -> None:
    pipeline = replace(spec(), unit=DemandUnit.REQUESTS, chunk_s=None)
    found = users_of(pipeline, score_items(MIXED, pipeline.sla, CLOCK), CLOCK)
    assert [found.offered, found.as_promised, found.refused, found.late, found.lost] == [100, 80, 6, 10, 4]


def test_without_users_there_is_no_share_and_nothing_kept_or_broken() -> None:
    pipeline = spec()
    found = users_of(pipeline, score_items(MIXED.select(np.zeros(200, dtype=bool)), pipeline.sla, CLOCK), CLOCK)
    assert (found.offered, found.share, found.kept) == (0.0, None, None)
    assert share_as_promised([found]) is None
    assert promise_kept([found]) is None


def test_a_mean_over_seeds_and_a_sum_over_pipelines_of_a_unit() -> None:
    one, other = users(DemandUnit.STREAMS, 1.0), users(DemandUnit.STREAMS, 0.8)
    assert mean_users([[one], [other]])[0].as_promised == pytest.approx(90)
    (both,) = by_unit([one, replace(other, offered=300.0, as_promised=240.0)])
    assert both.offered == 400
    assert both.share == pytest.approx(0.85)
    assert [each.unit for each in by_unit([one, users(DemandUnit.REQUESTS, 1.0)])] == [
        DemandUnit.STREAMS,
        DemandUnit.REQUESTS,
    ]


def test_each_pipeline_is_held_to_its_own_sla() -> None:
    strict, easy = users(DemandUnit.STREAMS, 0.98, promised=0.99), users(DemandUnit.STREAMS, 0.95, promised=0.9)
    assert promise_kept([easy]) is True
    assert promise_kept([strict, easy]) is False
