import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_core.runs.run_folder import RunFolder, RunRecord
from tasks.report import write_report
from tasks.report_page.head import algorithm_in_words, answer_pages, command_of, model_in_words

SETTINGS = {
    "seed": 3,
    "algorithm": {"estimator": "grpo", "group_size": 8},
    "actor": {"policy_loss": "ppo", "lr": 2e-5},
    "data": {"train_batch_size": 12},
}


def test_algorithm_size_and_seed_stand_in_a_line(tmp_path):
    folder = tmp_path / "checkpoints" / "latest"
    folder.mkdir(parents=True)
    for name, shape in (("model-00001-of-00002", (30, 40)), ("model-00002-of-00002", (7,))):
        save_file({"weight": np.zeros(shape, np.float32)}, folder / f"{name}.safetensors")
    line = algorithm_in_words(RunFolder(tmp_path), SETTINGS)
    assert line == (
        "1,207 parameters · grpo with the ppo loss · 12 prompts x 8 responses a step · "
        "learning rate 2e-05 · seed 3"
    )


@pytest.mark.parametrize("settings", [{}, SETTINGS | {"actor": None}, SETTINGS | {"data": [1]}])
def test_damaged_settings_leave_the_line_out(tmp_path, settings):
    assert algorithm_in_words(RunFolder(tmp_path), settings) is None


def test_a_damaged_checkpoint_leaves_its_size_out(tmp_path):
    folder = tmp_path / "checkpoints" / "latest"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs")
    assert str(algorithm_in_words(RunFolder(tmp_path), SETTINGS)).startswith("grpo")


def test_the_command_can_be_typed_again(two_runs):
    record = RunFolder(two_runs / "runs" / "alpha").read()
    settings = {"env.reward": (None, "a b:f"), "trainer.logger": (["x"], ["console", "wandb"])}
    made = record.model_copy(update={"own_settings": settings | {"model.x": (1, True)}})
    assert command_of(made) == (
        "countdown-train run preset=quickstart 'env.reward=a b:f' "
        "'trainer.logger=[console,wandb]' model.x=true"
    )
    assert command_of(record.model_copy(update={"preset": "imported"})) is None


@pytest.mark.parametrize(
    ("model", "shown"),
    [("outputs/models/m", "outputs/models/m"), ("elsewhere", "elsewhere"), (None, None)],
)
def test_a_model_of_the_storage_root_is_named_from_there(tmp_path, model, shown):
    run = RunFolder(tmp_path / "outputs" / "runs" / "r")
    record = RunRecord(run_id="r", preset="quickstart", started_at="", model=model)
    inside = model is not None and model.startswith("outputs")
    given = record.model_copy(update={"model": str(tmp_path / model)}) if inside else record
    assert model_in_words(run, given) == shown


def test_the_page_of_all_answers_is_linked_and_back_ticks_are_code(two_runs):
    run = two_runs / "runs" / "alpha"
    (run / "eval" / "step_000003.html").write_text("a page")
    assert answer_pages(RunFolder(run), ["base", "step_000003", None]) == {
        "step_000003": "eval/step_000003.html"
    }
    RunFolder(run).update(reason="see `a<b`", status="failed")
    page = write_report(run).html.read_text()
    assert '<a href="eval/step_000003.html">step_000003</a>' in page
    assert "see <code>a&lt;b</code>" in page
    assert '<span class="badge failed">' in page
    assert ".badge.failed {" in page
