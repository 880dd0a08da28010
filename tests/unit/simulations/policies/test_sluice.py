"""Sluice among the policies is `decide`, with the settings it is given."""

from dataclasses import replace

import numpy as np
import pytest
from baselines import a_detailed
from builders import ENCODER, ENCODER_GPU, VAD, a_state

from controller.core.cycle import decide
from controller.core.state.policy import Policy
from simulations.policies.autoscaler import Briefing
from simulations.policies.sluice import Foresight, Sluice, SluiceSettings, sluice
from simulations.scenario.schedule import Schedule


def test_it_is_the_function_that_runs_in_the_cluster() -> None:
    world = a_detailed(a_state(demand=60.0, replicas={VAD: 1, ENCODER: 2, ENCODER_GPU: 0}))
    mine, theirs = Sluice(SluiceSettings())(world, Policy()), decide(world, Policy())
    assert [own.desired for own in mine.pipelines] == [own.desired for own in theirs.pipelines]
    assert [own.memory for own in mine.pipelines] == [own.memory for own in theirs.pipelines]


def test_its_settings_are_those_of_the_policy() -> None:
    world = a_detailed(a_state(demand=60.0))
    settings = SluiceSettings(interval_s=5.0, latency_headroom=0.3, switching_cost_per_hour=0.2)
    decision = Sluice(settings)(world, Policy(budget_per_hour=50.0))
    expected = replace(
        Policy(),
        interval_s=5.0,
        latency_headroom=0.3,
        switching_cost_per_hour=0.2,
        budget_per_hour=50.0,
        advice=False,
    )
    assert decision.policy == expected


def test_the_defaults_are_the_operators() -> None:
    settings = SluiceSettings()
    assert (settings.interval_s, settings.latency_headroom) == (Policy().interval_s, Policy().latency_headroom)


class TestForesight:
    """Ten requests per second, and fifty from second 100 to 110; what is decided now serves after 15 s."""

    def planned_for(self, now_s: float, *, beyond_s: float = 0.0) -> float | None:
        state = a_state(demand=3.0)
        rates = ((10.0, 0.0, 200.0), (40.0, 100.0, 110.0))
        start_s = np.sort(np.concatenate([np.arange(since, until, 1 / rate) for rate, since, until in rates]))
        briefing = Briefing(
            pipelines=(state.spec,),
            pools=(),
            changes=(),
            loads={state.spec.key: Schedule(start_s=start_s, end_s=start_s)},
            duration_s=200.0,
        )
        world = replace(a_detailed(state), now_s=now_s)
        (pipeline,) = sluice(Foresight(beyond_s=beyond_s), briefing)(world, Policy()).pipelines
        return pipeline.demand.planned

    def test_it_is_told_what_comes_before_what_is_decided_serves(self) -> None:
        assert self.planned_for(50.0) == pytest.approx(10.0)
        assert self.planned_for(90.0) == pytest.approx(50.0)

    def test_and_beyond_if_it_may_look_farther(self) -> None:
        assert self.planned_for(30.0, beyond_s=60.0) == pytest.approx(50.0)

    def test_it_keeps_nothing_for_what_is_over(self) -> None:
        assert self.planned_for(120.0) == pytest.approx(10.0)
