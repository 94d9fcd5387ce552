"""The night's own file, `deployments/night.yaml`: hour, preset, overrides, and who is told.

Git does not track it. `prefect deploy` reads it by the build step `night` of
`deployments/prefect.yaml`; `serve` and `countdown-train notify` read it, too.
"""

import re
from pathlib import Path
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from tzlocal import get_localzone_name

from flows.errors import BadInputError
from flows.settings.keys import PresetName
from rl_core.system.plain_files import read_yaml
from rl_core.system.words import in_one_line

Event = Literal["failed", "promoted", "finished"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
NIGHT_FILE: Final = Path(__file__).parents[2] / "deployments" / "night.yaml"
DEPLOYMENT: Final = "nightly/countdown-train-nightly"
_HOUR: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


class NightSettings(BaseModel):
    """The content of the file; every line may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at: str | None = "01:00"
    """When a night starts: HH:MM, or a cron line such as `0 1 * * 1-5`; null: no night."""
    timezone: str = Field(default_factory=get_localzone_name)
    """Of the hour, such as Europe/Berlin; by default the machine's."""
    preset: PresetName = "quickstart"
    overrides: tuple[str, ...] = ()  # KEY=VALUE each, as on the command line
    start_from: Literal["champion", "afresh"] = "champion"
    webhook: str | None = Field(None, repr=False)
    """Name of an environment variable of the worker, or of a Secret block, that holds the URL."""
    command: tuple[str, ...] = ()
    """A program and its arguments, such as [notify-send, countdown-train]."""
    events: tuple[Event, ...] = EVENTS

    @field_validator("at")
    @classmethod
    def _is_a_time(cls, at: str | None) -> str | None:
        from prefect.client.schemas.schedules import CronSchedule

        if at is not None and _HOUR.fullmatch(at) is None:
            try:
                CronSchedule(cron=at)
            except ValueError:
                raise ValueError("it is neither HH:MM nor a cron line of five fields") from None
        return at

    @field_validator("timezone")
    @classmethod
    def _is_there(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError):
            raise ValueError(f"there is no time zone {name}, such as Europe/Berlin") from None
        return name

    @property
    def cron(self) -> str:
        """The schedule as a cron line; any valid one if there is no night."""
        at = self.at or "01:00"
        found = _HOUR.fullmatch(at)
        return f"{int(found[2])} {int(found[1])} * * *" if found else at


def read_night(file: Path = NIGHT_FILE) -> NightSettings:
    """Returns what the file says; the defaults if it is not there."""
    try:
        content = read_yaml(file, follow=True) if file.exists() else None
        return NightSettings.model_validate(content or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        known = ", ".join(NightSettings.model_fields)
        raise BadInputError(f"{file}: {key}: {message} (it may say {known})") from None
    except (OSError, ValueError) as error:
        raise BadInputError(f"{file} cannot be read: {in_one_line(error)}") from None


def deploy_step(file: str) -> dict[str, Any]:
    """Returns what `deployments/prefect.yaml` fills in; off means no hour, or off in the UI."""
    night = read_night(Path(file))
    return {
        **night.model_dump(mode="json", exclude={"at"}),
        "cron": night.cron,
        "on": night.at is not None and not is_off(),
    }


def is_off() -> bool:
    """Says whether the schedule is switched off on the server."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    try:
        with get_client(sync_client=True) as client:
            there = client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        return False
    return there.paused or (bool(there.schedules) and not any(s.active for s in there.schedules))
