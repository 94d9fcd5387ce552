"""The short table at the end of a run: what it reached, where things are, what to try next."""

from rl_core.config.operations import StorageConfig, protocol_of
from rl_core.resources.oom_recovery import in_words
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.system.words import printable
from rl_core.tracking.diagnosis import diagnose
from tasks.queries.sql import ask

_LABEL_WIDTH = 17


def summary_lines(run: RunFolder) -> list[str]:
    """Returns the table, its lines not wrapped, so that a path or a command can be copied."""
    record = run.read()
    where = "" if run.root == StorageConfig().root else f" storage.root={run.root}"
    intervals = intervals_of(run)
    seconds = sum(record.timings_s.values())
    price = run.price_of(seconds)
    settings = read_settings(run.path)
    protocol = protocol_of(settings)
    another = f"countdown-train run preset={record.preset} seed=1{where}"
    if record.own_settings:  # too many to type, and another run without them
        another = "the same command with seed=1, and without run_id"
    rows = [
        ("run", f"{record.run_id}, {record.status}"),
        ("accuracy before", accuracy_in_words(record.accuracy_before, intervals.get("base"))),
        ("accuracy after", accuracy_in_words(record.accuracy_after, intervals.get("trained"))),
        *([("accuracy of", protocol)] if protocol != "greedy" else []),
        *([("champion", record.champion)] if record.champion else []),
        *(
            ("diagnosis" if i == 0 else "", str(one))
            for i, one in enumerate(diagnose(run.metrics.read(), settings=settings))
        ),
        ("steps", str(record.steps)),
        *(
            ("retried", f"from step {attempt.from_step} with {in_words(attempt.changes)}")
            for attempt in record.attempts
            if attempt.changes
        ),
        *([("note", record.note)] if record.note else []),
        *([("reason", record.reason)] if record.reason else []),
        *([("next step", record.next_step)] if record.next_step else []),
        ("time", f"{seconds / 60:.1f} min" + (f", {price}" if price else "")),
        *(("", f"{seconds:8.1f} s {stage}") for stage, seconds in record.timings_s.items()),
        ("data set", str(record.data)),
        ("base model", str(record.model)),
        ("run folder", str(run.path)),
        ("report", str(run.path / "report.html")),
        ("try next", f"countdown-train sql learning_curve --run {record.run_id}{where}"),
        ("", f"countdown-train sql won_and_lost --run {record.run_id}{where}"),
        ("", another),
    ]
    return [printable(f"{label:<{_LABEL_WIDTH}}{value}") for label, value in rows]


def accuracy_in_words(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Returns an accuracy with its 95% interval."""
    low_and_high = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    return "not measured" if value is None else f"{value:.3f}{low_and_high}"


def intervals_of(run: RunFolder) -> dict[str, tuple[float, float]]:
    """Returns the 95% intervals of the base model's accuracy and of the model last trained."""
    rows = ask("evaluation_summary", root=run.root, run=run.run_id).sort("step").to_dicts()
    of_record = run.evaluations.own()
    return {
        "base" if row["model"] == "base" else "trained": (row["accuracy_low"], row["accuracy_high"])
        for row in rows
        if row["evaluation"] == of_record  # which `run.json` is of
    }
