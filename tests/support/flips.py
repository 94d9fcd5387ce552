"""What a setting can change, seen as cheaply as possible: each function returns plain values.

That the setting itself is written somewhere (`config.yaml`, `run.json`, a metric that repeats it)
is no effect, so such places are left out.
"""

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from safetensors.torch import load_file

from flows.countdown_train import retried_evaluate, retried_train
from flows.errors import BadInputError
from flows.settings.compose import compose
from rl_core import train
from rl_core.config.run import RunConfig
from rl_core.data.dataset import count_problems, dataset_folder, read_solved, write_dataset
from rl_core.data.prompts import load_tokenizer, prompted
from rl_core.data.sampling import total_steps
from rl_core.evaluator import Evaluator
from rl_core.loop import steps
from rl_core.resources.placement import asked_of_ray
from rl_core.rewards.scoring import start_rewards
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import leaves
from rl_core.sft.tune import tune_model
from rl_core.types import Message, Problem, ScoredText
from rl_core.workers.in_process import OneEngine
from tasks.base_model import _warm_start
from tasks.preflight import preflight
from tasks.preflight_checks import plans
from tasks.preflight_checks.hours import time_findings
from tasks.supervision.supervisor import Watched

_REPEATS = re.compile(
    r"time$|timing_|memory/|mfu/|disk/|.*/lr$|critic/kl_coeff$|rollout/tokens_per_s"
)
"""Metrics that are no effect: of the machine, or a setting as it was set."""
_VOLATILE = re.compile(r"[a-z_]+\.[a-z_0-9]+=\S+|[\d.]+ [GTM]i?B (are )?free|[\d.]+ are free")
"""Settings as a finding repeats them, and what is free now."""
_TABLES = {
    "held_out/*.parquet": ("prompt", "response", "mode", "score"),
    "rollouts/*.parquet": ("prompt", "response"),
}
_OF_A_PART = {("warning", "wandb")}
_PROBLEMS = [
    Problem(i, "custom", (Message(role="user", content=f"Say {i}"),), "e", 0) for i in range(8)
]
_CHAT = (
    "{% for message in messages %}<u>{{ message.content }}</u>{% endfor %}"
    "{% if add_generation_prompt %}<a>{{ mood }}{% endif %}"
)
_SOLUTIONS = ("{0}", "<answer>{0}</answer>", "<answer>{0}</answer>\nSo it is.", "#### {0}")
_FORMS = (*_SOLUTIONS, "It is {0}.", "First 7, then {0}", "#### 7\n#### {0}\n{0} it is")


