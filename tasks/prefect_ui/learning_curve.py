"""The learning curve as a picture for the Prefect UI: four small charts, drawn while training."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tasks.prefect_ui.chart import HEIGHT, PALETTE, WIDTH, Series, draw, text

_HEAD: Final = 30
"""Height of the title, and of each chart's name."""
_CHARTS: Final = {
    "accuracy": (("reward/accuracy", "training", "train"), ("val/accuracy", "test", "test")),
    "score, partial credit included": (("critic/score/mean", "", "test"),),
    "tokens per response": (("response_length/mean", "", "test"),),
    "KL to the reference, nats per response": (("critic/kl", "", "test"),),
}
"""Metric, name and colour of each line."""


def learning_curve(rows: Sequence[Mapping[str, Any]], title: str) -> str | None:
    """Returns accuracy, score, length and KL over steps as an SVG data URI.

    Args:
        rows: `step` and metrics, as in `metrics.jsonl`, by ascending steps.
        title: stands above the charts.

    Returns:
        None where there is nothing to draw yet.
    """
    drawings: list[str] = []
    for name, lines in _CHARTS.items():
        series = [Series(words, colour, _points(rows, metric)) for metric, words, colour in lines]
        if chart := draw(series, ""):
            x = len(drawings) % 2 * WIDTH
            y = _HEAD + len(drawings) // 2 * (_HEAD + HEIGHT)
            only = [one.name for one in series if one.points]
            words = f"{name}, {only[0]}" if only != [one.name for one in series] else name
            named = text(WIDTH / 2, 20, words, colour="ink", anchor="middle")
            drawing = f'<g transform="translate(0 {_HEAD})">{chart.drawing}</g>'
            drawings.append(f'<g transform="translate({x} {y})">{named}{drawing}</g>')
    if not drawings:
        return None
    width, height = 2 * WIDTH, _HEAD + math.ceil(len(drawings) / 2) * (_HEAD + HEIGHT)
    head = text(12, 21, title, colour="ink", more=' font-size="15"')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f"{head}{''.join(drawings)}</svg>"
    )
    colours = {name.replace("_", "-"): colour for name, colour in PALETTE.items()}
    svg = re.sub(r"var\(--([a-z-]+)\)", lambda found: colours[found[1]], svg)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def as_picture(uri: str | None) -> str | None:
    """Returns the picture as markdown: beneath an image artifact the page shows its URI in full."""
    return None if uri is None else f"![accuracy, score, tokens and KL by step]({uri})\n"


def _points(rows: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """Returns a metric by step, without what is no number."""
    return [
        (float(row["step"]), float(value))
        for row in rows
        if (value := row.get(metric)) is not None and math.isfinite(value)
    ]
