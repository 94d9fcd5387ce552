"""Whether the model reads as many tokens as a prompt and a response may have together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rl_core.config.base_model import NUM_POSITIONS
from rl_core.config.run import RunConfig
from rl_core.data.gguf_source import local_folder
from tasks.preflight_checks.finding import Finding

_STRETCHED: Final = ("linear", "dynamic")
"""Kinds of RoPE that read `factor` times as many tokens as the config's positions."""


def length_findings(config: RunConfig) -> Iterator[Finding]:
    """Nothing where the longest rollout fits: vLLM would refuse another as it loads."""
    positions, data = _positions(config), config.data
    longest = data.max_prompt_length + data.max_response_length
    if positions is None or longest <= positions:
        return
    model = "the home-made base model" if config.model.path is None else config.model.path
    yield Finding(
        "lengths",
        "fatal",
        f"data.max_prompt_length={data.max_prompt_length} and data.max_response_length="
        f"{data.max_response_length} are {longest:,} tokens, and {model} reads {positions:,}",
        "lower one of them, or set model.path to a model that reads more",
    )


def _positions(config: RunConfig) -> int | None:
    """Returns how many tokens the model reads; None where nothing here tells it."""
    if config.model.path is None:
        return NUM_POSITIONS
    try:
        file = local_folder(config.model.path, config.storage.root) / "config.json"
        settings: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # said of the model
    positions = settings.get("max_position_embeddings")
    if positions is None:
        return None
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    is_stretched = rope.get("rope_type", rope.get("type")) in _STRETCHED
    return int(positions * (rope.get("factor") or 1)) if is_stretched else int(positions)