@dataclass(frozen=True)
class Flip:
    """A setting with another value, and the settings under which it should count."""

    sees: str
    """The function here that sees it."""
    key: str
    value: str
    others: dict[str, str]

    @property
    def env(self) -> str:
        return self.others.get("env", "countdown")

    def __str__(self) -> str:
        return f"{self.sees}-{self.env}-{self.key}"

    @classmethod
    def parse(cls, sees: str, line: str) -> "Flip":
        (key, value), *others = (word.split("=", 1) for word in line.split())
        return cls(sees, key, value, dict(others))

    def sides(self, files: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The settings before the flip, and after it."""
        base = BASES[self.sees] | {"storage.root": str(files / "root")} | self.others
        sides = (base, base | {self.key: self.value})
        before, after = (
            tuple(f"{key}={value}".replace("FILES", str(files)) for key, value in side.items())
            for side in sides
        )
        return before, after


def look(sees: str, settings: Sequence[str], files: Path, folder: Path) -> Any:
    """What a function sees of a run with these settings; `folder` does not exist yet."""
    folder.mkdir()
    try:
        config = compose(settings)
    except BadInputError as error:
        if sees != "refusal":
            raise
        return str(error)
    return SEES[sees](config, files / "model", folder)


def write_lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def letters(response: str) -> float:
    """The share of letters: a random model writes some."""
    return sum(c.isascii() and c.isalpha() for c in response) / 6


def _plain(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not _REPEATS.match(name)}


def numbers(config: RunConfig, model: Path, folder: Path) -> Any:
    """Responses and metrics of two steps, without tests and checkpoints."""

    def score(response: str, problem: Problem) -> ScoredText:
        share = letters(response)
        return ScoredText(share, "correct" if share > 0.5 else "incorrect", None)

    model = Path(config.model.path or model)
    return [
        ([rollout.response_text for rollout in step.rollouts], _plain(step.metrics))
        for step in steps(config, model, _PROBLEMS, score)
    ]


def run(config: RunConfig, model: Path, folder: Path) -> Any:
    """Files and metrics of a whole run of four steps."""
    settings = dict(leaves(config.model_dump(mode="json")))
    for name in ("preset", "run_id", "env.name", "storage.root", "storage.url"):
        settings.pop(name, None)
    (rows,) = config.data.train_files
    with warnings.catch_warnings(action="ignore"):  # about defaults: they are all handed over
        done = train(
            model=model,
            problems=rows,
            reward=letters,
            settings=settings,
            root=folder / "root",
            run_id="r",
        )
    files = sorted(
        str(file.relative_to(done.folder))
        for file in done.folder.rglob("*")
        if not file.name.startswith("events.out")
    )
    files += [file.parent.name for file in done.folder.rglob("events.out*")]
    tables = [
        [pl.read_parquet(file).select(columns).rows() for file in sorted(done.folder.glob(name))]
        for name, columns in _TABLES.items()
    ]
    return files, [_plain(row) for row in done.metrics.to_dicts()], tables


def plan(config: RunConfig, model: Path, folder: Path) -> Any:
    """What preflight computes of memory, disk, hours and prices, and what Ray is asked for."""
    findings = [
        *plans.memory_findings(config),
        *plans.machine_findings(config),
        *plans.disk_findings(config),
        *time_findings(config),
    ]
    texts = [(f.check, _VOLATILE.sub("", f.message)) for f in findings]
    return texts, asked_of_ray(config, learner=True), total_steps(config, count_problems(config))


def refusal(config: RunConfig, model: Path, folder: Path) -> Any:
    """What stops a run before it begins, or a part of it."""
    findings = preflight(config)
    return [f.check for f in findings if f.level == "fatal" or (f.level, f.check) in _OF_A_PART]


def data(config: RunConfig, model: Path, folder: Path) -> Any:
    """The problems of both splits, their prompts as the model reads them, and their folder."""
    made = _made(config)
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = _CHAT
    chat = config.env.chat_template
    rows = {}
    for file in sorted(made.glob("*.parquet")):
        problems = [problem for problem, _ in read_solved(file)]
        texts = prompted(problems, tokenizer, chat_template=chat)
        rows[file.name] = (pq.read_table(file).to_pylist(), [item.prompt_text for item in texts])
    is_named = config.data.name or config.storage.root.name != "root"
    return rows, str(made) if is_named else ""


def _made(config: RunConfig) -> Path:
    made = dataset_folder(config)
    if not made.exists():
        write_dataset(config.env, config.data, made)
    return made


def scores(config: RunConfig, model: Path, folder: Path) -> Any:
    """The scores of right and wrong answers to two problems, in several forms."""
    with start_rewards(config.env, config.reward) as rewards:
        pending = []
        for problem, solution in read_solved(_made(config) / "test.parquet")[:2]:
            truth = problem.ground_truth
            right = truth.get("answer") if isinstance(truth, dict) else str(truth)
            answers = [answer for answer in (solution, right, "11") if answer]
            texts = [form.format(answer) for answer in answers for form in _FORMS]
            pending += [rewards.submit(text, problem) for text in (*texts, "nothing", "0.4")]
        found = [one.result() for one in pending]
    return [(one.score, one.verdict) for one in found]


def workers(config: RunConfig, model: Path, folder: Path) -> Any:
    """How many processes answer calls of the reward."""
    return len({score for score, _ in scores(config, model, folder)})


def warm_start(config: RunConfig, model: Path, folder: Path) -> Any:
    """The home-made base model: its report and its weights."""
    _warm_start(config, _made(config), folder / "made")
    return _of_model(folder / "made")


def fine_tuned(config: RunConfig, model: Path, folder: Path) -> Any:
    """A model after SFT: its report, its curve and its weights; or why it is refused."""
    curve: list[Any] = []
    try:
        tune_model(
            config,
            model_path=model,
            data=_made(config),
            folder=folder / "made",
            on_step=lambda step, last, row: curve.append((step, last, row)),
            logger=logging.getLogger(__name__),
        )
    except ValueError as error:
        return f"refused: {error}"
    return curve, _of_model(folder / "made")


def _of_model(folder: Path) -> Any:
    report = json.loads((folder / "warm_start.json").read_text())
    for name in ("seconds", "model", "data", "lora_rank"):
        report.pop(name, None)
    return report, {k: v.tolist() for k, v in load_file(folder / "model.safetensors").items()}


def evaluation(config: RunConfig, model: Path, folder: Path) -> Any:
    """The rows of an evaluation of a model."""
    engine = OneEngine(config, model)
    evaluator = Evaluator(config, _made(config))

    class Engines:
        def generate(self, requests: Sequence[Any], sampling: Any) -> list[Any]:
            answers = dict(engine.stream(requests, sampling, "evaluate"))
            return [answers[i] for i in range(len(requests))]

    rows = evaluator.ask(Engines(), "model", model)
    return [(row["prompt"], row["mode"], row["response"]) for row in rows]


def supervision(config: RunConfig, model: Path, folder: Path) -> Any:
    """How often and when a part is started again, and how long it may be silent or take to stop."""
    made = RunFolder(folder)
    tasks = (retried_train(config, made), retried_evaluate(config, made))
    process = Watched.of_run("trainer", config, made)
    return (
        [(task.retries, task.retry_delay_seconds) for task in tasks],
        process.grace_s,
        process.stall_s,
    )


def where(config: RunConfig, model: Path, folder: Path) -> Any:
    """Where files of a run go, and under which settings it starts."""
    made = RunFolder.create(config)
    return str(made.path), config.model_dump(mode="json", exclude={"preset", "run_id", "storage"})


_SMALL_DATA = {
    "data.train_size": "8",
    "data.test_size": "4",
    "data.train_batch_size": "2",
    "actor.mini_batch_size": "2",
}
_IN_PROCESS = {
    "env": "custom",
    "env.prompt_template": "base",
    "rollout.engine": "hf",
    "rollout.num_engines": "1",
    "model.path": "FILES/model",
    "resources.learner_threads": "1",
    "data.train_batch_size": "4",
    "actor.mini_batch_size": "2",
    "data.max_prompt_length": "32",
    "data.max_response_length": "6",
    "algorithm.group_size": "2",
    "actor.lr": "1e-2",
    "critic.lr": "1e-2",
    "trainer.total_steps": "2",
}
BASES: dict[str, dict[str, str]] = {
    "numbers": _IN_PROCESS,
    "run": _IN_PROCESS
    | {
        "trainer.total_steps": "4",
        "trainer.save_freq": "2",
        "trainer.test_freq": "2",
        "storage.min_free_gib": "0",
        "data.train_files": "[FILES/rows.jsonl]",
        "data.test_size": "4",
        "algorithm.estimator": "grpo",
        "algorithm.kl_mode": "none",
        "checkpoints.in_background": "false",
    },
    "warm_start": _SMALL_DATA
    | {
        "base_model.steps": "2",
        "base_model.warmup_steps": "1",
        "base_model.batch_size": "4",
        "base_model.max_response_tokens": "16",
        "env.max_number": "20",
        "env.max_operands": "3",
        "base_model.num_threads": "1",
    },
    "fine_tuned": _SMALL_DATA
    | {
        "sft.data": "FILES/sft.jsonl",
        "sft.batch_size": "8",
        "sft.epochs": "1",
        "sft.warmup_steps": "1",
        "sft.held_out": "2",
        "model.path": "FILES/model",
        "data.max_response_length": "512",
        "resources.learner_threads": "1",
    },
    "evaluation": _SMALL_DATA | _IN_PROCESS | {"data.train_files": "[FILES/rows.jsonl]"},
    "plan": {},
    "refusal": {"rollout.engine": "hf", "storage.min_free_gib": "0"},
    "where": {"run_id": "r"},
    "supervision": {"run_id": "r"},
    "data": _SMALL_DATA,
    "scores": _SMALL_DATA | {"reward.timeout_s": "60"},
    "workers": _SMALL_DATA,
}
"""What a function's flips start from, beside the default preset; FILES is a folder."""
SEES: dict[str, Callable[[RunConfig, Path, Path], Any]] = {
    look.__name__: look
    for look in (
        *(numbers, run, plan, refusal, where, data, scores, workers, warm_start, fine_tuned),
        *(evaluation, supervision),
    )
}
