"""The card of an exported model: what it is, what it learned from, how, and how well it does."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import yaml

from rl_core.evaluation.statistics import share
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from tasks.queries import sql
from tasks.queries.checkpoint_names import NamedModel
from tasks.queries.render import markdown_table


def model_card(model: NamedModel, root: Path, *, dtype: str) -> str:
    """Returns the card as Markdown; of a model without a run it can say little."""
    version = importlib.metadata.version("countdown-train")
    lines = [f"# {model.name}", "", f"Weights in {dtype}, exported by countdown-train {version}."]
    front = ["library_name: transformers", "pipeline_tag: text-generation"]
    if model.run is not None:
        settings = read_settings(model.run.path)
        base = settings.get("model", {}).get("path")
        if base is not None and not Path(base).expanduser().is_absolute():
            front.append(f"base_model: {base.removeprefix('modelscope:')}")
        lines += _how(model, settings, base)
        lines += _accuracy(model, model.run, root)
        if settings:
            own = yaml.safe_dump(_without_places(settings), sort_keys=False)
            lines += ["", "## Settings", "", "```yaml", own.rstrip(), "```"]
    return "\n".join(["---", *front, "---", "", *lines, ""])


def _how(model: NamedModel, settings: dict[str, Any], base: str | None) -> list[str]:
    run = model.run
    assert run is not None, "a model of no run was not made here"
    record = run.read()
    data, algorithm = settings.get("data", {}), settings.get("algorithm", {})
    env = settings.get("env", {})
    files = ", ".join(data.get("train_files") or ()) or "generated, or the env's own source"
    lines = [
        "",
        "## Data and training",
        "",
        f"- Base model: {base or 'made at home, warm-started on search traces'}.",
        f"- Problems: `{env.get('name')}`, {files}; prompts by `{env.get('prompt_template')}`.",
        f"- Reinforcement learning by `{algorithm.get('estimator')}`: {model.step} steps of "
        f"{data.get('train_batch_size')} prompts x {algorithm.get('group_size')}.",
    ]
    tuned = None if record.model is None else Path(record.model) / "warm_start.json"
    if settings.get("sft", {}).get("data") is not None and tuned is not None and tuned.is_file():
        report = json.loads(tuned.read_text(encoding="utf-8"))
        lines.append(
            f"- Before that supervised fine-tuning: {report['steps']} steps on {report['data']}; "
            f"held-out loss {report['held_out_loss_before']} before, "
            f"{report['held_out_loss_after']} after."
        )
    return lines


def _accuracy(model: NamedModel, run: RunFolder, root: Path) -> list[str]:
    rows = sql.ask("evaluation_summary", root=root, run=run.run_id).to_dicts()
    shown = [row for row in rows if row["model"] in ("base", model.model)]
    heading = ["", "## Accuracy", ""]
    if not any(row["model"] == model.model for row in shown):
        return [*heading, _tested(model, run, root)]
    return [
        *heading,
        "Greedy, on problems that were not trained on; 95% (Wilson) intervals.",
        "",
        markdown_table(
            ["model", "problems", "accuracy", "interval"],
            [
                [
                    row["model"],
                    row["problems"],
                    f"{row['accuracy']:.3f}",
                    f"{row['accuracy_low']:.3f} to {row['accuracy_high']:.3f}",
                ]
                for row in shown
            ],
        ),
    ]


def _tested(model: NamedModel, run: RunFolder, root: Path) -> str:
    """Returns what the tests of training said of a step that was not evaluated after it."""
    rows = sql.run_query(
        "select accuracy from checkpoints where step = $step",
        {"step": model.step},
        root=root,
        run=run.run_id,
    )
    settings = read_settings(run.path)
    counts = (
        settings.get("trainer", {}).get("test_problems"),
        settings.get("data", {}).get("test_size"),
    )
    known = [count for count in counts if count]
    accuracy = rows["accuracy"].drop_nulls().to_list()
    if not accuracy or not known:
        return f"It was not evaluated: `countdown-train evaluate {model.name}` does that."
    problems = min(known)
    said = share(round(accuracy[0] * problems), problems)
    return (
        f"Greedy, at its test during training: {said}, a 95% (Wilson) interval, on {problems} "
        f"problems that were not trained on. `countdown-train evaluate {model.name}` asks all."
    )


def _without_places(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what decides what is learned: not where files and machines are."""
    ours = ("storage", "resources", "checkpoints", "retry", "budget", "watchdog", "run_id")
    return {name: value for name, value in settings.items() if name not in ours}
