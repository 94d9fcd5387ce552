"""Makes the runs of sql.py: the files of real runs, with text made up as fast as a disk writes.

The text is like that of small models: an attempt per line, numbers that are rarely repeated and
phrases that often are, a third of the length of an essay. zstd packs both to a fifth.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.envs.countdown import render_messages
from rl_core.evaluation.rows import label_rows, write_rows
from rl_core.runs.run_folder import RunFolder
from rl_core.schema import MOST_VALIDATION_ROWS, RESCORES, ROLLOUTS
from rl_core.types import Completion, Problem, Rollout, ScoredText

PROMPTS, GROUP_SIZE = 64, 4
STEP_ROWS = PROMPTS * GROUP_SIZE
CHECKPOINT_STEPS, TEST_STEPS = 100, 10
NUM_PROBLEMS = 20_000
TEST_PROBLEMS, SAMPLES = 1_024, 4
_NUM_LINES = 100_000
_CHARS_PER_TOKEN = 2
_PHRASES = (
    "Let me try {a} + {b} first: that is {c}.",
    "{a} - {b} = {c}, which is not {d}.",
    "If I multiply {a} by {b}, I get {c}: too large by {d}.",
    "{a} * {b} = {c}, and {c} - {d} is not it either.",
    "Using {a}, {b} and {c}: ({a} + {b}) - {c} is far from {d}.",
    "Maybe {a} / {b} helps, {d} over {c}? No.",
    "So {a} + {b} - {c} = {d}, let me think again.",
    "The target is {d}, so I need {a} more than {b}, which {c} may give.",
    "{d} - {c} = {a}; can I make {a} of {b} and the rest?",
    "Trying all orders of {a}, {b}, {c}, nothing comes near {d}.",
)
_ASIDES = ("Wait, let me check {a} again.", "Let me verify: {a} and {b}.", "Hmm.", "That fails.")
_MEASURED = (
    *(
        f"actor/{name}"
        for name in ("entropy_loss", "pg_loss", "pg_clipfrac", "ppo_kl", "grad_norm", "lr")
    ),
    *(f"critic/{name}" for name in ("kl", "kl_coeff", "vf_loss", "vf_clipfrac", "grad_norm", "lr")),
    *(
        f"critic/{name}/{what}"
        for name in ("score", "rewards", "advantages", "returns", "values")
        for what in ("mean", "max", "min")
    ),
    *(
        f"{name}_length/{what}"
        for name in ("response", "prompt")
        for what in ("mean", "max", "min", "clip_ratio")
    ),
    *(
        f"timing_s/{name}"
        for name in ("gen", "ref", "values", "adv", "update_critic", "update_actor", "step")
    ),
    *(
        f"memory/peak_gib/{name}"
        for name in ("gen", "ref", "values", "update_critic", "update_actor")
    ),
    *("reward/accuracy", "rollout/logprob_gap_mean", "rollout/logprob_gap_max"),
    *("rollout/tokens_per_s", "group/zero_spread_frac", "disk/free_gib"),
)
"""Names of metrics that a step logs."""


@dataclass(frozen=True)
class Writing:
    """The cost of writing a run."""

    rows: int
    text_chars: int
    write_s: tuple[float, ...]
    """Wall seconds of each step's file."""


