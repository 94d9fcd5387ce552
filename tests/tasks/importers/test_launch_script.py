from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from tasks.importers.launch_script import Imported, import_script
from tests.support.launch_scripts import ARRAYS, FROM_OUTSIDE, GSM8K, PLANTED, SOUND, shell_texts

TABLES = yaml.safe_load((Path(__file__).parent / "scripts/settings.yaml").read_text())


def preset_of(script: str) -> dict[str, Any]:
    return yaml.safe_load((Path(__file__).parent / "scripts" / f"{script}.yaml").read_text())


def said(imported: Imported, line: int) -> list[str]:
    return [str(one) for one in imported.findings if one.check == f"line {line}"]


def found(imported: Imported, words: str) -> str:
    (one,) = (f"{one.check}: {one}" for one in imported.findings if words in str(one))
    return one


def test_a_sound_script_becomes_a_preset_without_a_warning():
    imported = import_script(SOUND)
    assert [str(one) for one in imported.findings if one.level == "warning"] == []
    assert yaml.safe_load(imported.preset("train.sh")) == preset_of("sound")


def test_every_planted_mistake_is_found_where_it_is():
    imported = import_script(PLANTED)
    assert not any("tee" in one for one in said(imported, 2))  # line 10 cut the pipe off
    defaults = found(imported, "what the script leaves to verl has verl's defaults")
    assert defaults.endswith("data.max_prompt_length=512 data.max_response_length=512")
    assert "data/countdown/train.parquet is not here" in said(imported, 3)[0]
    assert said(imported, 5) == [
        "data.val_batch_size does nothing here: the test split is generated at once; "
        "it never helped against memory"
    ]
    (typo,) = said(imported, 6)
    assert "data.max_promt_length" in typo
    assert "did you mean data.max_prompt_length?" in typo
    (mini,) = said(imported, 8)
    assert "scaled by 0.25" in mini  # 32 / 128
    blank, parallel = said(imported, 10)
    assert "loses 6 settings" in blank
    assert "tensor_model_parallel_size 2 needs more than the 1 GPUs" in parallel
    tee, double, _ = said(imported, 11)
    assert "given twice, 4 in line 9 and 2 here: the last one wins: 2" in double
    assert "exit code is tee's" in tee
    (alone,) = said(imported, 12)
    assert "so the raw score is the advantage" in alone
    assert "the preset has algorithm.group_size=8" in alone
    assert "$NAME is not set in this script" in said(imported, 13)[0]


def test_an_estimators_name_overwritten_by_a_number_is_found():
    script = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n"
    script += "  algorithm.adv_estimator=0.95 data.train_batch_size=256\n"
    double, number = said(import_script(script), 2)
    assert "given twice, grpo in line 1 and 0.95 here" in double
    assert "is a number where an estimator's name belongs" in number
    assert "algorithm.estimator" not in import_script(script).settings


def test_a_gsm8k_script_becomes_a_gsm8k_run():
    imported = import_script(GSM8K)
    assert yaml.safe_load(imported.preset("grpo.sh")) == preset_of("gsm8k")
    assert "the run fetches openai/gsm8k" in said(imported, 8)[0]
    assert "Qwen/Qwen2.5-7B-Instruct from the hub" in said(imported, 13)[0]


def test_a_group_size_and_a_coefficient_in_the_wrong_place_are_found():
    size = found(import_script(GSM8K), "algorithm.group_size is no setting of verl")
    assert size.startswith("line 6: ")
    assert "whose name for it is actor_rollout_ref.rollout.n" in size
    assert size.endswith("the preset has algorithm.group_size=4")
    coef = found(import_script(GSM8K), "kl_penalty=0.001 is a number where a kind")
    assert coef.startswith("line 7: ")
    assert coef.endswith("the preset has algorithm.kl_coef=0.001")
    both = f"{GSM8K.rstrip()} algorithm.kl_ctrl.kl_coef=0.01"
    assert import_script(both).settings["algorithm.kl_coef"] == 0.01


def test_kl_that_is_not_in_the_loss_may_be_in_the_reward():
    """TinyZero's is, verl's of today is not: what the preset has must be said."""
    plain = "python3 -m verl.trainer.main_ppo data.train_batch_size=8"
    actor, said = "actor_rollout_ref.actor", "nothing is said of KL"
    for more in ("", f" {actor}.use_kl_loss=False {actor}.kl_loss_coef=0.001"):
        assert "algorithm.kl_mode=none" in found(import_script(plain + more), said)
    for more in (f" {actor}.use_kl_loss=True", " algorithm.use_kl_in_reward=False"):
        imported = import_script(plain + more)
        assert not any(said in str(one) for one in imported.findings)
        assert imported.settings["algorithm.kl_mode"] in ("loss", "none")


def test_verls_own_name_of_the_group_size_wins():
    script = GSM8K.replace("algorithm.kl_penalty=0.001", "actor_rollout_ref.rollout.n=5")
    imported = import_script(script)
    assert imported.settings["algorithm.group_size"] == 5
    assert "which is 5 and wins" in found(imported, "algorithm.group_size is no setting")


