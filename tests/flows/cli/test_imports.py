import re
import shlex
import shutil
import time

import pyarrow.parquet as pq
import pytest

from flows.settings.compose import compose
from tests.support.launch_scripts import FROM_OUTSIDE, GSM8K, PLANTED, SOUND
from tests.support.own_data import verl_gsm8k_row, write_rows


@pytest.fixture
def script_to_preset(cli, tmp_path):
    """Imports a script, and returns what is said of it and the preset's file."""
    script, preset = tmp_path / "train.sh", tmp_path / "mine.yaml"

    def run(text, *given, code=0):
        script.write_text(text)
        printed = cli("import", str(script), *given, f"output={preset}", code=code, root=None)
        return printed.out + printed.err, preset

    return run


def test_a_script_becomes_a_preset_that_runs_take(script_to_preset):
    said, preset = script_to_preset(SOUND)
    assert f"countdown-train preflight preset={preset}" in said
    config = compose([f"preset={preset}", "actor.lr=2e-6"])
    assert (config.preset, config.actor.lr) == (str(preset), 2e-6)
    assert (config.data.train_batch_size, config.algorithm.estimator) == (256, "grpo")
    assert config.base_model == compose(["preset=tinyzero-3b"]).base_model  # defaults else

    said, _ = script_to_preset(SOUND, code=2)
    assert "exists already" in said


RECIPE = "algorithm: {adv_estimator: grpo}\ndata: {train_batch_size: 64, train_files: x.parquet}\n"


@pytest.mark.parametrize(
    ("name", "text", "preset"),
    [
        ("mine.yaml", RECIPE, "imported-mine.yaml"),  # the recipe stays
        ("größe.sh", SOUND, "größe.yaml"),
        ("two words.sh", SOUND, "two words.yaml"),
    ],
)
def test_the_preset_has_a_name_that_the_printed_command_can_take(
    cli, tmp_path, monkeypatch, name, text, preset
):
    monkeypatch.chdir(tmp_path)
    (script := tmp_path / name).write_text(text)
    printed = cli("import", name, root=None).out
    assert script.read_text() == text
    assert "to be mended" not in printed
    (command,) = re.findall("try next   (.*)", printed)
    assert compose(shlex.split(command)[2:]).preset == preset


def test_what_verl_does_unasked_is_taken_over_and_said(script_to_preset):
    printed, preset = script_to_preset(
        "python3 -m verl.trainer.main_ppo data.train_batch_size=256 "
        "critic.optim.weight_decay=0.1 trainer.logger=['wandb']\n"
    )
    assert "line 1     what the script leaves to verl has verl's defaults: actor." in printed
    assert "line 1     wandb logs offline here" in printed
    config = compose([f"preset={preset}"])
    assert (config.actor.weight_decay, config.critic.weight_decay) == (0.01, 0.1)
    assert compose(["preset=tinyzero-3b"]).actor.weight_decay == 0.01


def test_a_script_full_of_mistakes_still_gives_a_preset_that_composes(script_to_preset):
    printed, preset = script_to_preset(PLANTED)
    assert "line 8   ! ppo_mini_batch_size 128 is above train_batch_size 32" in printed
    assert "to be mended" not in printed
    config = compose([f"preset={preset}"])
    assert (config.actor.mini_batch_size, config.algorithm.group_size) == (32, 8)


def test_verls_files_pass_until_training(cli, script_to_preset, tmp_path, tiny_model_path):
    for split, numbers in (("train", range(300)), ("test", range(1_000, 1_020))):
        rows = [verl_gsm8k_row(f"What is {i} and {i}?", str(2 * i)) for i in numbers]
        write_rows(tmp_path / "gsm8k" / f"{split}.parquet", rows)
    model = shutil.copytree(tiny_model_path, tmp_path / "Qwen-tiny")
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    said, preset = script_to_preset(GSM8K, f"DATA_DIR={tmp_path / 'gsm8k'}")
    assert "to be mended" not in said
    config = compose([f"preset={preset}"])
    assert (config.env.name, config.env.prompt_template) == ("gsm8k", "chat")
    assert (config.algorithm.estimator, config.algorithm.group_size) == ("grpo", 4)
    assert config.data.train_files == (str(tmp_path / "gsm8k" / "train.parquet"),)

    here = [
        *(f"preset={preset}", f"model.path={model}"),
        *("resources.learner_gpus=0", "resources.rollout_gpus=0", "data.name=words"),
    ]
    for stage in ("config", "preflight", "generate", "validate"):
        cli(stage, *here)
    written = pq.read_table(tmp_path / "data" / "words" / "train.parquet").to_pylist()
    assert len(written) == 300
    assert written[9]["reward_model"]["ground_truth"] == "18"


