"""What the operator evaluates itself against Prometheus' own evaluation of the same samples: every query of every
preset, and users' queries of the supported part of PromQL."""

import itertools
import math
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Answer, PlacementTarget
from profiler.sources.base import ReadRequest
from profiler.sources.history import TargetHistory
from profiler.sources.presets import LoadedPresets, load_presets
from profiler.sources.promql_evaluation import Evaluation
from profiler.sources.promql_syntax import UnsupportedQuery, metric_names, parse
from profiler.sources.queries import query_plan
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

PODS = ("steady-1", "restarted-2")
END_S = 100
INSTANTS_S = (70.5, 95.25)
WINDOWS_S = (5.0, 20.0, 60.0)
MICRO = 1_000_000
USERS = (
    'sum(nv_inference_count{pod=~"steady.*"})',
    "max(vllm:num_requests_running) - min(vllm:num_requests_running)",
    "sum by (pod) (increase(speech_stage_items_total[30s]))",
    "sum(rate(speech_stage_items_total[30s])) / sum(rate(speech_stage_batches_total[30s]))",
    "histogram_quantile(0.95, sum by (le) (rate(speech_stage_latency_seconds_bucket[30s])))",
    "sum(rate(speech_stage_latency_seconds_bucket[30s])) by (le)",
    "max_over_time(vllm:num_requests_waiting[30s]) + min_over_time(vllm:num_requests_waiting[30s])",
    "sum_over_time(vllm:num_requests_waiting[30s]) ^ 0.5 * -2 + 3",
    "avg(vllm:num_requests_waiting > 3) or count(vllm:num_requests_waiting)",
    '(vllm:num_requests_waiting{pod!="steady-1", namespace!~"other|else"} + 1) / 0',
    "clamp_max(vllm:num_requests_waiting, 2) == bool 2",
    "avg_over_time(sum(rate(speech_stage_items_total[10s]))[40s:5s])",
)


PROMETHEUS_ONLY = {"ray-serve"}
"""Their replicas are no pods, so no pod that the operator reads has their metrics; they join series by `on`."""


def queries(presets: Collection[str] = load_presets().keys() - PROMETHEUS_ONLY) -> Iterator[str]:
    for preset in (load_presets()[name] for name in sorted(presets)):
        targets = tuple(
            PlacementTarget(
                pipeline=PipelineKey("speech/captions"),
                stage=StageName(f"{answer.value}-{window_s}"),
                placement=PoolName("cpu"),
                namespace="speech",
                pods=frozenset({"steady-1"}),
                preset=preset.name,
                window_s=window_s,
                concurrency=1,
                batch_limit=1,
                overrides={},
                answer=answer,
            )
            for answer in Answer
            for window_s in WINDOWS_S
        )
        request = ReadRequest(placements=targets, scalars={}, deadline_s=1.0)
        plan = query_plan(request, LoadedPresets(usable=load_presets()))
        yield from sorted(plan.pod_queries())
    yield from USERS


def samples() -> Mapping[tuple[str, str, tuple[tuple[str, str], ...]], list[float]]:
    """A value each second by metric, pod and further labels; the second pod's counters begin again halfway."""
    rng = np.random.default_rng(11)
    found: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = {}
    names = sorted({name for query in queries() for name in metric_names(query)})
    for name, pod in itertools.product(names, PODS):
        for model in models(name):
            if name.endswith("_bucket"):
                steps = rng.poisson(4.0, (END_S, 4))
                steps[:, 0] = 0
                for bound, column in zip(("0.05", "0.1", "0.4", "+Inf"), np.cumsum(steps, axis=1).T, strict=True):
                    found[name, pod, (*model, ("le", bound))] = counted(column, pod)
            elif name.endswith(("_total", "_sum", "_count", "_us", "_success", "_failure")) and "pending" not in name:
                further = (("quantile", "0.95"),) if "summary" in name else ()
                found[name, pod, (*model, *further)] = counted(rng.poisson(7.0, END_S), pod)
            else:
                found[name, pod, model] = rng.integers(0, 9, END_S).astype(float).tolist()
    return found


def models(metric: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The labels of the models that a pod reports in `metric`: two of Triton's, one of vLLM's."""
    if metric.startswith("nv_"):
        return ((("model", "asr"),), (("model", "tokenizer"),))
    return ((("model_name", "lm"),),) if metric.startswith("vllm:") else ((),)


def counted(steps: NDArray[np.int64], pod: str) -> list[float]:
    totals = np.cumsum(steps).astype(float)
    if pod.startswith("restarted"):
        totals[END_S // 2 + 20 :] -= totals[END_S // 2 + 20]
    return list(map(float, totals))


def document(off_by: float = 1.0) -> str:
    """What promtool is to evaluate, and what the operator makes of the same samples."""
    found = samples()
    targets = {pod: TargetHistory({"namespace": "speech", "pod": pod}) for pod in PODS}
    tests = []
    for now_s in INSTANTS_S:
        for target in targets.values():
            begun = target.scraped_s
            for at_s in range(0 if begun is None else int(begun) + 1, int(now_s) + 1):
                shown = [
                    (name, dict(further), values[at_s])
                    for (name, pod, further), values in found.items()
                    if targets[pod] is target
                ]
                target.record(float(at_s), shown, keep_s=float(END_S))
        evaluation = Evaluation(list(targets.values()), at_s=now_s, lookback_s=300.0)
        for query in queries():
            expected = [
                {"labels": labels(series["metric"]), "value": micro(series["value"][1] * off_by)}
                for series in evaluation.result(parse(query))
            ]
            tests.append(
                {
                    # Compared as whole millionths: the last digits of a float depend on the order of sums.
                    "expr": f"round({MICRO} * ({query}))",
                    "eval_time": f"{round(now_s * 1000)}ms",
                    "exp_samples": expected,
                }
            )
    series = [
        {
            "series": name + labels({"namespace": "speech", "pod": pod, **dict(further)}),
            "values": " ".join(map(str, own)),
        }
        for (name, pod, further), own in found.items()
    ]
    return yaml.safe_dump(
        {
            "evaluation_interval": "1s",
            "tests": [{"interval": "1s", "input_series": series, "promql_expr_test": tests}],
        }
    )


def labels(own: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in own.items()) + "}"


def micro(value: float) -> float:
    return math.floor(value * MICRO + 0.5) if math.isfinite(value) else value


def judged(binaries: Binaries, folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    path = folder / "queries.yaml"
    path.write_text(text)
    return subprocess.run(
        [binaries.promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=120
    )


def test_prometheus_gives_what_the_operator_gives_for_the_same_samples(binaries: Binaries, tmp_path: Path) -> None:
    result = judged(binaries, tmp_path, document())
    assert result.returncode == 0, result.stdout + result.stderr
    assert judged(binaries, tmp_path, document(off_by=1.0001)).returncode != 0, "it would have told a difference"


@pytest.mark.parametrize("name", sorted(PROMETHEUS_ONLY))
def test_a_preset_that_needs_prometheus_says_so(name: str) -> None:
    refused = []
    for query in queries({name}):
        try:
            parse(query)
        except UnsupportedQuery as error:
            refused.append(str(error))
    assert refused
    assert all("cannot be evaluated without Prometheus" in text for text in refused)
