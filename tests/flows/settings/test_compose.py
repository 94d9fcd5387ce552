from pathlib import Path
from typing import get_args

import pytest
import yaml

import flows
from flows.countdown_train import countdown_train
from flows.errors import BadInputError
from flows.nightly import nightly
from flows.settings.compose import PresetName, changed_to, compose, own_settings
from rl_core.config.run import RunConfig
from rl_core.envs.countdown import Countdown
from rl_core.envs.gsm8k import Gsm8k
from rl_core.resources.memory_need import machine_need
from rl_core.resources.memory_plan import ModelShape
from rl_core.runs.settings_file import settings_as_yaml

PRESETS = get_args(PresetName)
CONF = Path(flows.__file__).parent / "settings" / "conf"
HERE = Path(__file__).parent
MISTAKES, IN_FILES = (
    yaml.safe_load((HERE / f"{name}.yaml").read_text())
    for name in ("mistakes", "mistakes_in_files")
)


@pytest.mark.parametrize("form", [countdown_train, nightly], ids=lambda form: form.name)
def test_a_form_offers_the_presets_and_explains_every_parameter(form):
    schema = form.parameters.model_dump()
    assert schema["properties"]["preset"]["enum"] == list(PRESETS)
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["required"] == []


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_holds_differences_only_and_says_for_what_hardware(preset):
    """No value of a preset repeats the model's default (of the env the preset chooses)."""
    path = CONF / "preset" / f"{preset}.yaml"
    text = path.read_text()
    assert text.startswith("# ")
    assert "GPU" in text or "CPU" in text
    config = compose([f"preset={preset}"])
    assert config.preset == preset
    defaults = RunConfig(env=type(config.env)()).model_dump(mode="json")
    for section, values in yaml.safe_load(text).items():
        if section == "defaults":
            continue
        for key, value in values.items():
            assert defaults[section][key] != value, f"{section}.{key}={value} is the default"


@pytest.mark.slow  # the first to need the model unpacks it
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_preset_of_a_laptop_is_planned_for_8_gb(smollm2, dtype):
    """Measured: three seeds within 8,000,000,000 bytes (benchmarks/README.md)."""
    config = compose(["preset=smollm2-laptop", f"model.dtype={dtype}"])
    need = machine_need(ModelShape.from_folder(smollm2), config)
    assert need.total_gib * 2**30 < 8e9


def test_what_a_run_changed_of_its_preset_is_told():
    assert own_settings(compose(["run_id=a", "storage.root=/elsewhere"])) == {}
    changed = compose(["preset=tinyzero-3b", "actor.lr=2e-6", "trainer.logger=[console,wandb]"])
    assert own_settings(changed) == {
        "actor.lr": (1e-6, 2e-6),
        "trainer.logger": (["console"], ["console", "wandb"]),
    }
    of_another_env = own_settings(compose().model_copy(update={"env": Gsm8k()}))
    assert of_another_env["env.name"] == ("countdown", "gsm8k")
    assert of_another_env["env.answer_from"] == ("anywhere", "strict")
    assert "env.max_number" not in of_another_env  # nobody set it to null
    gone = compose().model_copy(update={"preset": "gone.yaml"})
    assert own_settings(gone)["trainer.total_steps"] == (None, 25)


@pytest.mark.parametrize(
    ("overrides", "env"),
    [
        (["env=gsm8k"], Gsm8k()),
        (["preset=tinyzero-3b-instruct", "env=gsm8k"], Gsm8k()),
        (["preset=gsm8k-toy", "env=countdown"], Countdown()),
        (["preset=gsm8k-toy", "env=gsm8k"], Gsm8k(source="toy", prompt_template="think")),
        (
            ["env=gsm8k", "env.source=toy", "env.reward=a:b", "data.max_prompt_length=99"],
            Gsm8k(source="toy", reward="a:b"),
        ),
    ],
)
def test_a_chosen_env_replaces_what_the_preset_says_of_its_own(overrides, env):
    """`env=gsm8k` alone used to end as: unknown setting 'env.max_operands'."""
    assert compose(overrides).env == env


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("env: gsm8k", Gsm8k()),
        ("env: {name: gsm8k, source: toy}", Gsm8k(source="toy")),
        ("defaults: [override /env: gsm8k]\nenv: {source: toy}", Gsm8k(source="toy")),
        ("env: {max_operands: 5, reward: 'a:b'}", Countdown(max_operands=5, reward="a:b")),
    ],
)
def test_a_file_may_name_its_env_as_config_prints_it(tmp_path, text, env):
    file = tmp_path / "own.yaml"
    file.write_text(text)
    assert compose([f"preset={file}"]).env == env
    other = Gsm8k if isinstance(env, Countdown) else Countdown
    chosen = compose([f"preset={file}", f"env={other().name}"])
    assert chosen.env == other(reward=env.reward)
    printed = tmp_path / "printed.yaml"
    config = compose([f"preset={file}", "trainer.total_steps=7"])
    printed.write_text(settings_as_yaml(config))
    again = compose([f"preset={printed}"])
    assert again == config.model_copy(update={"preset": str(printed)})


