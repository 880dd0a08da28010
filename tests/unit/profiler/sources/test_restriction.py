"""Every selector of a query gets the namespace, or the query is refused; some queries try to get around it."""

from collections.abc import Hashable
from dataclasses import replace

import pytest
from tenant_queries import REFUSED, RESTRICTED

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, PlacementSamples, PlacementTarget, Quantity, SeriesLabels
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.promql_syntax import UnsupportedQuery
from profiler.sources.restriction import RestrictedSource, restricted

N = 'namespace="speech"'


@pytest.mark.parametrize(("query", "expected"), RESTRICTED)
def test_every_selector_gets_the_condition(query: str, expected: str) -> None:
    assert restricted(query, "speech") == expected.replace("{N", "{" + N)


@pytest.mark.parametrize("query", REFUSED)
def test_what_is_not_understood_to_the_end_is_refused(query: str) -> None:
    with pytest.raises(UnsupportedQuery):
        restricted(query, "speech")


def test_the_namespace_cannot_break_out_of_its_quotes() -> None:
    assert restricted("a", 'x"} or b{y="') == 'a{namespace="x\\"} or b{y=\\""}'


class Recorder:
    """A source that returns 1 for everything and keeps the request."""

    def __init__(self) -> None:
        self.request: ReadRequest | None = None

    def read(self, request: ReadRequest) -> ReadAnswer:
        self.request = request
        return ReadAnswer(
            placements={
                (target.pipeline, target.stage, target.placement): PlacementSamples(
                    readings=dict.fromkeys(Quantity, 1.0)
                )
                for target in request.placements
            },
            scalars=dict.fromkeys(request.scalars, 1.0),
            problems=(),
        )


KEY = (PipelineKey("speech/captions"), StageName("vad"), PoolName("cpu"))


def read(scalars: dict[str, str], overrides: dict[Quantity, str]) -> tuple[ReadRequest, ReadAnswer]:
    target = PlacementTarget(
        pipeline=KEY[0],
        stage=KEY[1],
        placement=KEY[2],
        namespace="speech",
        pods=frozenset({"a"}),
        preset="generic",
        window_s=60.0,
        concurrency=1,
        batch_limit=1,
        overrides=overrides,
    )
    recorder = Recorder()
    answer = RestrictedSource(recorder).read(
        ReadRequest(
            placements=(target,),
            scalars=dict[Hashable, str](scalars.items()),
            deadline_s=1.0,
            scalar_owners={key: KEY[0] for key in scalars if key != "without pipeline"},
        )
    )
    assert recorder.request is not None
    return recorder.request, answer


def test_a_source_is_queried_within_the_namespace_of_each_pipeline_only() -> None:
    asked, answer = read({"demand": "sum(a)", "sla": "info(a)", "without pipeline": "a"}, {})
    assert asked.scalars == {"demand": f"sum(a{{{N}}})"}
    assert answer.scalars["demand"] == 1.0
    for key in ("sla", "without pipeline"):
        refusal = answer.scalars[key]
        assert isinstance(refusal, Absence)
        assert refusal.reason is AbsenceReason.UNSUPPORTED
        assert refusal.detail in answer.problems
    assert "info" in answer.problems[0]


def test_the_users_own_query_of_a_quantity_is_restricted_as_well() -> None:
    overrides = {
        Quantity.QUEUE_DEPTH: "max(deriv(q{$pods}[$window]))",
        Quantity.SESSIONS: "q",
        Quantity.UTILIZATION: "a b",
    }
    asked, answer = read({}, overrides)
    assert asked.placements[0].overrides == {
        Quantity.QUEUE_DEPTH: f'max(deriv(q{{{N}, namespace=~"speech",pod=~"a"}}[1m]))',
        Quantity.SESSIONS: f"q{{{N}}}",
    }
    samples = answer.placements[KEY]
    assert samples.of(Quantity.QUEUE_DEPTH) == 1.0
    refusal = samples.of(Quantity.UTILIZATION)
    assert isinstance(refusal, Absence)
    assert "in: a b" in refusal.detail


def test_a_query_without_series_says_what_was_added_to_it() -> None:
    class Empty(Recorder):
        def read(self, request: ReadRequest) -> ReadAnswer:
            answer = super().read(request)
            absent = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
            return replace(answer, scalars=dict.fromkeys(request.scalars, absent))

    request = ReadRequest(placements=(), scalars={"demand": "a"}, deadline_s=1.0, scalar_owners={"demand": KEY[0]})
    reading = RestrictedSource(Empty()).read(request).scalars["demand"]
    added = '--restrict-queries added namespace="speech" to every selector'
    assert reading == Absence(reason=AbsenceReason.MISSING, detail=f"the query returns no series; {added}")


def test_the_label_of_the_namespace_and_further_ones_are_those_that_are_set() -> None:
    labels = SeriesLabels(namespace="ns", match=(("cluster", "eu-1"),))
    assert restricted("sum(a) / b{x='1'}", "speech", labels) == (
        'sum(a{ns="speech", cluster="eu-1"}) / b{ns="speech", cluster="eu-1", x=\'1\'}'
    )
