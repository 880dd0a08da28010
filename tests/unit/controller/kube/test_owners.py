"""A workload that several pipelines name has one owner, and keeps it."""

from dataclasses import replace

from builders import a_placement, a_spec, a_stage

from controller.core.state.spec import Mode, PipelineSpec, Target
from controller.kube.owners import Seniority, find_owners

TARGET = Target(api_version="apps/v1", kind="Deployment", name="asr-cpu")


def a_pipeline(name: str, mode: Mode = Mode.AUTO) -> PipelineSpec:
    return a_spec(a_stage("asr", a_placement("cpu")), name=name, mode=mode)


def owner(*specs: PipelineSpec, **seniority: Seniority) -> str:
    found = find_owners(specs, lambda spec: seniority.get(spec.name, Seniority(created="2026-01-02T00:00:00Z")))
    assert set(found) == {("speech", TARGET)}
    return found["speech", TARGET].name


def test_a_pipeline_that_does_not_act_owns_nothing_that_an_acting_one_names() -> None:
    old = Seniority(owned=frozenset({TARGET}), created="2020-01-01T00:00:00Z")
    for mode in (Mode.RECOMMEND, Mode.PAUSED):
        assert owner(a_pipeline("a", mode), a_pipeline("b"), a=old) == "b"
        assert owner(a_pipeline("a", mode)) == "a"


def test_of_acting_pipelines_the_one_that_owned_the_workload_keeps_it() -> None:
    assert owner(a_pipeline("a"), a_pipeline("b"), b=Seniority(owned=frozenset({TARGET}))) == "b"
    elsewhere = Target(api_version="apps/v1", kind="StatefulSet", name="asr-cpu")
    held = {"a": Seniority(owned=frozenset({TARGET})), "b": Seniority(owned=frozenset({elsewhere}))}
    assert owner(a_pipeline("b"), a_pipeline("a"), **held) == "a"


def test_if_none_owned_it_the_older_resource_does_and_of_equals_the_first_by_uid() -> None:
    older = Seniority(created="2026-01-01T00:00:00Z")
    assert owner(a_pipeline("a"), a_pipeline("b"), b=older) == "b"
    assert owner(a_pipeline("b"), a_pipeline("a")) == "a"


def test_workloads_of_one_name_in_two_namespaces_are_two() -> None:
    other = replace(a_pipeline("b"), namespace="elsewhere")
    found = find_owners([a_pipeline("a"), other], lambda _: Seniority())
    assert {namespace: spec.name for (namespace, _), spec in found.items()} == {"speech": "a", "elsewhere": "b"}
