"""The recorded replicas as a policy, in a real run."""

from pathlib import Path

from small_scenarios import a_scenario

from simulations.experiment.experiment import run_one
from simulations.policies.recorded import RECORDED, RecordedSettings


def test_the_run_has_the_recorded_replicas_at_their_times(tmp_path: Path) -> None:
    counts = {("speech/captions", "vad", "cpu"): (2, 2, 4, 4), ("speech/captions", "asr", "gpu"): (1, 1, 1, 99)}
    settings = RecordedSettings(step_s=30.0, counts=counts)  # type: ignore[arg-type]
    result = run_one(a_scenario(tmp_path), policy=RECORDED, seed=1, settings=settings)
    (series,) = result.series.pipelines
    desired = {(one.stage, one.placement): one.desired for one in series.placements}
    assert (desired["vad", "cpu"][0], desired["vad", "cpu"][-1]) == (2, 4)
    assert desired["asr", "gpu"][0] == 1
    assert desired["asr", "gpu"][-1] == 10  # replicas.max