class Author:
    """Makes up problems and their rollouts, the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        numbers = self._random.integers(1, 999, (_NUM_LINES, 4)).tolist()
        kinds = self._random.integers(0, 100, _NUM_LINES).tolist()
        self._lines = [
            (_ASIDES[kind % len(_ASIDES)] if kind < 12 else _PHRASES[kind % len(_PHRASES)]).format(
                a=a, b=b, c=c, d=d
            )
            for kind, (a, b, c, d) in zip(kinds, numbers, strict=True)
        ]
        operands = self._random.integers(1, 99, (NUM_PROBLEMS, 3)).tolist()
        targets = self._random.integers(10, 99, NUM_PROBLEMS).tolist()
        self._problems = [
            Problem(i, "countdown", (), {"target": target, "numbers": three}, 1 + i % 14)
            for i, (three, target) in enumerate(zip(operands, targets, strict=True))
        ]
        self._prompts = [
            render_messages("base", three, target)[0]["content"]
            for three, target in zip(operands, targets, strict=True)
        ]
        self._answers = [f"({a} + {b}) - {c}" for a, b, c in operands]
        self._ids = np.arange(4_096)
        self._logprobs = self._random.normal(-0.7, 0.3, 4_096).astype(np.float32)

    def rollouts(self, step: int, skill: float) -> list[Rollout]:
        """Returns a step's rollouts: `PROMPTS` problems, `GROUP_SIZE` responses to each.

        Args:
            step: from 1; it chooses the problems.
            skill: share of correct answers.
        """
        dice = self._random.random(STEP_ROWS).tolist()
        return [
            self.rollout(
                (step * PROMPTS + row // GROUP_SIZE) * 7_919 % NUM_PROBLEMS,
                (row // GROUP_SIZE, row % GROUP_SIZE),
                die / skill,
                num_lines,
                policy_version=step - 1,
            )
            for row, (die, num_lines) in enumerate(
                zip(dice, self._random.integers(3, 22, STEP_ROWS).tolist(), strict=True)
            )
        ]

    def rollout(
        self,
        index: int,
        place: tuple[int, int],
        luck: float,
        num_lines: int,
        policy_version: int = 0,
    ) -> Rollout:
        """Returns one response to problem `index`: correct if `luck` is below 1."""
        verdict, score = "correct", 1.0
        if luck >= 1:
            kinds = ("wrong_value", "wrong_numbers", "bad_syntax", "no_answer")
            verdict = kinds[min(int(luck - 1), 3)]
            score = 0.0 if verdict == "no_answer" else 0.1
        answer = None if verdict == "no_answer" else self._answers[index]
        chosen = self._random.integers(0, _NUM_LINES, num_lines).tolist()
        text = "\n".join([self._lines[line] for line in chosen])
        text += (
            f"\nI could not find it: {index}"
            if answer is None
            else (f" </think>\n<answer>{answer}</answer>")
        )
        tokens = min(len(text) // _CHARS_PER_TOKEN, 1_024)
        return Rollout(
            problem=self._problems[index],
            group_id=place[0],
            sample_index=place[1],
            prompt_text=self._prompts[index],
            prompt_ids=tuple(range(143)),
            completion=Completion(
                self._ids[:tokens],
                self._logprobs[:tokens],
                "stop" if answer else "length",
                policy_version,
            ),
            response_text=text,
            scored=ScoredText(score, verdict, answer, "18"),
        )

    def learned(self) -> dict[str, list[float]]:
        """Returns the columns that the learner fills, for one step."""
        columns = ("reward", "advantage_mean", "value_mean", "logprob_gap_mean", "ref_kl")
        return {name: self._random.normal(0, 0.01, STEP_ROWS).tolist() for name in columns}

    def metrics(self, step: int) -> dict[str, float]:
        """Returns what a step logs; every `TEST_STEPS`-th tests."""
        values = dict(zip(_MEASURED, self._random.random(len(_MEASURED)).tolist(), strict=True))
        return values | (
            {"val/accuracy": values["reward/accuracy"]} if step % TEST_STEPS == 0 else {}
        )

    def held_out(self, skill: float) -> list[Rollout]:
        """Returns the answers that a run keeps of a test: always to the same first problems."""
        dice = self._random.random(MOST_VALIDATION_ROWS).tolist()
        return [self.rollout(index, (index, 0), die / skill, 8) for index, die in enumerate(dice)]

    def evaluation(self) -> Iterator[dict[str, object]]:
        """Yields the rows of one model's evaluation: greedy ones, then samples."""
        for mode, samples in (("greedy", 1), ("sampled", SAMPLES)):
            for index in range(TEST_PROBLEMS):
                for sample in range(samples):
                    luck = self._random.random() / 0.4
                    made = self.rollout(index, (index, sample), luck, 8)
                    scored = made.scored
                    yield {
                        "prompt_index": index,
                        "data_source": "countdown",
                        "num_solutions": made.problem.num_solutions,
                        "mode": mode,
                        "sample_index": sample,
                        "prompt": made.prompt_text,
                        "response": made.response_text,
                        "answer": scored.answer,
                        "verdict": scored.verdict,
                        "score": scored.score,
                        "response_tokens": len(made.completion.response_ids),
                        "finish_reason": made.completion.finish_reason,
                        "value": scored.value,
                        "verdict_strict": scored.verdict,
                        "verdict_lenient": scored.verdict,
                        "num_operands": 3 + index % 2,
                        "ground_truth": f'{{"target": {index % 90}}}',
                    }


