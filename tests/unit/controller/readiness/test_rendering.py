"""The page as Markdown and HTML: the same points in both, nothing loaded, names escaped."""

from controller.readiness.points import Readiness, Section, blocks, note, risk, table, unknown
from controller.readiness.rendering import html, markdown

PAGE = Readiness(
    name="speech/<b>",
    sections=(
        Section(title="Contract", points=(note("p95 within 250 ms"), risk("close"), unknown("quality"))),
        table("Capacity", (blocks("half is served"),), ("stage", "replicas"), (("vad", "cpu | 3"),)),
    ),
)


def test_markdown_has_the_verdict_the_blockers_and_every_point() -> None:
    assert markdown([PAGE]).splitlines() == [
        "# Readiness of speech/<b>",
        "",
        "**1 blocking; 1 risk; 1 number not measured**",
        "",
        "- **blocks**: Capacity: half is served",
        "",
        "## Contract",
        "",
        "- p95 within 250 ms",
        "- **risk**: close",
        "- **not measured**: quality",
        "",
        "## Capacity",
        "",
        "- **blocks**: half is served",
        "",
        "| stage | replicas |",
        "|---|---|",
        "| vad | cpu \\| 3 |",
    ]


def test_html_is_one_file_with_the_same_points() -> None:
    page = html([PAGE])
    for text in ("1 blocking; 1 risk", "p95 within 250 ms", "half is served", "cpu | 3", "speech/&lt;b&gt;"):
        assert text in page, text
    assert "<b>" not in page.replace('<b class="', "")
    assert "http" not in page.replace("http-equiv", "")
    assert "@media print" in page
    assert 'name="viewport"' in page
