"""What every group of settings is made of: a frozen model that refuses unknown keys."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_INT: Final = 2**32 - 1
"""The largest seed of numpy's and vLLM's generators, and far above any number that is meant."""

_NUMBERS: Final = (int, float, int | None, float | None)
"""Kinds for which pydantic takes true as 1."""


def as_list(value: Any) -> Any:
    """Returns a list: one name is a list of one, null an empty one."""
    return () if value is None else (value,) if isinstance(value, str) else value


FunctionNames = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")], ...],
    BeforeValidator(as_list),
]
"""Functions as `package.module:function`."""


def rule(mistakes: Callable[[Any], Iterator[str]]) -> Any:
    """Makes a validator of a method that yields what is wrong with settings together."""

    def check(section: Any) -> Any:
        for mistake in mistakes(section):
            raise ValueError(mistake)
        return section

    return model_validator(mode="after")(check)


class Section(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A frozen group of settings that refuses unknown keys, and numbers no library could hold."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind in _NUMBERS:
            raise PydanticCustomError("no_number", "must be a number, not true or false")
        return value

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        most = 2**63 - 1 if str(info.field_name).endswith("_bytes") else MAX_INT
        if isinstance(value, int) and value > most:
            raise PydanticCustomError("too_large", f"must be at most {most}")
        return value
