"""Arrow schemas of everything that lands on disk as parquet."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_TURN = pa.struct(
    [
        ("author", pa.string()),
        ("tokens", pa.int64()),
        ("text", pa.string()),
        ("reward", pa.float64()),
    ]
)
_REWARD = pa.struct([("name", pa.string()), ("score", pa.float64())])
_EXTRA_INFO = pa.struct(
    [
        ("split", pa.string()),
        ("index", pa.int64()),
        ("num_solutions", pa.int64()),
        ("solution", pa.string()),
    ]
)


def dataset_schema(
    truth: pa.DataType = pa.string(),  # noqa: B008  # a type, which nothing changes
    columns: Sequence[tuple[str, pa.DataType]] = (),
) -> pa.Schema:
    """Returns an env's `columns`, then verl's; `truth` is the type of the ground truth."""
    return pa.schema(
        [
            *columns,
            ("data_source", pa.string()),
            ("prompt", pa.list_(_MESSAGE)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", truth)])),
            ("extra_info", _EXTRA_INFO),
        ]
    )


ROLLOUTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("step", pa.int64()),
        ("epoch", pa.int64()),
        ("prompt_index", pa.int64()),
        ("data_source", pa.string()),
        ("group_id", pa.int64()),
        ("sample_index", pa.int64()),
        ("policy_version", pa.int64()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("answer", pa.string()),
        ("verdict", pa.string()),
        ("score", pa.float64()),
        ("reward", pa.float64()),
        ("advantage_mean", pa.float64()),
        ("value_mean", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("response_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("logprob_sum", pa.float64()),
        ("logprob_gap_mean", pa.float64()),
        ("ref_kl", pa.float64()),
        ("generated_at", pa.timestamp("us", tz="UTC")),
        ("turns", pa.list_(_TURN)),
        ("value", pa.float64()),
        ("truth", pa.string()),
        ("rewards", pa.list_(_REWARD)),
    ]
)
"""`policy_version` is how many updates made the policy that sampled the response.

`turns` are those of `model` and `env`, null if the env took no part; `response_tokens` counts both,
a turn's `reward` is not part of `score`, and log-probs are only of the model's tokens. `value` is
what the answer is equal to, null if it is no number; `truth` is the problem's ground truth, as
JSON. `rewards` are the scores of several functions before their weights, null if there is one rule.
"""

EVALUATION = pa.schema(
    [
        ("run_id", pa.string()),
        ("model", pa.string()),
        ("step", pa.int64()),
        ("prompt_index", pa.int64()),
        ("data_source", pa.string()),
        ("num_solutions", pa.int64()),
        ("mode", pa.string()),
        ("sample_index", pa.int64()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("answer", pa.string()),
        ("verdict", pa.string()),
        ("score", pa.float64()),
        ("response_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("value", pa.string()),
        ("verdict_strict", pa.string()),
        ("verdict_lenient", pa.string()),
        ("num_operands", pa.int64()),
        ("ground_truth", pa.string()),
        ("evaluation", pa.string()),
        ("num_problems", pa.int64()),
    ]
)
"""`model` is `base` or `step_000100`; `mode` is `greedy` or `sampled`.

`num_operands` is null if a problem has none. `ground_truth` is JSON: with the prompt it says
which problem was asked. `evaluation` names what was asked, problems and settings, and
`num_problems` says how many problems: rows of two evaluations are not to be averaged. Both are null
in `held_out/`.
"""

RESCORES = pa.schema(
    [
        ("run_id", pa.string()),
        ("changed", pa.string()),
        ("step", pa.int64()),
        ("group_id", pa.int64()),
        ("sample_index", pa.int64()),
        ("verdict", pa.string()),
        ("score", pa.float64()),
    ]
)
"""Rollouts scored anew: `changed` names the settings that differ from the run's own."""

MOST_VALIDATION_ROWS: Final = 128
"""Rows kept of each test: for reading, not for statistics, so the disk need not hold them all."""
