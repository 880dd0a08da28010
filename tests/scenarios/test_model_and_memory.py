"""Cascades, swap and long sessions in the simulator: what pays is used, and what does not fit is planned for."""

from pathlib import Path

import pytest
from small_scenarios import PIPELINE, a_scenario

from simulations.experiment.experiment import run_one
from simulations.policies.catalogue import POLICIES
from simulations.results.results import RunResult

ROOT = Path(__file__).parents[2]
OFTEN = POLICIES["sluice"].settings_of({"interval_s": 5.0})
UNTIL_ASR = PIPELINE[: PIPELINE.index("    - name: asr")]
CASCADE = """\
    - name: asr
      metrics: {window: 10s}
      cascade: {to: gpu, share: "SHARE", confidence: "0.8"}
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-large}
          replicas: {min: 0, max: 10}
          serviceTime: {fixed: 90ms, cv: "0.3"}
          startup: 20s
          wer: "0.07"
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-small}
          replicas: {min: 0, max: 10}
          serviceTime: {fixed: 40ms, cv: "0.3"}
          startup: 10s
          wer: "0.10"
"""


def ready(result: RunResult, placement: str) -> int:
    (own,) = [
        each for each in result.series.pipelines[0].placements if (each.stage, each.placement) == ("asr", placement)
    ]
    return own.ready[-1]


def with_cascade(folder: Path, *, share: float = 0.2, max_wer: str = "0.1") -> RunResult:
    pipeline = UNTIL_ASR.replace("    percentile: 95\n", f'    percentile: 95\n    maxWer: "{max_wer}"\n')
    pipeline += CASCADE.replace("SHARE", str(share))
    return run_one(
        a_scenario(folder, load=((0.0, 60.0),), duration_s=400, pipeline=pipeline, pools=POOLS),
        policy="sluice",
        seed=1,
        settings=OFTEN,
    )


def test_a_cascade_that_pays_is_used_and_one_with_too_many_errors_is_not(tmp_path: Path) -> None:
    """Both models together make 0.8 × 10 % + 0.2 × 7 % = 9.4 % errors."""
    free, strict = with_cascade(tmp_path / "free"), with_cascade(tmp_path / "strict", max_wer="0.09")
    assert ready(free, "cpu") > 0
    assert 0 < ready(free, "gpu") < ready(strict, "gpu")
    assert ready(strict, "cpu") == 0
    assert free.cost < 0.7 * strict.cost
    words = "asr goes from gpu to gpu and cpu (saves $1.50/h at this load, word error rate 7.0%→9.4%, maxWer 10.0%)"
    assert words in (ROOT / "docs" / "how-to" / "variants.md").read_text()
    assert any(words in entry.reason for entry in free.decisions)
    for result in (free, strict):
        assert all(result.series.pipelines[0].met[-10:])


def test_a_cascade_does_not_pay_where_most_items_go_on(tmp_path: Path) -> None:
    result = with_cascade(tmp_path, share=0.95)
    assert ready(result, "cpu") == 0
    assert all(result.series.pipelines[0].met[-10:])


def test_a_cascade_that_the_limit_on_errors_ends_leaves_no_gap_and_no_replicas_that_it_needed(tmp_path: Path) -> None:
    """Its first models go together, once the last one can take all items: any of them would get all."""
    patch = '{SpeechPipeline/speech/captions: {spec: {sla: {maxWer: "0.08"}}}}'
    scenario = a_scenario(
        tmp_path,
        load=((0.0, 60.0),),
        duration_s=500,
        pipeline=UNTIL_ASR + CASCADE.replace("SHARE", "0.2"),
        pools=POOLS,
        faults=f"[{{at: 250s, set: {patch}}}]",
    )
    result = run_one(scenario, policy="sluice", seed=1)
    assert ready(result, "cpu") == 0
    assert 4 <= ready(result, "gpu") <= 6
    met = dict(zip(result.series.t_s, result.series.pipelines[0].met, strict=True))
    assert all(ok for t_s, ok in met.items() if t_s >= 150)
    small = next(
        own.ready for own in result.series.pipelines[0].placements if (own.stage, own.placement) == ("asr", "cpu")
    )
    at = [count for t_s, count in zip(result.series.t_s, small, strict=True) if t_s >= 240]
    assert set(at) == {max(at), 0}, "all of them at once"


