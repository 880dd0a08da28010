import yaml

from controller.adoption.annotated_yaml import Field, Items, render

DOCUMENT = (
    Field(key="kind", value="Example"),
    Field(
        key="spec",
        value=(
            Field(key="query", value='sum(up{job="a"})', notes=("guess: it is 3 now",)),
            Field(key="flat", value={"min": 0, "max": 3, "word": "yes", "price": "1"}),
            Field(
                key="stages",
                value=Items(
                    items=(
                        (Field(key="name", value="vad", notes=("first",)), Field(key="after", value=["a", "b"])),
                        (Field(key="name", value='it\'s "odd"\n'),),
                    )
                ),
            ),
        ),
    ),
)


def test_the_text_is_yaml_with_the_same_values() -> None:
    (found,) = yaml.safe_load_all(render([DOCUMENT], head=["a head"]))
    assert found == {
        "kind": "Example",
        "spec": {
            "query": 'sum(up{job="a"})',
            "flat": {"min": 0, "max": 3, "word": "yes", "price": "1"},
            "stages": [{"name": "vad", "after": ["a", "b"]}, {"name": 'it\'s "odd"\n'}],
        },
    }


def test_comments_are_above_their_field_and_queries_are_readable() -> None:
    assert """  # guess: it is 3 now
  query: 'sum(up{job="a"})'
""" in render([DOCUMENT])
    assert """    # first
    - name: vad
""" in render([DOCUMENT])


def test_comments_wrap_at_80_columns() -> None:
    text = render([(Field(key="a", value=1, notes=("word " * 60,)),)])
    assert max(map(len, text.splitlines())) <= 80
    assert all(line.startswith("#") for line in text.splitlines() if "word" in line)


def test_a_comment_with_a_line_break_stays_a_comment() -> None:
    assert yaml.safe_load(render([(Field(key="a", value=1, notes=("one\nkey: two",)),)])) == {"a": 1}
