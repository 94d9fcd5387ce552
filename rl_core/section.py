"""What every group of settings is made of: a frozen model that refuses unknown keys."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
