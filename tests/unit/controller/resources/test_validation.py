from pathlib import Path
from typing import Any

import pytest
import yaml
from corpus import BUDGET, CONTRACT, PIPELINE, POOL, REMOVED, changed, document

from controller.resources.validation import Validation, validate_documents, validate_files

OTHER = {
    "metadata.name": "other",
    **{f"spec.stages[{i}].placements[0].target.name": f"other-{i}" for i in range(5)},
    "spec.stages[2].placements[1].target.name": "other-large",
    "spec.stages[1].placements[1].target.name": "other-gpu",
    **{f"spec.stages[1].placements[2].variants[{k}].target.name": f"other-variant-{k}" for k in range(2)},
}


ACTING = changed(PIPELINE, {"spec.mode": "Auto"})


def check(*resources: dict[str, Any]) -> Validation:
    return validate_documents([document(data, f"{index}.yaml") for index, data in enumerate(resources)])


def rules(*resources: dict[str, Any]) -> list[str]:
    return [str(finding) for finding in check(*resources).findings]


def pools(*names: str) -> list[dict[str, Any]]:
    return [changed(POOL, {"metadata.name": name, "spec.nodeSelector": {"pool": name}}) for name in names]


def test_a_pool_that_does_not_exist_is_one_finding_however_often_it_is_named() -> None:
    (finding,) = check(PIPELINE, *pools("cpus", "gpu", "inferentia", "trainium")).findings
    assert finding.field == "spec.stages[0].placements[0].pool"
    assert finding.value == '"cpu"'
    assert finding.rule == "must name a ComputePool in these files; did you mean cpus?"


def test_without_any_pool_in_the_files_pools_are_taken_to_be_elsewhere() -> None:
    result = check(PIPELINE)
    assert result.findings == ()
    assert not result.pools_known


def test_an_invalid_pool_exists_all_the_same() -> None:
    cpu, *others = pools("cpu", "gpu", "inferentia", "trainium")
    result = check(PIPELINE, changed(cpu, {"spec.device": "TPU"}), *others)
    assert [finding.field for finding in result.findings] == ["spec.device"]
    assert [pool.metadata.name for pool in result.pools] == ["gpu", "inferentia", "trainium"]


def test_a_target_has_one_pipeline() -> None:
    other = changed(ACTING, {**OTHER, "spec.stages[3].placements[0].target.name": "lm"})
    (finding,) = check(ACTING, other).findings
    assert (str(finding.file), finding.field) == ("1.yaml", "spec.stages[3].placements[0].target")
    assert finding.rule == (
        "must be the target of one pipeline in mode Auto only; SpeechPipeline everything (0.yaml:1) has the same target"
    )


APPLIED = {"max": 8, "apply": {"configMap": "batching", "key": "vad"}}


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (0, 0, None),
        (0, 3, "spec.stages[3].placements[0].batching.apply"),
    ],
)
def test_a_key_for_batch_settings_is_of_one_placement(first: int, second: int, field: str | None) -> None:
    named = {f"spec.stages[{stage}].placements[0].batching": APPLIED for stage in (first, second)}
    findings = check(changed(ACTING, named)).findings
    assert [(finding.field, finding.value) for finding in findings] == (
        [(field, '{"configMap": "batching", "key": "vad"}')] if field else []
    )
    if field:
        assert findings[0].rule == (
            "must be a key of its own for each placement; spec.stages[0].placements[0] of SpeechPipeline everything "
            "(0.yaml:1) has the same"
        )


def test_a_key_for_batch_settings_is_of_one_pipeline() -> None:
    named = {"spec.stages[0].placements[0].batching": APPLIED}
    (finding,) = check(changed(ACTING, named), changed(ACTING, {**OTHER, **named})).findings
    assert (str(finding.file), finding.field) == ("1.yaml", "spec.stages[0].placements[0].batching.apply")
    elsewhere = changed(ACTING, {**OTHER, **named, "metadata.namespace": "archive"})
    assert check(changed(ACTING, named), elsewhere).findings == ()
    recommends = changed(ACTING, {**OTHER, **named, "spec.mode": "Recommend"})
    assert check(changed(ACTING, named), recommends).findings == ()


def test_variants_that_inherit_a_key_for_batch_settings_are_one_finding() -> None:
    named = "spec.stages[1].placements[2]"
    inherited = {f"{named}.batching": APPLIED, f"{named}.variants[0].batching": REMOVED}
    (finding,) = check(changed(ACTING, inherited)).findings
    assert finding.field == f"{named}.batching.apply"
    own = {
        f"{named}.variants[{k}].batching": {**APPLIED, "apply": {"configMap": "batching", "key": f"v{k}"}}
        for k in (0, 1)
    }
    assert check(changed(ACTING, own)).findings == ()


def test_a_variant_has_one_pipeline_too() -> None:
    named = "spec.stages[1].placements[2].variants[1].target"
    (finding,) = check(ACTING, changed(ACTING, {**OTHER, f"{named}.name": "encoder-fp8"})).findings
    assert (str(finding.file), finding.field) == ("1.yaml", named)


