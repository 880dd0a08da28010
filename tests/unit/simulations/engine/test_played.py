"""The pipeline that the kernel plays: with stages for links and for the first models of cascades."""

from dataclasses import replace

import engine_specs as specs
import pytest

from controller.core.state.spec import CascadeSpec
from optimizer.model import Link, PoolName, StageName
from simulations.engine.played import played

SMALL, LARGE = specs.a_placement("cpu", fixed_s=0.02), specs.a_placement("gpu", fixed_s=0.08)
CASCADE = CascadeSpec(to=PoolName("gpu"), share=0.2, declared_share=0.2)


def test_a_pipeline_without_either_is_played_as_it_is() -> None:
    pipeline = specs.a_pipeline(specs.a_stage("asr", SMALL, LARGE))
    assert played(pipeline).pipeline is pipeline


def test_the_first_models_of_a_cascade_are_a_stage_in_front_of_its_last_one() -> None:
    asr = replace(specs.a_stage("asr", SMALL, LARGE, pass_ratio=0.5), cascade=CASCADE)
    found = played(specs.a_pipeline(asr, specs.a_stage("lm", specs.a_placement("lm"), after=["asr"])))
    first, last, lm = found.pipeline.stages
    assert ([own.name for own in first.placements], [own.name for own in last.placements]) == (["cpu"], ["gpu"])
    assert (first.pass_ratio, last.pass_ratio) == (1.0, 0.5), "what the stage drops it drops at its end"
    assert (last.after, lm.after) == ((first.name,), ("asr",))
    assert found.own[StageName("asr"), PoolName("cpu")] == (first.name, "cpu")
    assert found.own[StageName("asr"), PoolName("gpu")] == ("asr", "gpu")


def test_links_are_a_stage_in_front_of_the_replicas_that_only_their_share_takes() -> None:
    own = specs.a_placement("gpu", fixed_s=0.08, link=Link(item_s=0.2, share=0.1))
    found = played(specs.a_pipeline(specs.a_stage("asr", own)))
    way, asr = found.pipeline.stages
    assert way.placements[0].prior.service.fixed_s == pytest.approx(0.2)
    assert asr.after == (way.name,)
    assert found.takes == {way.name: 0.1}
    assert found.links == {("asr", "gpu"): (way.name, "gpu")}


def test_both_tiers_of_a_cascade_have_links_of_their_own() -> None:
    link = Link(item_s=0.05)
    asr = replace(specs.a_stage("asr", replace(SMALL, link=link), replace(LARGE, link=link)), cascade=CASCADE)
    found = played(specs.a_pipeline(asr))
    assert [stage.name for stage in found.pipeline.stages] == ["asr first link", "asr first", "asr link", "asr"]
