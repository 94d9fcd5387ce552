"""What `config.json` says of models that people train."""

from rl_core.resources.known_shapes import known_config

QWEN_05B = known_config("Qwen/Qwen2.5-0.5B")
assert QWEN_05B is not None
