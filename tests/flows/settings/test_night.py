from pathlib import Path

import pytest
import yaml

from flows.errors import BadInputError
from flows.settings.night import NIGHT_FILE, NightSettings, read_night


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
    [("23:30", "30 23 * * *"), ("1:05", "5 1 * * *"), ("*/5 * * * *", "*/5 * * * *")],
)
def test_an_hour_or_a_cron_line_says_when(tmp_path, at, cron):
    assert read_night(written(tmp_path, f'at: "{at}"')).cron == cron


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('at: "25:00"', "at: it is neither HH:MM nor a cron line"),
        ("preset: quikstart", "preset: Input should be 'countdown-0.5b-sft-24gb', "),
        ("hook: URL", r"hook: Extra inputs are not permitted \(it may say at, timezone, preset"),
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