def test_a_limit_on_errors_that_no_variant_keeps_is_a_finding() -> None:
    (finding,) = check(changed(PIPELINE, {"spec.sla.maxWerBySlice": {"noisy": "0.1"}})).findings or (None,)
    assert finding is None, "placements that state nothing for the slice are not excluded"
    stated = {f"spec.stages[1].placements[{k}].werBySlice": {"noisy": "0.3"} for k in range(3)}
    (finding,) = check(changed(PIPELINE, {**stated, "spec.sla.maxWerBySlice": {"noisy": "0.1"}})).findings
    assert finding.rule == ("at least one placement must have a wer within sla.maxWerBySlice.noisy (0.1), or no wer")


def test_an_annotation_that_the_operator_would_ignore_is_a_finding() -> None:
    annotations = {"sluice.dev/pause": "true", "sluice.dev/pin": "vad/cpu=1, vad/tpu=2"}
    (finding,) = check(changed(PIPELINE, {"metadata.annotations": annotations})).findings
    assert finding.field == "metadata.annotations[sluice.dev/pin]"
    assert finding.rule == "'vad/tpu=2': pool tpu: must be one of those of stage vad: cpu"


@pytest.mark.parametrize("mode", ["Recommend", "Paused"])
def test_a_pipeline_that_does_not_act_may_name_the_targets_of_another(mode: str) -> None:
    copy = changed(ACTING, {"metadata.name": "copy", "spec.mode": mode})
    assert rules(ACTING, copy) == rules(copy, ACTING) == []
    other = changed(ACTING, {"metadata.name": "other"})
    assert len(rules(copy, ACTING, other)) == len(rules(ACTING, other)) > 0


def test_targets_of_one_name_in_two_namespaces_are_two() -> None:
    assert rules(PIPELINE, changed(PIPELINE, {"metadata.namespace": "elsewhere"})) == []


def test_a_resource_is_declared_once() -> None:
    (finding,) = rules(PIPELINE, PIPELINE)
    rule = "must be declared only once; SpeechPipeline everything (0.yaml:1) has the same name"
    assert finding.endswith(f'metadata.name: "everything": {rule}')


def test_a_node_belongs_to_one_pool() -> None:
    narrow = changed(POOL, {"metadata.name": "narrow", "spec.nodeSelector": {"a": "1", "b": "2"}})
    wide = changed(POOL, {"metadata.name": "wide", "spec.nodeSelector": {"a": "1"}})
    beside = changed(POOL, {"metadata.name": "beside", "spec.nodeSelector": {"a": "2"}})
    (finding,) = rules(narrow, wide, beside)
    assert "spec.nodeSelector" in finding
    assert "ComputePool narrow (0.yaml:1) matches them too" in finding


@pytest.mark.parametrize(
    ("data", "field", "rule"),
    [
        ({"apiVersion": "sluice.io/v1", "kind": "SpeechPipeline"}, "apiVersion", "must be sluice.dev/v1alpha1"),
        ({"kind": "SpeechPipeline"}, "apiVersion", "required"),
        ({"apiVersion": "sluice.dev/v1alpha1", "kind": "SpeechPipelin"}, "kind", "did you mean SpeechPipeline?"),
        ({"apiVersion": "sluice.dev/v2", "kind": "ComputePool"}, "apiVersion", "must be sluice.dev/v1alpha1"),
        ({"kind": "Deployment"}, "apiVersion", "required"),
        ({"apiVersion": "v1"}, "kind", "required"),
    ],
)
def test_a_document_of_no_known_kind_is_named(data: dict[str, Any], field: str, rule: str) -> None:
    base = POOL if data.get("kind") == "ComputePool" else PIPELINE
    (finding,) = check({**data, "metadata": base["metadata"], "spec": base["spec"]}).findings
    assert finding.field == field
    assert rule in finding.rule


def test_resources_of_others_are_counted_and_left_alone() -> None:
    assert check({"apiVersion": "apps/v1", "kind": "Deployment", "spec": 1}).others == 1


def test_findings_are_in_the_order_of_files_and_lines(tmp_path: Path) -> None:
    first, second = tmp_path / "z.yaml", tmp_path / "a.yaml"
    bad = changed(PIPELINE, {"spec.sla.percentile": 5, "spec.mode": "auto", "spec.stages[3].placements[0].wer": "2"})
    first.write_text(yaml.safe_dump(bad, sort_keys=False))
    second.write_text("a: [\n")
    found = validate_files([first, second]).findings
    assert [(finding.file.name, finding.field) for finding in found] == [
        ("z.yaml", "spec.mode"),
        ("z.yaml", "spec.sla.percentile"),
        ("z.yaml", "spec.stages[3].placements[0].wer"),
        ("a.yaml", ""),
    ]
    assert found[0].line < found[1].line < found[2].line


def test_a_file_that_cannot_be_read_may_have_held_the_pools(tmp_path: Path) -> None:
    broken = tmp_path / "pools.yaml"
    broken.write_text("a: [\n")
    assert [finding.file for finding in validate_files([CONTRACT[1], broken]).findings] == [broken]


