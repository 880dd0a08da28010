"""What only `sluice validate` knows of known demand; the corpus has the other mistakes."""

from corpus import BUDGET, PIPELINE, changed, document

from controller.resources.cron import RULE
from controller.resources.validation import validate_documents

ZONE = "spec.demand.atLeast[0].timeZone"


def told(zone: str) -> str:
    (finding,) = validate_documents([document(changed(PIPELINE, {ZONE: zone}))]).findings
    return str(finding)


def test_an_unknown_zone_is_told_with_the_nearest_name_where_there_is_one() -> None:
    rule = "must be an IANA time zone such as Europe/Berlin"
    assert told("europe/berlin") == f'corpus.yaml:1: {ZONE}: "europe/berlin": {rule}; did you mean Europe/Berlin?'
    assert told("Qqqqq") == f'corpus.yaml:1: {ZONE}: "Qqqqq": {rule}'


def test_a_folder_of_zones_is_no_zone() -> None:
    assert "must be an IANA time zone" in told("America")


def test_a_short_schedule_that_is_not_supported_is_told_what_is() -> None:
    field = "spec.periods[0].schedule"
    (finding,) = validate_documents([document(changed(BUDGET, {field: "@daily"}))]).findings
    assert str(finding) == f'corpus.yaml:1: {field}: "@daily": {RULE}; it has 1 of 5 fields'
