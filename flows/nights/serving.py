"""What `serve` says of the nights: what a deploy changes, which were missed, when the next is."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from prefect import get_client
from prefect.server.schemas.schedules import CronSchedule

from flows.nights.messages import Night, message
from flows.nights.others import missed_nights
from flows.nights.settings import NightSettings, deployed, differences, is_off
from tasks.prefect_ui.notify import Listeners, notify

_FILE: Final = "deployments/night.yaml"
_logger = logging.getLogger(__name__)


def before_the_deploy(night: NightSettings) -> list[str]:
    """Returns lines on nights that did not run, told to the listeners, and on what will change."""
    with get_client(sync_client=True) as client:
        lines = differences(deployed(client), night)
        missed = missed_nights(client)
    if missed is not None:
        lines.append(missed)
        if "missed" in night.events:
            listeners = Listeners(night.webhook, night.command)
            notify(listeners, message("missed", Night(), missed), _logger)
    return lines


def next_night(night: NightSettings) -> str:
    """Returns when the next night starts, or why none does, and how to change that."""
    with get_client(sync_client=True) as client:
        there = deployed(client)
    if night.at is None:
        return f"none, as {_FILE} says (at: null)"
    if is_off(there):
        return "none: its schedule is switched off in the UI (Deployments, countdown-train-nightly)"
    dates = CronSchedule(cron=night.cron, timezone=night.timezone).get_dates(
        n=1, start=datetime.now(UTC)
    )
    due = asyncio.run(dates)[0].astimezone(ZoneInfo(night.timezone))
    return (
        f"trains with preset={night.preset} next at {due:%Y-%m-%d %H:%M} ({night.timezone}); "
        f"`at: null` in {_FILE} switches it off (see night.example.yaml)"
    )
