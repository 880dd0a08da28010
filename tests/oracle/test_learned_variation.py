"""The coefficient of variation that is fitted to a latency, against simulated queues whose variation is known."""

import numpy as np
import pytest
from event_simulation import arrivals, simulate

from optimizer.model import Demand, Placement, PlacementKey, PoolName, Routing, ServiceLaw, Sla, StageName, pool_of
from profiler.profile import profile_pipeline
from profiler.samples import PlacementSamples, Quantity
from profiler.stages import Learned, PipelineInput, PlacementInput, StageInput

ITEMS = 100_000
KEY: PlacementKey = (StageName("asr"), PoolName("gpu"))
MEAN_S = 0.05
REPLICAS = 3
PLACEHOLDER = 0.3


def fitted_cv(cv: float, load: float, *, batch: int = 1, law_declared: bool = True) -> float:
    """Return the variation that is learned of replicas with the variation `cv` at `load`, a share of their capacity."""
    true = ServiceLaw(fixed_s=MEAN_S, per_item_s=0.0 if batch == 1 else 0.005, cv=cv)
    rate_rps = load * REPLICAS * batch / true.mean_s(batch)
    spent_s = simulate(
        arrivals(rate_rps, 1.0, ITEMS, seed=7),
        replicas=REPLICAS,
        batch=batch,
        fixed_s=true.fixed_s,
        per_item_s=true.per_item_s,
        cv=cv,
        routing=Routing.LEAST_LOADED,
        seed=7,
    )[ITEMS // 10 :]
    samples = PlacementSamples(
        readings={
            Quantity.ARRIVAL_RATE: rate_rps,
            Quantity.COMPLETION_RATE: rate_rps,
            Quantity.UTILIZATION: load,
            Quantity.LATENCY_MEAN: float(spent_s.mean()),
            Quantity.LATENCY_P95: float(np.percentile(spent_s, 95)),
            **({Quantity.SERVICE_TIME: MEAN_S} if batch == 1 else {}),
        }
    )
    stage = StageInput(
        name=KEY[0],
        after=(),
        pass_ratio=1.0,
        routing=Routing.LEAST_LOADED,
        window_s=60.0,
        placements=(
            PlacementInput(
                prior=Placement(
                    pool=pool_of(KEY[1]),
                    service=ServiceLaw(fixed_s=true.fixed_s, per_item_s=true.per_item_s, cv=PLACEHOLDER),
                    batch_sizes=(batch,),
                ),
                replicas=REPLICAS,
                batch=batch,
                samples=samples,
                law_declared=law_declared,
                cv_declared=False,
            ),
        ),
    )
    pipeline = PipelineInput(
        stages=(stage,), sla=Sla(latency_s=1.0), latency_s=None, demand=Demand(entry_rate_rps=rate_rps)
    )
    learned = Learned()
    for cycle in range(100):
        profile, learned = profile_pipeline(pipeline, learned, now_s=15.0 * cycle, interval_s=15.0)
    assert profile.stages[0].latency_factor == pytest.approx(1.0, abs=0.05), "the variation explains all of it"
    return learned.cvs[KEY]


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 1.5])
def test_the_variation_of_single_services_is_found(cv: float, load: float) -> None:
    assert fitted_cv(cv, load) == pytest.approx(cv, abs=0.15)


@pytest.mark.parametrize("cv", [0.2, 0.6, 1.0])
def test_the_variation_of_batches_is_found(cv: float) -> None:
    assert fitted_cv(cv, 0.5, batch=8) == pytest.approx(cv, abs=0.15)


def test_it_is_found_with_a_service_time_that_is_learned_too() -> None:
    assert fitted_cv(0.8, 0.6, law_declared=False) == pytest.approx(0.8, abs=0.15)
