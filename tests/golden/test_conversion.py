from golden_conversion import DROPPED_FIELDS, GROUPED_FIELDS, RENAMED_FIELDS, RENAMED_VALUES, converted
from golden_files import read


def test_renamed_fields_are_converted_at_any_depth_and_all_else_is_kept() -> None:
    before = {"pools": [{"strays": [[1, 2]], "name": "strays"}], "policy": {"work_limit": 7}}
    assert converted(before) == {"pools": [{"unaccounted": [[1, 2]], "name": "strays"}], "policy": {"search_effort": 7}}


def test_readings_of_a_quantity_that_is_no_longer_read_are_dropped() -> None:
    assert converted({"readings": {"memoryUse": 0.4, "sessions": 3.0}}) == {"readings": {"sessions": 3.0}}


def test_fields_that_belong_together_are_grouped_and_values_renamed() -> None:
    before = {
        "spec": {"demand_query": "sum(offered)", "sla_query": None, "name": "a"},
        "holds": ["SlaMissed", "Paused"],
    }
    queries = {"demand": "sum(offered)", "latency": None}
    assert converted(before) == {"spec": {"name": "a", "queries": queries}, "holds": ["SLAMissed", "Paused"]}


def test_every_conversion_is_needed_by_a_stored_record() -> None:
    names: set[str] = set()
    values: set[str] = set()
    stack = [read("decisions")]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            names |= value.keys()
            stack += value.values()
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, str):
            values.add(value)
    grouped = {name for group in GROUPED_FIELDS.values() for name in group}
    assert names >= RENAMED_FIELDS.keys() | DROPPED_FIELDS | grouped
    assert not names & {*RENAMED_FIELDS.values(), *GROUPED_FIELDS} - {"advice"}  # a policy has a flag of this name
    assert values >= RENAMED_VALUES.keys()
    assert not values & set(RENAMED_VALUES.values())
