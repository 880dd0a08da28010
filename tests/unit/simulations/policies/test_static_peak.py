"""The static peak: one allocation for the highest load, whatever happens."""

import numpy as np
from builders import ENCODER, ENCODER_GPU, VAD, a_spec, a_state
from rivals import CAPTIONS, a_detailed, at, desired

from controller.core.problem import pipeline_problem
from optimizer.evaluate import predicted_latency_s
from optimizer.model import Composition, PipelineKey
from simulations.policies.base import Briefing
from simulations.policies.static_peak import StaticPeak, StaticPeakSettings
from simulations.schedule import Schedule


def briefing(*, budget: float = 100.0) -> Briefing:
    calm = np.arange(0.0, 200.0, 1 / 5.0)
    peak = np.arange(100.0, 140.0, 1 / 45.0)
    start_s = np.sort(np.concatenate([calm, peak]))
    return Briefing(
        pipelines=(a_spec(budget=budget),),
        pools=tuple(pool.spec for pool in a_detailed().pools.values()),
        loads={PipelineKey(CAPTIONS): Schedule(start_s=start_s, end_s=start_s)},
        duration_s=200.0,
    )


def test_it_serves_the_peak_within_the_sla_and_never_moves() -> None:
    own = briefing()
    rival = StaticPeak(StaticPeakSettings(), own)
    world = a_detailed(a_state(replicas={VAD: 1, ENCODER: 1}))
    answer = desired(rival, world)
    latency_s = predicted_latency_s(pipeline_problem(own.pipelines[0], 50.0), answer, {}, composition=Composition.RSS)
    assert latency_s is not None
    assert latency_s <= 0.5
    assert desired(rival, at(world, world.now_s + 9000)) == answer


def test_it_knows_no_budget() -> None:
    world = a_detailed(a_state())
    assert desired(StaticPeak(StaticPeakSettings(), briefing(budget=0.1)), world) == desired(
        StaticPeak(StaticPeakSettings(), briefing()), world
    )


def test_more_headroom_never_costs_less() -> None:
    def cost(headroom: float) -> float:
        replicas = desired(StaticPeak(StaticPeakSettings(latency_headroom=headroom), briefing()), a_detailed(a_state()))
        return replicas[VAD] * 0.125 + replicas[ENCODER] * 1.0 + replicas[ENCODER_GPU] * 2.0

    assert cost(0.8) > cost(0.0)
