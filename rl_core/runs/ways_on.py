"""How a run continues, by its status: the table of `--help run`, the report and docs/survives.md.

Nothing is imported for it but names: the help and the completion of a shell read it.
"""

from typing import Final

COLUMNS: Final = ("status", "command", "continues from")
WAYS_ON: Final = (
    ("running", "countdown-train watch (a start is refused)", "-"),
    ("interrupted (Ctrl-C, SIGTERM, a kill)", "the same command", "the last saved step"),
    ("failed", "the same command", "the last saved step"),
    (
        "finished, stopped by its budget",
        "the same command with a larger budget",
        "the step where it stopped",
    ),
    ("finished", "run_id=NAME trainer.total_steps=MORE", "its last step"),
    ("any, with other settings", "the new settings and run_id=NAME", "the last saved step"),
    ("any, to begin again", "the same command with run_id=NEWNAME", "step 0"),
    ("a night, interrupted", "the next night", "the last saved step"),
    ("a night, failed", "Retry in the UI, or run_id=NAME", "the last saved step"),
)
NOTES: Final = (
    "The same command continues the latest run of the same settings, of your own, that no process "
    "is working on; its first line names run and step.",
    "These settings may differ: storage.*, checkpoints.*, budget.*, retry.*, watchdog.*, "
    "trainer.logger, trainer.stop_grace_s, trainer.wandb_project and trainer.wandb_mode.",
    "If no step was saved, the run begins again at step 0 in the same folder. If none of its "
    "checkpoints can be read, a new run begins and says why.",
)


def as_text(width: int = 100) -> str:
    """Returns table and notes as lines of a terminal."""
    from textwrap import fill

    widths = [max(len(row[i]) for row in (COLUMNS, *WAYS_ON)) for i in range(len(COLUMNS))]
    rows = [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in (COLUMNS, *WAYS_ON)
    ]
    return "\n".join(["How a run continues:", *rows, "", *(fill(note, width) for note in NOTES)])