def test_variables_of_the_shell_that_starts_it_can_be_given(tmp_path):
    alone = import_script(FROM_OUTSIDE)
    assert "model.path" not in alone.settings
    model = found(alone, "$BASE_MODEL is not set in this script")
    assert "actor_rollout_ref.model.path, critic.model.path cannot be read" in model
    assert "countdown-train import SCRIPT BASE_MODEL=VALUE" in model

    given = {"BASE_MODEL": "Qwen/Qwen2.5-3B", "DATA_DIR": f"{tmp_path}/countdown", "N_GPUS": "2"}
    outside = {"EXPERIMENT_NAME": "night", "DATA_DIR": "elsewhere", "HOME": "/root"}
    imported = import_script(FROM_OUTSIDE, given, outside)
    assert imported.settings["model.path"] == "Qwen/Qwen2.5-3B"
    assert imported.settings["rollout.num_engines"] == 1
    assert found(imported, f"{tmp_path}/countdown/train.parquet is not here")
    assert found(imported, "$EXPERIMENT_NAME is taken from this shell").startswith("line 8")
    assert not any("is not set" in str(one) for one in imported.findings)


def test_a_variable_that_changes_nothing_is_noticed():
    unused = import_script(ARRAYS, {"MODEL_PAT": "x"})
    assert "did you mean MODEL_PATH?" in found(unused, "the script uses no such variable")
    held = import_script("X=1\n" + FROM_OUTSIDE, {"X": "2"})
    assert found(held, "X=2 is given, and the script sets it itself").startswith("line 1")


def test_arrays_cases_and_defaults_of_verls_examples_are_read(tmp_path):
    imported = import_script(ARRAYS, shell={"HOME": str(tmp_path)})
    assert imported.settings["algorithm.estimator"] == "rloo"
    assert imported.settings["algorithm.kl_mode"] == "none"
    assert imported.settings["algorithm.group_size"] == 5
    assert imported.settings["model.path"] == "Qwen/Qwen2.5-3B"
    assert imported.settings["actor.micro_batch_tokens"] == 3_072
    assert imported.settings["resources.learner_gpus"] == 0.5
    data = found(imported, f"{tmp_path}/data/countdown/train.parquet is not here")
    assert data.startswith("line 16")
    case = found(imported, "is not decided here: its first way is read for EXTRA, gpus")
    assert case.startswith("line 7: 'case \"${DEVICE}\" in'")
    another = import_script(ARRAYS, {"gpus": "16", "TOKENS": "99"})
    assert another.settings["resources.learner_ranks"] == 8
    assert another.settings["rollout.num_engines"] == 8
    assert another.settings["actor.micro_batch_tokens"] == 99


@pytest.mark.parametrize(
    ("cards", "parts", "engines", "parts_here"), [(8, 2, 2, 2), (8, 8, 1, 4), (2, 2, 1, 1)]
)
def test_engines_are_split_as_far_as_half_of_the_cards_are_left_to_learn(
    cards, parts, engines, parts_here
):
    split = f"actor_rollout_ref.rollout.tensor_model_parallel_size={parts}"
    script = f"python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node={cards} {split}\n"
    imported = import_script(script)
    assert imported.settings["rollout.num_engines"] == engines
    assert imported.settings.get("rollout.tensor_parallel_size", 1) == parts_here
    assert found(imported, f"{cards} GPUs: verl shards the learner over all of them")


def test_ranks_offload_where_verls_do():
    offload = "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True"
    script = f"python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 {offload}\n"
    settings = import_script(script).settings
    assert settings["resources.learner_ranks"] == 4
    assert settings["resources.offload"] is True


def test_checkpointing_of_the_critic_alone_is_kept():
    imported = import_script(FROM_OUTSIDE)
    assert imported.settings["model.gradient_checkpointing"] is True
    assert found(imported, "holds for actor and critic here").startswith("line 6")


@pytest.mark.parametrize(("setting", "ours", "value"), TABLES["other form"])
def test_settings_with_another_form_arrive(setting, ours, value):
    imported = import_script(f"{GSM8K.rstrip()} \\\n    {setting}\n")
    assert imported.settings[ours] == value


def test_what_is_out_of_range_and_what_is_lacking_is_said_and_left_out():
    wrong = "actor_rollout_ref.actor.optim.lr=-2 reward_model.enable=True trainer.logger=[swanlab]"
    imported = import_script(f"{GSM8K.rstrip()} \\\n    {wrong}\n")
    assert found(imported, "actor_rollout_ref.actor.optim.lr=-2 is out of the range of actor.lr")
    assert found(imported, "reward_model.enable=True has no equivalent here")
    assert found(imported, "trainer.logger=swanlab is not known here")
    assert "actor.lr" not in imported.settings


UNKNOWN = "data.train_files=x trainer.experiment_name=x"


@pytest.mark.parametrize(("setting", "words"), TABLES["sentences"].items())
def test_each_sentence_of_the_table_has_its_facts(setting, words):
    written = setting.format(actor="actor_rollout_ref.actor", unknown=UNKNOWN)
    assert found(import_script(f"{GSM8K.rstrip()} \\\n    {written}\n"), words)


