"""Learned numbers survive their file, and fill in only what is not declared."""

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import a_placement, a_spec, a_stage

from controller.core.codec import InvalidRecord, Json
from controller.core.state.learned import (
    LearnedPlacement,
    learned_placements,
    placeholders,
    read_learned,
    stages_document,
    with_learned,
)
from controller.core.state.spec import UNDECLARED_SERVICE, Declared, PipelineSpec, PlacementSpec
from optimizer.model import PoolName, ServiceLaw, StageName
from profiler.batch_times import BatchTimes
from profiler.stages import Learned

ASR, GPU, CPU = StageName("asr"), PoolName("gpu"), PoolName("cpu")
MEASURED = LearnedPlacement(
    fixed_s=0.0123, per_item_s=0.0045, cv=0.31, startup_s=41.5, session_slots=64, relative_error=0.07
)
SPARSE = LearnedPlacement(fixed_s=0.0, per_item_s=0.1, cv=0.0, startup_s=None, session_slots=None, relative_error=None)
NOTHING = Declared(service=False, cv=False, startup=False, memory=False)


def bare(pool: str, declared: Declared = NOTHING) -> PlacementSpec:
    placement = a_placement(pool, startup_s=60.0)
    service = placement.prior.service if declared.service else UNDECLARED_SERVICE
    return replace(placement, declared=declared, prior=replace(placement.prior, service=service))


def spec_of(*placements: PlacementSpec) -> PipelineSpec:
    return a_spec(a_stage("vad", a_placement("cpu")), a_stage("asr", *placements, after=["vad"]))


def document_of(spec: PipelineSpec, learned: dict[Any, LearnedPlacement]) -> Json:
    document = {"namespace": spec.namespace, "name": spec.name, "stages": stages_document(spec, learned)}
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def test_what_is_written_is_read_again() -> None:
    spec = spec_of(bare("gpu"), bare("cpu"), a_placement("tpu"))
    learned = {(ASR, GPU): MEASURED, (ASR, CPU): SPARSE}
    assert read_learned(document_of(spec, learned)) == (spec.key, learned)


def test_the_document_has_every_placement_and_null_where_nothing_is_known() -> None:
    document = document_of(spec_of(bare("gpu"), bare("cpu")), {(ASR, GPU): MEASURED})
    assert isinstance(document, dict)
    assert document["stages"] == [
        {"name": "vad", "placements": [{"pool": "cpu", "learned": None}]},
        {
            "name": "asr",
            "placements": [
                {
                    "pool": "gpu",
                    "learned": {
                        "fixed_s": 0.0123,
                        "per_item_s": 0.0045,
                        "cv": 0.31,
                        "startup_s": 41.5,
                        "session_slots": 64,
                        "relative_error": 0.07,
                        "floor_s": 0.0,
                        "points": [],
                        "prefill_s": 0.0,
                    },
                },
                {"pool": "cpu", "learned": None},
            ],
        },
    ]


def test_a_declared_law_is_known_as_far_as_measurements_have_corrected_it() -> None:
    spec = spec_of(a_placement("gpu", service_s=0.05, startup_s=20.0), a_placement("cpu", service_s=0.2))
    known = learned_placements(spec, Learned(service_factors={(ASR, GPU): 2.0}))
    assert known[ASR, GPU] == LearnedPlacement(
        fixed_s=0.1, per_item_s=0.0, cv=1.0, startup_s=20.0, session_slots=None, relative_error=None
    )
    assert known[ASR, CPU].fixed_s == 0.2


@pytest.mark.parametrize("declared", [NOTHING, Declared(cv=False)])
def test_a_placeholder_is_never_passed_off_as_known(declared: Declared) -> None:
    assert (ASR, GPU) not in learned_placements(
        spec_of(bare("gpu", declared)), Learned(service_factors={(ASR, GPU): 1.5})
    )


