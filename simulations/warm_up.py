"""Compile the engine and the counts of the bound, so that no simulation waits: `python -m simulations.warm_up`.

Run it during installation, like `optimizer.warm_up`.
"""

from dataclasses import replace

import numpy as np

from controller.core.state.spec import DemandUnit
from optimizer.model import Placement, PoolName, ServiceLaw
from simulations.bound.arrivals import count_arrivals
from simulations.engine.pipeline_engine import PipelineEngine
from simulations.engine.self_checks import alone
from simulations.results.scoring import Clock
from simulations.scenario.schedule import Schedule


def warm_up() -> None:
    """Call all compiled functions: simulate a few streams, add, empty, drain and kill replicas, and count arrivals."""
    placement = Placement(pool=PoolName("pool"), service=ServiceLaw(fixed_s=0.01), max_replicas=3)
    pipeline = replace(alone(placement), unit=DemandUnit.STREAMS, chunk_s=0.1)
    schedule = Schedule(start_s=np.zeros(3), end_s=np.full(3, 9.0))
    engine = PipelineEngine(
        pipeline,
        schedule,
        clock=Clock(duration_s=9.0, warmup_s=0.0, window_s=pipeline.sla.latency_s),
        seed=1,
    )
    (key,) = pipeline.placement_keys()
    _, drained, killed = (engine.add_replica(key) for _ in range(3))
    engine.advance(1.0)
    engine.hand_over(drained, 0)
    engine.drain_replica(drained, 2.0)
    engine.kill_replica(killed)
    engine.advance(9.0)
    engine.ended()
    engine.tally().score()
    count_arrivals(pipeline, schedule, np.arange(9.0), seed=1, duration_s=9.0)


if __name__ == "__main__":
    warm_up()
