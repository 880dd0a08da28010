from pathlib import Path
from typing import Any

import pytest

from controller.resources.manifests import Document, ManifestError, format_path, load_documents, parse_documents

FILE = Path("some.yaml")


def data(text: str) -> list[dict[str, Any]]:
    return [document.data for document in parse_documents(text, FILE)]


def only(text: str) -> Document:
    (document,) = parse_documents(text, FILE)
    return document


def error(text: str, path: Path = FILE) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_documents(text, path)
    return str(caught.value)


def test_every_field_knows_its_line_across_documents() -> None:
    first, second = parse_documents("a: 1\n---\n# comment\nb:\n  - c: 1\n    d: {e: 2,\n      f: 3}\n", FILE)
    assert first.line_of(("a",)) == 1
    assert second.line_of(("b", 0, "c")) == 5
    assert second.line_of(("b", 0, "d", "f")) == 7


def test_an_absent_field_is_where_it_would_be_written() -> None:
    assert only("a:\n  b: 1\n").line_of(("a", "c", 3, "d")) == 1


def test_empty_documents_are_left_out() -> None:
    assert data("---\n---\na: 1\n---\n# nothing\n---\n") == [{"a": 1}]
    assert data("") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("60s", "60s"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("", None),
        ("'0.5'", "0.5"),
        ('"yes"', "yes"),
        ("!!str 5", "5"),
        ("0.5", 0.5),
        ("3.0", 3),
        ("1e3", 1000),
        ("1_000", 1000),
        ("0x1F", 31),
        ("010", 8),
        ("0o10", 8),
        ("-7", -7),
        ("1e400", float("inf")),
        ("-.inf", float("-inf")),
    ],
)
def test_scalars_mean_what_kubectl_takes_them_for(text: str, value: object) -> None:
    assert data(f"a: {text}\n") == [{"a": value}]


def test_a_number_of_any_length_is_read() -> None:
    assert data(f"a: {'9' * 10_000}\n") == [{"a": float("inf")}]


def test_keys_become_strings() -> None:
    assert data("1: a\ntrue: b\n") == [{"1": "a", "true": "b"}]


def test_anchors_and_merges_are_followed() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nboth: {<<: [*base, {c: 4}]}\n"
    assert data(text)[0]["other"] == {"a": 1, "b": 3}
    assert data(text)[0]["both"] == {"a": 1, "b": 2, "c": 4}


def test_a_field_that_is_given_twice_is_refused_with_its_path_and_line() -> None:
    assert error("a:\n- b: 1\n  c: 2\n  b: 3\n") == "some.yaml:4: a[0].b: duplicate key"


def test_broken_yaml_is_one_message_with_file_and_line() -> None:
    assert error("a: 1\nb: [1,\n").startswith("some.yaml:3: not valid YAML: ")
    assert error("a: \x01").startswith("some.yaml:1: not valid YAML: ")


def test_a_document_that_is_no_mapping_is_refused() -> None:
    assert error("a: 1\n---\n- b\n") == "some.yaml:3: a document must be a mapping of fields"


def test_what_would_exhaust_memory_or_stack_is_refused() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))
    assert "at most 1000000 values" in error(f"l0: &l0 [{', '.join('x' * 10)}]\n{levels}")
    assert "at most 64 levels deep" in error("a: " + "[" * 500)


def test_tags_and_unknown_anchors_are_refused() -> None:
    assert (
        error("a: !!python/name:os.system x")
        == "some.yaml:1: tag:yaml.org,2002:python/name:os.system: tags are not supported"
    )
    assert error("a: *b") == "some.yaml:1: *b: no anchor of this name before it"


def test_the_items_of_a_list_are_documents_with_their_lines() -> None:
    first, second = parse_documents("apiVersion: v1\nkind: List\nitems:\n- a: 1\n- b:\n    c: 2\n", FILE)
    assert (first.data, second.data) == ({"a": 1}, {"b": {"c": 2}})
    assert second.line_of(("b", "c")) == 6


def test_json_with_tabs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n\t"a": [1,\n\t\t{"b": "x\\ty"}]\n}\n')
    (document,) = load_documents(path)
    assert document.data == {"a": [1, {"b": "x\ty"}]}
    assert document.line_of(("a", 1, "b")) == 3


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"nothing\.yaml:1: cannot be read: No such file"):
        load_documents(tmp_path / "nothing.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ManifestError, match=r"latin\.yaml:2: must be UTF-8"):
        load_documents(latin)


def test_paths_are_written_as_kubernetes_does() -> None:
    assert format_path(("spec", "stages", 2, "placements", 0, "pool")) == "spec.stages[2].placements[0].pool"
    assert format_path(("spec", "nodeSelector", "a.b/c")) == "spec.nodeSelector[a.b/c]"
