"""Every preset reads the same from what a server exports, and from the simulator's pods: which model, which answer."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import a_placement, a_stage

from optimizer.model import Demand, PipelineKey, Placement, PoolName, Routing, ServiceLaw, Sla
from profiler.profile import profile_pipeline
from profiler.samples import (
    Absence,
    AbsenceReason,
    Answer,
    PlacementSamples,
    PlacementTarget,
    Quantity,
    Reading,
)
from profiler.sources.base import ReadRequest
from profiler.sources.exposition import samples
from profiler.sources.history import TargetHistory
from profiler.sources.presets import LoadedPresets, load_presets
from profiler.sources.promql_evaluation import Evaluation
from profiler.sources.promql_syntax import metric_names, parse
from profiler.sources.queries import query_plan
from profiler.stages import Learned, PipelineInput, PlacementInput, StageInput
from simulations.cluster.expressions import Counter, Level, PodSamples
from simulations.cluster.readings import placement_readings
from simulations.cluster.scrapes import ScrapeHistory
from simulations.engine.state import LATENCY_BOUNDS_S
from simulations.lab.pods.exposition import EXPOSITIONS, Gauges, ModelServer, Preset

PRESETS = load_presets()
RATE_RPS = 10
QUEUE_RPS = 4.0
WAIT_S, SERVICE_S = 0.026, 0.052
"""Every item waits, and is served alone, for so long; its latency is their sum. All ends are near the upper bound of a
bucket of vLLM, where interpolation is nearly exact."""
LAST_S = 90
EQUAL_WAITS_S = [[WAIT_S] * RATE_RPS for _ in range(LAST_S + 1)]
GAUGES = Gauges(queued=0, queue_limit=64, in_service=1, batch_slots=2, batch_max=1, sessions=7, session_slots=20)
STAGE = a_stage("asr", a_placement("gpu"))
STEPS = ("preprocess", "tokenizer")

Readings = Mapping[Quantity, Reading]


def exported(
    *servers: ModelServer,
    model: str | None = None,
    answer: Answer = Answer.WHOLE,
    waits_s: Sequence[Sequence[float]] = EQUAL_WAITS_S,
) -> Readings:
    """Read the text of one pod per server, scraped every second, as a direct scrape does."""
    preset = servers[0].preset
    target = PlacementTarget(
        pipeline=PipelineKey("speech/captions"),
        stage=STAGE.name,
        placement=STAGE.placements[0].pool,
        namespace="speech",
        pods=frozenset(f"asr-{index}" for index in range(len(servers))),
        preset=preset,
        window_s=60.0,
        concurrency=2,
        batch_limit=1,
        overrides={},
        model=model,
        answer=answer,
    )
    plan = query_plan(ReadRequest(placements=(target,), scalars={}, deadline_s=1.0), LoadedPresets(usable=PRESETS))
    queries = {query: parse(query) for query in plan.pod_queries()}
    names = frozenset[str]().union(*map(metric_names, queries))
    histories = [history(server, f"asr-{index}", names, waits_s) for index, server in enumerate(servers)]
    evaluation = Evaluation(histories, at_s=float(LAST_S), lookback_s=300.0)
    results = {query: evaluation.result(expression) for query, expression in queries.items()}
    (found,) = plan.answer(results, {}, {}).placements.values()
    return found.readings


def history(server: ModelServer, pod: str, names: frozenset[str], waits_s: Sequence[Sequence[float]]) -> TargetHistory:
    shown = EXPOSITIONS[server.preset]("captions", "asr", server)
    made = TargetHistory({"namespace": "speech", "pod": pod})
    for t_s, each in enumerate(waits_s):
        made.record(float(t_s), samples(shown.render(t_s, GAUGES), names), keep_s=300.0)
        for wait_s in each:
            shown.arrived(refused=False)
            shown.served(t_s, [wait_s], SERVICE_S)
    return made


def queue() -> list[list[float]]:
    """Return the waits of a Poisson load on one server with equal service times, by the second of the arrival."""
    draw = random.Random(5)
    waits_s: list[list[float]] = [[] for _ in range(LAST_S + 1)]
    now_s = free_s = 0.0
    while (now_s := now_s + draw.expovariate(QUEUE_RPS)) < LAST_S:
        start_s = max(now_s, free_s)
        waits_s[int(now_s)].append(start_s - now_s)
        free_s = start_s + SERVICE_S
    return waits_s


def measured_over_modelled(readings: Readings) -> float:
    """Return the ratio of measured to modelled latency to which the correction of a stage converges."""
    law = ServiceLaw(fixed_s=SERVICE_S, cv=0.0)
    placement = PlacementInput(
        prior=Placement(pool=PoolName("gpu"), service=law),
        replicas=1,
        batch=1,
        samples=PlacementSamples(readings={**readings, Quantity.BATCH_SIZE: 1.0}),
    )
    stage = StageInput(
        name=STAGE.name, after=(), pass_ratio=1.0, routing=Routing.PULL, window_s=60.0, placements=(placement,)
    )
    pipeline = PipelineInput(
        stages=(stage,),
        sla=Sla(latency_s=0.5, percentile=95),
        latency_s=None,
        demand=Demand(entry_rate_rps=QUEUE_RPS),
    )
    profile, _ = profile_pipeline(pipeline, Learned(), now_s=0.0, interval_s=1e6)
    correction = profile.stages[0].latency_correction
    assert correction is not None
    return correction.smoothed


def simulated(server: ModelServer, *, model: str | None = None, answer: Answer = Answer.WHOLE) -> Readings:
    """Read one simulated pod."""
    made = ScrapeHistory(keep_s=100.0, counters=len(Counter) + len(LATENCY_BOUNDS_S) + 1, levels=len(Level))
    own = np.searchsorted(LATENCY_BOUNDS_S, WAIT_S + SERVICE_S)
    for t_s in range(LAST_S + 1):
        items = RATE_RPS * t_s
        counters = {
            Counter.ARRIVED: items,
            Counter.REFUSED: 0,
            Counter.COMPLETED: items,
            Counter.BATCHES: items,
            Counter.BUSY_S: items * SERVICE_S,
            Counter.SERVICE_S: items * SERVICE_S,
            Counter.LATENCY_S: items * (WAIT_S + SERVICE_S),
            Counter.REFUSED_SESSIONS: 0,
        }
        buckets = np.zeros(len(LATENCY_BOUNDS_S) + 1)
        buckets[own] = items
        levels = {Level.QUEUED: 0.0, Level.IN_SERVICE: 1.0, Level.SESSIONS: 7.0}
        made.record(
            t_s,
            np.array([[*(counters[column] for column in Counter), *buckets]]),
            np.array([[levels[column] for column in Level]]),
            lambda _: True,
        )
    window = made.view().window([0], float(LAST_S), 60.0)
    pods = PodSamples(
        window=window,
        summary=window,
        bounds_s=np.array(LATENCY_BOUNDS_S),
        concurrency=2,
        queue_limit=64,
        first_token_share=server.first_token_share,
        other_models=server.other_models,
    )
    stage = replace(STAGE, preset=server.preset, metrics_model=model, metrics_answer=answer)
    return placement_readings(stage, STAGE.placements[0], [("speech", "asr-0")], pods, frozenset())


SOURCES = pytest.mark.parametrize("source", [exported, simulated], ids=["exported", "simulated"])


def absence(reading: Reading) -> Absence:
    assert isinstance(reading, Absence), reading
    return reading


class TestAnswers:
    @SOURCES
    @pytest.mark.parametrize("share", [1.0, 0.2])
    def test_the_latency_of_the_whole_answer_is_that_of_the_law(
        self, source: Callable[..., Readings], share: float
    ) -> None:
        readings = source(ModelServer(preset="vllm", first_token_share=share))
        law_s = WAIT_S + SERVICE_S
        assert readings[Quantity.SERVICE_TIME] == pytest.approx(SERVICE_S, rel=0.01)
        assert readings[Quantity.LATENCY_MEAN] == pytest.approx(law_s, rel=0.01)
        assert readings[Quantity.LATENCY_P95] == pytest.approx(law_s, rel=0.05)
        assert readings[Quantity.LATENCY_P99] == pytest.approx(law_s, rel=0.05)
        assert (readings[Quantity.LATENCY_P95_FLOOR], readings[Quantity.LATENCY_P95_CEILING]) == (0.0, 0.3)

    @SOURCES
    def test_the_latency_of_the_first_token_is_its_own_and_the_replica_stays_occupied(
        self, source: Callable[..., Readings]
    ) -> None:
        readings = source(ModelServer(preset="vllm", first_token_share=0.2), answer=Answer.FIRST)
        first_s = WAIT_S + 0.2 * SERVICE_S
        assert readings[Quantity.SERVICE_TIME] == pytest.approx(SERVICE_S, rel=0.01)
        assert readings[Quantity.LATENCY_MEAN] == pytest.approx(first_s, rel=0.01)
        assert readings[Quantity.LATENCY_P95] == pytest.approx(first_s, rel=0.1)
        floor_s, ceiling_s = readings[Quantity.LATENCY_P95_FLOOR], readings[Quantity.LATENCY_P95_CEILING]
        assert isinstance(floor_s, float)
        assert isinstance(ceiling_s, float)
        assert floor_s < first_s <= ceiling_s <= 0.04

    def test_the_whole_answer_agrees_with_the_law_of_the_whole_request_and_a_mixture_does_not(self) -> None:
        server = ModelServer(preset="vllm", first_token_share=0.2)
        whole, first = (exported(server, answer=answer, waits_s=queue()) for answer in Answer)
        percentiles = (Quantity.LATENCY_P95, Quantity.LATENCY_P95_FLOOR, Quantity.LATENCY_P95_CEILING)
        mixture = {**whole, **{quantity: first[quantity] for quantity in percentiles}}
        assert measured_over_modelled(whole) == pytest.approx(1.0, abs=0.1)
        assert measured_over_modelled(mixture) < 0.8
        assert measured_over_modelled(first) < 0.8

    @SOURCES
    def test_with_one_token_per_answer_both_are_the_same(self, source: Callable[..., Readings]) -> None:
        whole, first = (source(ModelServer(preset="vllm"), answer=answer) for answer in Answer)
        for quantity in (Quantity.LATENCY_MEAN, Quantity.LATENCY_P95, Quantity.SERVICE_TIME):
            assert whole[quantity] == pytest.approx(first[quantity])


@pytest.mark.parametrize("preset", ["triton", "vllm"])
class TestModels:
    @SOURCES
    def test_several_models_without_a_selection_are_refused_by_name(
        self, source: Callable[..., Readings], preset: Preset
    ) -> None:
        readings = source(ModelServer(preset=preset, other_models=STEPS))
        for quantity in (Quantity.ARRIVAL_RATE, Quantity.COMPLETION_RATE, Quantity.SERVICE_TIME):
            refused = absence(readings[quantity])
            assert refused.reason is AbsenceReason.AMBIGUOUS
            assert refused.detail == (
                "a pod reports 3 models (asr, preprocess, tokenizer): set metrics.model to one of them"
            )
        assert readings[Quantity.SESSIONS] == 7.0  # of the pod: this metric names no model

    @SOURCES
    def test_an_item_of_the_selected_model_counts_once(self, source: Callable[..., Readings], preset: Preset) -> None:
        server = ModelServer(preset=preset, model="captions-en", other_models=STEPS)
        readings = source(server, model="captions-en")
        assert readings[Quantity.ARRIVAL_RATE] == pytest.approx(RATE_RPS, rel=0.01)
        assert readings[Quantity.COMPLETION_RATE] == pytest.approx(RATE_RPS, rel=0.01)
        assert readings[Quantity.SERVICE_TIME] == pytest.approx(SERVICE_S, rel=0.01)
        assert readings[Quantity.SESSIONS] == 7.0

    @SOURCES
    def test_the_only_model_needs_no_selection(self, source: Callable[..., Readings], preset: Preset) -> None:
        assert source(ModelServer(preset=preset))[Quantity.ARRIVAL_RATE] == pytest.approx(RATE_RPS, rel=0.01)

    def test_a_selected_model_that_no_pod_reports_is_absent_beside_those_that_exist(self, preset: Preset) -> None:
        server = ModelServer(preset=preset, other_models=("preprocess",))
        missing = absence(exported(server, model="as")[Quantity.ARRIVAL_RATE])
        assert missing.reason is AbsenceReason.MISSING
        assert missing.detail == "metrics.model: as: no pod reports this model, but asr, preprocess"

    def test_a_pod_without_the_selected_model_makes_sums_partial(self, preset: Preset) -> None:
        servers = [ModelServer(preset=preset, model=name) for name in ("asr-v1", "asr-v2")]
        readings = exported(*servers, model="asr-v2")
        assert absence(readings[Quantity.ARRIVAL_RATE]).reason is AbsenceReason.PARTIAL
        assert readings[Quantity.SERVICE_TIME] == pytest.approx(SERVICE_S, rel=0.01)

    def test_pods_with_one_model_each_add_up_whatever_its_name(self, preset: Preset) -> None:
        servers = [ModelServer(preset=preset, model=name) for name in ("asr-v1", "asr-v2")]
        assert exported(*servers)[Quantity.ARRIVAL_RATE] == pytest.approx(2 * RATE_RPS, rel=0.01)
