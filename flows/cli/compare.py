"""The command `countdown-train compare RUN RUN...`: tables here, curves in compare.html."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.cli.terminal import say, show_rows
from flows.errors import BadInputError
from flows.runs.lookup import storage_root, take_arguments
from tasks.report_page.compare import compare_runs, write_comparison


def compare(words: Sequence[str]) -> None:
    """Sets runs beside one another."""
    asked, settings = take_arguments([word for word in words if "=" in word], ("output",))
    root = storage_root(settings)
    try:
        comparison = compare_runs(root, [word for word in words if "=" not in word])
        page = Path(asked.get("output", root / "compare.html"))
        moved = write_comparison(comparison, page)
    except ValueError as error:
        raise BadInputError(str(error)) from None
    for title, frame in (
        ("what they reached", comparison.overview),
        ("settings that differ", comparison.settings),
        ("who won the same problems", comparison.paired),
    ):
        say(f"\n{title}")
        show_rows(frame)
    say(f"\ncurves: {page}")
    if moved is not None:
        say(f"the page of other runs that was there is now {moved}")
