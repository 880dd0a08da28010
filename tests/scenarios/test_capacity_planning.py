"""The sums that a capacity planner does by hand, through the real planner."""

import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.kv_cache import KvCacheShape
from optimizer.latency.batching_table import UTILIZATION_CEILING
from optimizer.model import Pipeline, Placement, PoolName, Routing, ServiceLaw, StageName
from optimizer.plan import PipelinePlan

CHUNK_S = 0.16
STREAMS = 10_000
CORE_SHARE = 0.35
"""Of a core, per stream."""


def streams_on_cores(streams: int, *, target: float = 0.7) -> Pipeline:
    """Streams of one item per `CHUNK_S` that take `CORE_SHARE` of a core each, on cores loaded to `target` at most.

    That a core carries no more is its saturation, such that the planner's own ceiling is there.
    """
    service_s = CORE_SHARE * CHUNK_S
    saturation_rps = target / UTILIZATION_CEILING / service_s
    core = on("cores", service=(service_s, 0.0), cv=0.0, bounds=(0, 20_000), saturation_rps=saturation_rps)
    return a_pipeline(a_stage("decoder", core), rate_rps=streams / CHUNK_S, sessions=float(streams), sla_s=1.0)


def planned(pipeline: Pipeline, *, cores: int) -> PipelinePlan:
    return allocate(a_problem(pipeline, where=pools(cores=(0.04, cores)))).pipelines[0]


def test_ten_thousand_streams_take_five_thousand_cores() -> None:
    plan = planned(streams_on_cores(STREAMS), cores=6000)
    assert plan.feasible
    assert plan.replicas()[StageName("decoder"), PoolName("cores")] == STREAMS * CORE_SHARE / 0.7 == 5000
    assert plan.cost_per_hour == pytest.approx(5000 * 0.04)


def test_with_a_core_less_not_all_streams_are_served() -> None:
    plan = planned(streams_on_cores(STREAMS), cores=4999)
    assert not plan.feasible
    assert str(plan.limited_by) == "Pool/cores"
    assert plan.served_fraction == pytest.approx(4999 / 5000, abs=5e-3)


def test_memory_takes_more_replicas_than_compute_where_sessions_are_long() -> None:
    """An 8B model with 8000 tokens a session on 80 GB holds 51 sessions, 12 without grouped heads, at any speed."""

    def replicas(kv_heads: int) -> int:
        shape = KvCacheShape(
            layers=32,
            kv_heads=kv_heads,
            head_dim=128,
            bytes_per_element=2,
            tokens_per_session=8000,
            device_bytes=80e9,
            weight_bytes=16e9,
        )
        llm: Placement = on("gpu", service=(0.001, 0.0), bounds=(0, 200), slots=shape.session_slots)
        pipeline = a_pipeline(a_stage("llm", llm, routing=Routing.STICKY), rate_rps=10.0, sessions=510.0, sla_s=1.0)
        return sum(planned_on_gpus(pipeline).replicas().values())

    assert (replicas(8), replicas(32)) == (10, 43)


def planned_on_gpus(pipeline: Pipeline) -> PipelinePlan:
    return allocate(a_problem(pipeline, where=pools(gpu=(3.0, 200)))).pipelines[0]


def test_the_planner_finds_the_ratio_of_prefill_to_decode() -> None:
    """2000 tokens in, 200 out, batches of 32: two decode workers for about four that read prompts."""
    prefill_s, answer_tokens, rate_rps = 0.2118, 200, 60.0
    # Of a decoding step: 16 GB of weights once and 277 MB of cache per session, at 70 % of 2 TB/s.
    step = ServiceLaw(fixed_s=16e9 / 1.4e12, per_item_s=277e6 / 1.4e12)
    prefill = a_stage("prefill", on("gpu", service=(prefill_s, 0.0), cv=0.0, bounds=(0, 100)), routing=Routing.PULL)
    # The whole answer is an item: its steps are shared with the batch it is decoded in.
    law = step.scaled(answer_tokens)
    decode = a_stage(
        "decode",
        on("gpu", service=(law.fixed_s, law.per_item_s), cv=0.0, bounds=(0, 100), batches=(32,)),
        after=["prefill"],
        routing=Routing.PULL,
    )
    plan = planned_on_gpus(a_pipeline(prefill, decode, rate_rps=rate_rps, sla_s=60.0))
    counts = {stage: count for (stage, _), count in plan.replicas().items()}
    # Both at the planner's own ceiling: (t_d / 32) : t_p without the margins that a planner by hand leaves.
    assert counts[StageName("prefill")] == -(-rate_rps * prefill_s // 0.9)
    assert counts[StageName("decode")] == -(-rate_rps * answer_tokens * step.mean_s(32) / 32 // 0.9)
