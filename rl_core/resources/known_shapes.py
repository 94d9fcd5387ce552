"""Shapes of the hub models that the presets name, so that a run is planned before any download.

Source: `config.json` of each model as published by its authors.
"""

from __future__ import annotations

from rl_core.resources.memory_plan import ModelShape

_QWEN25 = {
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "3B": {
        "hidden_size": 2_048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "7B": {
        "hidden_size": 3_584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}


def known_shape(name: str) -> ModelShape | None:
    """Returns the shape of a hub model, tuned for instructions or not; None if it is not known.

    Args:
        name: OWNER/NAME; with `modelscope:` before it, it is the same model on ModelScope.
    """
    name = name.removeprefix("modelscope:")
    prefix = "Qwen/Qwen2.5-"
    size = name.removeprefix(prefix).removesuffix("-Instruct")
    if not name.startswith(prefix) or size not in _QWEN25:
        return None
    return ModelShape.from_config({"model_type": "qwen2", **_QWEN25[size]})
