"""Draws README's learning curves from runs' own metrics, as the report draws its charts.

python -m tests.support.learning_curves "TITLE=RUN_FOLDER" ...   (writes docs/images/learning.json)
python -m tests.support.learning_curves                          (draws the picture anew from it)
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any, Final

from rl_core.evaluation.statistics import wilson_interval
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from tasks.prefect_ui.chart import HEIGHT, PALETTE, WIDTH, Series, draw
from tasks.queries.sql import ask

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
NUMBERS, PICTURE = IMAGES / "learning.json", IMAGES / "learning.svg"
_HEAD: Final = 34
_DARK: Final = {
    "ink": "#e8edf3",
    "muted": "#9aa7b5",
    "grid": "#303b48",
    "train": "#5b7699",
    "test": "#6aa8ff",
    "page": "#0d1117",
}


def numbers_of(folder: Path) -> dict[str, Any]:
    """Accuracy by step in training and in tests of `problems`, and right answers at the end."""
    run = RunFolder(folder)
    curve = ask("learning_curve", root=run.root, run=run.run_id).to_dicts()
    models = ask("evaluation_summary", root=run.root, run=run.run_id).to_dicts()
    settings = read_settings(folder)
    return {
        "problems_of_a_test": min(settings["trainer"]["test_problems"], models[0]["problems"]),
        "train": [[row["step"], row["accuracy"]] for row in curve if row["accuracy"] is not None],
        "test": [[r["step"], r["test_accuracy"]] for r in curve if r["test_accuracy"] is not None],
        "problems": models[0]["problems"],
        "right": [round(row["accuracy"] * row["problems"]) for row in models],
    }


def picture(numbers: dict[str, Any]) -> str:
    """One SVG with a chart for each run; it follows the reader's light or dark theme."""
    drawings = []
    for i, (title, run) in enumerate(numbers.items()):
        count = run["problems_of_a_test"]
        band = [wilson_interval(round(share * count), count) for _, share in run["test"]]
        chart = draw(
            [
                Series("training, sampled", "train", run["train"]),
                Series("test, greedy, 95% interval", "test", run["test"], "dots", band),
            ],
            "share solved",
            y_top=1,
        )
        look = 'text-anchor="middle" font-size="15" style="fill:var(--ink)"'
        head = f'<text x="{WIDTH // 2}" y="22" {look}>{escape(title)}</text>'
        body = f'<g transform="translate(0 {_HEAD})">{chart}</g>'
        drawings.append(f'<g transform="translate({i * WIDTH} 0)">{head}{body}</g>')
    width, height = WIDTH * len(drawings), HEIGHT + _HEAD
    light = {name: PALETTE.get(name, "#ffffff") for name in _DARK}
    themes = [
        "".join(f"--{name}:{colour};" for name, colour in colours.items())
        for colours in (light, _DARK)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape("; ".join(numbers))}"><style>svg{{{themes[0]}}}'
        f"@media (prefers-color-scheme: dark){{svg{{{themes[1]}}}}}</style>"
        f'<rect width="{width}" height="{height}" style="fill:var(--page)"/>'
        f"{''.join(drawings)}</svg>\n"
    )


def main() -> None:
    """Writes the numbers of the runs that are named, and draws the picture."""
    if runs := dict(word.split("=", 1) for word in sys.argv[1:]):
        numbers = {title: numbers_of(Path(folder)) for title, folder in runs.items()}
        NUMBERS.write_text(json.dumps(numbers) + "\n")
    PICTURE.write_text(picture(json.loads(NUMBERS.read_text())))


if __name__ == "__main__":
    main()
