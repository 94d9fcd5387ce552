"""The run of tests/stored_run under today's settings: for commands that need those."""

from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from rl_core.config.run import RunConfig

STORED: Final = Path(__file__).parents[1] / "stored_run" / "storage"


def without_gone_settings(run: Path) -> None:
    """Takes the settings of an older version out of a run's `config.yaml`."""
    file = run / "config.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    try:
        RunConfig.model_validate(settings)
    except ValidationError as error:
        for section, name in (one["loc"] for one in error.errors()):
            del settings[section][name]
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
