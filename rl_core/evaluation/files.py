"""The EVALUATIONS of a run: its own and all others side by side, so that none replaces another.

    eval/step_000100.parquet                         asked as the run's own settings say
    eval/100-problems-1a2b3c4d/step_000100.parquet   asked otherwise: fewer problems, say

An evaluation is what is asked of any model, named by `evaluation`: problems and settings. The files
of a folder are of one evaluation, so they can be compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.schema import EVALUATION
from rl_core.system.atomic import locked, new_file

UNKNOWN: Final = "unknown"
"""The evaluation of a file that cannot be read."""
PAGE: Final = ".html"
"""Suffix of the page that shows some of the answers, beside their rows."""


@dataclass(frozen=True)
class EvaluationFiles:
    """`eval/` of a run."""

    folder: Path

    def write(self, rows: Sequence[Mapping[str, Any]], *, is_own: bool) -> Path:
        """Writes complete rows of one model, and returns the file.

        Rows of the same model that were asked the same are replaced, no others: what lies in the
        place of the run's own evaluation and is another one is moved beside it first.
        """
        model, evaluation = str(rows[0]["model"]), str(rows[0]["evaluation"])
        with locked(self.folder):
            is_own = is_own or evaluation == self.own()
            own, other = self.folder / f"{model}.parquet", self._beside(evaluation, model)
            final, elsewhere = (own, other) if is_own else (other, own)
            with new_file(final) as temporary:
                table = pa.Table.from_pylist(list(rows), schema=EVALUATION)
                pq.write_table(table, temporary, compression="zstd")
                if is_own:
                    self._make_way(evaluation)
            if elsewhere.exists() and evaluation_of(elsewhere) == evaluation:
                elsewhere.unlink()
                elsewhere.with_suffix(PAGE).unlink(missing_ok=True)
        return final

    def find(self, model: str, evaluation: str) -> Path | None:
        """Returns the file of a model's rows, or None."""
        own = self.folder / f"{model}.parquet"
        if own.exists() and evaluation_of(own) == evaluation:
            return own
        other = self._beside(evaluation, model)
        return other if other.exists() else None

    def own(self) -> str | None:
        """Returns which evaluation lies in the place of the run's own, None if none does."""
        return next((evaluation_of(file) for file in self._own_files()), None)

    def _make_way(self, evaluation: str) -> None:
        """Moves the rows of other evaluations, and the pages beside them, out of the own place."""
        for file in list(self._own_files()):
            if (found := evaluation_of(file)) == evaluation:
                continue
            free = self._beside(found, file.stem)
            free.parent.mkdir(exist_ok=True)
            file.rename(free)
            page = file.with_suffix(PAGE)
            if page.exists():
                page.rename(free.with_suffix(PAGE))

    def _own_files(self) -> Iterator[Path]:
        return (file for file in sorted(self.folder.glob("*.parquet")) if file.name[0] != ".")

    def _beside(self, evaluation: str, model: str) -> Path:
        return self.folder / evaluation / f"{model}.parquet"


def evaluation_of(file: Path) -> str:
    """Returns which evaluation a file's rows are of."""
    try:
        first = next(pq.ParquetFile(file).iter_batches(1, columns=["evaluation"]))
        return str(first.column(0)[0])
    except (OSError, pa.ArrowException):
        return UNKNOWN
