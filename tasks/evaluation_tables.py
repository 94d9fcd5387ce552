"""What models reached, in tables for the Prefect UI and the terminal."""

from collections.abc import Sequence
from typing import Any

from rl_core.evaluation.summary import EvaluationSummary
from tasks.prefect_ui.artifacts import create_table_artifact


def show_tables(summaries: Sequence[EvaluationSummary], description: str) -> None:
    """Shows what models reached, all in all and by difficulty, in the Prefect UI."""
    create_table_artifact(summary_table(summaries), key="evaluation", description=description)
    create_table_artifact(
        group_table(summaries),
        key="evaluation-by-difficulty",
        description="Greedy accuracy by how many numbers and how many solutions a problem has.",
    )


def summary_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per number, a column per model, as people read it."""
    measured = {summary.model: measures(summary) for summary in summaries}
    return [
        {"measure": name, **{model: values[name] for model, values in measured.items()}}
        for name in next(iter(measured.values()))
    ]


def measures(summary: EvaluationSummary) -> dict[str, str]:
    """Returns the numbers of one model by name, those of a share with their 95% interval."""
    return {
        "problems": str(summary.num_problems),
        "accuracy": str(summary.accuracy),
        "strict": str(summary.accuracy_strict),
        "lenient": str(summary.accuracy_lenient),
        **{f"pass@{k}": str(value) for k, value in summary.pass_at_k.items()},
        **{f"maj@{k}": str(value) for k, value in summary.majority_at_k.items()},
        "score": str(summary.score),
        "format": str(summary.format_share),
        "tokens": summary.response_tokens.as_text(1),
    }


def group_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per group of problems, a column per model (all saw the same problems)."""
    return [
        {"problems": groups[0].label, "number": groups[0].num_problems}
        | {
            summary.model: str(group.accuracy)
            for summary, group in zip(summaries, groups, strict=True)
        }
        for groups in zip(*(summary.groups for summary in summaries), strict=True)
    ]
