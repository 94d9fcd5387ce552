"""Reads a run's `config.yaml`, and finds the settings that differ between two of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from rl_core.config.mistakes import leaves as leaves  # of which its readers need both
from rl_core.config.run import RunConfig
from rl_core.system.redaction import redact

REMOVED: Final[Mapping[str, str]] = {
    "checkpoints.keep_every": "a larger checkpoints.keep_last keeps more of the newest",
    "critic.loss_coef": "a critic is a model of its own, with a loss of its own",
    "critic.share_trunk": "a critic is a model of its own; no preset shared the actor's",
    "model.attention": "attention is SDPA; no card had run FlexAttention",
    "model.use_torch_compile": "layers are not compiled; no card had run it",
    "model.use_liger": "layers are transformers' own; no card had run Liger's kernels",
    "rollout.min_engines": "a run starts with all of its engines",
    "rollout.weight_sync": "engines get new weights through Ray's object store",
}
"""Settings of earlier versions, and what holds now. A stored run may still name them."""


def read_settings(run_folder: Path) -> dict[str, Any]:
    """Returns all settings of a run by section, without the `REMOVED`; none if they are damaged."""
    try:
        return parse_settings(
            (run_folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
        )
    except OSError:
        return {}


def parse_settings(text: str) -> dict[str, Any]:
    """Returns the settings in the text of a `config.yaml`, see `read_settings`."""
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    if not isinstance(settings, dict):
        return {}
    for section, _, name in (key.partition(".") for key in REMOVED):
        if isinstance(settings.get(section), dict):
            settings[section].pop(name, None)
    return settings


def settings_as_yaml(config: RunConfig) -> str:
    """Returns all settings as YAML, without the passwords of URLs."""
    settings = config.model_dump(mode="json")
    return redact(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def changed_settings(before: str, after: str) -> str:
    """Returns the settings that changed, as overrides to type; none if `before` is damaged."""
    if not (old := dict(leaves(parse_settings(before)))):
        return ""
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in leaves(parse_settings(after))
        if name not in old or old[name] != value
    )
