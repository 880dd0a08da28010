"""Which tier a pipeline reads from: a lower one at once, a better one after it was complete for a while."""

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
    Scrapes,
)
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.tiers import TieredSource, _merged

CAPTIONS, NOTES = PipelineKey("speech/captions"), PipelineKey("speech/notes")
VAD, CPU = StageName("vad"), PoolName("cpu")
GONE = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: refused")
SILENT = Absence(reason=AbsenceReason.MISSING, detail="0 of 1 pods")
NEVER = Absence(reason=AbsenceReason.UNSUPPORTED)


@dataclass
class FakeSource:
    """A source with the readings of a test, the same for every pipeline unless `own` has another demand."""

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
                (target.pipeline, target.stage, target.placement): PlacementSamples(readings=readings)
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
            placement=CPU,
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


def tiered(prometheus: FakeSource, direct: FakeSource) -> TieredSource:
    return TieredSource({MetricsTier.PROMETHEUS: prometheus, MetricsTier.DIRECT_SCRAPE: direct})


def demand(answer: ReadAnswer, key: PipelineKey = CAPTIONS) -> Reading:
    return answer.scalars[key, "demand"]


def tier(answer: ReadAnswer, key: PipelineKey = CAPTIONS) -> MetricsTier:
    return answer.origins[key].tier


def test_the_first_source_is_used_as_long_as_it_has_lost_nothing() -> None:
    answer = tiered(FakeSource(10.0, 1.0), FakeSource(11.0, 2.0, latency=0.1)).read(request())
    assert demand(answer) == 10.0
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.ARRIVAL_RATE) == 1.0
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.LATENCY_P95) == NEVER
    assert answer.origins[CAPTIONS] == Origin()


def test_lost_numbers_come_from_the_next_source_at_once_with_the_reason() -> None:
    answer = tiered(FakeSource(GONE, GONE), FakeSource(11.0, 2.0, latency=0.1)).read(request())
    assert demand(answer) == 11.0
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.LATENCY_P95) == 0.1
    assert answer.origins[CAPTIONS] == Origin(
        tier=MetricsTier.DIRECT_SCRAPE, because="Unavailable: Prometheus: refused"
    )
    assert answer.problems == ("Prometheus: refused",)


def test_pods_that_only_prometheus_has_lost_are_scraped() -> None:
    answer = tiered(FakeSource(10.0, SILENT), FakeSource(NEVER, 2.0)).read(request())
    assert tier(answer) is MetricsTier.DIRECT_SCRAPE
    assert demand(answer) == 10.0  # what the lower tier does not have is still taken from the upper one
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.ARRIVAL_RATE) == 2.0


def test_a_number_that_no_source_has_changes_no_tier() -> None:
    answer = tiered(FakeSource(10.0, SILENT), FakeSource(10.0, SILENT)).read(request())
    assert tier(answer) is MetricsTier.PROMETHEUS
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.ARRIVAL_RATE) == SILENT
    answer = tiered(FakeSource(NEVER, 1.0), FakeSource(11.0, 2.0)).read(request())
    assert demand(answer) == NEVER


def test_each_pipeline_has_its_own_tier() -> None:
    answer = tiered(FakeSource(10.0, 1.0, own={NOTES: GONE}), FakeSource(11.0, 2.0)).read(request())
    assert (tier(answer, CAPTIONS), tier(answer, NOTES)) == (MetricsTier.PROMETHEUS, MetricsTier.DIRECT_SCRAPE)
    assert (demand(answer, CAPTIONS), demand(answer, NOTES)) == (10.0, 11.0)


def test_it_returns_when_the_better_source_was_complete_twice_and_does_not_flap() -> None:
    prometheus, direct = FakeSource(GONE, GONE), FakeSource(11.0, 2.0)
    source = tiered(prometheus, direct)
    tiers = []
    for whole in (False, True, False, True, True, True):
        prometheus.demand = prometheus.rate = 10.0 if whole else GONE
        answer = source.read(request())
        tiers.append((tier(answer), demand(answer)))
    direct_tier, prometheus_tier = (MetricsTier.DIRECT_SCRAPE, 11.0), (MetricsTier.PROMETHEUS, 10.0)
    assert tiers == [direct_tier] * 4 + [prometheus_tier] * 2


def test_when_all_are_gone_the_reading_is_absent_and_the_tier_stays() -> None:
    prometheus, direct = FakeSource(GONE, GONE), FakeSource(11.0, 2.0)
    source = tiered(prometheus, direct)
    source.read(request())
    direct.demand = direct.rate = Absence(reason=AbsenceReason.PARTIAL, detail="1 of 2 endpoints")
    for _ in range(4):
        answer = source.read(request())
        assert tier(answer) is MetricsTier.DIRECT_SCRAPE
        assert demand(answer) == direct.demand
    assert answer.origins[CAPTIONS].because == "Unavailable: Prometheus: refused"


def test_no_traffic_is_a_reading_and_not_a_loss() -> None:
    idle = Absence(reason=AbsenceReason.NO_TRAFFIC)
    answer = tiered(FakeSource(10.0, 1.0, latency=idle), FakeSource(11.0, 2.0, latency=0.3)).read(request())
    assert answer.placements[CAPTIONS, VAD, CPU].of(Quantity.LATENCY_P95) == idle


def test_what_is_known_of_the_scrapes_is_kept_with_the_samples() -> None:
    scrapes = Scrapes(interval_s=60.0, silent=("a",))
    merged = _merged([PlacementSamples(readings={}), PlacementSamples(readings={}, scrapes=scrapes)], best=False)
    assert merged.scrapes == scrapes
