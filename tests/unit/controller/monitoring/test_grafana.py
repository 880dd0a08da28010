import pytest

from controller.monitoring.grafana import (
    COLUMNS,
    Annotation,
    Dashboard,
    Kind,
    Panel,
    Query,
    Row,
    Variable,
    document,
)


def a_panel(title: str = "Panel", *, width: int = 12, height: int = 8, kind: Kind = Kind.LINES) -> Panel:
    queries = (Query(expr="a", legend="{{pool}}"), Query(expr="b", empty_because="none fails"))
    return Panel(title=title, question="Is it so?", queries=queries, kind=kind, width=width, height=height)


def a_dashboard(*panels: Panel) -> Dashboard:
    rows = (Row(title="First", panels=panels), Row(title="Second", panels=(a_panel("Last"),)))
    return Dashboard(
        uid="u",
        title="T",
        description="D",
        rows=rows,
        variables=(
            Variable(name="namespace", label="Namespace", metric="m", multi=True),
            Variable(name="pipeline", label="Pipeline", metric="m", where='namespace="$namespace"'),
        ),
        annotations=(Annotation(name="A", query=Query(expr="1000 * t"), title="t", text="x", tags="reason"),),
    )


def test_panels_flow_from_left_to_right_under_the_title_of_their_row() -> None:
    panels = document(a_dashboard(a_panel("a", width=16, height=4), a_panel("b", width=8), a_panel("c")))["panels"]
    places = [(panel["title"], *(panel["gridPos"][key] for key in "xywh")) for panel in panels]
    assert places == [
        ("First", 0, 0, COLUMNS, 1),
        ("a", 0, 1, 16, 4),
        ("b", 16, 1, 8, 8),
        ("c", 0, 9, 12, 8),
        ("Second", 0, 17, COLUMNS, 1),
        ("Last", 0, 18, 12, 8),
    ]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_question_is_the_description_and_each_query_has_a_letter() -> None:
    _, panel, *_ = document(a_dashboard(a_panel()))["panels"]
    assert panel["description"] == "Is it so?"
    assert [(target["refId"], target["expr"]) for target in panel["targets"]] == [("A", "a"), ("B", "b")]
    assert [target["legendFormat"] for target in panel["targets"]] == ["{{pool}}", "__auto"]
    assert "none fails" not in str(panel)


@pytest.mark.parametrize("kind", list(Kind))
def test_only_a_table_asks_for_the_present_values_alone(kind: Kind) -> None:
    _, panel, *_ = document(a_dashboard(a_panel(kind=kind)))["panels"]
    assert panel["type"] == kind.value
    assert {target["instant"] for target in panel["targets"]} == {kind is Kind.TABLE}
    assert ("transformations" in panel) is (kind is Kind.TABLE)


def test_variables_are_the_values_of_labels_and_the_data_source_is_one() -> None:
    source, namespace, pipeline = document(a_dashboard())["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert namespace["definition"] == "label_values(m, namespace)"
    assert namespace["includeAll"]
    assert pipeline["definition"] == 'label_values(m{namespace="$namespace"}, pipeline)'
    assert not pipeline["includeAll"]


def test_marks_are_set_at_the_time_that_is_the_value_of_the_series() -> None:
    _, marks = document(a_dashboard())["annotations"]["list"]
    assert (marks["expr"], marks["useValueForTime"]) == ("1000 * t", True)


def test_the_queries_of_a_dashboard_include_those_of_its_marks() -> None:
    assert [query.expr for query in a_dashboard(a_panel()).queries] == ["a", "b", "a", "b", "1000 * t"]
