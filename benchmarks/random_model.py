"""A model of random weights, with a tokenizer fitted to its prompts and answers. Needs no hub."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rl_core.sft.train import train_tokenizer


def make_random_model(
    texts: list[str],
    folder: Path,
    *,
    hidden_size: int = 256,
    digits_per_token: int = 1,
    vocab_size: int = 640,
) -> None:
    """Writes a Qwen2, by default of three million parameters, and a BPE tokenizer fitted to texts.

    Args:
        texts: its prompts, and the answers it will learn.
        folder: where both go.
        hidden_size: a multiple of 32; 128 makes a million parameters.
        digits_per_token: 1 spells numbers as Qwen does, 3 gives each a token as Llama 3 does.
        vocab_size: most tokens; phrases of the prompt take many, rare numbers the last ones.
    """
    tokenizer = train_tokenizer(texts, vocab_size=vocab_size, digits_per_token=digits_per_token)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=hidden_size * 5 // 2,
            num_hidden_layers=4,
            num_attention_heads=hidden_size // 32,
            num_key_value_heads=hidden_size // 32,
            max_position_embeddings=1024,
            initializer_range=0.64 / hidden_size**0.5,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            dtype="float32",
        )
    )
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
