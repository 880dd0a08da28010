"""Variants of a model in the simulator: the cheaper one takes over without a gap, and only where maxWer allows it."""

from pathlib import Path

from small_scenarios import PIPELINE, a_scenario

from simulations.experiment.experiment import run_one
from simulations.policies.catalogue import POLICIES
from simulations.results.results import RunResult

OFTEN = POLICIES["sluice"].settings_of({"interval_s": 5.0})
VARIANTS = """\
        - pool: gpu
          replicas: {min: 0, max: 10}
          startup: 20s
          variants:
            - name: fp16
              target: {apiVersion: apps/v1, kind: Deployment, name: asr-fp16}
              serviceTime: {fixed: 40ms, cv: "0.3"}
              wer: "0.078"
            - name: int8
              target: {apiVersion: apps/v1, kind: Deployment, name: asr-int8}
              serviceTime: {fixed: 15ms, cv: "0.3"}
              wer: "0.081"
"""


WITH_VARIANTS = PIPELINE[: PIPELINE.index("        - pool: gpu")] + VARIANTS


def run(folder: Path, *, max_wer: str) -> RunResult:
    pipeline = WITH_VARIANTS.replace("    percentile: 95\n", f'    percentile: 95\n    maxWer: "{max_wer}"\n')
    scenario = a_scenario(folder, load=((0.0, 80.0),), duration_s=400, pipeline=pipeline)
    return run_one(scenario, policy="sluice", seed=1, settings=OFTEN)


def ready(result: RunResult, placement: str) -> int:
    (own,) = [each for each in result.series.pipelines[0].placements if each.placement == placement]
    return own.ready[-1]


def test_a_variant_that_pays_is_used_and_one_with_too_many_errors_is_not(tmp_path: Path) -> None:
    free, strict = run(tmp_path / "free", max_wer="0.09"), run(tmp_path / "strict", max_wer="0.08")
    assert ready(free, "gpu:int8") > 0
    assert ready(free, "gpu:fp16") == 0
    assert ready(strict, "gpu:int8") == 0
    assert ready(strict, "gpu:fp16") > 0
    assert free.cost < 0.8 * strict.cost
    for result in (free, strict):
        assert all(result.series.pipelines[0].met[-10:])


def test_a_limit_on_errors_that_is_set_during_the_run_moves_the_load_without_a_gap(tmp_path: Path) -> None:
    patch = '{SpeechPipeline/speech/captions: {spec: {sla: {maxWer: "0.08"}}}}'
    scenario = a_scenario(
        tmp_path, load=((0.0, 80.0),), duration_s=500, pipeline=WITH_VARIANTS, faults=f"[{{at: 250s, set: {patch}}}]"
    )
    result = run_one(scenario, policy="sluice", seed=1, settings=OFTEN)
    assert ready(result, "gpu:int8") == 0
    assert ready(result, "gpu:fp16") > 0
    met = dict(zip(result.series.t_s, result.series.pipelines[0].met, strict=True))
    assert all(ok for t_s, ok in met.items() if t_s >= 150), "the replicas of before serve until the new ones are ready"
    reasons = [entry.reason for entry in result.decisions if "asr goes from gpu:int8 to gpu:fp16" in entry.reason]
    assert reasons
    assert all("word error rate 8.1%→7.8%, maxWer 8.0%" in reason for reason in reasons)
