"""The static peak: one allocation for the highest load, whatever happens."""

from dataclasses import replace

import numpy as np
from baselines import CAPTIONS, a_detailed, at, desired
from builders import ENCODER, ENCODER_GPU, VAD, a_placement, a_pool, a_spec, a_stage, a_state

from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.state.spec import PipelineSpec, PoolSpec
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Composition, PipelineKey, PoolName
from simulations.policies.autoscaler import Briefing
from simulations.policies.static_peak import StaticPeak, StaticPeakSettings, peak_instances
from simulations.scenario.schedule import Schedule


def briefing(*changes: PipelineSpec | PoolSpec, budget: float = 100.0) -> Briefing:
    calm = np.arange(0.0, 200.0, 1 / 5.0)
    peak = np.arange(100.0, 140.0, 1 / 45.0)
    start_s = np.sort(np.concatenate([calm, peak]))
    return Briefing(
        pipelines=(a_spec(budget=budget),),
        pools=tuple(pool.spec for pool in a_detailed().pools.values()),
        changes=changes,
        loads={PipelineKey(CAPTIONS): Schedule(start_s=start_s, end_s=start_s)},
        duration_s=200.0,
    )


def test_it_serves_the_peak_within_the_sla_and_never_moves() -> None:
    own = briefing()
    autoscaler = StaticPeak(StaticPeakSettings(), own)
    world = a_detailed(a_state(replicas={VAD: 1, ENCODER: 1}))
    answer = desired(autoscaler, world)
    latency_s = predicted_latency_s(optimizer_pipeline(own.pipelines[0], 50.0), answer, {}, composition=Composition.RSS)
    assert latency_s is not None
    assert latency_s <= 0.5
    assert desired(autoscaler, at(world, world.now_s + 9000)) == answer


def cost(own: Briefing, *, headroom: float = 0.1, inferentia: float = 1.0) -> float:
    replicas = desired(StaticPeak(StaticPeakSettings(latency_headroom=headroom), own), a_detailed(a_state()))
    return replicas[VAD] * 0.125 + replicas[ENCODER] * inferentia + replicas[ENCODER_GPU] * 2.0


def test_it_keeps_below_the_lowest_budget_at_the_highest_prices_that_will_be() -> None:
    inferentia = next(pool for pool in briefing().pools if pool.name == "inferentia")
    needed = cost(briefing())

    assert cost(briefing(budget=0.6 * needed)) <= 0.6 * needed
    assert 0 < cost(briefing(a_spec(budget=0.6 * needed))) <= 0.6 * needed
    dear = briefing(replace(inferentia, price_per_hour=20.0), budget=needed)
    assert 0 < cost(dear, inferentia=20.0) <= needed
    assert cost(briefing(replace(inferentia, price_per_hour=0.1), a_spec(budget=200.0))) == needed


def test_more_headroom_never_costs_less() -> None:
    assert cost(briefing(), headroom=0.8) > cost(briefing(), headroom=0.0)


def requests(*spans: tuple[float, float, float]) -> Schedule:
    """Requests evenly at (rate, from, until)."""
    start_s = np.concatenate([np.arange(from_s, until_s, 1 / rate) for rate, from_s, until_s in spans])
    return Schedule(start_s=start_s, end_s=start_s)


def a_pipeline(*, budget: float = 100.0, per_instance: int = 1) -> PipelineSpec:
    return a_spec(a_stage("asr", a_placement("cpu", service_s=0.05, per_instance=per_instance)), budget=budget)


def test_the_peak_is_served_whatever_the_budget() -> None:
    pool = a_pool("cpu").spec
    loads = {PipelineKey(CAPTIONS): requests((1.0, 0.0, 60.0), (90.0, 20.0, 50.0))}

    instances = peak_instances((a_pipeline(budget=0.01),), (pool,), loads, 60.0)

    assert instances is not None
    assert 5 <= instances[PoolName("cpu")] <= 20, "91 requests/s of 50 ms"


def test_replicas_that_share_an_instance_take_a_share_of_it() -> None:
    pool = a_pool("cpu").spec
    loads = {PipelineKey(CAPTIONS): requests((90.0, 0.0, 60.0))}
    whole = peak_instances((a_pipeline(),), (pool,), loads, 60.0)
    shared = peak_instances((a_pipeline(per_instance=4),), (pool,), loads, 60.0)

    assert whole is not None
    assert shared == {PoolName("cpu"): whole[PoolName("cpu")] / 4}


def test_a_peak_that_the_pools_cannot_serve_has_no_allocation() -> None:
    pool = replace(a_pool("cpu").spec, instances=2)
    assert peak_instances((a_pipeline(),), (pool,), {PipelineKey(CAPTIONS): requests((90.0, 0.0, 60.0))}, 60.0) is None


def test_without_any_load_the_least_is_enough() -> None:
    nothing = Schedule(start_s=np.empty(0), end_s=np.empty(0))
    assert peak_instances((a_pipeline(),), (a_pool("cpu").spec,), {PipelineKey(CAPTIONS): nothing}, 60.0) == {
        PoolName("cpu"): 1.0
    }
