"""One evaluation: any model answers a data set's test problems, and its rows are kept."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rl_core.checkpoints.manifest import model_digest
from rl_core.checkpoints.store import reading_latest
from rl_core.config.operations import EvaluationConfig
from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_problems
from rl_core.data.prompts import load_tokenizer, prompted, text_codec
from rl_core.data.tool_form import tool_form
from rl_core.envs.text_env import strict_and_lenient
from rl_core.errors import first_line
from rl_core.evaluation.rows import evaluate_model, label_rows, read_rows, write_rows
from rl_core.rewards.scoring import start_rewards
from rl_core.rollout.protocol import in_order
from rl_core.rollout.turns import TurnTaking
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.system.atomic import is_disk_full
from rl_core.system.disk_reserve import demand_room
from rl_core.system.named_code import code_digest
from rl_core.types import Completion, GenerationRequest, Problem

if TYPE_CHECKING:
    from rl_core.workers.engines import Engines

EVALUATION_VERSION: Final = 2
"""Part of the cache key: raise it when the same model would get other rows."""
_logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Evaluator:
    """Asks models the test problems of one data set, under the settings of one run.

    A model's rows are kept below `<storage.root>/evaluations`, by a digest of all they depend on.
    """

    config: RunConfig
    data: Path
    run: RunFolder | None = None
    """The run that evaluates: rows must not use the disk space that its reserve has freed."""

    @cached_property
    def problems(self) -> list[Problem]:
        """All problems of the test split."""
        return read_problems(self.data / "test.parquet")

    @cached_property
    def problem_set(self) -> str:
        """A digest of all test problems: their prompts and their right answers."""
        texts = [(problem.messages, problem.ground_truth) for problem in self.problems]
        return _digest(texts)

    @property
    def asked(self) -> list[Problem]:
        """The problems that are asked: all, or the first `evaluation.max_problems`."""
        return self.problems[: self.config.evaluation.max_problems]

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the model that rows depend on."""
        evaluation = self.config.evaluation.model_dump(mode="json")
        if len(self.asked) == len(self.problems):
            evaluation["max_problems"] = None  # a limit that leaves none out is no limit
        for name in ("decoding", "top_p", "top_k"):  # rows kept before there were these stay valid
            if evaluation[name] == EvaluationConfig.model_fields[name].default:
                del evaluation[name]
        reward = self.config.env.reward
        # Rows kept before there were turns stay valid.
        left_out = {"max_turns"} if self.config.env.max_turns == 1 else set()
        return ({"reward_source": [*map(code_digest, reward)]} if reward else {}) | {
            "version": EVALUATION_VERSION,
            "env": self.config.env.model_dump(mode="json", exclude=left_out),
            "evaluation": evaluation,
            "max_response_length": self.config.data.max_response_length,
            "engine": self.config.rollout.engine,
            "dtype": self.config.compute_dtype,
            "problems": self.problem_set,
        }

    @cached_property
    def evaluation(self) -> str:
        """This evaluation's name in rows: `512-problems-1a2b3c4d`, the same for every model."""
        return f"{len(self.asked)}-problems-{_digest(self.settings)[:8]}"

    def is_own_of(self, run: RunFolder) -> bool:
        """Returns whether this is the evaluation of the run's own settings and own problems.

        If its settings can no longer be read, the run's first evaluation counts as its own.
        """
        try:
            of_the_run = Evaluator(
                RunConfig.model_validate(read_settings(run.path)),
                Path(run.read().data or self.data),
            ).evaluation
        except (OSError, ValueError, TypeError):
            return run.evaluations.own() is None
        return of_the_run == self.evaluation

    def rows_file(self, name: str, model: Path) -> Path:
        """Returns the file of a model's rows, which may not exist yet."""
        digest = _digest({"settings": self.settings, "model": model_digest(model)})[:16]
        return self.config.storage.root / "evaluations" / f"{name}-{digest}.parquet"

    @property
    def may_reuse(self) -> bool:
        """Whether known rows are still valid: not if an own reward's file is not found."""
        return None not in self.settings.get("reward_source", [])

    def reusable_rows(self, name: str, model: Path) -> Rows | None:
        """Returns a model's known rows if they may be reused."""
        return self.known_rows(name, model) if self.may_reuse else None

    def known_rows(self, name: str, model: Path) -> Rows | None:
        """Returns a model's rows, if it was asked before."""
        file = self.rows_file(name, model)
        if not file.exists():
            return None
        _logger.info("the answers of %s are in %s", name, file)
        return read_rows(file)

    def ask(self, engines: Engines, name: str, model: Path) -> Rows:
        """Returns the rows of the model whose weights the engines hold, and keeps them.

        The tokenizer is that of the model's folder. If the disk is full, the rows are not
        kept, with a warning. ValueError if a prompt has a token that the model does not have.
        """
        tokenizer = load_tokenizer(str(model))
        chat = self.config.env.chat_template
        problems_to_ask = prompted(self.asked, tokenizer, chat_template=chat)
        decode, encode = text_codec(tokenizer)
        form = tool_form(tokenizer, chat)

        def generate(
            requests: Sequence[GenerationRequest],
            mode: str,
            problems: Sequence[Problem],
        ) -> list[Completion]:
            longest = self.config.data.max_response_length
            turns = TurnTaking(self.config.env, decode, encode, rewards.toolbox, form)
            return in_order(
                turns.play(
                    lambda some, how: enumerate(engines.generate(some, how)),
                    requests,
                    self.config.evaluation.sampling(longest, mode),
                    problems,
                )
            )

        env = self.config.env
        strict, lenient = strict_and_lenient(env)
        with start_rewards(env, self.config.reward) as rewards:
            rows = evaluate_model(
                generate,
                problems_to_ask,
                decode=decode,
                score=rewards.submit,
                other_scores={"verdict_strict": strict.score, "verdict_lenient": lenient.score},
                settings=self.config.evaluation,
            )
        rows = self.label(rows, run_id="", model=name, step=0)
        try:
            if self.run is not None:
                demand_room(self.run.path)
            write_rows(rows, self.rows_file(name, model))
        except OSError as error:
            if not is_disk_full(error):
                raise
            _logger.warning("the rows of %s are not kept for the next evaluation: %s", name, error)
        return rows

    def rows_of(
        self, engines: Engines | None, name: str, model: Path, *, is_loaded: bool = False
    ) -> Rows:
        """Returns a model's rows: known ones, else those of the engines' answers with its weights.

        `engines` is None if the rows are known; `is_loaded`: the engines hold the weights already.
        """
        rows = self.reusable_rows(name, model)
        if rows is None:
            assert engines is not None, f"the rows of {name} were there a moment ago"
            if not is_loaded:
                engines.load_weights(model)
            rows = self.ask(engines, name, model)
        return rows

    def label(self, rows: Rows, *, run_id: str, model: str, step: int) -> Rows:
        """Returns complete rows, see `label_rows`."""
        return label_rows(
            rows,
            run_id=run_id,
            model=model,
            step=step,
            evaluation=self.evaluation,
            num_problems=len(self.asked),
        )


def checkpoint_name(checkpoint: Path) -> str:
    """Returns the name under which a run's checkpoint is evaluated: run and step."""
    return f"{checkpoint.parent.parent.name}-{checkpoint.name}"


def ask_trained(
    config: RunConfig, run: RunFolder, data: Path, model_path: Path, engines: Engines
) -> None:
    """Lets the engines of a finished training answer the problems of its evaluation.

    The evaluation then need not start engines, which often takes longer than its problems do. If
    this fails, it starts them after all.
    """
    evaluator = Evaluator(config, data, run)
    if not evaluator.may_reuse:
        return
    start = time.monotonic()
    _logger.info("the engines answer the evaluation's problems before they go")
    try:
        evaluator.rows_of(engines, "base", model_path)
        with reading_latest(run.path) as checkpoint:
            if checkpoint is not None:
                evaluator.rows_of(engines, checkpoint_name(checkpoint.path), checkpoint.path)
    except Exception as error:  # noqa: BLE001  # whatever it is, the evaluation meets it again
        _logger.warning("the evaluation starts engines of its own: %s", first_line(error))
    finally:
        run.update(timings_s={"evaluate": time.monotonic() - start})


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
