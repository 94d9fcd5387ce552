"""Every reward again: a logged response gets its verdict, score and value by the run's own rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isclose
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.envs.tool_env import ToolEnv
from rl_core.rewards.scoring import Rewards, start_rewards
from rl_core.runs.resume import CALLED_REWARD
from rl_core.runs.rollout_log import as_double
from rl_core.system.named_code import source_digest
from rl_core.system.plain_files import parse_json
from rl_core.types import REWARD_ERROR, Problem, ScoredText
from tasks.audit.facts import Facts

_SAME: Final = 1e-9
Row = Mapping[str, Any]


@dataclass
class Scorers:
    """The rules of a run's attempts; code that its folder names is not run unless a user names it.

    `problems` are those of the data set, by index; none if it is gone.
    """

    facts: Facts
    stack: ExitStack
    problems: Mapping[int, Problem]
    num_scored: int = 0
    unknown: dict[str, str] = field(default_factory=dict)
    _started: dict[str, Rewards | None] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def started(cls, facts: Facts, split: str = "train") -> Iterator[Scorers]:
        """Yields the scorers of a run's responses to the problems of a split."""
        problems = {} if isinstance(facts.problems, str) else facts.problems
        with ExitStack() as stack:
            yield cls(facts, stack, {one.index: one for one in problems.get(split, ())})

    def differences(
        self, rows: Sequence[Row], config_of: Callable[[int], RunConfig | str]
    ) -> Iterator[tuple[int, str]]:
        """Yields step and words for each row whose reward is not the one that its response gets."""
        pending = []
        for row in (row for row in rows if row["verdict"] != REWARD_ERROR):
            if (rewards := self._rewards(config_of(row["step"]))) is None:
                continue
            try:
                problem = self._problem(row)
                pending.append((row, rewards.submit(row["response"] or "", problem)))
            except _OtherProblemError as error:
                yield row["step"], f"{_place(row)}: {error}"
            except Exception as error:  # noqa: BLE001  # a stranger's truth may be of any shape
                yield row["step"], f"{_place(row)} cannot be scored: {type(error).__name__}"
        for row, scored in pending:
            self.num_scored += 1
            if (words := _difference(row, scored.result())) is not None:
                yield row["step"], f"{_place(row)}: {words}"

    def _rewards(self, config: RunConfig | str) -> Rewards | None:
        if isinstance(config, str):
            self.unknown["rewards"] = config
            return None
        key = config.env.model_dump_json()
        if key not in self._started:
            self._started[key] = None
            if (why_not := self._why_not(config)) is not None:
                self.unknown["rewards"] = why_not
            else:
                rewards = start_rewards(config.env, config.reward)
                self._started[key] = self.stack.enter_context(rewards)
        return self._started[key]

    def _why_not(self, config: RunConfig) -> str | None:
        env = config.env
        if isinstance(env, ToolEnv) and not env.reward:
            return f"env={env.name}: its tools cannot be called again"
        names = ",".join(env.reward)
        if not set(env.reward) <= set(self.facts.rewards):
            given = f"[{names}]" if "," in names else names
            return f"the reward is code: add env.reward={given} to the command if you trust it"
        kept = self.facts.run.read().own_code
        if CALLED_REWARD in kept:
            return f"the reward was {CALLED_REWARD}"
        for name in env.reward:
            if kept.get(name, "") not in ("", source_digest(name)):
                return f"the file of env.reward={name} has changed since the run (sha256)"
        return None

    def _problem(self, row: Row) -> Problem:
        """Returns the problem of a row; an error says why it is none of the data set's."""
        text = row.get("truth") or row.get("ground_truth")
        number = row["prompt_index"]
        problem = self.problems.get(number)
        if problem is not None:
            truth = json.dumps(problem.ground_truth, sort_keys=True, ensure_ascii=False)
            if text not in (None, truth):
                raise _OtherProblemError(f"its truth is not that of problem {number}")
            return problem
        if self.problems:
            raise _OtherProblemError(f"the data set has no problem {number}")
        try:
            truth = parse_json(text or "null", "its truth")
        except ValueError as error:
            raise _OtherProblemError(str(error)) from None
        return Problem(number or 0, row["data_source"] or "", (), truth, 0)


class _OtherProblemError(ValueError):
    """The problem of a row is none of the data set's."""


def _place(row: Row) -> str:
    return (
        f"response {row['sample_index']} of group {row['group_id']}"
        if "group_id" in row
        else f"{row['mode']} response {row['sample_index']} to problem {row['prompt_index']}"
    )


def _difference(row: Row, scored: ScoredText) -> str | None:
    """Returns what a row says and what its response gets, if they differ."""
    value = scored.value if isinstance(row["value"], str) else as_double(scored.value)
    again: dict[str, Any] = {"verdict": scored.verdict, "answer": scored.answer}
    if row.get("truth", "") is not None:  # an older version logged neither
        again["value"] = value
    for name, new in again.items():
        if row[name] != new:
            return f"{name} is {row[name]!r}, and its response gets {new!r}"
    if row["score"] is None or not isclose(row["score"], scored.score, abs_tol=_SAME):
        return f"score is {row['score']}, and its response gets {scored.score:g}"
    return None
