"""Writes the model folder of step_time.py, and measures how fast this machine multiplies.

python benchmarks/step_model.py FOLDER 3m|135m
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from workload import MODELS, Model, text

from rl_core.data.prompts import OF_ITS_FILE_ALONE

_SIDE, _ROUNDS, _REPEATS = 1_024, 5, 4


def write_model(folder: Path, chosen: Model) -> None:
    """Writes a model with random weights and a tokenizer of one token per letter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**asdict(chosen)))
    model.generation_config = GenerationConfig(eos_token_id=chosen.special_tokens["<eos>"])
    model.save_pretrained(folder)
    vocab = {text([i]): i for i in range(chosen.vocab_size - 1)} | chosen.special_tokens
    letters = Tokenizer(models.BPE(vocab, merges=[]))
    letters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters,
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        auto_map=OF_ITS_FILE_ALONE,
    )
    tokenizer.save_pretrained(folder)


def gemm_rate(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dtype: torch.dtype = torch.float32,
) -> float:
    """Returns the best rate of a product of 1,024 x 1,024 matrices, flops per second."""
    a, b = (torch.randn(_SIDE, _SIDE).to(dtype) for _ in range(2))
    multiply(a, b)
    seconds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        for _ in range(_REPEATS):
            multiply(a, b)
        seconds.append((time.process_time() - start) / _REPEATS)
    return 2 * _SIDE**3 / min(seconds)


def onednn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns a @ b.T by oneDNN, which torch itself does not use for float32."""
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def main() -> None:
    """Prints the rates as JSON."""
    write_model(Path(sys.argv[1]), MODELS[sys.argv[2]])
    rates = {
        "float32": max(gemm_rate(torch.matmul), gemm_rate(onednn)),
        "bfloat16": gemm_rate(torch.matmul, torch.bfloat16),
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