def test_variables_are_given_behind_the_script(script_to_preset, monkeypatch):
    for name in ("BASE_MODEL", "DATA_DIR", "N_GPUS", "EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    given = ["BASE_MODEL=Qwen/Qwen2.5-3B", "DATA_DIR=countdown", "N_GPUS=1"]
    printed, preset = script_to_preset(FROM_OUTSIDE, *given)
    assert "$BASE_MODEL" not in printed
    assert "$EXPERIMENT_NAME is not set in this script" in printed
    assert compose([f"preset={preset}"]).model.path == "Qwen/Qwen2.5-3B"
    preset.unlink()
    for wrong, words in (
        ("actor.lr=1e-5", "goes to countdown-train run preset=FILE.yaml actor.lr=1e-5"),
        ("N_GPUS=2", "N_GPUS is given twice"),
    ):
        said, _ = script_to_preset(FROM_OUTSIDE, "N_GPUS=1", wrong, code=2)
        assert words in said


def test_a_log_becomes_a_run_and_its_diagnosis_is_said(cli, tmp_path):
    log = tmp_path / "night.log"
    steps = (f"step:{i} - critic/score/mean:0.000 - timing_s/step:1.0\n" for i in range(1, 20))
    log.write_text("".join(steps))
    refused = cli("import", str(log), "model.path=x", code=2).err
    assert "'model.path=x': a log takes only run_id, storage.root and storage.url" in refused
    printed = cli("import", str(log)).out
    assert "imported-night: steps 1 to 19" in printed
    assert "no response has scored anything yet" in printed
    page = tmp_path / "runs" / "imported-night" / "report.html"
    for named in ("run_id=imported-night", "imported-night"):
        cli("report", named)
        assert page.exists()
        page.unlink()


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for execution", "newer CUDA"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "actor.micro_batch_tokens"),
        ("OSError: [Errno 28] No space left on device", "storage.root"),
        ("[Rank 1] Watchdog caught collective operation timeout", "NCCL_DEBUG=INFO"),
        ("wandb.errors.CommError: init timed out after 90 seconds", "wandb_mode=offline"),
        ("ray.exceptions.ObjectStoreFullError: Failed to put object", "--shm-size"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly", "dmesg"),
        ("./train.sh: line 12: 4711 Killed  python3 -m x", "rollout.num_engines"),
        ("Bus error (core dumped)", "--shm-size"),
        ("KeyError: 'some_name'", "import its whole log"),
    ],
)
def test_one_pasted_line_of_an_error_has_its_remedy(cli, tmp_path, line, remedy):
    (file := tmp_path / "pasted.txt").write_text(f"{line}\n")
    said = cli("import", str(file), f"output={tmp_path / 'p.yaml'}", root=None).out
    assert remedy in said
    assert not (tmp_path / "p.yaml").exists()


def test_a_log_of_two_runs_says_so_and_names_what_is_no_number(cli, tmp_path):
    log = tmp_path / "both.log"
    log.write_text(
        "".join(f"step:{i} - x:{n} - y:none\n" for n, i in enumerate((0, 1, 2, 3, 0, 1)))
    )
    said = cli("import", str(log)).out
    assert "2 runs are in the file (steps begin again at 0)" in said
    assert "steps 0 to 1" in said
    assert "not read   1 metrics that are no numbers: y=none" in said


def test_three_thousand_unknown_keys_take_seconds(script_to_preset):
    keys = " ".join(f"data.unknown_{i}=1" for i in range(3_000))
    start = time.process_time()
    script_to_preset(f"python3 -m verl.trainer.main_ppo data.seed=1 {keys}\n")
    assert time.process_time() - start < 60


@pytest.mark.parametrize("words", [[], ["a", "b"], ["no-such-file.sh"]])
def test_what_cannot_be_imported_ends_with_2(cli, words):
    assert len(cli("import", *words, code=2, root=None).err.splitlines()) == 1
