"""HTML from values: what is no markup is escaped."""

import pytest

from controller.html import Markup, element, page


def test_text_and_attributes_are_escaped() -> None:
    hostile = """</script><img src=x onerror="alert('1')">&"""
    found = element("p", hostile, title=hostile)
    assert found.count("<") == 2
    assert found == (
        '<p title="&lt;/script&gt;&lt;img src=x onerror=&quot;alert(&#x27;1&#x27;)&quot;&gt;&amp;">'
        """&lt;/script&gt;&lt;img src=x onerror="alert('1')"&gt;&amp;</p>"""
    )


def test_markup_stays_as_it_is_and_nothing_is_left_out() -> None:
    assert element("p", element("b", "1 < 2"), None, False, [1, 2.5], "") == "<p><b>1 &lt; 2</b>12.5</p>"
    assert Markup.of("a", ["<", element("br")]) == "a&lt;<br>"


def test_attributes_are_named_as_in_html() -> None:
    assert element("td", class_="n", data_from="1", hidden=True, title=None, scope=False) == (
        '<td class="n" data-from="1" hidden></td>'
    )


def test_a_part_of_markup_is_text_again() -> None:
    assert element("p", element("b", "x")[:3]) == "<p>&lt;b&gt;</p>"


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be written as HTML"):
        element("p", object())


def test_a_page_is_one_file_that_loads_nothing() -> None:
    found = page("a < b", element("p", "x"), style="p { color: red }", script="1 < 2")
    assert found.startswith('<!doctype html>\n<html lang="en">')
    assert "<title>a &lt; b</title>" in found
    assert "default-src &#x27;none&#x27;" in found
    assert "<script>1 < 2</script>" in found
    assert "<script>" not in page("a", style="")
