"""What every group of settings is made of: a frozen model that knows all its keys."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings that knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