def test_data_that_is_here_is_used(tmp_path):
    file = tmp_path / "train.parquet"
    file.touch()
    command = f"python3 -m verl.trainer.main_ppo data.train_files={file} data.train_batch_size=8"
    assert import_script(command).settings["data.train_files"] == [str(file)]


def test_an_instruction_model_gets_its_prompt():
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Q/q-Instruct"
    assert import_script(command).settings["env.prompt_template"] == "qwen-instruct"


@pytest.mark.parametrize(
    "text",
    [
        "echo hello",
        "The value of storage.root=outputs is a folder; rollout.sleep=true helps.",
        "```sh\ncountdown-train generate data.train_files=mine.jsonl data.test_size=4\n```",
    ],
)
def test_a_file_without_settings_of_verl_is_refused(text):
    with pytest.raises(ValueError, match="no settings were found"):
        import_script(f"{text}\n")


TRAIN = "python3 -m verl.trainer.main_ppo"
LOOP = f"""LENS=(256 512)
for i in "${{!LENS[@]}}"; do
  {TRAIN} data.train_batch_size=8 data.max_response_length=${{LENS[$i]}}
done
"""
FUNCTION = f"""train() {{
  {TRAIN} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=$1 data.train_batch_size=$2
}}
train 8 64
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"{TRAIN} a.b=1 \\\n  # c.d=2 \\\n  e.f=3\n",
            "the command ends here and loses 1 settings",
        ),
        (f"{TRAIN} a.b=1 \\\n  x.y= # later\n  e.f=3\n", "loses 1 settings, from 'e.f=3' on"),
        (f"$HOME=/srv\n{TRAIN} data.seed=1\n", "$HOME=... assigns nothing"),
        (f"{TRAIN} --config-name=my_grpo data.seed=1\n", "the configuration my_grpo is not read"),
        (LOOP, """'for i in "${!LENS[@]}"; do' is not followed"""),
        (LOOP, "give it: countdown-train import SCRIPT i=VALUE"),
        (FUNCTION, "countdown-train import SCRIPT 1=8 2=64, as in line 4"),
        (FUNCTION, "how many responses grpo compares is not known"),
        (f"{TRAIN} data.train_files=x data.prompt_key=problem\n", "from the column `prompt`"),
        (
            f"{TRAIN} +data.apply_chat_template_kwargs.enable_thinking=False\n",
            "enable_thinking=False has no equivalent here",
        ),
    ],
)
def test_what_is_not_read_is_said_by_its_name(text, words):
    assert found(import_script(text), words)


def test_what_is_given_for_a_loop_and_a_function_is_taken():
    assert import_script(LOOP, {"i": "1"}).settings["data.max_response_length"] == 512
    settings = import_script(FUNCTION, {"1": "8", "2": "64"}).settings
    assert (settings["algorithm.group_size"], settings["data.train_batch_size"]) == (8, 64)
    assert "$L is not set" not in str(import_script(f"A='a.b=1 c.d=2'\n{TRAIN} $A\n").findings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'cd x\nssh node "{TRAIN} data.seed=1"\n', "the command in line 2 stands in a text"),
        (f"`{TRAIN} data.seed=1`\n", "the command in line 1 stands in a text or in back-ticks"),
        (
            "export N_GPUS=2 HF_TOKEN=hf_abcdefghijkl\nbash ./train.sh\n",
            r"it starts ./train.sh in line 2, .* countdown-train import ./train.sh N_GPUS=2$",
        ),
        ("accelerate launch grpo.py --num_generations 8\n", "a script of TRL, which is not read"),
        ("python3 -m openrlhf.cli.train_ppo_ray --pretrain x\n", "a script of OpenRLHF"),
    ],
)
def test_a_script_without_a_command_that_trains_is_refused_by_what_it_has(text, words):
    with pytest.raises(ValueError, match=words):
        import_script(text)


def test_words_of_a_variable_without_quotes_are_split():
    settings = import_script(f"A='data.train_batch_size=8 data.seed=1'\n{TRAIN} $A\n").settings
    assert settings["data.train_batch_size"] == 8


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
        assert found(imported, "$AWS_SECRET_ACCESS_KEY looks like a secret and is not read")


@pytest.mark.parametrize(
    "value", ["~nobody-of-that-name/model", "!!bool x", "0x_", "2024-13-45", "[" * 3_000, "&a [*a]"]
)
def test_a_value_that_is_no_number_or_path_of_anything_is_a_text(value):
    script = f"python3 -m verl.trainer.main_ppo data.train_batch_size=64 x.y='{value}' "
    script += f"actor_rollout_ref.model.path='{value}'"
    imported = import_script(script)
    assert imported.settings["model.path"] == value
    assert yaml.safe_load(imported.preset("x"))["model"]["path"] == value


@given(shell_texts, shell_texts)
def test_any_text_is_imported_or_refused_in_words(before, words):
    text = f"{before}\npython3 -m verl.trainer.main_ppo data.train_batch_size=64 {words}"
    try:
        imported = import_script(text, {"A": "x"})
    except ValueError:
        pass
    else:
        yaml.safe_load(imported.preset("any"))
