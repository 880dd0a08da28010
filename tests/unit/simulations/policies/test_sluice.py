"""Sluice among the policies is `decide`, with the settings it is given."""

from dataclasses import replace

from builders import ENCODER, ENCODER_GPU, VAD, a_state
from rivals import a_detailed

from controller.core.cycle import decide
from controller.core.policy import Policy
from simulations.policies.sluice import Sluice, SluiceSettings


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
