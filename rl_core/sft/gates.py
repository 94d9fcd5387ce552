"""Gates of the home-made base model: what its greedy responses are worth, data path stage 0.

Not the evaluation of a run: that scores any model, this reads Countdown's search traces as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rl_core.envs.countdown import score_response
from rl_core.sft.examples import greedy_responses
from rl_core.sft.search_traces import check_response, is_covered

NumbersAndTarget = tuple[tuple[int, ...], int]
PromptRenderer = Callable[[Sequence[int], int], str]

GATE_FLOORS: Final = {"format_share": 0.9, "arithmetic_share": 0.95, "judging_share": 0.9}
GATE_CEILINGS: Final = {"repetition_share": 0.05}


def measure_gates(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[NumbersAndTarget],
    render_prompt: PromptRenderer,
    *,
    max_tokens: int,
) -> dict[str, float]:
    """Returns what one greedy response per problem is worth.

    Returns:
        coverage: Share of the problems which a search that never gives up solves.
        format_share: Share of responses with a well-formed answer of the given numbers.
        arithmetic_share: Share of the results written that are true.
        judging_share: Share of "yes" and "no" that agree with the numbers written.
        repetition_share: Share of responses that try a number twice.
        accuracy: Share of responses that are correct.
        mean_attempts: Numbers tried per response.
        mean_verdicts: "yes" and "no" per response: how long a search lasts.
        mean_prompt_tokens: Tokens per prompt.
        mean_response_tokens: Tokens per response, end included.
    """
    responses = greedy_responses(
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
