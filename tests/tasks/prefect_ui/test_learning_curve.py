import base64
import math
from itertools import pairwise
from xml.etree import ElementTree

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
    rows = [{"step": 1, "critic/kl": -0.001, "reward/accuracy": 0.5}]
    said = words(drawn(learning_curve(rows, "<script>1</script>")))
    assert {"<script>1</script>", "accuracy, training"} <= set(said)
    assert "score, partial credit included" not in said
    assert learning_curve([], "none") is None
    assert learning_curve([{"step": 0, "other": 1.0}], "none") is None
