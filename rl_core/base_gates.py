"""Gates of the home-made base model: what its greedy responses are worth, data path stage 0.

Not the evaluation of a run: that scores any model, this reads the search traces as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rl_core.envs.countdown import score_response
from rl_core.search_traces import check_response, is_covered

NumbersAndTarget = tuple[tuple[int, ...], int]
PromptRenderer = Callable[[Sequence[int], int], str]

GATE_FLOORS: Final = {"format_share": 0.9, "arithmetic_share": 0.95, "judging_share": 0.9}
GATE_CEILINGS: Final = {"repetition_share": 0.05}
_GATE_BATCH: Final = 128


def measure_gates(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[NumbersAndTarget],
    render_prompt: PromptRenderer,
    *,
    max_tokens: int,
) -> dict[str, float]:
    """Returns the measured fields of a `WarmStartReport`, from one greedy response per problem."""
    responses = _greedy_responses(
        model, tokenizer, [render_prompt(*problem) for problem in problems], max_tokens=max_tokens
    )
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    verdicts = [
        score_response(text, numbers, target).verdict
        for text, (numbers, target) in zip(texts, problems, strict=True)
    ]
    checks = [check_response(text) for text in texts]
    equations = sum(check.num_equations for check in checks)
    judged = sum(check.num_verdicts for check in checks)
    count = len(problems)
    prompt_ids = tokenizer([render_prompt(*problem) for problem in problems])["input_ids"]
    return {
        "coverage": sum(is_covered(*problem) for problem in problems) / count,
        "format_share": sum(v in ("correct", "wrong_value") for v in verdicts) / count,
        "arithmetic_share": sum(c.num_true_equations for c in checks) / max(equations, 1),
        "judging_share": sum(c.num_right_verdicts for c in checks) / max(judged, 1),
        "repetition_share": sum(check.repeats for check in checks) / count,
        "accuracy": verdicts.count("correct") / count,
        "mean_attempts": sum(check.num_attempts for check in checks) / count,
        "mean_verdicts": judged / count,
        "mean_prompt_tokens": sum(map(len, prompt_ids)) / count,
        "mean_response_tokens": sum(map(len, responses)) / count,
    }


def failed_gates(gates: dict[str, float]) -> tuple[str, ...]:
    """Returns one sentence per gate that is missed."""
    low = [
        f"{name} is {gates[name]:.3f}, below {floor}"
        for name, floor in GATE_FLOORS.items()
        if gates[name] < floor
    ]
    high = [
        f"{name} is {gates[name]:.3f}, above {ceiling}"
        for name, ceiling in GATE_CEILINGS.items()
        if gates[name] > ceiling
    ]
    return (*low, *high)


@torch.inference_mode()
def _greedy_responses(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    max_tokens: int,
) -> list[list[int]]:
    """Returns response ids, eos included, without padding."""
    responses: list[list[int]] = []
    for start in range(0, len(prompts), _GATE_BATCH):
        batch: Any = tokenizer(
            list(prompts[start : start + _GATE_BATCH]),
            return_tensors="pt",
            padding=True,
            padding_side="left",
        )
        output = model.generate(**batch, max_new_tokens=max_tokens, do_sample=False)
        for row in output[:, batch["input_ids"].shape[1] :].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else None
            responses.append(row[:end])
    return responses
