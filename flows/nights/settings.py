"""The night's own file, `deployments/night.yaml`: hour, preset, overrides, and who is told.

Git does not track it. `prefect deploy` reads it by the build step `night` of
`deployments/prefect.yaml`; `serve` and `countdown-train notify` read it, too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from tzlocal import get_localzone_name

from flows.errors import BadInputError
from flows.settings.keys import PresetName
from rl_core.system.words import in_one_line

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

Event = Literal["failed", "promoted", "finished", "refused", "missed"]
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
    overrides: tuple[str, ...] = ()
    """KEY=VALUE each, as on the command line."""
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

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the flow `nightly`, as JSON holds them."""
        return self.model_dump(mode="json", exclude={"at", "timezone"})


def read_night(file: Path = NIGHT_FILE) -> NightSettings:
    """Returns what the file says; the defaults if it is not there."""
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
        return NightSettings.model_validate(said or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        known = ", ".join(NightSettings.model_fields)
        raise BadInputError(f"{file}: {key}: {message} (it may say {known})") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInputError(f"{file} cannot be read: {in_one_line(error)}") from None


def deploy_step(file: str) -> dict[str, Any]:
    """Returns what `deployments/prefect.yaml` fills in: the build step `night` of `prefect deploy`.

    It prints what the file changes on the server. A schedule that was switched off in the UI stays
    off.
    """
    from prefect import get_client

    night = read_night(Path(file))
    with get_client(sync_client=True) as client:
        there = deployed(client)
    for line in differences(there, night):
        print(line)  # noqa: T201  # `prefect deploy` shows what a step prints
    return {
        **night.parameters,
        "cron": night.cron,
        "timezone": night.timezone,
        "on": night.at is not None and not is_off(there),
    }


def is_off(there: DeploymentResponse | None) -> bool:
    """Says whether the schedule is switched off on the server."""
    if there is None or not there.schedules:
        return False
    return there.paused or not any(schedule.active for schedule in there.schedules)


def deployed(client: SyncPrefectClient) -> DeploymentResponse | None:
    """Returns the night's deployment on the server, if it is there."""
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        return None


def differences(there: DeploymentResponse | None, night: NightSettings) -> list[str]:
    """Returns in words what a deploy changes on the server, as the file says."""
    if there is None:
        return []
    pairs: list[tuple[str, object, object]] = [
        (name, there.parameters[name], wanted)
        for name, wanted in night.parameters.items()
        if name in there.parameters
    ]
    for schedule in there.schedules:
        pairs.append(("schedule", getattr(schedule.schedule, "cron", "no cron line"), night.cron))
        pairs.append(("time zone", getattr(schedule.schedule, "timezone", None), night.timezone))
    return [
        f"{there.name}: {name} was {_shown(name, found)} on the server and is now "
        f"{_shown(name, wanted)}, as the night's file says"
        for name, found, wanted in pairs
        if _plain(found) != _plain(wanted)
    ]


def _shown(name: str, value: object) -> str:
    """Returns a value as text; a webhook's URL is a secret."""
    return "another" if name == "webhook" and value else json.dumps(_plain(value))


def _plain(value: object) -> object:
    """Returns a value as JSON reads it; an empty one is None."""
    return json.loads(json.dumps(value, default=str)) or None
