"""Checks the links of a built site: `python tests/support/site_links.py SITE`.

Every link inside the site must lead to a file, and to an anchor that this file has. Nothing that a page loads (scripts,
styles, images) may come from elsewhere. Links to other sites are listed, not followed. Exit status 1 for a bad link.
"""

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_NOT_LOADED = {"canonical", "next", "prev", "alternate"}


@dataclass
class Page(HTMLParser):
    """What one page links to, what it loads, and the anchors that it has."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in _LOADED and _LOADED[tag] in values and values.get("rel") not in _NOT_LOADED:
            self.loaded.append(values[_LOADED[tag]])


def problems(site: Path) -> tuple[list[str], list[str]]:
    """Return the bad links of the pages below `site`, a line each, and the links to other sites."""
    pages: dict[Path, Page] = {}
    for path in sorted(site.rglob("*.html")):
        page = pages[path.resolve()] = Page()
        page.feed(path.read_text(encoding="utf-8"))
    bad: list[str] = []
    elsewhere: set[str] = set()
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: a server shows it at any address
            continue
        where = path.relative_to(site.resolve())
        bad += [f"{where}: loads {link}, which is not part of the site" for link in page.loaded if _elsewhere(link)]
        for link in page.links + [link for link in page.loaded if not _elsewhere(link)]:
            if _elsewhere(link):
                elsewhere.add(link)
            elif (problem := _problem(link, path, pages)) is not None:
                bad.append(f"{where}: {link}: {problem}")
    return bad, sorted(elsewhere)


def _elsewhere(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.scheme or parts.netloc) and parts.scheme != "data"


def _problem(link: str, page: Path, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme == "data":
        return None
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return "no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return None


def main() -> int:
    """Check the site that the command line names."""
    bad, elsewhere = problems(Path(sys.argv[1]))
    for line in bad:
        print(line, file=sys.stderr)
    print(f"links to other sites, not followed: {len(elsewhere)}")
    for link in elsewhere:
        print(f"  {link}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