def test_a_finding_is_one_line_however_long_the_value() -> None:
    (finding,) = rules(changed(PIPELINE, {"spec.sla.query": "line\n" * 2000}))
    assert "\n" not in finding
    assert len(finding) < 200


def sharing(to: str = "everything", stage: str = "vad", name: str = "borrower", **stage_fields: Any) -> dict[str, Any]:
    """Return a pipeline with one stage, which is shared from `stage` of the pipeline `to`."""
    pipeline = changed(ACTING, {"metadata.name": name})
    own = {"name": "own", "sharedFrom": {"pipeline": to, "stage": stage}, **stage_fields}
    return {**pipeline, "spec": {**pipeline["spec"], "stages": [own]}}


def test_a_stage_can_be_shared_from_another_pipeline() -> None:
    assert rules(ACTING, sharing()) == []


@pytest.mark.parametrize(
    ("borrower", "field", "value", "rule"),
    [
        (
            sharing(to="everythink"),
            "spec.stages[0].sharedFrom.pipeline",
            '"everythink"',
            "must name a SpeechPipeline of this namespace in these files; did you mean everything?",
        ),
        (
            sharing(stage="vat"),
            "spec.stages[0].sharedFrom.stage",
            '"vat"',
            "must name a stage of that pipeline; did you mean vad?",
        ),
        (sharing(to="borrower"), "spec.stages[0].sharedFrom.pipeline", '"borrower"', "must name another pipeline"),
        (
            sharing(rules=[{"name": "busy", "metric": "queue", "above": "1", "addReplicas": 1}]),
            "spec.stages[0].rules",
            None,
            "not allowed with sharedFrom: declare it at the stage that this one is shared from",
        ),
        (
            sharing(routing="Pull"),
            "spec.stages[0].routing",
            '"Pull"',
            "not allowed with sharedFrom: declare it at the stage that this one is shared from",
        ),
        (
            sharing(metrics={"preset": "triton"}),
            "spec.stages[0].metrics",
            '{"preset": "triton"}',
            "not allowed with sharedFrom: declare it at the stage that this one is shared from",
        ),
        (
            sharing(queueLimit=3),
            "spec.stages[0].queueLimit",
            "3",
            "not allowed with sharedFrom: declare it at the stage that this one is shared from",
        ),
        (
            sharing(placements=ACTING["spec"]["stages"][1]["placements"][:1]),
            "spec.stages[0].placements",
            None,
            "not allowed with sharedFrom: the placements are those of the stage that it names",
        ),
    ],
)
def test_what_cannot_be_shared_is_one_finding(
    borrower: dict[str, Any], field: str, value: str | None, rule: str
) -> None:
    found = [each for each in check(ACTING, borrower).findings if "target" not in each.field]
    assert [(each.field, each.rule) for each in found] == [(field, rule)]
    assert value is None or found[0].value == value


def test_a_shared_stage_is_not_shared_on() -> None:
    (finding,) = check(ACTING, sharing(), sharing(to="borrower", stage="own", name="third")).findings
    assert (str(finding.file), finding.field) == ("2.yaml", "spec.stages[0].sharedFrom.stage")
    assert finding.rule == "must not be shared from a third pipeline; name that one"


def test_a_stage_of_a_backlog_is_not_shared() -> None:
    waits = changed(ACTING, {})
    spec = {key: value for key, value in waits["spec"].items() if key not in {"sla", "demand"}}
    backlog = {"unit": "Items", "backlog": {"query": "items_left", "within": "1h"}}
    (finding,) = check({**waits, "spec": {**spec, "demand": backlog}}, sharing()).findings
    assert (finding.field, finding.value) == ("spec.stages[0].sharedFrom.pipeline", f'"{ACTING["metadata"]["name"]}"')
    assert finding.rule == "must not name a pipeline with demand.backlog: its replicas go first"


def test_a_stage_has_placements_or_is_shared() -> None:
    pipeline = changed(ACTING, {})
    bare = {**pipeline, "spec": {**pipeline["spec"], "stages": [{"name": "own"}]}}
    (finding,) = check(bare).findings
    assert (finding.field, finding.rule) == ("spec.stages[0].placements", "required without sharedFrom")


def test_a_pipeline_shares_a_stage_once() -> None:
    borrower = sharing()
    (own,) = borrower["spec"]["stages"]
    twice = {**borrower, "spec": {**borrower["spec"], "stages": [own, {**own, "name": "again"}]}}
    (finding,) = check(ACTING, twice).findings
    assert finding.field == "spec.stages[1].sharedFrom"


@pytest.mark.parametrize("resource", [POOL, BUDGET], ids=["ComputePool", "ComputeBudget"])
def test_a_resource_of_the_cluster_has_no_namespace(resource: dict[str, Any]) -> None:
    (finding,) = validate_documents([document(changed(resource, {"metadata.namespace": "speech"}))]).findings
    kind = resource["kind"]
    assert str(finding) == f'corpus.yaml:1: metadata.namespace: "speech": not allowed: a {kind} belongs to the cluster'
