import base64
import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tasks.prefect_ui.chart import MOST_POINTS, learning_curve

SVG = "{http://www.w3.org/2000/svg}"


def drawn(uri: str | None) -> ElementTree.Element:
    kind, _, content = uri.partition(";base64,")
    assert kind == "data:image/svg+xml"
    return ElementTree.fromstring(base64.b64decode(content))


def words(svg: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in svg.iter(f"{SVG}text")]


def lines(svg: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in node.attrib["points"].split())]
        for node in svg.iter(f"{SVG}polyline")
    ]


def test_a_line_lies_where_its_numbers_say():
    """Steps 0, 2 and 4 of an axis to 4; accuracies 0, 1 and 0.5 of an axis to 1."""
    rows = [{"step": s, "reward/accuracy": a} for s, a in ((0, 0.0), (2, 1.0), (4, 0.5))]
    svg = drawn(learning_curve(rows, "mine"))
    ((first, middle, last),) = lines(svg)
    assert first[0] < last[0]
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.1)
    assert first[1] > middle[1]  # downwards
    assert last[1] == pytest.approx((first[1] + middle[1]) / 2, abs=0.1)
    assert {"mine", "accuracy, training", "0.5", "4"} <= set(words(svg))
    assert "score, partial credit included" not in words(svg)


def test_what_is_no_number_is_left_out_and_long_lines_are_thinned_to_their_means():
    rows = [
        {"step": s, "critic/score/mean": float(s), "critic/kl": math.nan, "val/accuracy": None}
        for s in range(1000)
    ]
    svg = drawn(learning_curve(rows, "long"))
    (line,) = lines(svg)
    assert MOST_POINTS / 2 < len(line) <= MOST_POINTS
    slopes = {round((b[1] - a[1]) / (b[0] - a[0]), 1) for a, b in pairwise(line)}
    assert len(slopes) <= 2  # as straight as rounding to pixels leaves it
    assert not [node for node in svg.iter() if "var(" in node.get("style", "")], "no page is there"
    assert len(base64.b64encode(ElementTree.tostring(svg))) < 20_000


def test_a_title_is_text_and_without_numbers_there_is_no_picture():
    rows = [{"step": 1, "critic/kl": -0.001}]
    assert "<script>1</script>" in words(drawn(learning_curve(rows, "<script>1</script>")))
    assert learning_curve([], "none") is None
    assert learning_curve([{"step": 0, "other": 1.0}], "none") is None
