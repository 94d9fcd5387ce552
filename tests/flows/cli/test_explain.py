import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from flows.cli.explain import all_settings, find_settings, in_words
from flows.settings.keys import ENVS, PRESETS
from rl_core.config.mistakes import known_keys

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())


def test_every_setting_is_explained_in_words_of_its_own():
    for env in ENVS:
        of_env = [s.key for s in all_settings() if s.env in (None, env)]
        assert set(known_keys(env)) == set(of_env) - {"preset", "env.name"}
    without = [s.key for s in all_settings() if len(s.meaning.split()) < 2]
    assert without == []
    assert [s.key for s in all_settings() if not s.allowed or not s.default] == []


@pytest.mark.parametrize(("key", "allowed", "default"), TABLES["bounds and defaults"])
def test_bounds_and_defaults_are_those_of_the_models(key, allowed, default):
    (setting,) = find_settings(key)
    assert (setting.allowed, setting.default) == (allowed, default)
    assert f"  allowed   {allowed}\n" in in_words(setting)


def test_a_setting_is_found_by_verls_name_and_a_group_by_its_own():
    (setting,) = find_settings("actor_rollout_ref.rollout.n")
    assert setting.key == "algorithm.group_size"
    assert "actor_rollout_ref.rollout.n" in setting.verl
    assert {s.key for s in find_settings("watchdog")} == {"watchdog.stall_s"}
    assert find_settings("lr") == []


@pytest.fixture
def explain(cli):
    return lambda *words, code=0: cli("explain", *words, code=code, root=None)


def test_a_word_lists_the_settings_that_contain_it(explain):
    listed = [line.split()[0] for line in explain("lora").out.splitlines()]
    assert listed == ["model.lora_rank", "model.lora_alpha", "sft.lora_rank"]
    explain("lroa", code=2)


@pytest.mark.parametrize(("words", "said"), TABLES["explained"])
def test_explain_on_the_command_line(explain, words, said):
    assert said in explain(*words).out


def test_what_is_not_allowed_is_explained_and_ends_with_2(explain, fails):
    printed = explain("actor.lr=0", code=2)
    assert "a number above 0" in printed.out
    assert printed.err == "countdown-train: actor.lr=0: Input should be greater than 0\n"
    said = explain("algorithm.estimator=grpo", code=2).err
    assert "algorithm.group_size=1 must be at least 2" in said
    assert "did you mean sft.lr?" in fails("explain", "lrr", root=None)
    assert "explain takes a KEY" in fails("explain", root=None)


def test_with_a_preset_one_setting_is_explained_with_its_value(explain):
    printed = explain("env.prompt_template", "preset=gsm8k-toy").out
    assert printed.count("  allowed ") == 1
    assert 'here      "think" with preset=gsm8k-toy\n' in printed
    assert "belongs to env=gsm8k" in explain("env.source", "preset=quickstart", code=2).err


@pytest.mark.parametrize(("words", "lines"), TABLES["what a word means"])
def test_a_word_that_is_no_setting_is_explained(explain, words, lines):
    printed = explain(*words).out
    for line in lines:
        assert line in printed
    shown = [line for line in printed.splitlines() if line.startswith("env.")]
    assert len(shown) == len(set(shown))


def test_each_preset_is_listed_with_a_whole_sentence(explain):
    printed = explain("preset").out
    entries = " ".join(printed.split())
    for name, following in pairwise((*PRESETS, None)):
        text = entries.partition(f" {name} ")[2]
        text = text if following is None else text.partition(f" {following} ")[0]
        assert text[:1].isupper()
        assert text.endswith(".")
    assert "learns to search puzzles of three small numbers. smollm2-countdown" in entries


def test_the_settings_of_an_env_of_a_module_are_explained(explain, tmp_path, monkeypatch):
    (tmp_path / "pets_env.py").write_text(
        "from rl_core.envs.text_env import TextEnv\n\n\n"
        "class Pets(TextEnv):\n"
        '    """Counts pets."""\n\n'
        "    num_pets: int = 3\n"
        '    """How many pets a question has."""\n\n'
        "    def problems(self, rng):\n        yield from ()\n\n"
        "    def score(self, response, truth):\n        return self.scored(None, right=False)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    all_settings.cache_clear()
    try:
        printed = explain("env.num_pets", "env=pets_env:Pets").out
        assert "How many pets a question has." in printed
        assert "here      3 with preset=quickstart\n" in printed
        assert "env.num_pets=4 is allowed" in explain("env.num_pets=4", "env=pets_env:Pets").out
    finally:
        ENVS.pop("pets_env:Pets", None)
        sys.modules.pop("pets_env", None)
        all_settings.cache_clear()
