"""Our step for step_time.py: the loop that is for reading, rl_core/loop.py, without Ray.

python benchmarks/ours_step.py MODEL_FOLDER VARIANT hf|vllm|plain THREADS [MICRO_BATCH_TOKENS]
"""

from __future__ import annotations

import sys
from pathlib import Path

from workload import (
    GRPO_KL_COEF,
    LEARNING_RATE,
    PPO_KL_COEF,
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    VARIANTS,
    Gate,
    Variant,
    ids_of,
    prompts,
    reward,
    text,
)

from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()
hide_cuda_only_packages()

from rl_core import loop  # noqa: E402  # torch reads its settings from the environment on import
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.types import Problem, ScoredText  # noqa: E402

MICRO_BATCH_TOKENS = {"3m": 1_300, "135m": 700}
"""Two groups of eight, or one: as fast as more tokens on the machines used, in less memory."""
_PHASES = ("old_log_prob", "ref", "values", "update_critic", "update_actor")


def settings(
    variant: Variant, engine: str, num_threads: int, micro_batch_tokens: int
) -> dict[str, object]:
    """Returns the settings of a RunConfig."""
    has_critic = variant.algorithm == "ppo"
    algorithm: dict[str, object] = {
        "estimator": "gae" if has_critic else "grpo",
        "group_size": variant.group_size,
        "kl_mode": "reward" if has_critic else "loss" if variant.has_reference else "none",
        "kl_estimator": "k1" if has_critic else "k2",
        "kl_coef": PPO_KL_COEF if has_critic else GRPO_KL_COEF,
        "gae_lambda": 0.95,
    }
    return {
        "algorithm": algorithm,
        "env": {"name": "custom", "prompt_template": "base"},
        "data": {
            "train_batch_size": variant.num_prompts,
            "max_prompt_length": PROMPT_TOKENS[1],
            "max_response_length": RESPONSE_TOKENS,
        },
        "actor": {
            "lr": LEARNING_RATE,
            "mini_batch_size": variant.num_prompts,
            "micro_batch_tokens": micro_batch_tokens,
        },
        "critic": {"lr": LEARNING_RATE},
        "model": {"dtype": "bfloat16" if variant.in_bfloat16 else "float32"},
        "rollout": {"engine": engine, "max_num_seqs": variant.completions},
        "resources": {"learner_threads": num_threads, "rollout_threads": num_threads},
    }


def score(response: str, problem: Problem) -> ScoredText:
    """Returns the workload's reward of a response."""
    share = reward(ids_of(response))
    return ScoredText(share, "correct" if share > 0.5 else "wrong_value", None)


def run(config: RunConfig, model_path: Path, variant: Variant) -> None:
    """Steps until standard input ends."""
    largest_gap = 1.0 if variant.in_bfloat16 else 1e-3
    problems = [
        Problem(i, "benchmark", ({"role": "user", "content": text(ids)},), "", 0)
        for i, ids in enumerate(prompts(variant))
    ]
    gate = Gate()  # its first step, which loads everything, does not count
    for step in loop.steps(config, model_path, problems, score):
        for name in _PHASES:
            if f"timing_s/{name}" in step.metrics:
                gate.add(f"{name} (wall)", step.metrics[f"timing_s/{name}"])
        gap = step.metrics["rollout/logprob_gap_max"]
        assert gap < largest_gap, gap
        gate.step_done()


def main() -> None:
    """Reads the arguments, then steps."""
    model_path, variant, engine = Path(sys.argv[1]), VARIANTS[sys.argv[2]], sys.argv[3]
    micro_batch_tokens = (
        int(sys.argv[5]) if len(sys.argv) > 5 else MICRO_BATCH_TOKENS[variant.model]
    )
    if engine == "plain":
        engine = "hf"
        RunConfig.has_one_critic_update = False  # type: ignore[assignment,method-assign]
    chosen = settings(variant, engine, int(sys.argv[4]), micro_batch_tokens)
    run(RunConfig.model_validate(chosen), model_path, variant)


if __name__ == "__main__":
    main()
