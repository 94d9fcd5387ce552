from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml

from flows.errors import BadInputError
from flows.settings.night import NIGHT_FILE, NightSettings, due_times, read_night


def written(folder: Path, text: str) -> Path:
    file = folder / "night.yaml"
    file.write_text(text)
    return file


def test_the_example_says_the_defaults():
    example = NIGHT_FILE.with_name("night.example.yaml")
    assert read_night(example) == NightSettings()
    keys = yaml.safe_load(example.read_text()).keys()
    assert keys == NightSettings.model_fields.keys() - {"timezone"}


@pytest.mark.parametrize(
    ("at", "cron"),
    [
        *[("23:30", "30 23 * * *"), ("1:05", "5 1 * * *"), ("*/5 * * * *", "*/5 * * * *")],
        *[("0 1 29 2 *", "0 1 29 2 *"), ("0 1 * * 7", "0 1 * * 7")],
    ],
)
def test_an_hour_or_a_cron_line_says_when(tmp_path, at, cron):
    assert read_night(written(tmp_path, f'at: "{at}"')).cron == cron


@pytest.mark.parametrize("at", ["22:30", "13:50", "7:05"])
def test_an_hour_without_quotes_is_that_hour(tmp_path, at):
    """YAML 1.1 reads it as a number: 22:30 is 1350."""
    hour, minute = map(int, at.split(":"))
    assert read_night(written(tmp_path, f"at: {at}")).cron == f"{minute} {hour} * * *"


@pytest.mark.parametrize("value", ["", "null", "~"])
def test_a_value_left_out_is_null(tmp_path, value):
    night = read_night(written(tmp_path, f"at: {value}\ntimezone: {value}\nwebhook: {value}"))
    assert (night.at, night.webhook) == (None, None)
    assert night.timezone == NightSettings().timezone


def test_the_variable_tz_is_obeyed_or_refused(tmp_path, monkeypatch):
    file = written(tmp_path, 'at: "01:00"')
    for variable, name in [(":Europe/Berlin", "Europe/Berlin"), ("EST5EDT", "EST5EDT")]:
        monkeypatch.setenv("TZ", variable)
        assert read_night(file).timezone == name
    for variable in ("CET-1CEST,M3.5.0,M10.5.0/3", "CET-1CEST", "<+03>-3", "Nowhere/Town"):
        monkeypatch.setenv("TZ", variable)
        with pytest.raises(BadInputError) as refused:
            read_night(file)
        assert str(refused.value) == (
            f"{file}: timezone: TZ={variable} names no place: write timezone: Europe/Berlin"
        )
        assert read_night(written(tmp_path, "timezone: Asia/Tokyo")).timezone == "Asia/Tokyo"
        file = written(tmp_path, 'at: "01:00"')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *[
            (f"at: {at}", f"at: it is neither HH:MM nor a cron line of five fields: '{shown}' ")
            for at, shown in [
                *[('"25:00"', "25:00"), ("24:00", "24:00"), ("7", "7"), ("7:5", "7:5")],
                *[("1350", "1350"), ('"@hourly"', "@hourly"), ('"@reboot"', "@reboot")],
                *[('"0 1 * * 8"', r"0 1 \* \* 8"), ("yes", "yes"), ('"0 1 * *"', r"0 1 \* \*")],
            ]
        ],
        (
            'at: "0 0 1 * * *"',
            r"at: 0 0 1 \* \* \* has 6 fields, of which one counts seconds: write ",
        ),
        ('at: "0 1 31 2 *"', r"at: 0 1 31 2 \* never comes: write a day that its month has"),
        ('at: "0 1 30 2 *"', r"at: 0 1 30 2 \* never comes"),
        ('at: "0 1 31 4,6 *"', "never comes"),
        ('at: "* 1 * * *"', r"at: \* 1 \* \* \* is each minute of that hour: write 0 1 \* \* \*"),
        (
            "timezone: UTC+2",
            r"timezone: there is no time zone UTC\+2: name a place, as Europe/Berlin",
        ),
        ("timezone: CET-1CEST", "timezone: there is no time zone CET-1CEST: name a place"),
        ("timezone: Europe", "timezone: there is no time zone Europe: name a place"),
        ("timezone: europe/berlin", r"europe/berlin; did you mean Europe/Berlin\?$"),
        ("- at", "the file: "),
        ("preset: quikstart", "preset: Input should be 'countdown-0.5b-sft-24gb', "),
        ("hook: URL", r"hook: there is no such line \(there are at, timezone, preset, "),
        ("preset: mine.yaml", r"; a file of yours is named in overrides: \[preset=FILE\.yaml\]$"),
        ("overrides: seed=1", r"overrides: must be a list, \[a,b\]$"),
        ("at: 22:30\nat: 23:30", "'at' is given twice in line 2"),
        ("events: [promotion]", "events.0: Input should be 'failed'"),
        ("at: [", "cannot be read"),
        ("timezone: Europe/Berln", "timezone: there is no time zone Europe/Berln"),
    ],
)
def test_a_mistake_is_refused_in_a_line_with_the_files_name(tmp_path, text, words):
    file = written(tmp_path, text)
    with pytest.raises(BadInputError, match=words) as refused:
        read_night(file)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("cron", "after", "due", "before"),
    [
        # Berlin's clocks skip 02:00 to 03:00 on 2027-03-28, and repeat it on 2026-10-25.
        ("0 2 * * *", "2027-03-27T12:00", "2027-03-28T03:00+02:00", "2027-03-27T02:00+01:00"),
        ("30 2 * * *", "2027-03-28T12:00", "2027-03-29T02:30+02:00", "2027-03-28T03:30+02:00"),
        ("30 2 * * *", "2026-10-25T12:00", "2026-10-26T02:30+01:00", "2026-10-25T02:30+02:00"),
        ("0 3 * * *", "2026-10-24T12:00", "2026-10-25T03:00+01:00", "2026-10-24T03:00+02:00"),
    ],
)
def test_a_night_is_due_at_its_hour_where_the_clock_changes(cron, after, due, before):
    berlin = ZoneInfo("Europe/Berlin")
    time = next(due_times(cron, datetime.fromisoformat(after).replace(tzinfo=berlin)))
    assert time.isoformat(timespec="minutes") == due
    earlier = next(due_times(cron, time, backwards=True))
    assert earlier.isoformat(timespec="minutes") == before
