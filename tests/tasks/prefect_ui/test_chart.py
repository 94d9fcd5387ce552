import base64
import math
import re
from xml.etree import ElementTree

import pytest

from tasks.prefect_ui.chart import (
    BOTTOM,
    MOST_POINTS,
    WIDTH,
    Series,
    draw,
    learning_curve,
    stacked,
    thinned,
    ticks,
)


def shapes(drawing: str | None, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(f"<svg>{drawing}</svg>").iter(kind))


def places(node: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in node.attrib["points"].split())
    return [(float(x), float(y)) for x, y in pairs]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.119, [0, 0.05, 0.1]),
        (-0.0012, 0.0032, [-0.001, 0, 0.001, 0.002, 0.003]),
        (0, 27, [0, 10, 20]),
        (3, 3.5, [3, 3.1, 3.2, 3.3, 3.4, 3.5]),
    ],
)
def test_ticks_are_round_and_within_the_range(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_steps_have_whole_ticks():
    assert ticks(1, 3, whole=True) == [1, 2, 3]
    assert ticks(3.5, 4.5, whole=True) == [4]


def test_the_axis_says_where_its_numbers_are():
    chart = draw([Series("a", "test", [(0, 1.0), (5, 3.0), (10, 2.0)])], "units")
    (line,) = shapes(chart, "polyline")
    (first, middle, last) = places(line)
    assert middle[0] - first[0] == pytest.approx(last[0] - middle[0], abs=0.2)
    assert last[1] == pytest.approx((first[1] + middle[1]) / 2, abs=0.1)
    assert all(0 < y <= BOTTOM for _, y in (first, middle, last))
    words = {node.text: float(node.attrib["x"]) for node in shapes(chart, "text")}
    assert (words["0"], words["10"]) == pytest.approx((first[0], last[0]))
    assert draw([Series("a", "test", [])], "units") is None


def test_the_last_step_of_an_area_is_named_whole():
    areas = stacked([Series("a", "test", [(step, 1.0) for step in (1, 5_000, 10_000)])])
    chart = draw(areas, "units")
    (end,) = [
        float(node.attrib["x"])
        for node in shapes(chart, "text")
        if node.text == "10000" and node.attrib["text-anchor"] == "middle"
    ]
    assert end + 2.5 * 6 <= WIDTH  # half of five digits


def test_long_series_are_drawn_as_means():
    points = [(step, float(step)) for step in range(1, 2 * MOST_POINTS + 2)]  # three per point
    thin = thinned(Series("a", "test", points))
    assert len(thin.points) == 107
    assert thin.points[0] == (3, 2.0)
    assert thin.points[-1] == (321, 320.0)
    assert thinned(thin) == thin


def test_areas_lie_on_top_of_one_another():
    stack = stacked(
        [Series("a", "test", [(1, 0.25), (2, 0)]), Series("b", "base", [(1, 0.5), (2, 1.0)])]
    )
    assert [one.band for one in stack] == [[(0, 0.25), (0, 0)], [(0.25, 0.75), (0, 1)]]
    chart = draw(stack, "share", y_top=1)
    lower, upper = map(places, shapes(chart, "polygon"))
    assert lower[0] == upper[3], "the first point of one is the other's lower edge"
    single = draw(stacked([Series("a", "test", [(1, 0.5)])]), "units")
    (area,) = shapes(single, "polygon")
    assert len({x for x, _ in places(area)}) == 2, "seen, though of one step"


def test_bars_stand_beside_one_another():
    series = [Series(n, "test", [(0, 0.5), (1, 1.0)], "bars") for n in ("before", "after")]
    chart = draw(series, "share", x_ticks={0: "one", 1: "two"})
    boxes = [
        (float(box.attrib["x"]), float(box.attrib["width"]), float(box.attrib["height"]))
        for box in shapes(chart, "rect")
    ]
    before, after = boxes[:2], boxes[2:]
    assert [x + width for x, width, _ in before] == pytest.approx([x for x, _, _ in after], abs=0.1)
    assert before[1][2] == pytest.approx(2 * before[0][2], abs=0.2)


def test_hostile_words_are_text():
    chart = draw([Series("<script>&", "test", [(1, 1)]), Series("b", "base", [(1, 1)])], "<b>")
    assert re.findall(r"<(?!/?(?:text|path|circle|polyline)\b)", chart) == []
    assert {"<script>&", "<b>"} <= {node.text for node in shapes(chart, "text")}


def drawn(uri: str | None) -> ElementTree.Element:
    kind, _, content = uri.partition(";base64,")
    assert kind == "data:image/svg+xml"
    return ElementTree.fromstring(base64.b64decode(content))


def test_a_learning_curve_leaves_out_what_is_no_number_and_has_its_colours_in_it():
    rows = [
        {"step": s, "critic/score/mean": float(s), "critic/kl": math.nan, "val/accuracy": None}
        for s in range(1000)
    ]
    svg = drawn(learning_curve(rows, "<script>1</script>"))
    (line,) = svg.iter("{http://www.w3.org/2000/svg}polyline")
    assert MOST_POINTS / 2 < len(places(line)) <= MOST_POINTS
    assert not [node for node in svg.iter() if "var(" in node.get("style", "")], "no page is there"
    assert len(ElementTree.tostring(svg)) < 20_000
    words = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<script>1</script>", "score, partial credit included"} <= set(words)
    assert not any(text.startswith("accuracy") for text in words if text)
    assert learning_curve([{"step": 0, "other": 1.0}], "none") is None
