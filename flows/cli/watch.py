"""The command `countdown-train watch [RUN]`: a run in the terminal, while it is active."""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flows.runs.lookup import find_run, run_first
from flows.runs.summary import accuracy_in_words
from rl_core.config.operations import protocol_of
from rl_core.runs.lock import close_if_lost
from rl_core.runs.rollout_log import samples_of_step
from rl_core.runs.run_folder import RunFolder, RunRecord
from rl_core.runs.settings_file import read_settings
from rl_core.runs.waiting import startup_in_words, step_in_words, waits_in_words
from rl_core.system.words import LINES, printable
from rl_core.tracking.diagnosis import diagnose
from rl_core.tracking.host_memory import AVAILABLE_GIB, HOST_GIB
from tasks.hours import last_step_of, left_of
from tasks.report_page.samples import problem_in_words

_INTERVAL_S: Final = 2.0
_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH: Final = 40
_SAMPLES: Final = 2
_STARTS: Final = 3
_SAMPLE_CHARACTERS: Final = 400
_SHOWN: Final = (
    ("reward/accuracy", "accuracy"),
    ("val/accuracy", "test accuracy"),
    ("critic/score/mean", "score"),
    ("response_length/mean", "tokens"),
    ("actor/entropy_loss", "entropy"),
    ("critic/kl", "KL"),
    ("rollout/tokens_per_s", "tokens/s"),
    ("timing_s/step", "s per step"),
    ("disk/free_gib", "disk free GiB"),
)


def watch(words: Sequence[str]) -> None:
    """Shows a run until it ends or Ctrl-C; once, where the output is no terminal."""
    run = find_run(run_first(words, "watch"))
    console = Console()
    if not console.is_terminal:
        console.print(view(run))
        return
    try:
        with Live(view(run), console=console, auto_refresh=False) as live:
            while run.read().status == "running":
                time.sleep(_INTERVAL_S)
                close_if_lost(run)  # a killed run cannot say so, and would be watched for ever
                live.update(view(run), refresh=True)
            live.update(view(run), refresh=True)  # its end
    except KeyboardInterrupt as error:  # Ctrl-C is the usual way to leave: the run continues
        if error.args:  # SIGTERM
            raise


def view(run: RunFolder) -> RenderableType:
    """Returns what there is to see of a run: progress, curves, memory, samples, diagnosis."""
    record = run.read()
    rows = run.metrics.read()
    colour = {"running": "cyan", "finished": "green"}.get(record.status, "red")
    title = Text.assemble((printable(run.run_id), "bold"), "  ", (record.status, colour))
    about = {"  ": record.reason, "\nnote: ": record.note, "\nwhat to do next: ": record.next_step}
    for head, text in about.items():
        title.append(f"{head}{printable(text)}" if text else "")
    if len(record.attempts) > 1:
        last = record.attempts[-1]
        title.append(f"\nattempt {len(record.attempts)}, {printable(last.reason)}", "yellow")
    if record.accuracy_after is not None:
        before, after = map(accuracy_in_words, (record.accuracy_before, record.accuracy_after))
        title.append(f"\nevaluated: accuracy {before} before, {after} after", "bold")
    settings = read_settings(run.path)
    if (protocol := protocol_of(settings)) != "greedy":
        title.append(printable(f"\naccuracy in tests and evaluation: {protocol}"), "dim")
    odd = diagnose(rows, settings=settings)
    diagnoses = [Text(printable(f"! {one}"), "yellow") for one in odd if not one.is_note]
    diagnoses = diagnoses or [Text("nothing stands out", "dim")]
    diagnoses += [Text(printable(f"note: {one}"), "dim") for one in odd if one.is_note]
    return Group(
        title,
        _progress(run, rows),
        *(_waits(run.path, record) if record.status == "running" else []),
        _curves(rows),
        *_memory(rows),
        *diagnoses,
        *_samples(run),
    )


def spark(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """Returns a curve as one line of bars, each the mean of its share of the values."""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)] if count else []
    means = [sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]
    low = min(means, default=0.0)
    steps = (max(means, default=0.0) - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((mean - low) / steps)] for mean in means)


def _progress(run: RunFolder, rows: list[dict[str, Any]]) -> RenderableType:
    steps = max((row["step"] for row in rows), default=0)
    last = last_step_of(run)
    left = left_of(run)
    text = f"step {steps}{f' of {last}' if last else ''}{f', {left}' if left else ''}"
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(last or max(steps, 1), steps, width=_SPARK_WIDTH)
    grid.add_row(bar, Text(printable(text)))
    return grid


def _waits(run: Path, record: RunRecord) -> list[RenderableType]:
    """What it waits for now, when the last step was done, and how long the last starts took."""
    step = step_in_words(run)
    starts = [
        f"attempt {number} started in {startup_in_words(attempt.startup_s)}"
        for number, attempt in list(enumerate(record.attempts, start=1))[-_STARTS:]
        if attempt.startup_s
    ]
    return [
        *(Text(line, "cyan") for line in waits_in_words(run)),
        *(Text(line, "dim") for line in filter(None, (step, *starts))),
    ]


def _curves(rows: list[dict[str, Any]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, label in _SHOWN:
        values = [float(row[name]) for row in rows if row.get(name) is not None]
        if values:
            first, last = (f"{value:,.4g}" for value in (values[0], values[-1]))
            table.add_row(Text(label, "dim"), Text(spark(values)), Text(f"{first} -> {last}"))
    return table


def _memory(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """What each phase took at most, and what each process holds, in the last step."""
    last = rows[-1] if rows else {}
    shown: list[RenderableType] = []
    for label, prefix in (
        ("learner at most, GiB ", "memory/peak_gib/"),
        ("memory held, GiB     ", HOST_GIB),
    ):
        names = [name for name in last if name.startswith(prefix) and last[name] is not None]
        worst = sorted(names, key=lambda name: -last[name])[:4]
        text = ", ".join(f"{printable(n.removeprefix(prefix))} {last[n]:.2f}" for n in worst)
        if prefix == HOST_GIB and last.get(AVAILABLE_GIB) is not None:
            text += f"; {last[AVAILABLE_GIB]:.1f} are left"
        if names:
            shown.append(Text.assemble((label, "dim"), text))
    return shown


def _samples(run: RunFolder) -> list[RenderableType]:
    """The newest rollouts, as the model wrote them: what a terminal obeys is taken out."""
    return [
        Panel(
            Text(printable(_end_of(str(row["response"])), keep=LINES)),
            title=Text(printable(f"step {row['step']}: {row['verdict']}, {row['score']:g}")),
            subtitle=Text(printable(problem_in_words(row["truth"], str(row["prompt"])))),
            subtitle_align="left",
            title_align="left",
        )
        for row in samples_of_step(run.rollouts.folder, most=_SAMPLES)
    ]


def _end_of(response: str) -> str:
    """Returns the last characters, where the answer is, and says that there are more before."""
    text = response.strip()
    return text if len(text) <= _SAMPLE_CHARACTERS else f"… {text[-_SAMPLE_CHARACTERS:]}"
