"""Our step for step_time.py: learner and rollout engine in one process, without Ray.

python benchmarks/ours_step.py MODEL_FOLDER VARIANT hf|vllm|plain THREADS [MICRO_BATCH_TOKENS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workload import (
    GRPO_KL_COEF,
    LEARNING_RATE,
    PPO_KL_COEF,
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    VARIANTS,
    Gate,
    Variant,
    prompts,
    reward,
    text,
)

from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()
hide_cuda_only_packages()

import torch  # noqa: E402  # reads its settings from the environment on import
from transformers import PreTrainedTokenizerFast  # noqa: E402

from rl_core.batch import collate  # noqa: E402
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.learner.learner import Learner  # noqa: E402
from rl_core.rollout.adaptive_engine import build_engine  # noqa: E402
from rl_core.rollout.collector import build_requests  # noqa: E402
from rl_core.rollout.protocol import RolloutEngine, in_order  # noqa: E402
from rl_core.system.heap import give_back_heap  # noqa: E402
from rl_core.types import (  # noqa: E402
    Completion,
    Problem,
    PromptedProblem,
    Rollout,
    SamplingSettings,
    ScoredText,
)

MICRO_BATCH_TOKENS = {"3m": 1_300, "135m": 700}
"""Two groups of eight, or one: as fast as more tokens on the machines used, in less memory."""
PAD_ID = 0


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


def rollouts(
    problems: Sequence[PromptedProblem],
    completions: Sequence[Completion],
    group_size: int,
    decode: Callable[[list[int]], str],
) -> Iterator[Rollout]:
    """Yields the completions decoded and scored."""
    for i, completion in enumerate(completions):
        group_id, sample_index = divmod(i, group_size)
        item, response_ids = problems[group_id], completion.response_ids.tolist()
        assert len(response_ids) == RESPONSE_TOKENS
        score = reward(response_ids)
        yield Rollout(
            problem=item.problem,
            group_id=group_id,
            sample_index=sample_index,
            prompt_text=item.prompt_text,
            prompt_ids=item.prompt_ids,
            completion=completion,
            response_text=decode(response_ids),
            scored=ScoredText(score, "correct" if score > 0.5 else "wrong_value", None),
        )


def run(
    config: RunConfig, variant: Variant, engine: RolloutEngine, learner: Learner, decode: Any
) -> None:
    """Steps until standard input ends."""
    data, group_size = config.data, config.algorithm.group_size
    largest_gap = 1.0 if variant.in_bfloat16 else 1e-3
    problems = [
        PromptedProblem(Problem(i, "benchmark", (), "", 0), text(ids), tuple(ids))
        for i, ids in enumerate(prompts(variant))
    ]
    sampling = SamplingSettings(data.max_response_length, config.rollout.temperature)
    gate = Gate()
    while True:
        # As in Workers: on a CPU the learner starts its own threads, and torch gets one of them.
        torch.set_num_threads(config.resources.rollout_threads)
        with gate.phase("generate"):
            requests = build_requests(
                problems, group_size=group_size, seed=config.seed, step=learner.steps_done + 1
            )
            completions = in_order(engine.generate(requests, sampling))
        torch.set_num_threads(1)
        with gate.phase("reward"):
            made = list(rollouts(problems, completions, group_size, decode))
        with gate.phase("prepare"):
            experience, metrics = learner.make_experience(collate(made, PAD_ID))
        with gate.phase("update"):
            engine.release_weights()  # as Workers.learn does
            give_back_heap()  # as the learner's actor does before each phase
            metrics |= learner.update(experience)[0]
        with gate.phase("sync"):
            engine.update_weights(learner.weights())
        for name in ("old_log_prob", "ref", "values", "update_critic", "update_actor"):
            if f"timing_s/{name}" in metrics:
                gate.add(f"{name} (wall)", metrics[f"timing_s/{name}"])
        assert metrics["rollout/logprob_gap_max"] < largest_gap, metrics["rollout/logprob_gap_max"]
        gate.step_done()


def main() -> None:
    """Loads everything, then steps."""
    model_path, variant = Path(sys.argv[1]), VARIANTS[sys.argv[2]]
    micro_batch_tokens = (
        int(sys.argv[5]) if len(sys.argv) > 5 else MICRO_BATCH_TOKENS[variant.model]
    )
    engine_name = sys.argv[3]
    if engine_name == "plain":
        engine_name = "hf"
        RunConfig.has_one_critic_update = False  # type: ignore[assignment,method-assign]
    config = RunConfig.model_validate(
        settings(variant, engine_name, int(sys.argv[4]), micro_batch_tokens)
    )
    engine = build_engine(config, model_path, config.rollout.max_num_seqs)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_path)
    run(config, variant, engine, Learner(config, model_path), tokenizer.decode)


if __name__ == "__main__":
    main()
