"""What `--json` prints, a model per command: docs/json.md is written from them.

Fields are added, and none is renamed or given another meaning without a word in the changelog.
"""

import re
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Facts(BaseModel):
    """Some facts, of an answer or in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Failure(Facts):
    """Why a command ended with 1 or 2."""

    message: str
    """The first line, as on standard error."""
    key: str | None
    """The setting or word that is wrong, if the message names one."""
    value: str | None
    """Its value."""
    limit: str | None
    """What is wrong with it, or what is allowed."""
    remedy: str | None
    """What to do about it."""
    detail: str | None
    """The second line, if there is one."""


class Reply(Facts):
    """The one object that every command with `--json` prints."""

    command: str | None
    """The command; null if the words name none."""
    exit_code: Literal[0, 1, 2]
    """As without `--json`: 0 fine, 1 failed or stopped, 2 bad input or settings."""
    answer: dict[str, Any] | None
    """The facts of the command, below; null if it failed before it had any."""
    error: Failure | None
    """Null if the exit code is 0."""


class Estimate(Facts):
    """A mean with its 95% interval."""

    model_config = ConfigDict(from_attributes=True)
    value: float
    """The mean."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


class AnyRun(Facts):
    """What `runs` and `compare` both give of a run."""

    run_id: str
    """Its name."""
    preset: str | None
    """The settings that it started from."""
    status: str | None
    """`running`, `finished`, `failed`, `interrupted` or `unreadable`; null at its start."""
    steps: int | None
    """Training steps done."""
    accuracy_before: float | None
    """Accuracy of the base model in the evaluation."""
    accuracy_after: float | None
    """Accuracy of the trained model in the evaluation."""
    note: str | None
    """What you wrote by `countdown-train note`."""


class Run(AnyRun):
    """One run."""

    val_before: float | None
    """Accuracy in the first test of training."""
    val_after: float | None
    """Accuracy in the last test of training."""
    minutes: float | None
    """From its start to its end, or to its last logged step."""
    started_at: datetime | None
    """When it started."""
    reason: str | None
    """Why it has its status."""
    next_step: str | None
    """What to do about it."""


class Runs(Facts):
    """Runs, the newest first."""

    runs: list[Run]
    """Those that the filters leave."""
    left_out: int
    """Older runs that match the filters, too, and that `--last` left out."""


class Finding(Facts):
    """What one check of preflight found."""

    model_config = ConfigDict(from_attributes=True)
    check: str
    """Name of the check."""
    level: Literal["ok", "warning", "fatal"]
    """`fatal`: it would stop a run."""
    message: str
    """What was found."""
    remedy: str
    """What to do about it; may be empty."""
    overrides: str
    """Settings to add to the command; may be empty."""


class Preflight(Facts):
    """What was checked before a run."""

    findings: list[Finding]
    """One per check; the exit code is 2 if one is fatal."""


class Check(Facts):
    """One check of a data set."""

    check: str
    """Its name."""
    proves: str
    """What it proves."""
    rows: int
    """How many rows break it."""
    status: str
    """`ok`, `warning` or `failed`."""
    first_rows: str
    """The first rows that break it, as JSON, separated by `; `."""


class Limit(Facts):
    """What a limit on prompts would do."""

    limit: int
    """A value of `data.max_prompt_length`."""
    rejected: int
    """How many prompts it rejects."""
    share: str
    """Their share."""
    note: str
    """Whose limit it is; may be empty."""


class Validate(Facts):
    """A data set that was checked."""

    data: str
    """Its folder."""
    model: str | None = None
    """The folder of the model whose tokenizer measured the prompts; null if there was none."""
    unmeasured: str | None = None
    """Why prompts were not measured."""
    num_checks: int
    """Checks that were made."""
    checks: list[Check] = []
    """These checks; empty if prompts were not measured."""
    lengths: str | None = None
    """A sentence on `data.max_prompt_length`."""
    limits: list[Limit] = []
    """Limits on prompts, and what they would reject."""
    first_prompt: str | None = None
    """The first prompt, as the model reads it."""


class Group(Facts):
    """Accuracy on problems that have something in common."""

    model_config = ConfigDict(from_attributes=True)
    label: str
    """What they have in common."""
    num_problems: int
    """How many they are."""
    accuracy: Estimate
    """On them."""


