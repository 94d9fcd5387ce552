"""What `config.json` says of models that people train."""

from rl_core.resources.model_shape import known_config

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""Of models that are made in a moment."""
QWEN_05B = known_config("Qwen/Qwen2.5-0.5B")
assert QWEN_05B is not None