SESSIONS = """\
    - name: asr
      metrics: {window: 10s}
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr}
          replicas: {min: 1, max: 20}
          serviceTime: {fixed: 10ms, cv: "0.3"}
          startup: 20s
          memory:
            kvCache:
              layers: 32
              kvHeads: 32
              headDim: 128
              deviceMemory: 80G
              weights: 16G
              TOKENS
            SWAP
"""
POOLS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec: {device: CPU, nodeSelector: {pool: cpu}, price: {perHour: "0.5"}, capacity: {instances: 10}}
---
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: gpu}
spec: {device: GPU, nodeSelector: {pool: gpu}, price: {perHour: "2"}, capacity: {instances: 20}}
"""


def sessions(tokens: str, swap: str = "") -> str:
    pipeline = (UNTIL_ASR + SESSIONS).replace("TOKENS", tokens).replace("            SWAP\n", swap)
    return pipeline.replace("latency: 500ms", "latency: 1s").replace('perHour: "30"', 'perHour: "60"')


def with_sessions(folder: Path, *, tokens: str, swap: str = "") -> RunResult:
    scenario = a_scenario(
        folder,
        load=((0.0, 60.0),),
        duration_s=400,
        streams=True,
        pipeline=sessions(tokens, swap),
        pools=POOLS,
    )
    return run_one(scenario, policy="sluice", seed=1, settings=OFTEN)


def test_swap_raises_the_sessions_of_a_replica_at_the_stated_latency(tmp_path: Path) -> None:
    """A session is 4.19 GB: 12 fit the device, 19 more the disk, and come back in 210 ms at 20 GB/s."""
    swap = '            swap: {bytes: 80G, bandwidth: 20G, hit: "0.97"}\n'
    without = with_sessions(tmp_path / "without", tokens="tokensPerSession: 8000")
    with_disk = with_sessions(tmp_path / "with", tokens="tokensPerSession: 8000", swap=swap)
    assert ready(without, "gpu") >= 60 / 12
    assert ready(with_disk, "gpu") <= 3
    for result in (without, with_disk):
        assert all(result.series.pipelines[0].met[-10:])


GROWTH = """\
growth:
                tokensPerMinute: 6000
                start: 200
                most: 16000
                session: {mean: 90s, cv: "1"}"""


def test_long_sessions_run_out_of_memory_where_their_mean_is_planned_and_not_where_their_growth_is(
    tmp_path: Path,
) -> None:
    """A session gains 6 000 tokens, 3.1 GB, in a minute: most are short, and the long ones fill the memory."""
    out_of_memory = {}
    for ignores in (False, True):
        scenario = a_scenario(
            tmp_path / str(ignores),
            load=((0.0, 60.0),),
            duration_s=900,
            streams=True,
            pipeline=sessions(GROWTH),
            pools=POOLS,
            session="{mean: 90s, cv: 1}",
            properties=f"ignoreGrowth: {str(ignores).lower()}",
        )
        result = run_one(scenario, policy="sluice", seed=1, settings=OFTEN)
        out_of_memory[ignores] = result.out_of_memory
        print(ignores, ready(result, "gpu"), result.sessions_cut, result.cost, result.out_of_memory)
    assert out_of_memory[True] > 10
    assert out_of_memory[False] == 0


DISAGGREGATED = """\
    - name: prefill
      after: []
      metrics: {window: 10s}
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: prefill}
          replicas: {min: 1, max: 20}
          serviceTime: {fixed: 230ms, cv: "0.3"}
          startup: 10s
    - name: decode
      metrics: {window: 10s}
      transfer: {bytesPerItem: 260M, bandwidth: BANDWIDTH, fixed: 1ms}
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: decode}
          replicas: {min: 1, max: 20}
          serviceTime: {fixed: 1800ms, perItem: 25ms, cv: "0.5"}
          batching: {kind: Continuous, max: 32}
          startup: 10s
"""


def disaggregated(folder: Path, *, bandwidth: str) -> tuple[RunResult, int, int]:
    """Return a run of 20 requests/s, and how many servers of prefill and of decode it ends with."""
    pipeline = PIPELINE[: PIPELINE.index("    - name: vad")] + DISAGGREGATED.replace("BANDWIDTH", bandwidth)
    pipeline = pipeline.replace("latency: 500ms", "latency: 9s").replace('perHour: "30"', 'perHour: "60"')
    pools = POOLS.replace("instances: 10", "instances: 20")
    scenario = a_scenario(folder, load=((0.0, 20.0),), duration_s=400, pipeline=pipeline, pools=pools)
    result = run_one(scenario, policy="sluice", seed=1, settings=OFTEN)
    last = {own.stage: own.ready[-1] for own in result.series.pipelines[0].placements}
    return result, last["prefill"], last["decode"]


def test_prefill_and_decode_get_their_ratio_and_a_transfer_that_binds_gets_more_servers(tmp_path: Path) -> None:
    """By work there are 4.6 servers of prefill and 20 × 2.6 s / 32 = 1.6 of decode; at 1 GB/s a cache takes 260 ms."""
    fast, prefill, decode = disaggregated(tmp_path / "fast", bandwidth="10G")
    assert prefill / decode == pytest.approx(4.6 / 1.6, rel=0.35)
    slow, _, by_link = disaggregated(tmp_path / "slow", bandwidth="1G")
    assert by_link >= 20 * 0.26 > decode, "each server of decode takes fewer than four caches in a second"
    for result in (fast, slow):
        assert all(result.series.pipelines[0].met[-10:])


GROUPS = """\
    - name: asr
      metrics: {window: 10s}
      placements:
        - pool: gpu
          target: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: asr}
          replicas: {min: 1, max: 20}
          instancesPerReplica: 3
          serviceTime: {fixed: 60ms, cv: "0.3"}
          startup: 20s
"""


def test_groups_of_pods_take_whole_nodes_and_what_is_left_of_a_pool_holds_no_part_of_one(tmp_path: Path) -> None:
    """Groups on three of 10 nodes: there are never more than three, which serve 50 of the 60 requests/s."""
    pools = POOLS.replace("instances: 20", "instances: 10")
    pipeline = UNTIL_ASR.replace('passRatio: "0.5"', 'passRatio: "1"') + GROUPS
    scenario = a_scenario(tmp_path, load=((0.0, 60.0),), duration_s=300, pipeline=pipeline, pools=pools)
    result = run_one(scenario, policy="sluice", seed=1, settings=OFTEN)
    counts = next(own.ready for own in result.series.pipelines[0].placements if own.stage == "asr")
    assert max(counts) == counts[-1] == 3
    vad = next(own.ready[-1] for own in result.series.pipelines[0].placements if own.stage == "vad")
    assert result.series.pipelines[0].spend_per_hour[-1] == pytest.approx(3 * 3 * 2.0 + vad * 0.25)
    assert result.shed > 0, "what three groups cannot serve is shed"
    last = [p95_s for p95_s in result.series.pipelines[0].p95_s[-5:] if p95_s is not None]
    assert max(last) < 0.5