class Model(Facts):
    """The evaluation of one model."""

    model_config = ConfigDict(extra="ignore")
    name: str
    """As the command names it."""
    num_problems: int
    """Problems that it was asked."""
    num_samples: int
    """Responses per problem that count."""
    is_greedy: bool
    """Whether these are greedy; otherwise they are sampled."""
    accuracy: Estimate
    """Share of responses that are correct."""
    accuracy_strict: Estimate
    """The same with the answer in the strictest place only."""
    accuracy_lenient: Estimate
    """The same with the answer in any place."""
    score: Estimate
    """Mean score, format credit included."""
    format_share: Estimate
    """Share of responses with an answer that can be read."""
    response_tokens: Estimate
    """Tokens per response."""
    pass_at_k: dict[int, Estimate]
    """By k: whether one of k samples is correct."""
    majority_at_k: dict[int, Estimate]
    """By k: whether the most frequent answer of k samples is correct."""
    groups: list[Group]
    """The same accuracy on groups of problems."""


class Comparison(Facts):
    """The first model against the second, on the same problems."""

    model_config = ConfigDict(from_attributes=True)
    verdict: Literal["better", "worse", "cannot tell"]
    """Of the test, at 0.05."""
    num_problems: int
    """Problems that both were asked."""
    won: int
    """Problems on which the first is better."""
    lost: int
    """Problems on which the second is better."""
    p_value: float
    """Of McNemar's exact test, or of the sign-flip test if responses were sampled."""
    gain: Estimate
    """Accuracy of the first minus that of the second."""


class Evaluate(Facts):
    """The evaluation of one model, or of two."""

    models: list[Model]
    """In the order of the table; of a run, the trained model comes first."""
    comparison: Comparison | None
    """Null if there is one model only."""
    files: list[str]
    """Parquet files of all answers."""
    pages: list[str]
    """Pages with right and wrong answers."""


class Reached(AnyRun):
    """What one run reached."""

    best_test: float | None
    """The best accuracy in a test of training."""
    best_test_score: float | None
    """The best mean score in a test of training."""
    best_at_step: int | None
    """The step of the best test."""
    train_hours: float | None
    """Hours of its steps."""
    response_tokens: int | None
    """Tokens that were trained on."""
    decoding: str | None
    """How accuracy is measured; of different decoding, accuracies do not compare."""


class Difference(Facts):
    """A setting that differs."""

    key: str
    """Its name."""
    values: dict[str, str | None]
    """Its value by run; null if the run lacks it."""


class Pair(Facts):
    """Two trained models on the same problems."""

    run_id: str
    """The run of the first."""
    model: str
    """The first."""
    other_run_id: str
    """The run of the second."""
    other_model: str
    """The second."""
    problems: int
    """Problems that both were asked."""
    won: int
    """Problems on which the first is better."""
    lost: int
    """Problems on which the second is better."""
    gain: float | None
    """Accuracy of the first minus that of the second."""
    gain_low: float | None
    """Lower end of its 95% interval."""
    gain_high: float | None
    """Upper end of its 95% interval."""
    p_value: float | None
    """Of McNemar's exact test, or of the sign-flip test if responses were sampled."""


class Line(Facts):
    """What one check of an audit came to."""

    model_config = ConfigDict(from_attributes=True)
    subject: str
    """What was checked."""
    outcome: Literal["holds", "note", "unknown", "FAILS"]
    """`note`: it holds, and there is something to know; `unknown`: it cannot be checked."""
    words: str
    """What was compared with what, or what is wrong."""


class Audit(Facts):
    """The receipt of a run."""

    run_id: str
    """Its name."""
    lines: list[Line]
    """One per check; the exit code is 1 if one fails or is unknown."""


class Compare(Facts):
    """Two or more runs."""

    runs: list[Reached]
    """The best first."""
    settings: list[Difference]
    """Settings that differ."""
    pairs: list[Pair]
    """Who won the same problems."""


class Setting(Facts):
    """One setting."""

    key: str
    """Its name."""
    env: str | None
    """The env that has it; null for all."""
    meaning: str
    """What it means."""
    allowed: str
    """Its type and bounds, as a sentence."""
    default: str
    """As it is written in an override."""
    presets: dict[str, str]
    """Its values in the presets that set it."""
    verl: tuple[str, ...]
    """Its names in verl."""

    @property
    def choices(self) -> list[str]:
        """The names that it takes, if it takes some of a list."""
        names = re.split(", | or ", self.allowed.removeprefix("a list of "))
        return [name for name in names if " " not in name and name not in ("null", "true", "false")]


class Explain(Facts):
    """What a word means."""

    settings: list[Setting]
    """The settings of that name, of that group, or with that word in their names."""
    text: str
    """All that the command says to a person."""
    values: dict[str, Any] = {}
    """Of KEY with settings after it: the values in force, by name."""
    unread: list[str] = []
    """Of KEY=VALUE, which is allowed: sentences on why it has no effect."""
