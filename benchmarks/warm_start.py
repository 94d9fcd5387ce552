"""What the home-made base model can do: its gates, and its accuracy if it never gave up.

    .venv/bin/python benchmarks/warm_start.py [KEY=VALUE ...]        # e.g. base_model.steps=300

"Persistent" forbids giving up after a "no": an estimate of what reinforcement learning can reach by
persistence alone. The model is made with the settings of `quickstart`, in a folder that is removed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rl_core.system.process_env import apply_defaults

apply_defaults()

import torch  # noqa: E402  # reads its settings from the environment on import
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
)

from flows.settings.compose import compose  # noqa: E402
from rl_core.data.dataset import read_problems  # noqa: E402
from rl_core.envs.countdown import render_prompt, score_response  # noqa: E402
from rl_core.envs.countdown.search_traces import ANSWER_OPEN, VERDICTS, check_response  # noqa: E402
from tasks.base_model import base_model  # noqa: E402
from tasks.generate import generate_dataset  # noqa: E402

PROBLEMS = 256


class NeverGiveUp(LogitsProcessor):  # type: ignore[misc]  # transformers leaves it untyped
    """After a "no" the answer may not begin."""

    def __init__(self, no_id: int, answer_id: int) -> None:
        self._no_id, self._answer_id = no_id, answer_id

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores, the answer's first token at -inf where the last one is a "no"."""
        scores[ids[:, -1] == self._no_id, self._answer_id] = -torch.inf
        return scores


@torch.inference_mode()
def persistent(model_path: Path, data: Path, max_tokens: int) -> None:
    """Prints accuracy, true results and right verdicts of greedy responses that never give up."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    truths = [p.ground_truth for p in read_problems(data / "test.parquet")[:PROBLEMS]]
    problems = [(truth["numbers"], truth["target"]) for truth in truths]
    batch = tokenizer(
        [render_prompt("base", *problem) for problem in problems],
        return_tensors="pt",
        padding=True,
        padding_side="left",
    )
    no_id, answer_id = (tokenizer.encode(text)[0] for text in (VERDICTS[0], ANSWER_OPEN + "("))
    output = model.generate(
        **batch,
        max_new_tokens=max_tokens,
        do_sample=False,
        logits_processor=LogitsProcessorList([NeverGiveUp(no_id, answer_id)]),
    )
    texts = tokenizer.batch_decode(
        output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    correct = sum(
        score_response(text, *problem).verdict == "correct"
        for text, problem in zip(texts, problems, strict=True)
    )
    checks = [check_response(text) for text in texts]
    true = sum(c.num_true_equations for c in checks) / sum(c.num_equations for c in checks)
    right = sum(c.num_right_verdicts for c in checks) / sum(c.num_verdicts for c in checks)
    print(f"persistent {correct / len(texts):.3f} (arithmetic {true:.3f}, judging {right:.3f})")


def main() -> None:
    """Makes the base model and prints its report."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = compose(["preset=quickstart", *sys.argv[1:], f"storage.root={folder}"])
        data = generate_dataset(config)
        model_path = base_model(config, data)
        print((model_path / "warm_start.json").read_text())
        persistent(model_path, data, config.data.max_response_length)


if __name__ == "__main__":
    main()
