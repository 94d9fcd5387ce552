import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.importers.launch_script import import_script
from tests.support.launch_scripts import GSM8K, SOUND, shell_texts

SCRIPTS = Path(__file__).parent / "scripts"
TABLES = yaml.safe_load((SCRIPTS / "settings.yaml").read_text())
CASES: dict[str, dict[str, Any]] = yaml.safe_load((SCRIPTS / "cases.yaml").read_text())
TRAIN = "python3 -m verl.trainer.main_ppo"
UNKNOWN = "data.train_files=x trainer.experiment_name=x"


def written(words: str) -> str:
    words = words.replace("{actor}", "actor_rollout_ref.actor").replace("{unknown}", UNKNOWN)
    return words.replace("{train}", TRAIN)


def script_of(case: dict[str, Any]) -> str:
    text = str(case["script"])
    if text.endswith(".sh"):
        return f"{(SCRIPTS / text).read_text().rstrip()} {written(case.get('more', ''))}\n"
    return written(text if "{train}" in text else f"{{train}} {text}\n")


@pytest.mark.parametrize("name", CASES)
def test_a_script_becomes_settings_and_findings(name):
    case = CASES[name]
    imported = import_script(script_of(case), case.get("given"), case.get("shell"))
    expected = case.get("settings", {})
    assert {key: imported.settings.get(key) for key in expected} == expected
    said = [f"{one.check}: {one}" for one in imported.findings]
    for words in case.get("says", ()):
        assert len([line for line in said if re.search(words, line)]) == 1, (words, said)
    for words in case.get("silent", ()):
        assert [line for line in said if re.search(words, line)] == []


@pytest.mark.parametrize(("name", "text"), [("sound", SOUND), ("gsm8k", GSM8K)])
def test_a_script_becomes_a_preset(name, text):
    imported = import_script(text)
    preset = yaml.safe_load((SCRIPTS / f"{name}.yaml").read_text())
    assert yaml.safe_load(imported.preset("train.sh")) == preset
    assert name != "sound" or not [one for one in imported.findings if one.level == "warning"]


@pytest.mark.parametrize(("setting", "ours", "value"), TABLES["other form"])
def test_settings_with_another_form_arrive(setting, ours, value):
    imported = import_script(f"{GSM8K.rstrip()} \\\n    {setting}\n")
    assert imported.settings[ours] == value


@pytest.mark.parametrize(("setting", "words"), TABLES["sentences"].items())
def test_each_sentence_of_the_table_has_its_facts(setting, words):
    imported = import_script(f"{GSM8K.rstrip()} \\\n    {written(setting)}\n")
    assert len([one for one in imported.findings if words in str(one)]) == 1


@pytest.mark.parametrize("text", TABLES["texts"])
def test_a_command_in_a_text_is_the_command(text):
    settings = (
        "data.train_batch_size=64 actor_rollout_ref.rollout.n=8 actor_rollout_ref.model.path=a/b"
    )
    command = " \\\n    ".join([TRAIN, *settings.split()])
    imported = import_script(text.replace("{command}", command))
    assert imported.settings == import_script(command).settings
    assert not [one for one in imported.findings if "is not read" in str(one)]


@pytest.mark.parametrize(("text", "words"), TABLES["refused"].items())
def test_a_script_without_a_command_that_trains_is_refused_by_what_it_has(text, words):
    with pytest.raises(ValueError, match=words):
        import_script(written(text))


def test_a_secret_of_the_shell_never_becomes_a_setting():
    script = (
        "export WANDB_API_KEY=0123456789abcdef\nALIAS=$AWS_SECRET_ACCESS_KEY\n"
        "python3 -m verl.trainer.main_ppo data.train_batch_size=8 "
        "trainer.project_name=$AWS_SECRET_ACCESS_KEY trainer.experiment_name=$WANDB_API_KEY "
        "actor_rollout_ref.model.path=${HF_TOKEN:-a/b} data.max_prompt_length=$ALIAS\n"
    )
    secrets = {"AWS_SECRET_ACCESS_KEY": "stolen+stolen", "HF_TOKEN": "hf_stolen_stolen"}
    for answers, shell in (({}, secrets), (secrets, {})):
        imported = import_script(script, answers, shell)
        said = imported.preset("x.sh") + "\n".join(map(str, imported.findings))
        assert "stolen" not in said
        assert "0123456789abcdef" not in said
        assert imported.settings["model.path"] == "a/b"  # its own default
        assert "$AWS_SECRET_ACCESS_KEY looks like a secret and is not read" in said


@pytest.mark.parametrize(
    "value", ["~nobody-of-that-name/model", "!!bool x", "0x_", "2024-13-45", "[" * 3_000, "&a [*a]"]
)
def test_a_value_that_is_no_number_or_path_of_anything_is_a_text(value):
    script = f"python3 -m verl.trainer.main_ppo x.y='{value}' data.train_files='{value}' "
    script += f"actor_rollout_ref.model.path='{value}'"
    imported = import_script(script)
    assert imported.settings["model.path"] == value
    assert yaml.safe_load(imported.preset("x"))["model"]["path"] == value


RECIPES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.just("${a.b}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.~", max_size=3), inner),
    max_leaves=9,
)


@given(st.dictionaries(st.sampled_from(["data", "trainer", "algorithm", "defaults"]), RECIPES))
@example(recipe={"defaults": []})
@example(recipe={"defaults": [""]})
def test_any_recipe_and_any_program_with_it_is_read_or_refused_in_words(recipe):
    known = {"data": {"train_batch_size": 8}} | recipe
    program = f"words = ['data.train_batch_size=8', 'data.seed=1', {known!r}]"
    for text in (yaml.safe_dump(known), program, f"- data.train_batch_size=8\n- {known!r}"):
        try:
            imported = import_script(text)
        except ValueError:
            continue
        yaml.safe_load(imported.preset("any"))
        assert not [one for one in imported.findings if "verl's defaults" in str(one)]


@given(shell_texts, shell_texts)
def test_any_text_is_imported_or_refused_in_words(before, words):
    text = f"{before}\npython3 -m verl.trainer.main_ppo data.train_batch_size=64 {words}"
    try:
        imported = import_script(text, {"A": "x"})
    except ValueError:
        pass
    else:
        yaml.safe_load(imported.preset("any"))
