"""The receipt: every check of a run, a line each. It reads files; no model, no engine."""

from collections.abc import Collection, Sequence

from rl_core.runs.receipt import AuditLine
from rl_core.runs.run_folder import IMPORTED, RunFolder
from tasks.audit import files, held_out, steps
from tasks.audit.facts import Facts, line

_MOST_ATTEMPTS = 1_000


def audit_run(run: RunFolder, rewards: Collection[str] = ()) -> list[AuditLine]:
    """Returns a line for each thing that a run's files must agree on.

    `rewards` are functions that the user names: what only the run's folder names is not called.
    ValueError if there is no run.
    """
    facts = Facts(run, rewards)
    if run.read().preset == IMPORTED:
        return [line("run", "", unknown="it was imported from a log: there is nothing to compare")]
    if (number := len(facts.attempts)) > _MOST_ATTEMPTS:
        return [line("attempts", "", [f"run.json has {number:,} attempts: no run has so many"])]
    rows, wrong = steps.read_metrics(facts)
    rollouts = steps.read_rollouts(facts)
    evaluations, unreadable = held_out.read_evaluations(facts)
    all_rows = list(evaluations.values())
    names = rollouts.run_ids | {str(row["run_id"]) for rows in all_rows for row in rows}
    again = "logged responses get the logged verdict, answer, value and score again"
    return [
        files.check_names(facts, names),
        files.check_attempts(facts),
        steps.check_steps(facts, rows, wrong),
        steps.check_rollouts(facts, rollouts, rows[-1]["step"] if rows else 0),
        steps.check_agreement(facts, rollouts, rows),
        steps.check_order(facts, rollouts, rows),
        steps.check_staleness(facts, rollouts),
        files.check_weights(facts, rollouts.versions),
        line(
            "rewards",
            f"{rollouts.num_scored:,} {again}",
            rollouts.wrong["rewards"],
            rollouts.unknown.get("rewards"),
        ),
        files.check_checkpoints(facts),
        held_out.check_tests(facts),
        *held_out.check_evaluations(facts, evaluations, unreadable),
        held_out.check_absent(facts, rollouts.prompts, all_rows),
    ]


def is_green(lines: Sequence[AuditLine]) -> bool:
    """Says whether all holds."""
    return all(one.outcome in ("holds", "note") for one in lines)