@pytest.mark.parametrize(("text", "message"), IN_FILES)
def test_a_mistake_in_a_file_is_one_line_that_helps(tmp_path, text, message):
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(BadInputError) as caught:
        compose([f"preset={file}"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_stay_as_written_and_null_unsets():
    assert compose(["run_id=007"]).run_id == "007"
    assert compose(["run_id=1e5"]).run_id == "1e5"
    assert compose(["model.path=123"]).model.path == "123"
    assert compose(["storage.root=/a folder/b"]).storage.root == Path("/a folder/b")
    assert compose(["storage.root='a(b)'"]).storage.root == Path("a(b)")
    assert compose(["trainer.total_steps=null"]).trainer.total_steps is None


@pytest.mark.parametrize(("overrides", "words"), MISTAKES.items(), ids=MISTAKES)
def test_every_mistake_is_one_line_that_helps(overrides, words):
    with pytest.raises(BadInputError) as caught:
        compose(overrides.split())
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


def test_files_are_one_name_or_a_list():
    assert compose([]).data.train_files == ()
    config = compose(["data.train_files=a/*.parquet", "data.test_files=[b.jsonl,openai/gsm8k]"])
    assert config.data.train_files == ("a/*.parquet",)
    assert config.data.test_files == ("b.jsonl", "openai/gsm8k")
    assert RunConfig.model_validate(yaml.safe_load(settings_as_yaml(config))) == config
    assert compose(["data.train_files=null"]).data.train_files == ()
    assert compose(["data.train_files=a.jsonl"], base=config).data.train_files == ("a.jsonl",)


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:HF_TOKEN}",
        "a/${oc.env:HF_TOKEN,none}/b",
        "${oc.${trainer.wandb_project}:HF_TOKEN}",
        "${oc.decode:${oc.env:HF_TOKEN}}",
        "\\${oc.env:HF_TOKEN}",
        "${hydra:runtime.cwd}",
        "${now:%Y}",
    ],
)
def test_no_setting_reads_the_environment(value, tmp_path, monkeypatch):
    """Neither of a preset file, nor of another's run, nor as it is typed."""
    monkeypatch.setenv("HF_TOKEN", "hf_stolen_stolen")
    file = tmp_path / "given.yaml"

    for settings in (
        {"trainer": {"wandb_project": value}},
        {"data": {"train_files": ["a", value]}},
        {"defaults": [value], "seed": 1},
    ):
        file.write_text(yaml.safe_dump(settings))
        with pytest.raises(BadInputError, match="nothing of the environment") as caught:
            compose([f"preset={file}"])
        assert "stolen" not in str(caught.value)
    base = RunConfig.model_validate({"trainer": {"wandb_project": value}})
    with pytest.raises(BadInputError, match="nothing of the environment"):
        compose(["seed=2"], base=base)
    with pytest.raises(BadInputError, match=r"nothing of the environment|cannot be read"):
        compose([f"trainer.wandb_project='{value}'"])


def test_a_setting_may_be_that_of_another(tmp_path):
    file = tmp_path / "given.yaml"
    file.write_text("seed: 7\ntrainer:\n  wandb_project: run-${seed}:a\n")
    assert compose([f"preset={file}"]).trainer.wandb_project == "run-7:a"


def test_the_settings_of_a_run_can_be_changed_but_not_its_preset():
    run = compose(["preset=gsm8k-ppo-0.5b", "run_id=mine"])
    changed = compose(["checkpoints.keep_last=0", "env.answer_from=lenient"], base=run)
    assert changed.run_id == "mine"
    assert changed.preset == "gsm8k-ppo-0.5b"
    assert changed.checkpoints.keep_last == 0
    assert changed.env.answer_from == "lenient"
    assert compose([], base=run) == run
    with pytest.raises(BadInputError, match="preset cannot change"):
        compose(["preset=quickstart"], base=run)


def test_a_url_as_root_is_mirrored_by_a_folder_of_its_own():
    config = compose(["storage.root=s3://bucket/a/b"])
    assert config.storage.url == "s3://bucket/a/b"
    assert config.storage.root.parent == Path("outputs")
    assert RunConfig.model_validate(yaml.safe_load(settings_as_yaml(config))) == config
    likely_twins = {"s3://bucket/a-b", "s3://bucket/a/b", "gs://bucket/a/b", "s3://bucket-a/b"}
    roots = {compose([f"storage.root={url}"]).storage.root for url in likely_twins}
    assert len(roots) == len(likely_twins)
    own = compose(["storage.url=gs://bucket", "storage.root=/fast/disk"])
    assert (own.storage.url, own.storage.root) == ("gs://bucket", Path("/fast/disk"))
    moved = compose(["storage.root=az://other/x"], base=config)
    assert moved.storage.url == "az://other/x"
    assert not {"storage.root", "storage.url"} & own_settings(config).keys()


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "s3://", "s3://key:word@bucket", "s3://bucket/a//b", "s3:/bucket//"]
)
def test_what_is_no_store_is_refused_without_the_credentials_in_it(url):
    with pytest.raises(BadInputError, match="must be s3://BUCKET/PREFIX") as refused:
        compose([f"storage.url={url}"])
    assert "word" not in str(refused.value)


@pytest.mark.parametrize("between", [" ", ", ", ",", "; "])
def test_two_settings_in_one_item_are_told_apart(between):
    item = f"trainer.total_steps=8{between}seed=1"
    with pytest.raises(BadInputError) as refused:
        compose([item])
    assert str(refused.value) == (
        f"{item!r} is two settings in one item: write 'trainer.total_steps=8' and 'seed=1', each "
        "an item of its own"
    )


def test_the_defaults_of_another_env_are_no_changes():
    config = compose(["preset=smollm2-laptop", "env=custom", "env.format_score=0.5", "seed=1"])
    changed = changed_to(config)
    assert (changed.get("env.answer_from"), changed["env.format_score"]) == (None, 0.5)