def write_run(root: Path, run_id: str, num_steps: int, author: Author, *, finish: bool) -> Writing:
    """Writes a run's folder as training, evaluation and pruning do; unless `finish`, it goes on.

    Args:
        root: `storage.root`.
        run_id: name of the run.
        num_steps: a file of `STEP_ROWS` rollouts each.
        author: makes up the content.
        finish: also evaluates, and ends the run.
    """
    config = RunConfig(run_id=run_id, storage=StorageConfig(root=root))
    run = RunFolder.create(config)
    chars, write_s = 0, []
    run.held_out.write(0, author.held_out(0.05))
    for step in range(1, num_steps + 1):
        skill = 0.05 + 0.5 * step / num_steps
        rollouts = author.rollouts(step, skill)
        learned = author.learned()
        chars += sum(len(r.prompt_text) + len(r.response_text) for r in rollouts)
        epoch = step * PROMPTS // NUM_PROBLEMS
        start = time.perf_counter()
        run.rollouts.write(step, epoch, rollouts, learned)
        write_s.append(time.perf_counter() - start)
        run.metrics.append(step, author.metrics(step) | {"epoch": epoch})
        if step % TEST_STEPS == 0:
            run.held_out.write(step, author.held_out(skill))
        if step % CHECKPOINT_STEPS == 0:
            save_checkpoint(run.path, step, _save_nothing, 0.5 * step / num_steps)
    if finish:
        for model, at_step in (("base", 0), (f"step_{num_steps:06d}", num_steps)):
            rows = label_rows(
                list(author.evaluation()),
                run_id=run_id,
                model=model,
                step=at_step,
                evaluation="workload",
                num_problems=TEST_PROBLEMS,
            )
            write_rows(rows, run.path / "eval" / f"{model}.parquet")
        _rescore(run)
        stages = {"generate": 60.0, "train": 3_600.0, "evaluate": 120.0}
        run.update(status="finished", steps=num_steps, accuracy_before=0.1, accuracy_after=0.5)
        run.update(timings_s=stages, champion="promoted: better than its base model (p = 0.01)")
    return Writing(num_steps * STEP_ROWS, chars, tuple(write_s))


def _rescore(run: RunFolder) -> None:
    """Writes another reward's scores: those of the run's own, except for every tenth rollout."""
    names = ["run_id", "step", "group_id", "sample_index", "verdict", "score"]
    rows = pads.dataset(run.path / "rollouts", schema=ROLLOUTS).to_table(columns=names)
    tenth = pa.array(np.arange(rows.num_rows) % 10 == 0)
    verdicts = pc.if_else(tenth, "no_answer", rows["verdict"])
    rows = rows.set_column(4, "verdict", verdicts)
    rows = rows.append_column("changed", pa.repeat("env.answer_from=last_line", rows.num_rows))
    (run.path / "rescored").mkdir()
    file = run.path / "rescored" / "env.answer_from=last_line.parquet"
    pq.write_table(rows.select(RESCORES.names).cast(RESCORES), file, compression="zstd")


def _save_nothing(folder: Path) -> None:
    (folder / "weights").write_bytes(b"12345")