def test_a_law_that_is_not_declared_is_known_once_it_is_measured() -> None:
    learned = Learned(
        batch_times={(ASR, GPU): BatchTimes(weight=10.0, batch=1.0, time_s=0.04)},
        cvs={(ASR, GPU): 0.5},
        startups_s={(ASR, GPU): 33.0},
    )
    known = learned_placements(spec_of(bare("gpu"), bare("cpu")), learned)
    assert (ASR, CPU) not in known
    measured = known[ASR, GPU]
    assert (measured.fixed_s, measured.cv, measured.startup_s) == (0.04, 0.5, 33.0)
    assert measured.relative_error is not None
    assert measured.relative_error < 1


def test_a_start_up_time_that_is_assumed_is_not_known() -> None:
    known = learned_placements(spec_of(bare("gpu", Declared(startup=False))), Learned())
    assert known[ASR, GPU].startup_s is None


def test_what_is_not_declared_is_filled_in() -> None:
    (filled,) = with_learned(spec_of(bare("gpu")), {(ASR, GPU): MEASURED}).stages[1].placements
    assert filled.prior.service == ServiceLaw(fixed_s=0.0123, per_item_s=0.0045, cv=0.31)
    assert (filled.prior.session_slots, filled.startup_s) == (64, 41.5)
    (sparse,) = with_learned(spec_of(bare("gpu")), {(ASR, GPU): SPARSE}).stages[1].placements
    assert (sparse.prior.session_slots, sparse.startup_s) == (None, 60.0)


def test_what_is_declared_stays() -> None:
    spec = spec_of(a_placement("gpu", startup_s=20.0))
    assert with_learned(spec, {(ASR, GPU): MEASURED}) == spec
    (own_times,) = with_learned(spec_of(bare("gpu", Declared(cv=False))), {(ASR, GPU): MEASURED}).stages[1].placements
    assert (own_times.prior.service.fixed_s, own_times.prior.service.cv) == (0.05, 0.31)


def test_fields_that_are_neither_declared_nor_learned_are_named() -> None:
    spec = spec_of(bare("gpu"), bare("cpu", Declared(cv=False)), a_placement("tpu"))
    at = ("spec", "stages", 1, "placements")
    assert list(placeholders(spec, {})) == [(*at, 0, "serviceTime"), (*at, 1, "serviceTime", "cv")]
    assert list(placeholders(spec, {(ASR, GPU): MEASURED})) == [(*at, 1, "serviceTime", "cv")]


def edited(change: dict[str, Any]) -> Json:
    spec = spec_of(bare("gpu"))
    document: Any = document_of(spec, {(ASR, GPU): MEASURED})
    document["stages"][1]["placements"][0]["learned"].update(change)
    return document  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ([], "document: must be a mapping"),
        ({"name": "captions"}, "namespace"),
        ({"namespace": "speech", "name": "captions"}, "stages"),
        ({"namespace": "speech", "name": "captions", "stages": [3]}, r"stages\[0\]"),
        (edited({"fixed_s": -1.0}), r"stages\[1\]\.placements\[0\]\.learned: fixed_s: -1\.0"),
        (edited({"fixed_s": 0.0, "per_item_s": 0.0}), "a batch of one must take more than 0 s"),
        (edited({"startup_s": -3.0}), "startup_s"),
        (edited({"session_slots": 0}), "session_slots"),
        (edited({"relative_error": "much"}), "relative_error"),
        (edited({"colour": "red"}), "must have exactly the fields"),
    ],
)
def test_a_document_of_another_form_is_refused_with_the_place(document: Json, where: str) -> None:
    with pytest.raises(InvalidRecord, match=where):
        read_learned(document)


def test_learned_slots_are_known_where_memory_is_not_declared() -> None:
    slots = Learned(session_slots={(ASR, GPU): 12})
    assert learned_placements(spec_of(bare("gpu", Declared(memory=False))), slots)[ASR, GPU].session_slots == 12
    assert learned_placements(spec_of(bare("gpu", Declared())), slots)[ASR, GPU].session_slots is None
