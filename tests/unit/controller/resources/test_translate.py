from typing import Any

import pytest
from corpus import CONTRACT, PIPELINE, POOL, REMOVED, changed

from controller.core.state.schedule import CronFloor, CronWindows, EventFloor, WeeklyFloor
from controller.core.state.spec import (
    UNDECLARED_CV,
    UNDECLARED_SERVICE,
    UNDECLARED_STARTUP_S,
    Declared,
    DemandUnit,
    Mode,
    PipelineSpec,
    RuleMetric,
)
from controller.resources.manifests import load_documents
from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.time_zones import time_zone
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import Batching, Mixing, Routing, ServiceLaw
from profiler.samples import Answer, Quantity


def spec(changes: dict[str, Any] | None = None) -> PipelineSpec:
    return pipeline_spec(parse(SpeechPipeline, changed(PIPELINE, changes or {})))


def captions() -> PipelineSpec:
    (document,) = load_documents(CONTRACT[1])
    return pipeline_spec(parse(SpeechPipeline, document.data))


def test_the_contract_pipeline_in_numbers() -> None:
    pipeline = captions()
    assert (pipeline.key, pipeline.mode, pipeline.unit) == ("speech/live-captions", Mode.AUTO, DemandUnit.STREAMS)
    assert pipeline.items_per_unit_s == pytest.approx(3.125)
    assert (pipeline.sla.latency_s, pipeline.sla.percentile, pipeline.max_wer) == (0.25, 95.0, 0.09)
    assert pipeline.budget_per_hour == 20.0
    assert [stage.after for stage in pipeline.stages] == [(), ("vad",), ("encoder",), ("decoder",)]
    decoder = pipeline.stages[2].placements[1].prior
    assert (decoder.pool, decoder.service.per_item_s, decoder.batch_sizes) == ("gpu", 0.0015, (16,))


def test_the_slots_of_a_kv_cache_follow_from_its_shape() -> None:
    # (24 GiB · 0.9 − 8 GiB − 1.5 GB) / (2·32·8·128·2 B · 256 tokens) = 13.1 GB / 33.6 MB
    assert captions().stages[3].placements[0].prior.session_slots == 390


def test_defaults_are_those_of_the_contract() -> None:
    scaling = spec({"spec.scaling": REMOVED}).scaling
    assert scaling == captions().scaling
    assert (scaling.up.stabilization_s, scaling.up.max_share, scaling.up.max_replicas) == (0.0, 1.0, 4)
    assert (scaling.down.stabilization_s, scaling.down.max_share, scaling.down.max_replicas) == (300.0, 0.5, 2)
    assert (scaling.tolerance, scaling.drain_s, scaling.idle_after_s) == (0.1, 60.0, None)
    assert spec({"spec.scaling": {"idleAfter": "10m"}}).scaling.idle_after_s == 600.0
    assert scaling.mixing is Mixing.OVERFLOW
    assert spec({"spec.scaling": {"mixing": "Free"}}).scaling.mixing is Mixing.FREE


def test_routing_follows_memory_unless_it_is_given() -> None:
    routing = [stage.routing for stage in captions().stages]
    assert routing == [Routing.LEAST_LOADED, Routing.STICKY, Routing.STICKY, Routing.STICKY]
    assert spec().stages[0].routing is Routing.PULL


def test_batch_sizes_are_the_limit_or_the_choice_or_one() -> None:
    vad, encoder = spec().stages[:2]
    assert vad.placements[0].prior.batch_sizes == (1,)
    assert [placement.prior.batch_sizes for placement in encoder.placements] == [(8,), (1, 4, 16), (8,), (1,)]


def test_a_service_law_is_a_line_a_roofline_or_points() -> None:
    def law(**time: Any) -> ServiceLaw:
        return spec({"spec.stages[1].placements[0].serviceTime": time}).stages[1].placements[0].prior.service

    assert law(fixed="2ms", perItem="3ms", floor="14ms", cv="0.1") == ServiceLaw(
        fixed_s=0.002, per_item_s=0.003, floor_s=0.014, cv=0.1
    )
    assert law(points={"16": "38ms", "4": "14ms"}, cv="0.1") == ServiceLaw(points=((4, 0.014), (16, 0.038)), cv=0.1)


def test_servers_batch_continuously_by_their_preset_unless_the_kind_is_given() -> None:
    path = "spec.stages[3].placements[0].batching"
    assert captions().stages[3].preset == "vllm"

    def kind(batching: dict[str, Any]) -> tuple[Batching, float]:
        prior = spec({"spec.stages[3].metrics": {"preset": "vllm"}, path: batching}).stages[3].placements[0].prior
        return prior.batching, prior.batch_wait_s

    assert kind({"max": 16}) == (Batching.CONTINUOUS, 0.0)
    assert kind({"max": 16, "kind": "Dynamic", "wait": "5ms"}) == (Batching.DYNAMIC, 0.005)
    assert kind({"max": 16, "wait": "5ms"}) == (Batching.CONTINUOUS, 0.0), "such a server has no wait"
    assert {placement.prior.batching for placement in spec().stages[1].placements} == {Batching.DYNAMIC}


def test_rules_and_overrides_keep_their_meaning() -> None:
    stage = spec().stages[0]
    pressure, spare = stage.rules
    assert (pressure.metric, pressure.above, pressure.per_zone) == (RuleMetric.RX_QUEUE_PRESSURE, 0.8, True)
    assert (spare.query, spare.below, spare.per_zone, spare.cooldown_s) == ("min(free)", 2.0, False, 60.0)
    assert stage.metric_overrides == {Quantity.LATENCY_P95: "max(a)", Quantity.RX_QUEUE_PRESSURE: "max(b)"}


