"""The allocation for the peak of a load."""

from dataclasses import replace

import numpy as np
import pytest
from builders import a_placement, a_pool, a_spec, a_stage

from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.model import PipelineKey, PoolName
from simulations.policies.peak_load import peak_demand, peak_instances
from simulations.scenario.schedule import Schedule

CAPTIONS = PipelineKey("speech/captions")
CPU = PoolName("cpu")


def requests(*spans: tuple[float, float, float]) -> Schedule:
    """Requests evenly at (rate, from, until)."""
    start_s = np.concatenate([np.arange(from_s, until_s, 1 / rate) for rate, from_s, until_s in spans])
    return Schedule(start_s=start_s, end_s=start_s)


def streams(count: int, from_s: float, until_s: float) -> Schedule:
    return Schedule(start_s=np.full(count, from_s), end_s=np.full(count, until_s))


def a_pipeline(*, budget: float = 100.0, per_instance: int = 1) -> PipelineSpec:
    return a_spec(a_stage("asr", a_placement("cpu", service_s=0.05, per_instance=per_instance)), budget=budget)


def test_the_peak_is_the_highest_mean_of_twenty_seconds() -> None:
    burst = requests((2.0, 0.0, 60.0), (40.0, 30.0, 40.0))
    assert peak_demand(burst, a_pipeline(), 60.0) == pytest.approx(2 + 40 * 10 / 20)


def test_the_peak_of_streams_is_a_number_of_streams_at_once() -> None:
    spec = replace(a_pipeline(), unit=DemandUnit.STREAMS, chunk_s=0.5)
    assert peak_demand(streams(7, 10.0, 50.0), spec, 60.0) == pytest.approx(7)
    assert peak_demand(streams(8, 10.0, 20.0), spec, 60.0) == pytest.approx(4)


def test_a_run_shorter_than_the_window_is_its_own_mean() -> None:
    assert peak_demand(requests((3.0, 0.0, 10.0)), a_pipeline(), 10.0) == pytest.approx(3.0)


def test_the_peak_is_served_whatever_the_budget() -> None:
    pool = a_pool("cpu").spec
    loads = {CAPTIONS: requests((1.0, 0.0, 60.0), (90.0, 20.0, 50.0))}

    instances = peak_instances((a_pipeline(budget=0.01),), (pool,), loads, 60.0)

    assert instances is not None
    assert 5 <= instances[CPU] <= 20, "91 requests/s of 50 ms"


def test_replicas_that_share_an_instance_take_a_share_of_it() -> None:
    pool = a_pool("cpu").spec
    loads = {CAPTIONS: requests((90.0, 0.0, 60.0))}
    whole = peak_instances((a_pipeline(),), (pool,), loads, 60.0)
    shared = peak_instances((a_pipeline(per_instance=4),), (pool,), loads, 60.0)

    assert whole is not None
    assert shared == {CPU: whole[CPU] / 4}


def test_a_peak_that_the_pools_cannot_serve_has_no_allocation() -> None:
    pool = replace(a_pool("cpu").spec, instances=2)
    assert peak_instances((a_pipeline(),), (pool,), {CAPTIONS: requests((90.0, 0.0, 60.0))}, 60.0) is None


def test_without_any_load_the_least_is_enough() -> None:
    nothing = Schedule(start_s=np.empty(0), end_s=np.empty(0))
    assert peak_instances((a_pipeline(),), (a_pool("cpu").spec,), {CAPTIONS: nothing}, 60.0) == {CPU: 1.0}
