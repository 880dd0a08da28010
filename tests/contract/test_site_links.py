"""The check of the site's links finds what is broken."""

from pathlib import Path

import pytest
from site_links import problems

PAGE = '<html><body id="top"><a href="{}">x</a><img src="picture.svg"></body></html>'


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("other.html#part", None),
        ("other.html", None),
        ("#top", None),
        ("other.html#nothing", "no such anchor"),
        ("missing.html", "no such file"),
        ("#nothing", "no such anchor"),
    ],
)
def test_a_link_must_lead_to_a_page_and_an_anchor(tmp_path: Path, link: str, problem: str | None) -> None:
    (tmp_path / "index.html").write_text(PAGE.format(link))
    (tmp_path / "other.html").write_text('<h2 id="part">x</h2>')
    (tmp_path / "picture.svg").write_text("")
    bad, elsewhere = problems(tmp_path)
    assert bad == ([] if problem is None else [f"index.html: {link}: {problem}"])
    assert elsewhere == []


def test_links_to_other_sites_are_listed_and_nothing_is_loaded_from_there(tmp_path: Path) -> None:
    page = '<a href="https://example.com/a">x</a><script src="https://cdn.example.com/s.js"></script>'
    (tmp_path / "index.html").write_text(page)
    bad, elsewhere = problems(tmp_path)
    assert bad == ["index.html: loads https://cdn.example.com/s.js, which is not part of the site"]
    assert elsewhere == ["https://example.com/a"]
