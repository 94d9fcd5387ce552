"""What each metric of `metrics.jsonl` means; the table is `metrics.yaml`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml


@dataclass(frozen=True)
class Metric:
    """A row of the table."""

    name: str
    """As it is logged; a `*` stands for the rest of a part of it."""
    unit: str
    means: str
    good: str
    """What a good value looks like."""
    verl: str | None = "the same"
    """verl's name; None if verl has none."""
    when: str | None = None
    """What a run needs to log it; None if every run does."""

    def is_row_of(self, logged: str) -> bool:
        """Says whether the row describes a metric that was logged."""
        return re.fullmatch(re.escape(self.name).replace(r"\*", "[^/]+"), logged) is not None


METRICS: Final = tuple(
    Metric(name, **row)
    for name, row in yaml.safe_load(
        Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8")
    ).items()
)


def find_metrics(word: str) -> list[Metric]:
    """Returns the row of a metric's whole name, else the rows with `word` as a part of theirs."""
    exact = [metric for metric in METRICS if word == metric.name]
    exact = exact or [metric for metric in METRICS if metric.is_row_of(word)][:1]
    return exact or [metric for metric in METRICS if word in re.split("[/_]", metric.name)]