def test_numbers_that_are_not_declared_are_placeholders_and_marked_as_such() -> None:
    place = "spec.stages[3].placements[0]"
    (bare,) = spec({f"{place}.{field}": REMOVED for field in ("serviceTime", "memory")}).stages[3].placements
    assert (bare.prior.service, bare.startup_s, bare.prior.session_slots) == (
        UNDECLARED_SERVICE,
        UNDECLARED_STARTUP_S,
        None,
    )
    assert bare.declared == Declared(service=False, cv=False, startup=False, memory=False)
    assert (bare.source, bare.confidence) == (None, None)


def test_a_variant_is_a_placement_that_has_what_it_does_not_state_from_its_placement() -> None:
    *_, bf16, fp8 = spec().stages[1].placements
    assert [str(own.name) for own in (bf16, fp8)] == ["trainium:bf16", "trainium:fp8"]
    assert (bf16.target.name, fp8.target.name) == ("encoder-bf16", "encoder-fp8")
    assert (bf16.prior.wer, fp8.prior.wer) == (0.079, 0.08)
    assert (bf16.prior.min_replicas, bf16.prior.max_replicas) == (1, 2)
    assert (fp8.prior.min_replicas, fp8.prior.max_replicas) == (0, 6)
    assert (bf16.prior.per_instance, fp8.prior.per_instance) == (2, 1)
    assert (bf16.startup_s, fp8.declared.startup) == (90.0, False)
    assert bf16.wer_by_slice == {"noisy": 0.19, "accented": 0.2}
    assert spec().max_wer_by_slice == {"noisy": 0.2}


def test_a_service_time_without_cv_keeps_its_times() -> None:
    vad, encoder = spec().stages[:2]
    assert vad.placements[0].declared == Declared(memory=False)
    (inferentia, *_) = encoder.placements
    assert inferentia.declared == Declared(cv=False, startup=False)
    assert (inferentia.prior.service.fixed_s, inferentia.prior.service.cv) == (0.014, UNDECLARED_CV)


def test_a_rule_on_sessions_needs_no_memory() -> None:
    (rule, _) = spec({"spec.stages[0].rules[0].metric": "sessions"}).stages[0].rules
    assert rule.metric is RuleMetric.SESSIONS


def test_the_answer_is_the_whole_one_unless_it_is_given() -> None:
    metrics = {"preset": "vllm", "model": "a/b", "answer": "First"}
    vad, encoder = spec({"spec.stages[1].metrics": metrics}).stages[:2]
    assert (vad.metrics_model, vad.metrics_answer) == (None, Answer.WHOLE)
    assert (encoder.metrics_model, encoder.metrics_answer) == ("a/b", Answer.FIRST)


def test_known_demand_is_in_base_units_with_its_zone_as_offsets() -> None:
    hours, event, expected = spec().at_least
    assert isinstance(hours, WeeklyFloor)
    assert (hours.name, hours.demand, hours.from_s, hours.until_s) == ("business-hours", 400.0, 28800.0, 64800.0)
    assert (hours.days, hours.zone) == ((0, 4), time_zone("Europe/Berlin"))
    assert event == EventFloor(name="concert", demand=1000.5, start_s=1798135200.0, end_s=1798151400.0)
    assert expected == CronFloor(
        name="0 18 * * MON-FRI",
        demand=650.5,
        windows=CronWindows(
            minutes=(0,),
            hours=(18,),
            days=None,
            months=tuple(range(1, 13)),
            weekdays=(0, 1, 2, 3, 4),
            for_s=9000.0,
            zone=time_zone("Europe/Berlin"),
        ),
    )


def test_hours_are_those_of_every_day_in_utc_by_default() -> None:
    entry = "spec.demand.atLeast[0]"
    (hours, _, _) = spec({f"{entry}.days": REMOVED, f"{entry}.timeZone": REMOVED}).at_least
    assert isinstance(hours, WeeklyFloor)
    assert (hours.days, hours.zone.name, hours.zone.changes) == ((0, 1, 2, 3, 4, 5, 6), "UTC", ())


def test_requests_have_no_chunk() -> None:
    pipeline = spec({"spec.demand": {"unit": "Requests", "query": "q"}})
    assert (pipeline.unit, pipeline.chunk_s, pipeline.items_per_unit_s) == (DemandUnit.REQUESTS, None, 1.0)


def test_the_bounds_of_a_pool() -> None:
    full = pool_spec(parse(ComputePool, POOL))
    assert (full.instances, full.node_pool, full.ready_nodes, full.fixed) == (0, "everything.large", True, True)
    stated = pool_spec(parse(ComputePool, changed(POOL, {"spec.capacity": {"instances": 3}})))
    assert (stated.instances, stated.node_pool, stated.ready_nodes, stated.fixed) == (3, None, False, False)


def test_nodes_of_other_types_cost_the_price_of_the_pool() -> None:
    assert pool_spec(parse(ComputePool, POOL)).node_price_per_hour("c7i.4xlarge") == 0.72
    assert pool_spec(parse(ComputePool, POOL)).node_price_per_hour("another") == 0.34


@pytest.mark.parametrize(("device", "deadline_s"), [("CPU", 300), ("GPU", 900), ("Inferentia", 900), ("Trainium", 900)])
def test_nodes_with_accelerators_may_take_longer_by_default(device: str, deadline_s: float) -> None:
    pool = pool_spec(parse(ComputePool, changed(POOL, {"spec.device": device, "spec.unavailable": REMOVED})))
    assert (pool.pending_deadline_s, pool.backoff_initial_s, pool.backoff_max_s) == (deadline_s, 300.0, 3600.0)
