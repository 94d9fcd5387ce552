"""The page of SQL: each view with its columns, and each saved question."""

import re
from itertools import groupby
from typing import Final

from tasks.queries import sql
from tasks.queries.saved_questions import SQL_FOLDER, Query, list_queries, load_check
from tests.support.stored_run import STORED

_HEAD: Final = """\
# SQL over rollouts

<!-- written by `python -m tests.support.reference_pages` from sql/ -->

Each rollout of each step is a row: prompt, response, verdict, score, reward, advantage, value, KL.
You may ask while the run is writing:

```sh
countdown-train sql --list
countdown-train sql learning_curve latest
countdown-train sql samples_of_a_verdict latest  # the most frequent mistake
countdown-train sql phrase_by_step -p pattern='(?i)wait|check'
countdown-train sql "select verdict, count(*) from rollouts group by all" --format csv
```

In a wide table, columns with one value are printed once above it; a few wide rows are printed as
blocks. A terminal shows the first and last 30 rows; a file, a pipe and `--format csv` get all.
In a CSV file a text that a spreadsheet would compute (`=`, `+`, `-` or `@` first, and no number)
begins with `'`.

## The views

The views cover all runs. To see only one, write its id or `latest` after the question's name, or
`--run RUN`. Each row of a run has its `run_id`; times are in UTC.

| view | rows | columns |
|---|---|---|
"""
_QUESTIONS: Final = """
## The saved questions

`sql/` holds them, one SELECT per file. Parameters are given as `-p NAME=VALUE`.
`sql/checks/` holds the data checks of `validate`: each selects the rows that break its rule, from
`train`, from `test` or from `problems`, which are both with a column `split`.
[CONTRIBUTING.md](../CONTRIBUTING.md#how-to-add-a-saved-question) says how to add one.
"""


def sql_page() -> str:
    """Returns the views with their columns, as DuckDB names them, and the questions by topic."""
    views = map(load_check, sorted((SQL_FOLDER / "views").glob("*.sql")))
    lines = [_HEAD.rstrip(), *map(_view, views), _QUESTIONS]
    for topic, questions in groupby(list_queries(), key=lambda query: query.topic):
        lines += [f"### {topic.capitalize()}\n", *map(_question, questions), ""]
    return "\n".join(lines).rstrip() + "\n"


def _view(view: Query) -> str:
    columns = sql.run_query(f"select * from {view.name} limit 0", root=STORED).columns
    rows = _code(view.description).replace("|", "\\|")
    return f"| `{view.name}` | {rows} | {', '.join(f'`{name}`' for name in columns)} |"


def _question(query: Query) -> str:
    given = ", ".join(f"`{one.name}={one.default}`" for one in query.parameters)
    return f"- `{query.name}`: {_code(query.description)}" + (f" Takes {given}." if given else "")


def _code(text: str) -> str:
    """Returns a comment as Markdown: what looks like markup is code."""
    return re.sub(r"(?<![`\w])(\$\w+|\w*\*\w*)(?![`\w])", r"`\1`", text)
