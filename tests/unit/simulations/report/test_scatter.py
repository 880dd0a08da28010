"""Cost against SLA: points lie where their numbers are, names do not cover each other."""

import re

from simulations.report.scatter import Point, cost_against_sla


def a_point(name: str, cost: float, met: float, *, trained: bool = False, style: str = "dominated") -> Point:
    return Point(
        name=name,
        cost=cost,
        costs=(cost * 0.98, cost * 1.02),
        met=met,
        mets=(max(0.0, met - 0.01), min(1.0, met + 0.001)),
        style=style,
        trained=trained,
        words=f"{name}: {cost}",
    )


def drawings(*points: Point, bound: float | None = 8.0) -> list[str]:
    return re.findall(r"<svg.*?</svg>", cost_against_sla(points, bound, 0.995))


def places(drawing: str) -> dict[str, tuple[float, float]]:
    """Where the circles are, by name."""
    marks = re.findall(r'<path class="point [a-z]+" d="M([\d.]+) ([\d.]+)a.*?<title>(.*?):', drawing)
    return {name: (float(x), float(y)) for x, y, name in marks}


def test_dearer_is_further_right_and_later_is_further_down() -> None:
    for drawing in drawings(a_point("a", 9.0, 0.999), a_point("b", 12.0, 0.95), a_point("c", 10.0, 0.4)):
        found = places(drawing)
        assert found["a"][0] < found["c"][0] < found["b"][0]
        assert found["a"][1] < found["b"][1] < found["c"][1]


def test_near_the_top_small_differences_are_seen() -> None:
    wide, _ = drawings(
        a_point("a", 9.0, 0.999), a_point("b", 9.0, 0.99), a_point("c", 9.0, 0.6), a_point("d", 9.0, 0.5)
    )
    y = {name: place[1] for name, place in places(wide).items()}
    assert y["b"] - y["a"] > 3 * (y["d"] - y["c"])


def test_names_do_not_cover_each_other() -> None:
    crowd = [a_point(f"policy-{i}", 10.0 + 0.1 * (i % 4), 0.99 - 0.001 * i) for i in range(14)]
    for drawing in drawings(*crowd):
        boxes = [
            (float(x), float(y), 6.8 * len(name))
            for x, y, name in re.findall(r'<text class="name dominated" x="([\d.]+)" y="([\d.]+)">(.*?)<', drawing)
        ]
        assert len(boxes) >= 8
        for index, (x, y, width) in enumerate(boxes):
            for other_x, other_y, other_width in boxes[index + 1 :]:
                assert abs(y - other_y) >= 14.9 or x + width <= other_x + 0.1 or other_x + other_width <= x + 0.1


def test_without_a_bound_no_line_is_drawn() -> None:
    assert "line bound" in drawings(a_point("a", 9.0, 0.9), a_point("b", 9.5, 0.8))[0]
    assert "line bound" not in drawings(a_point("a", 9.0, 0.9), a_point("b", 9.5, 0.8), bound=None)[0]


def test_everything_may_be_missed_or_met() -> None:
    for met in (0.0, 1.0):
        for drawing in drawings(a_point("a", 9.0, met), a_point("b", 9.0, met)):
            assert "nan" not in drawing
            assert all(0 <= y <= 440 for _, y in places(drawing).values())
