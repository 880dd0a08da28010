"""Where the warm-up has run, a simulation compiles nothing."""

import os
import subprocess
import sys
from pathlib import Path

PROBE = """
from numba.core import event

compiled = []


class Listener(event.Listener):
    def on_start(self, said):
        compiled.append(said.data["dispatcher"].py_func.__qualname__)

    def on_end(self, said):
        pass


event.register("numba:compile", Listener())
from engine_specs import a_pipeline, a_placement, a_stage, an_engine, poisson, streams

for chunk_s, schedule in ((None, poisson(50.0, 9.0)), (0.1, streams(20, 9.0, mean_s=2.0))):
    two = a_placement(cv=0.5, session_slots=40), a_placement("gpu", batch_sizes=(4,), batch_wait_s=0.01)
    pipeline = a_pipeline(a_stage("asr", *two), a_stage("lm", after=("asr",)), chunk_s=chunk_s)
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 2, ("asr", "gpu"): 2, ("lm", "cpu"): 1}, duration_s=9.0)
    engine.advance(3.0)
    engine.drain_replica(0, 5.0)
    engine.kill_replica(1)
    engine.advance(9.0)
    assert engine.ended()
    assert engine.tally().score().served
print(sorted(set(compiled)))
"""
SUPPORT = Path(__file__).parents[2] / "support"


def test_after_the_warm_up_nothing_is_left_to_compile() -> None:
    subprocess.run([sys.executable, "-m", "simulations.warm_up"], check=True)
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
