"""Shapes of hub models that people train, so that a run is planned before any download."""

import re
from typing import Any, Final

from rl_core.resources.memory_plan import ModelShape

_FIELDS: Final = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
_SIZES: Final = {
    "Qwen2.5-0.5B": (896, 4_864, 24, 14, 2, 151_936, True),
    "Qwen2.5-1.5B": (1_536, 8_960, 28, 12, 2, 151_936, True),
    "Qwen2.5-3B": (2_048, 11_008, 36, 16, 2, 151_936, True),
    "Qwen2.5-7B": (3_584, 18_944, 28, 28, 4, 152_064, False),
    "Qwen3-0.6B": (1_024, 3_072, 28, 16, 8, 151_936, True),
    "Qwen3-1.7B": (2_048, 6_144, 28, 16, 8, 151_936, True),
    "Qwen3-4B": (2_560, 9_728, 36, 32, 8, 151_936, True),
    "Qwen3-8B": (4_096, 12_288, 36, 32, 8, 151_936, False),
}
"""Source: `config.json` of each model as published by its authors."""
_SHARED: Final[dict[str, dict[str, Any]]] = {
    "Qwen2.5": {"model_type": "qwen2"},
    "Qwen3": {"model_type": "qwen3", "head_dim": 128, "attention_bias": False},
}


def known_config(name: str) -> dict[str, Any] | None:
    """Returns what `config.json` of a hub model, base or instruct, says of its shape, or None."""
    match = re.fullmatch(r"(?:modelscope:)?Qwen/(.+?)(?:-Instruct|-Base)?", name)
    if match is None or match[1] not in _SIZES:
        return None
    sizes = dict(zip(_FIELDS, _SIZES[match[1]], strict=True))
    return _SHARED[match[1].partition("-")[0]] | sizes


def known_shape(name: str) -> ModelShape | None:
    """Returns the shape of a hub model, or None."""
    config = known_config(name)
    return None if config is None else ModelShape.from_config(config)
