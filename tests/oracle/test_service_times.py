"""Service times as they are read off a server that adds up durations per item, against one whose law is known."""

import pytest
from engine_specs import a_pipeline, a_placement, a_stage, an_engine, poisson

from optimizer.model import Placement, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.estimate import estimate_pipeline
from profiler.samples import PlacementSamples, Quantity
from profiler.stages import Learned, PipelineInput, PlacementInput, StageInput

DURATION_S = 400.0
LAWS = {
    "even services": (0.008, 0.001, 0.15, 16, 0.01),
    "uneven services": (0.012, 0.0015, 0.4, 16, 0.01),
    "long batches": (0.022, 0.005, 0.4, 8, 0.01),
    "no waiting for more": (0.012, 0.0015, 0.4, 16, 0.0),
    "growing with the batch": (0.014, 0.003, 0.15, 8, 0.0),
}


def measured_factor(law: tuple[float, float, float, int, float], load: float, slower: float) -> float:
    """Return measured over prior service time of one replica that serves `slower` than said, as Triton tells it.

    `load` is a share of what it carries.
    """
    fixed_s, per_item_s, cv, limit, wait_s = law
    rate_rps = load * limit / (fixed_s + limit * per_item_s) / slower
    placement = a_placement(
        fixed_s=fixed_s * slower, per_item_s=per_item_s * slower, cv=cv, batch_sizes=(limit,), batch_wait_s=wait_s
    )
    engine = an_engine(
        a_pipeline(a_stage("asr", placement)),
        poisson(rate_rps, DURATION_S),
        {("asr", "cpu"): 1},
        duration_s=DURATION_S,
    )
    engine.advance(DURATION_S)
    counters = engine.counters()
    items, batches = float(counters.completed[0]), float(counters.batches[0])
    samples = PlacementSamples(
        readings={
            Quantity.COMPLETION_RATE: items / DURATION_S,
            Quantity.SERVICE_TIME: float(counters.service_s[0]) / items,
            Quantity.BATCH_SIZE: items / batches,
            Quantity.SERVED_BATCH: items / batches + 1 - batches / items,
        }
    )
    stage = StageInput(
        name=StageName("asr"),
        after=(),
        pass_ratio=1.0,
        routing=Routing.LEAST_LOADED,
        window_s=DURATION_S,
        placements=(
            PlacementInput(
                prior=Placement(
                    pool=PoolName("cpu"),
                    service=ServiceLaw(fixed_s=fixed_s, per_item_s=per_item_s, cv=cv),
                    batch_sizes=(limit,),
                ),
                replicas=1,
                batch=limit,
                samples=samples,
            ),
        ),
    )
    pipeline = PipelineInput(stages=(stage,), sla=Sla(latency_s=0.25), latency_s=None, demand=None)
    profile = estimate_pipeline(pipeline, Learned(), interval_s=15.0)
    factor = profile.stages[0].placements[0].measured_factor
    assert factor is not None
    return factor


@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_server_that_keeps_its_law_is_read_as_such(law: tuple[float, float, float, int, float], load: float) -> None:
    assert measured_factor(law, load, slower=1.0) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_slower_server_is_read_as_that_much_slower(law: tuple[float, float, float, int, float]) -> None:
    assert measured_factor(law, 0.6, slower=1.3) == pytest.approx(1.3, rel=0.05)
