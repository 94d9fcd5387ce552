import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect import flow

from rl_core.config.model import BaseModelConfig
from rl_core.config.operations import BudgetConfig, StorageConfig
from rl_core.config.run import DataConfig, ModelConfig, RunConfig
from rl_core.envs.countdown import Countdown
from tasks import base_model as module
from tasks.base_model import base_model, base_model_task, cached_base_model, keep_curve, made_folder
from tasks.generate import generate_dataset
from tasks.made_folders import home_made_folder, is_complete

ENV = Countdown(min_operands=3, max_operands=3, max_number=20)
_WIDTHS = {"hidden_size": 32, "intermediate_size": 32, "num_heads": 1, "num_layers": 1}
_STEPS = {"steps": 2, "batch_size": 2, "warmup_steps": 1, "max_response_tokens": 16}
SMALL = BaseModelConfig(**_WIDTHS, **_STEPS, num_threads=1)


def settings(root: Path, **changes: object) -> RunConfig:
    sections = {
        "storage": StorageConfig(root=root),
        "env": ENV,
        "data": DataConfig(train_size=300, test_size=4),
        "base_model": SMALL,
    }
    return RunConfig.model_validate(sections | changes)


def test_progress_says_how_long_it_still_takes(caplog, monkeypatch):
    """Steps of 6 s from the second on; a line at most every 10 s. The first step loads, too."""
    caplog.set_level(logging.INFO, logger=module.__name__)
    clock = iter([0.0, 40.0, 46.0, 52.0, 58.0, 64.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    log_step = module._log_steps("SFT", BudgetConfig(price_per_hour=3.0, currency="USD"))
    for step in range(1, 6):
        log_step(step, 905, 1 / step)
    assert caplog.messages == [
        "SFT 1/905 · loss 1.000",
        "SFT 3/905 · loss 0.333 · 1.5 h, 4.51 USD left",
        "SFT 5/905 · loss 0.200 · 1.5 h, 4.50 USD left",
    ]


def test_a_local_folder_is_taken_as_it_is(tmp_path, tiny_model_path):
    config = settings(tmp_path, model=ModelConfig(path=str(tiny_model_path)))
    assert base_model(config, tmp_path / "unused") == tiny_model_path.resolve()
    assert not (tmp_path / "models").exists()


def test_the_folder_depends_on_what_the_model_depends_on_and_on_nothing_else(tmp_path):
    here = home_made_folder(settings(tmp_path))
    assert here.parent == tmp_path / "models"

    def moved(**changes: object) -> bool:
        return home_made_folder(settings(tmp_path, **changes)) != here

    assert moved(base_model=SMALL.model_copy(update={"steps": 3}))
    assert moved(base_model=SMALL.model_copy(update={"seed": 1}))
    assert moved(env=ENV.model_copy(update={"max_number": 21}))
    assert moved(env=ENV.model_copy(update={"prompt_template": "qwen-instruct"}))
    assert moved(data=DataConfig(train_size=300, test_size=4, seed=1))
    assert not moved(base_model=SMALL.model_copy(update={"num_threads": 2}))
    assert not moved(env=ENV.model_copy(update={"format_score": 0.2}))
    assert not moved(seed=1)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_it_is_made_once_cached_then_and_made_again_where_it_was_deleted(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="tasks.base_model")
    config = settings(tmp_path)
    data = generate_dataset(config)

    @flow
    def twice() -> list[str]:
        folder = cached_base_model(config, data)
        state = base_model_task(config, data, return_state=True)
        assert state.result() == folder
        return [str(state.name), str(folder)]

    state, folder = twice()
    assert state == "Cached"
    assert is_complete(Path(folder))
    report = json.loads((Path(folder) / "warm_start.json").read_text())
    assert report["failed_gates"], "two steps of training teach nothing"
    assert caplog.text.count("raise base_model.steps") == len(report["failed_gates"])

    made_at = (Path(folder) / "warm_start.json").stat().st_mtime_ns
    twice()
    assert (Path(folder) / "warm_start.json").stat().st_mtime_ns == made_at
    shutil.rmtree(folder)
    twice()
    assert is_complete(Path(folder))


def test_two_runs_at_once_make_it_once_and_sweep_what_a_dead_one_left(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="tasks.base_model")
    config = settings(tmp_path)
    data = generate_dataset(config)
    (tmp_path / "models" / ".tmp-countdown-dead").mkdir(parents=True)
    with ThreadPoolExecutor(2) as runs:
        first, second = runs.map(lambda _: base_model(config, data), range(2))
    assert first == second
    assert caplog.text.count("warm-starting the home-made base model") == 1
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == [first.name]


def tuned_settings(root: Path, model: Path, rows: Path, **sft: object) -> RunConfig:
    return settings(
        root,
        model={"path": str(model)},
        sft={"data": str(rows), "steps": 3, "batch_size": 4} | sft,
        resources={"learner_threads": 1},
    )


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"prompt": "{n}+0=", "response": "{n}"}}\n' for n in range(9)))
    return file


def test_a_tuned_model_has_a_folder_by_all_that_it_depends_on(tmp_path, tiny_model_path, rows):
    def folder(**sft: object) -> Path | None:
        return made_folder(tuned_settings(tmp_path, tiny_model_path, rows, **sft))

    here = folder()
    assert here.name.startswith("sft-tiny_model0-")
    assert folder(save_freq=7) == here
    assert folder(steps=4) != here
    rows.write_text(rows.read_text() + '{"prompt": "9+0=", "response": "9"}\n')
    assert folder() != here
    given = settings(tmp_path, model={"path": str(tiny_model_path)})
    assert made_folder(given) is None
    with pytest.raises(ValueError, match=r"sft\.data=.*none\.jsonl"):
        folder(data=str(tmp_path / "none.jsonl"))


@pytest.mark.slow
def test_a_model_is_tuned_once_and_then_found(tmp_path, tiny_model_path, rows, caplog):
    caplog.set_level(logging.INFO, logger="tasks.base_model")
    config = tuned_settings(tmp_path, tiny_model_path, rows, lr=1e-2)
    folder = base_model(config, tmp_path / "unused")
    assert folder == made_folder(config)
    assert is_complete(folder)
    assert caplog.text.count("SFT starts: 3 steps on 8 rows of") == 1
    made_at = (folder / "sft_loss.jsonl").stat().st_mtime_ns
    assert base_model(config, tmp_path / "unused") == folder
    assert (folder / "sft_loss.jsonl").stat().st_mtime_ns == made_at
    (tmp_path / "run").mkdir()
    keep_curve(folder, tmp_path / "run")
    assert len((tmp_path / "run" / "sft_loss.jsonl").read_text().splitlines()) == 4
    keep_curve(tiny_model_path, tmp_path)
    assert not (tmp_path / "sft_loss.jsonl").exists()

    rows.write_text('{"prompt": "2+2="}\n' * 2)
    with pytest.raises(ValueError, match=r"rows.jsonl: row 1: response=None must be a text"):
        base_model(config, tmp_path / "unused")
