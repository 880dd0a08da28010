"""What `sluice profile` prints is valid in a manifest, and its JSON has the fields of the contract."""

import pytest
import yaml

from controller.commands.profile_output import document_of, manifest_of
from controller.resources.placement import Batching as BatchingFields
from controller.resources.placement import ServiceTime
from optimizer.model import Batching, ServiceLaw
from profiler.load_test.analysis import Analysis


def an_analysis(law: ServiceLaw, **changes: object) -> Analysis:
    values: dict[str, object] = {
        "batching": Batching.DYNAMIC,
        "limit": 16,
        "measured": 16,
        "concurrency": 1,
        "law": law,
        "relative_error": 0.03,
        "saturation_rps": 400.0,
        "capacity_rps": 410.0,
        "counters_used": True,
    }
    return Analysis(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (ServiceLaw(fixed_s=0.014, per_item_s=0.0031234, cv=0.1), 'fixed: 14ms, perItem: 3120us, cv: "0.10"'),
        (
            ServiceLaw(fixed_s=0.002, per_item_s=0.0023, floor_s=0.0137),
            'fixed: 2ms, perItem: 2300us, floor: 13700us, cv: "0.00"',
        ),
        (ServiceLaw(points=((1, 0.012), (16, 0.1214)), cv=0.2), 'points: {"1": 12ms, "16": 121ms}, cv: "0.20"'),
        (
            ServiceLaw(fixed_s=1.5, prefill_s=0.02, cv=0.5),
            'fixed: 1500ms, prefill: 20ms, cv: "0.50"',
        ),
    ],
)
def test_each_law_is_written_as_a_manifest_has_it(law: ServiceLaw, text: str) -> None:
    written = manifest_of(an_analysis(law), 'a "quoted" source')
    assert f"serviceTime: {{{text}, source: " in written
    content = yaml.safe_load(written)
    ServiceTime.model_validate(content["serviceTime"])
    assert content["serviceTime"]["source"] == 'a "quoted" source'
    BatchingFields.model_validate(content["batching"])


def test_servers_without_batches_have_none_and_several_have_their_number() -> None:
    written = yaml.safe_load(manifest_of(an_analysis(ServiceLaw(fixed_s=0.02), limit=1, measured=1, concurrency=4), ""))
    assert "batching" not in written
    assert written["concurrency"] == 4


def test_a_start_up_that_was_seen_is_rounded_up() -> None:
    assert "startup: 43s" in manifest_of(an_analysis(ServiceLaw(fixed_s=0.02)), "", 42.1)


def test_the_json_has_what_the_contract_asks_for() -> None:
    found = document_of(an_analysis(ServiceLaw(fixed_s=0.02)), None, source="s", startup_s=None)
    fields = {"fixed_s", "per_item_s", "cv", "relative_error", "saturation_rps", "startup_s", "points", "service_time"}
    assert fields | {"memory_per_session_bytes"} <= found.keys()


def test_an_error_that_is_not_known_is_null() -> None:
    analysis = an_analysis(ServiceLaw(fixed_s=0.02), relative_error=float("inf"))
    assert document_of(analysis, None, source="s", startup_s=None)["relative_error"] is None
