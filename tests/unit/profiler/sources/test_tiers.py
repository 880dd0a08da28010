"""Which source is believed: down at once, up when the better one has been whole for a while."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import (
    Absence,
    AbsenceReason,
    MetricsTier,
    Origin,
    PlacementSamples,
    PlacementTarget,
    Quantity,
    Reading,
)
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.tiers import TieredSource

CAPTIONS, NOTES = PipelineKey("speech/captions"), PipelineKey("speech/notes")
VAD, CPU = StageName("vad"), PoolName("cpu")
GONE = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: refused")
SILENT = Absence(reason=AbsenceReason.MISSING, detail="0 of 1 pods")
NEVER = Absence(reason=AbsenceReason.UNSUPPORTED)


@dataclass
class Told:
    """A source that says what a test says: of every pipeline the same, unless it has its own."""

    demand: Reading
    rate: Reading
    own: dict[PipelineKey, Reading] = field(default_factory=dict)
    latency: Reading = NEVER

    def read(self, request: ReadRequest) -> ReadAnswer:
        readings = {
            Quantity.ARRIVAL_RATE: self.rate,
            Quantity.COMPLETION_RATE: self.rate,
            Quantity.LATENCY_P95: self.latency,
        }
        return ReadAnswer(
            placements={
                (target.pipeline, target.stage, target.pool): PlacementSamples(readings=readings)
                for target in request.placements
            },
            scalars={key: self.own.get(request.scalar_owners[key], self.demand) for key in request.scalars},
            problems=tuple(each.detail for each in (self.demand,) if isinstance(each, Absence)),
        )


def request() -> ReadRequest:
    targets = tuple(
        PlacementTarget(
            pipeline=key,
            stage=VAD,
            pool=CPU,
            namespace="speech",
            pods=frozenset({"a"}),
            preset="generic",
            window_s=60.0,
            concurrency=1,
            batch_limit=1,
            overrides={},
        )
        for key in (CAPTIONS, NOTES)
    )
    keys: dict[Hashable, PipelineKey] = {(key, "demand"): key for key in (CAPTIONS, NOTES)}
    return ReadRequest(placements=targets, scalars=dict.fromkeys(keys, "q"), deadline_s=1.0, scalar_owners=keys)


def a_ladder(prometheus: Told, direct: Told) -> TieredSource:
    return TieredSource({MetricsTier.PROMETHEUS: prometheus, MetricsTier.DIRECT_SCRAPE: direct})


def demand(answer: ReadAnswer, key: PipelineKey = CAPTIONS) -> Reading:
    return answer.scalars[key, "demand"]


def tier(answer: ReadAnswer, key: PipelineKey = CAPTIONS) -> MetricsTier:
    return answer.origins[key].tier


def test_the_first_source_is_believed_as_long_as_it_has_lost_nothing() -> None:
    answer = a_ladder(Told(10.0, 1.0), Told(11.0, 2.0, latency=0.1)).read(request())
    assert demand(answer) == 10.0
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.ARRIVAL_RATE) == 1.0
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.LATENCY_P95) == NEVER
    assert answer.origins[CAPTIONS] == Origin()


def test_what_it_has_lost_the_next_is_asked_for_at_once_and_the_reason_is_told() -> None:
    answer = a_ladder(Told(GONE, GONE), Told(11.0, 2.0, latency=0.1)).read(request())
    assert demand(answer) == 11.0
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.LATENCY_P95) == 0.1
    assert answer.origins[CAPTIONS] == Origin(
        tier=MetricsTier.DIRECT_SCRAPE, because="Unavailable: Prometheus: refused"
    )
    assert answer.problems == ("Prometheus: refused",)


def test_pods_that_only_prometheus_has_lost_are_asked_themselves() -> None:
    answer = a_ladder(Told(10.0, SILENT), Told(NEVER, 2.0)).read(request())
    assert tier(answer) is MetricsTier.DIRECT_SCRAPE
    assert demand(answer) == 10.0  # what the lower rung cannot tell is still taken from the upper one
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.ARRIVAL_RATE) == 2.0


def test_what_nobody_knows_makes_no_fall() -> None:
    answer = a_ladder(Told(10.0, SILENT), Told(10.0, SILENT)).read(request())
    assert tier(answer) is MetricsTier.PROMETHEUS
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.ARRIVAL_RATE) == SILENT
    answer = a_ladder(Told(NEVER, 1.0), Told(11.0, 2.0)).read(request())
    assert demand(answer) == NEVER


def test_each_pipeline_stands_on_its_own_rung() -> None:
    answer = a_ladder(Told(10.0, 1.0, own={NOTES: GONE}), Told(11.0, 2.0)).read(request())
    assert (tier(answer, CAPTIONS), tier(answer, NOTES)) == (MetricsTier.PROMETHEUS, MetricsTier.DIRECT_SCRAPE)
    assert (demand(answer, CAPTIONS), demand(answer, NOTES)) == (10.0, 11.0)


def test_it_climbs_when_the_better_source_was_whole_twice_and_does_not_flap() -> None:
    prometheus, direct = Told(GONE, GONE), Told(11.0, 2.0)
    ladder = a_ladder(prometheus, direct)
    tiers = []
    for whole in (False, True, False, True, True, True):
        prometheus.demand = prometheus.rate = 10.0 if whole else GONE
        answer = ladder.read(request())
        tiers.append((tier(answer), demand(answer)))
    fallen, climbed = (MetricsTier.DIRECT_SCRAPE, 11.0), (MetricsTier.PROMETHEUS, 10.0)
    assert tiers == [fallen, fallen, fallen, fallen, climbed, climbed]


def test_when_all_are_gone_the_reading_is_absent_and_the_rung_stays() -> None:
    prometheus, direct = Told(GONE, GONE), Told(11.0, 2.0)
    ladder = a_ladder(prometheus, direct)
    ladder.read(request())
    direct.demand = direct.rate = Absence(reason=AbsenceReason.PARTIAL, detail="1 of 2 endpoints")
    for _ in range(4):
        answer = ladder.read(request())
        assert tier(answer) is MetricsTier.DIRECT_SCRAPE
        assert demand(answer) == direct.demand
    assert answer.origins[CAPTIONS].because == "Unavailable: Prometheus: refused"


def test_no_traffic_is_an_answer_and_nothing_lost() -> None:
    idle = Absence(reason=AbsenceReason.NO_TRAFFIC)
    answer = a_ladder(Told(10.0, 1.0, latency=idle), Told(11.0, 2.0, latency=0.3)).read(request())
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.LATENCY_P95) == idle
