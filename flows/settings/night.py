"""The night's own file, `deployments/night.yaml`: hour, preset, overrides, and whom it notifies.

Git does not track it. `prefect deploy` reads it by the build step `night` of
`deployments/prefect.yaml`; `serve` and `countdown-train notify` read it, too.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TextIO, get_args
from zoneinfo import available_timezones

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from tzlocal import get_localzone_name

from flows.errors import BadInputError
from flows.settings.keys import PresetName
from rl_core.system.plain_files import MOST_YAML_BYTES, parse_yaml, read_plain
from rl_core.system.words import did_you_mean, in_one_line

Event = Literal["failed", "promoted", "finished", "worse", "refused", "cancelled"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
_KIND_OF: Final[dict[Event, Event]] = {
    "worse": "finished",
    "refused": "failed",
    "cancelled": "failed",
}
NIGHT_FILE: Final = Path(__file__).parents[2] / "deployments" / "night.yaml"
DEPLOYMENT: Final = "nightly/countdown-train-nightly"
_NO_HOUR: Final = "at: null"
"""Tag of the deployment while the file, not a person, keeps its schedule off."""
_HOUR: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


class NightSettings(BaseModel):
    """The content of the file; every line may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at: str | None = "01:00"
    """When a night starts: HH:MM, or a cron line such as `0 1 * * 1-5`; null: no night."""
    timezone: str = Field("", validate_default=True)
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
        if at is not None and _HOUR.fullmatch(at) is None:
            _refuse_odd_cron(at)
        return at

    @field_validator("timezone", mode="before")
    @classmethod
    def _is_there(cls, name: str | None) -> str:
        known = available_timezones()
        variable = os.environ.get("TZ", "").removeprefix(":")
        if not name and variable and not variable.startswith("/"):
            name = variable
            if name not in known:  # POSIX's form, CET-1CEST, which no schedule can hold
                raise ValueError(f"TZ={variable} names no place: write timezone: Europe/Berlin")
        name = name or get_localzone_name()
        if name not in known:
            hint = did_you_mean(name, known) if "/" in name else ": name a place, as Europe/Berlin"
            raise ValueError(f"there is no time zone {name}{hint}")
        return name

    @property
    def cron(self) -> str:
        """The schedule as a cron line; any valid one if there is no night."""
        at = self.at or "01:00"
        hour = _HOUR.fullmatch(at)
        return f"{int(hour[2])} {int(hour[1])} * * *" if hour else at


def is_sent(event: Event, events: Collection[Event]) -> bool:
    """Returns whether it is sent: `finished` stands for worse ones too, `failed` for more."""
    return event in events or _KIND_OF.get(event) in events


def _refuse_odd_cron(at: str) -> None:
    """Raises ValueError for a cron line that no schedule takes, or that looks like a mistake."""
    from prefect.client.schemas.schedules import CronSchedule

    fields = at.split()
    if len(fields) in (6, 7):
        raise ValueError(
            f"{at} has {len(fields)} fields, of which one counts seconds: write five, as "
            '"0 1 * * *" for 01:00 each night'
        )
    try:
        if len(fields) != 5:
            raise ValueError
        CronSchedule(cron=at)
    except ValueError:
        raise ValueError(
            f"it is neither HH:MM nor a cron line of five fields: {at!r} (write 07:05, 00:00 for "
            'midnight, or "0 1 * * 1-5")'
        ) from None
    try:
        next(due_times(at, datetime.now(UTC)))
    except ValueError:
        raise ValueError(f"{at} never comes: write a day that its month has") from None
    if fields[0] in ("*", "*/1") and fields[1] != "*":
        raise ValueError(f"{at} is each minute of that hour: write 0 {' '.join(fields[1:])}")


def due_times(cron: str, after: datetime, *, backwards: bool = False) -> Iterator[datetime]:
    """Yields when a cron line is due; ValueError if no year of the next eight has such a day.

    As Prefect's scheduler counts: by the hours of a wall clock, since croniter itself errs by an
    hour where the clock changes.
    """
    from prefect._vendor.croniter.croniter import croniter

    make: Any = croniter  # it has no types
    times = make(cron, after.replace(tzinfo=None), max_years_between_matches=8)
    following = times.get_prev if backwards else times.get_next
    while True:
        due = following(datetime).replace(tzinfo=after.tzinfo).astimezone(UTC)
        if due != after.astimezone(UTC):  # an hour that the clock skips is the one after it
            yield due.astimezone(after.tzinfo)


class _Loader(yaml.SafeLoader):
    """Reads `22:30` as a person does, not as 1350: all values are text, lists or null."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag == "tag:yaml.org,2002:null"]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_night(file: Path = NIGHT_FILE) -> NightSettings:
    """Returns what the file says; the defaults if it is not there."""
    try:
        if not file.exists():
            return NightSettings()
        text = read_plain(file, follow=True, most_bytes=MOST_YAML_BYTES)
        parse_yaml(text, file.name)  # refuses aliases, tags and deep nesting
        # A SafeLoader.
        return NightSettings.model_validate(yaml.load(text, Loader=_Loader) or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"there is no such line (there are {', '.join(NightSettings.model_fields)})"
        elif first["type"] == "tuple_type":
            message = "must be a list, [a,b]"
        elif key == "preset":
            message += "; a file of yours is named in overrides: [preset=FILE.yaml]"
        raise BadInputError(f"{file}: {key or 'the file'}: {message}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInputError(f"{file} cannot be read: {in_one_line(error)}") from None


def deploy_step(file: str) -> dict[str, Any]:
    """Returns what `deployments/prefect.yaml` fills in; on: it has an hour and is not off."""
    try:
        night = read_night(Path(file))
    except BadInputError as error:
        _print_once(f"countdown-train: {error}", sys.stderr)
        raise SystemExit(2) from None
    by_whom = why_off(night)
    if by_whom is not None:
        _print_once(f"no night: {by_whom}", sys.stdout)
    return {
        **night.model_dump(mode="json", exclude={"at"}),
        "cron": night.cron,
        "on": by_whom is None,
        "tags": ["countdown-train", "nightly", *([_NO_HOUR] if by_whom == _BY_FILE else [])],
    }


_BY_FILE: Final = "deployments/night.yaml says at: null"
_BY_PERSON: Final = f"the schedule of {DEPLOYMENT} is switched off in the UI; switch it on there"


def why_off(night: NightSettings) -> str | None:
    """Returns who keeps the night's schedule off, the file or a person; None: it is on."""
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    reasons = [_BY_FILE] if night.at is None else []
    with suppress(ObjectNotFound), get_client(sync_client=True) as client:
        there = client.read_deployment_by_name(DEPLOYMENT)
        is_active = not there.schedules or any(schedule.active for schedule in there.schedules)
        if _NO_HOUR not in there.tags and (there.paused or not is_active):  # which stays
            reasons.append(_BY_PERSON)
    return ", and ".join(reasons) or None


@cache
def _print_once(line: str, to: TextIO) -> None:
    """Prints a line: two deployments read the file."""
    to.write(f"{line}\n")
