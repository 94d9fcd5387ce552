from pathlib import Path

import pytest
import yaml

from flows.cli.explain import all_settings, find_settings, in_words
from flows.settings.keys import ENVS, known_keys

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
