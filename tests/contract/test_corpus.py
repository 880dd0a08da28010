"""What `sluice validate` says about the corpus. `tests/integration` asks the real API server the same."""

import random
from typing import Any

import pytest
from corpus import BAD, CONTRACT, EXAMPLES, Bad, document, good, mutations

from controller.core.state.spec import RuleMetric
from controller.resources.manifests import load_documents
from controller.resources.translate import pipeline_spec
from controller.resources.validation import Finding, validate_documents, validate_files


def findings(data: dict[str, Any]) -> list[Finding]:
    return list(validate_documents([document(data)]).findings)


def test_the_corpus_is_large_enough_and_names_no_mistake_twice() -> None:
    assert len(BAD) >= 60
    assert len({bad.name for bad in BAD}) == len(BAD)


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in good()])
def test_a_good_resource_is_valid(data: dict[str, Any]) -> None:
    # The other pipeline of a shared stage is in the same file, not in the same document.
    assert [finding for finding in findings(data) if not finding.field.endswith("sharedFrom.pipeline")] == []


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_mistake_gets_exactly_one_finding_that_names_field_value_and_rule(bad: Bad) -> None:
    (finding,) = findings(bad.data)
    assert finding.field == bad.field
    assert bad.rule in finding.rule
    assert finding.value


def test_all_mistakes_of_a_file_are_found_at_once() -> None:
    data = document(BAD[0].data).data
    data["spec"]["sla"]["percentile"] = 5
    data["spec"]["stages"][1]["placements"][0]["replicas"]["min"] = 25
    data["spec"]["stages"][3]["after"] = ["nobody"]
    assert [finding.field for finding in findings(data)] == [
        "spec.colour",
        "spec.sla.percentile",
        "spec.stages[3].after[0]",
        "spec.stages[1].placements[0].replicas.max",
    ]


def test_no_replacement_of_a_value_makes_validation_fail_or_say_a_thing_twice() -> None:
    for name, data in random.Random(1).sample(list(mutations()), 800):
        found = findings(data)
        assert len({finding.field for finding in found}) == len(found), name


@pytest.mark.parametrize("path", [*CONTRACT, *EXAMPLES.glob("*.yaml")], ids=lambda path: path.name)
def test_the_files_of_the_contract_and_our_examples_are_valid_on_their_own(path: Any) -> None:
    assert validate_files([path]).findings == ()


def test_the_files_of_the_contract_are_valid_together() -> None:
    result = validate_files(CONTRACT)
    assert result.findings == ()
    assert [pipeline.metadata.name for pipeline in result.pipelines] == ["live-captions"]
    assert [pool.metadata.name for pool in result.pools] == ["cpu", "inferentia", "gpu"]
    assert len(load_documents(CONTRACT[0])) == 3


def test_the_example_for_accelerators_has_rules_on_the_network_and_on_devices() -> None:
    found = validate_files([EXAMPLES / "pools.yaml", EXAMPLES / "accelerators.yaml"])
    assert found.findings == ()
    (resource,) = found.pipelines
    rules = {rule.metric: rule for stage in pipeline_spec(resource).stages for rule in stage.rules}
    pressure, headroom = rules[RuleMetric.RX_QUEUE_PRESSURE], rules[RuleMetric.DEVICE_HEADROOM]
    collectives = rules[RuleMetric.COLLECTIVE_ACTIVITY]
    assert (pressure.above, pressure.add_replicas, pressure.per_zone) == (0.8, 2, True)
    assert (headroom.below, headroom.add_replicas) == (0.2, 1)
    assert (collectives.above, collectives.add_replicas) == (0.9, 1)
    linked = {pool.metadata.name for pool in found.pools if "p4d" in str(pool.spec.node_selector)}
    (stage,) = [stage for stage in pipeline_spec(resource).stages if collectives in stage.rules]
    assert {placement.pool for placement in stage.placements} == linked, "activity is read on cards with NVLink only"
