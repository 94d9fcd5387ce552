"""The models of what `--json` prints, by the table `answers.yaml`."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, create_model

_TABLE: Final = yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text(encoding="utf-8"))


class Facts(BaseModel):
    """Some facts, of an answer or in it; they are taken from a mapping or from an object."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


def _models() -> dict[str, type[Facts]]:
    known: dict[str, Any] = {"Any": Any, "Literal": Literal, "datetime": datetime}
    models: dict[str, type[Facts]] = {}
    for name, row in _TABLE.items():
        fields: dict[str, Any] = {
            field: (kind, Field(*default, description=meaning))
            for field, (kind, meaning, *default) in row["fields"].items()
        }
        models[name] = create_model(name, __base__=Facts, __doc__=row["means"], **fields)
        models[name].model_rebuild(_types_namespace=known | models)
    return models


MODELS: Final = _models()
"""By name: `Reply`, and what each command answers."""
