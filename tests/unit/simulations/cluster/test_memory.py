"""Replicas that run out of memory in the simulator, by the ages of their sessions."""

from pathlib import Path

from small_scenarios import PIPELINE, a_scenario

from controller.core.cycle import decide
from controller.core.state.policy import Policy
from controller.core.state.snapshot import TargetMissing
from controller.resources.translate import pipeline_spec
from optimizer.model import PoolName, StageName
from simulations.cluster.memory import by_mean_tokens, grows
from simulations.cluster.simulated import SimulatedCluster
from simulations.scenario.scenario import Scenario

MEMORY = """\
          memory:
            kvCache:
              layers: 32
              kvHeads: 32
              headDim: 128
              deviceMemory: 80G
              weights: 16G
              growth: {tokensPerMinute: 60000, session: {mean: 30s, cv: "0"}}
"""


def growing(folder: Path, *, streams: float) -> Scenario:
    """Sessions that gain 1 000 tokens, 0.52 GB, in a second, longer than declared; 54.5 GB hold 104 000."""
    only_gpu = PIPELINE[: PIPELINE.rindex("        - pool: cpu")]
    return a_scenario(folder, load=((0.0, streams),), duration_s=200, streams=True, pipeline=only_gpu + MEMORY)


def test_the_mean_of_the_tokens_promises_more_sessions_than_fit_while_they_grow(tmp_path: Path) -> None:
    spec = pipeline_spec(growing(tmp_path, streams=1).pipelines[0])
    assert grows(spec)
    (declared,) = spec.stages[1].placements
    (by_mean,) = by_mean_tokens(spec).stages[1].placements
    assert by_mean.prior.session_slots is not None
    assert declared.prior.session_slots is not None
    assert by_mean.prior.session_slots >= declared.prior.session_slots
    plain = pipeline_spec(a_scenario(tmp_path / "plain").pipelines[0])
    assert not grows(plain)
    assert by_mean_tokens(plain) is plain


def test_a_replica_whose_sessions_outgrow_it_is_ended_says_why_and_starts_again(tmp_path: Path) -> None:
    """One session holds 104 000 tokens after 104 s: before it ends, its replica does."""
    cluster = SimulatedCluster(growing(tmp_path, streams=1), seed=1, interval_s=5.0)
    key = (StageName("asr"), PoolName("gpu"))
    cluster.advance(103.0)
    assert cluster.out_of_memory == 0
    cluster.advance(108.0)
    assert cluster.out_of_memory == 1
    assert cluster.sessions_cut == 1
    (state,) = cluster.snapshot().pipelines
    target = state.target(*key)
    assert not isinstance(target, TargetMissing)
    assert (target.ready, target.existing) == (0, 1)
    (starting,) = target.starting
    assert starting.out_of_memory_s is not None
    assert 103 <= starting.out_of_memory_s <= 108
    cluster.advance(135.0)
    (state,) = cluster.snapshot().pipelines
    again = state.target(*key)
    assert not isinstance(again, TargetMissing)
    assert again.ready == 1, "it starts again in its place"
    decision = decide(cluster.snapshot(), Policy())
    assert decision.pipelines[0].out_of_memory
