import re
from pathlib import Path

import pytest

from rl_core.envs import ENVS
from tasks.importers.launch_script import import_script
from tasks.importers.verl_table import CHAT_ARGS, NAMES, PLAIN_NAMES, TABLE, meaning
from tests.support.seeded_faults import ROOT

NAMES_FILE = Path(__file__).with_name("verl_setting_names.txt")


def is_known(key: str) -> bool:
    return key in NAMES or meaning(key, "True") is not None


def test_no_setting_of_any_default_tree_is_unknown():
    """The names of TinyZero's tree, of verl 0.9.1's, and of all versions before it."""
    names = [name for name in NAMES_FILE.read_text().splitlines() if not name.startswith("#")]
    assert len(names) > 1_000
    assert [name for name in names if not is_known(name)] == []


def test_what_the_tables_name_exists():
    """In some version of verl, or in what users were seen to write."""
    names = set(NAMES_FILE.read_text().splitlines())
    assert [name for name in PLAIN_NAMES if name not in names] == []


def test_every_sentence_is_said():
    room = (file.read_text() for file in (ROOT / "tasks" / "importers").glob("*.py"))
    words = set(re.findall(r'"([a-z_]+)"', "".join(room)))
    words |= {row["says"] for table in ("limits", "unlisted") for row in TABLE[table].values()}
    sentences = TABLE["mistakes"] | TABLE["notes"]
    assert [name for name in sentences if name not in words] == []
    assert len(sentences) == len(TABLE["mistakes"]) + len(TABLE["notes"])


def test_a_letter_left_out_of_a_setting_with_a_meaning_is_noticed():
    unnoticed = []
    for key in NAMES:
        wrong = key[:-2] + key[-1] if len(key.rpartition(".")[2]) > 2 else f"{key}x"
        is_of_idle = key.endswith("_offload") or "overlong" in key  # sharding's, reward models'
        if is_known(wrong) and not is_of_idle:
            unnoticed.append(wrong)
    assert unnoticed == []


def test_a_setting_asks_for_what_is_lacking_only_where_it_is_on():
    for off in ("False", "null", "'False'", "0", "[]", "disabled"):
        assert meaning("reward_model.enable", off) == meaning("reward_model.enable", "False")
    reason, is_lacking = meaning("reward_model.enable", "True") or ("", False)
    assert is_lacking
    assert "env.reward=package.module:function" in reason
    assert meaning("reward_model.enable", "False") == (reason, False)
    assert meaning("actor_rollout_ref.actor.shuffle", "True") == (
        "mini-batches are cut in the order of the step's rollouts",
        False,
    )


def test_arguments_of_the_chat_template_have_a_setting():
    if "chat_args" not in ENVS["gsm8k"].model_fields:
        pytest.skip("env.chat_args is not here yet")
    script = f"python3 -m verl.trainer.main_ppo {CHAT_ARGS}enable_thinking=False {CHAT_ARGS}b=2"
    args = import_script(script).settings["env.chat_args"]
    assert ENVS["gsm8k"](chat_args=args).chat_args == {"enable_thinking": False, "b": 2}
