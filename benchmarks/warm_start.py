"""What the home-made base model can do: its gates, and its accuracy if it never gave up.

    .venv/bin/python benchmarks/warm_start.py [KEY=VALUE ...]        # e.g. base_model.steps=300

"Persistent" forbids giving up after a "no": an estimate of what reinforcement learning can reach by
persistence only. "Covered" are problems that some search of any length solves. The model is made
with the settings of `quickstart`, in a folder that is removed; change this by `preset=NAME` and
`storage.root=FOLDER`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from itertools import chain
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
from rl_core.envs.countdown import render_messages, score_response  # noqa: E402
from rl_core.envs.countdown.traces import (  # noqa: E402
    ANSWER_OPEN,
    VERDICTS,
    check_response,
    write_trace,
)
from tasks.base_model import base_model  # noqa: E402
from tasks.generate import generate_dataset  # noqa: E402

PROBLEMS = 256


class NeverGiveUp(LogitsProcessor):  # type: ignore[misc]  # transformers leaves it untyped
    """After a "no" the answer may not begin."""

    def __init__(self, no_id: int, answer_ids: list[int]) -> None:
        self._no_id, self._answer_ids = no_id, answer_ids

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores, an answer's first tokens at -inf where the last one is a "no"."""
        after_no = (ids[:, -1] == self._no_id).unsqueeze(-1)
        scores[:, self._answer_ids] = scores[:, self._answer_ids].masked_fill(after_no, -torch.inf)
        return scores


@torch.inference_mode()
def persistent(model_path: Path, data: Path, max_tokens: int) -> None:
    """Prints accuracy, true results and right verdicts of greedy responses that never give up."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    truths = [p.ground_truth for p in read_problems(data / "test.parquet")[:PROBLEMS]]
    problems = [(truth["numbers"], truth["target"]) for truth in truths]
    batch = tokenizer(
        [render_messages("base", *problem)[0]["content"] for problem in problems],
        return_tensors="pt",
        padding=True,
        padding_side="left",
    )
    answers = (ANSWER_OPEN + "(", ANSWER_OPEN + "((")
    no_id, *answer_ids = (tokenizer.encode(text)[0] for text in (VERDICTS[0], *answers))
    output = model.generate(
        **batch,
        max_new_tokens=max_tokens,
        do_sample=False,
        logits_processor=LogitsProcessorList([NeverGiveUp(no_id, answer_ids)]),
    )
    texts = tokenizer.batch_decode(
        output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    for operands in sorted({len(numbers) for numbers, _ in problems}):
        of_size = [
            pair for pair in zip(texts, problems, strict=True) if len(pair[1][0]) == operands
        ]
        solved = sum(
            score_response(text, *problem).verdict == "correct" for text, problem in of_size
        )
        rng = random.Random(0)
        covered = sum(
            write_trace(*problem, give_up_prob=0.0, rng=rng).solved for _, problem in of_size
        )
        print(
            f"{operands} numbers, {len(of_size)} problems: "
            f"persistent {solved / len(of_size):.3f}, covered {covered / len(of_size):.3f}"
        )
    checks = zip(*map(check_response, texts), strict=True)
    results, verdicts = (list(chain.from_iterable(parts)) for parts in checks)
    true, right = sum(results) / len(results), sum(verdicts) / len(verdicts)
    print(f"arithmetic {true:.3f}, judging {right:.3f}")


def main() -> None:
    """Makes the base model and prints its report."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        named = {text.partition("=")[0] for text in sys.argv[1:]}
        defaults = {"preset": "quickstart", "storage.root": folder}
        unnamed = [f"{key}={value}" for key, value in defaults.items() if key not in named]
        config = compose([*unnamed, *sys.argv[1:]])
        data = generate_dataset(config)
        model_path = base_model(config, data)
        print((model_path / "warm_start.json").read_text())
        persistent(model_path, data, config.data.max_response_length)


if __name__ == "__main__":
    main()
