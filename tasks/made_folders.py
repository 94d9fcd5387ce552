"""Where the models are that are made here; without Prefect, for commands that only look."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.data.dataset import generator_settings

_RECIPE_VERSION: Final = 5  # in the cache key: raise it if the same settings make another model


def home_made_folder(config: RunConfig) -> Path:
    """Returns the folder of these settings' home-made model; it may not exist yet."""
    return folder_of(
        config,
        config.env.slug,
        {
            "base_model": config.base_model.model_dump(mode="json", exclude={"num_threads"}),
            "data": generator_settings(config.env, config.data),
            "recipe": _RECIPE_VERSION,
        },
    )


def folder_of(config: RunConfig, name: str, settings: dict[str, Any]) -> Path:
    """Returns the folder of the model that these settings of its making lead to."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return config.storage.root / "models" / f"{name}-{digest[:12]}"


def is_complete(folder: Path) -> bool:
    """Says whether the folder holds a made model: one appears there complete or not at all."""
    return (folder / "warm_start.json").is_file()
