"""9 an EVALUATION ROW: a model's responses to held-out problems, and what they say about it.

Each problem is answered once greedily (accuracy) and n times sampled (pass@k). Engines, decoding
and scoring come in as functions: nothing here loads a model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.atomic import new_file
from rl_core.schema import EVALUATION
from rl_core.seeds import seed_of
from rl_core.types import Completion, GenerationRequest, Problem, SamplingSettings, ScoredText

if TYPE_CHECKING:
    from rl_core.collection import PromptedProblem

UNREADABLE_VERDICTS = frozenset({"no_answer", "bad_syntax", "too_long"})
"""Verdicts of responses without an answer that can be read; all others have the right format."""
Z_95 = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""
BOOTSTRAP_RESAMPLES = 2_000

Generate = Callable[[Sequence[GenerationRequest], SamplingSettings], list[Completion]]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class DifficultyBucket:
    """Greedy accuracy on the problems with a like number of solutions."""

    label: str
    """`1`, `2-3`, `4-7`, ...; `unknown` where problems have no such label."""
    num_problems: int
    accuracy: Estimate


@dataclass(frozen=True)
class EvaluationSummary:
    """What the rows of one model say."""

    model: str
    step: int
    num_problems: int
    accuracy: Estimate
    """Share of problems whose greedy response is `correct`; Wilson interval."""
    score_mean: float
    """Of greedy responses, format credit included."""
    format_share: float
    """Share of greedy responses with an answer that can be read, right or wrong."""
    pass_at_k: Mapping[int, Estimate]
    """By k = 1, 2, 4, ... up to the samples per problem; bootstrap interval over problems."""
    response_tokens_mean: float
    """Of greedy responses."""
    by_num_solutions: tuple[DifficultyBucket, ...]
    """Fewest solutions, the hardest, first."""


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Returns the chance that at least one of k samples is correct, estimated without bias.

    1 - C(n - c, k) / C(n, k): the share of k-subsets of the n samples that hold a correct one. The
    plug-in estimate 1 - (1 - c/n)^k is biased low.

    Args:
        num_samples: n, samples drawn for the problem.
        num_correct: c, correct ones among them.
        k: at most n.

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} of {num_correct} correct among {num_samples} samples: "
            "needs 0 <= correct <= samples and 1 <= k <= samples"
        )
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def wilson_interval(num_correct: int, num_total: int) -> tuple[float, float]:
    """Returns the 95% Wilson score interval of a share, in [0, 1].

    Unlike a bootstrap it says something at the edges: 0 of 512 is (0, 0.0074), not (0, 0).

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    share, z2 = num_correct / num_total, Z_95**2
    centre = (share + z2 / (2 * num_total)) / (1 + z2 / num_total)
    half = (
        Z_95
        * math.sqrt(share * (1 - share) / num_total + z2 / (4 * num_total**2))
        / (1 + z2 / num_total)
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(values: npt.ArrayLike, *, seed: int) -> tuple[float, float]:
    """Returns the 95% percentile bootstrap interval of a mean.

    Args:
        values: float [N], one number per problem: problems are what is resampled, since the samples
            of one problem depend on each other.
        seed: same seed, same interval.

    Source: Efron 1979, "Bootstrap Methods: Another Look at the Jackknife".
    """
    observed = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = [
        observed[rng.integers(0, observed.size, observed.size)].mean()
        for _ in range(BOOTSTRAP_RESAMPLES)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def evaluate_model(
    generate: Generate,
    problems: Sequence[PromptedProblem],
    *,
    decode: Callable[[Sequence[int]], str],
    score: Callable[[str, Mapping[str, Any] | str], ScoredText],
    max_tokens: int,
    samples_per_problem: int,
    temperature: float,
    seed: int,
) -> list[dict[str, Any]]:
    """Returns one row per response: each problem once greedily, then n times sampled.

    Rows have the columns of `rl_core.schema.EVALUATION` that follow `step`; `label_rows` adds whose
    they are. Sampling seeds depend on (seed, problem, sample) alone, so every model is asked the
    same, and a problem's rows do not change with the problems beside it.

    Args:
        generate: an engine's (or several engines') generation, in the order of the requests.
        problems: held-out problems with their prompts tokenized.
        decode: token ids to text, without special tokens.
        score: (response, ground truth) to verdict.
        max_tokens: longest response.
        samples_per_problem: n.
        temperature: of the n samples.
        seed: of the evaluation.
    """
    asked = {"greedy": [(item, 0) for item in problems]}
    asked["sampled"] = [(item, i) for item in problems for i in range(samples_per_problem)]
    rows = []
    for mode, questions in asked.items():
        requests = [
            GenerationRequest(item.prompt_ids, seed_of(seed, item.problem.index, sample))
            for item, sample in questions
        ]
        sampling = SamplingSettings(max_tokens, temperature if mode == "sampled" else 0.0)
        completions = generate(requests, sampling)
        for (item, sample), completion in zip(questions, completions, strict=True):
            text = decode(completion.response_ids.tolist())
            scored = score(text, item.problem.ground_truth)
            rows.append(
                _row(item.problem, item.prompt_text, mode, sample, completion, text, scored)
            )
    return rows


def label_rows(
    rows: Sequence[Mapping[str, Any]], *, run_id: str, model: str, step: int
) -> list[dict[str, Any]]:
    """Returns complete rows: with the run and the model (`base`, `step_000100`) they belong to."""
    return [dict(row) | {"run_id": run_id, "model": model, "step": step} for row in rows]


def summarise(rows: Sequence[Mapping[str, Any]], *, seed: int = 0) -> EvaluationSummary:
    """Returns what the rows of one model say.

    Args:
        rows: complete rows of one model.
        seed: of the bootstrap.

    Raises:
        ValueError: there are no greedy rows.
    """
    greedy = [row for row in rows if row["mode"] == "greedy"]
    if not greedy:
        raise ValueError(f"no greedy row among {len(rows)} evaluation rows: nothing to summarise")
    return EvaluationSummary(
        model=greedy[0]["model"],
        step=greedy[0]["step"],
        num_problems=len(greedy),
        accuracy=_accuracy(greedy),
        score_mean=float(np.mean([row["score"] for row in greedy])),
        format_share=float(np.mean([row["verdict"] not in UNREADABLE_VERDICTS for row in greedy])),
        pass_at_k=_pass_at_ks([row for row in rows if row["mode"] == "sampled"], seed),
        response_tokens_mean=float(np.mean([row["response_tokens"] for row in greedy])),
        by_num_solutions=_by_num_solutions(greedy),
    )


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Writes complete rows as parquet, whole or not at all."""
    with new_file(file) as temporary:
        pq.write_table(
            pa.Table.from_pylist(list(rows), schema=EVALUATION), temporary, compression="zstd"
        )


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file of `write_rows`."""
    rows: list[dict[str, Any]] = pq.read_table(file, schema=EVALUATION).to_pylist()
    return rows


def _row(
    problem: Problem,
    prompt: str,
    mode: str,
    sample_index: int,
    completion: Completion,
    response: str,
    scored: ScoredText,
) -> dict[str, Any]:
    return {
        "prompt_index": problem.index,
        "data_source": problem.data_source,
        "num_solutions": problem.num_solutions,
        "mode": mode,
        "sample_index": sample_index,
        "prompt": prompt,
        "response": response,
        "answer": scored.answer,
        "verdict": scored.verdict,
        "score": scored.score,
        "response_tokens": len(completion.response_ids),
        "finish_reason": completion.finish_reason,
    }


def _accuracy(rows: Sequence[Mapping[str, Any]]) -> Estimate:
    num_correct = sum(row["verdict"] == "correct" for row in rows)
    return Estimate(num_correct / len(rows), *wilson_interval(num_correct, len(rows)))


def _pass_at_ks(rows: Sequence[Mapping[str, Any]], seed: int) -> dict[int, Estimate]:
    """Returns the mean pass@k over problems for k = 1, 2, 4, ..., up to the samples of each."""
    verdicts: defaultdict[int, list[str]] = defaultdict(list)
    for row in rows:
        verdicts[row["prompt_index"]].append(row["verdict"])
    fewest = min(map(len, verdicts.values()), default=0)
    estimates = {}
    k = 1
    while k <= fewest:
        values = [pass_at_k(len(v), v.count("correct"), k) for v in verdicts.values()]
        estimates[k] = Estimate(float(np.mean(values)), *bootstrap_interval(values, seed=seed))
        k *= 2
    return estimates


def _by_num_solutions(rows: Sequence[Mapping[str, Any]]) -> tuple[DifficultyBucket, ...]:
    """Returns buckets that double (1, 2-3, 4-7, ...): the same for every data set, to compare."""
    buckets: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        buckets[row["num_solutions"].bit_length()].append(row)
    return tuple(
        DifficultyBucket(_bucket_label(bits), len(found), _accuracy(found))
        for bits, found in sorted(buckets.items())
    )


def _bucket_label(bits: int) -> str:
    if bits == 0:
        return "unknown"
    low, high = 2 ** (bits - 1), 2**bits - 1
    return str(low) if low == high else f"{low}-{high}"
