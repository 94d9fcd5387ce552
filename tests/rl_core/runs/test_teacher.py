import json
import shutil

import pytest

from rl_core.runs.teacher import with_teacher


def config_with(settings, path, root, **env):
    return settings(
        algorithm={"estimator": "distill"},
        teacher={"path": str(path)},
        storage={"root": root},
        env=env or {"name": "countdown"},
    )


def test_a_folder_and_the_best_of_a_run_are_found(settings, tiny_model_path, tmp_path):
    checkpoints = tmp_path / "runs" / "strong" / "checkpoints"
    shutil.copytree(tiny_model_path, checkpoints / "step_000040")
    (checkpoints / "best").symlink_to("step_000040")
    for path in ("strong/best", "strong", "strong/step_000040", checkpoints / "best"):
        config = config_with(settings, path, tmp_path)
        teacher = with_teacher(config, tiny_model_path, pytest.fail).teacher
        assert teacher.path == str((checkpoints / "step_000040").resolve())


def test_a_run_that_goes_on_keeps_its_teacher(settings, tiny_model_path, tmp_path):
    checkpoints = tmp_path / "runs" / "strong" / "checkpoints"
    for step in ("step_000040", "step_000060"):
        shutil.copytree(tiny_model_path, checkpoints / step)
    (checkpoints / "best").symlink_to("step_000060")
    config = config_with(settings, "strong/best", tmp_path)
    known = {"strong/best": str(checkpoints / "step_000040")}
    assert with_teacher(config, tiny_model_path, pytest.fail, known).teacher.path.endswith("40")
    shutil.rmtree(checkpoints / "step_000040")
    assert with_teacher(config, tiny_model_path, pytest.fail, known).teacher.path.endswith("60")


def test_a_record_cannot_name_a_folder_elsewhere(settings, tiny_model_path, tmp_path):
    checkpoints = tmp_path / "runs" / "strong" / "checkpoints"
    for folder in (checkpoints / "best", tmp_path / "elsewhere"):
        shutil.copytree(tiny_model_path, folder)
    config = config_with(settings, "strong/best", tmp_path)
    for planted in (tmp_path / "elsewhere", checkpoints / ".." / ".." / ".." / "elsewhere"):
        known = {"strong/best": str(planted)}
        teacher = with_teacher(config, tiny_model_path, pytest.fail, known).teacher
        assert teacher.path == str(checkpoints / "best")


def test_other_tokens_are_refused(settings, tiny_model_path, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_model_path, other)
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second, *_ = sorted(vocabulary, key=vocabulary.get)[100:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=r"teacher.path=.* has other tokens .*: 2 ids differ"):
        with_teacher(config_with(settings, other, tmp_path), tiny_model_path, pytest.fail)


def test_what_is_no_model_is_refused_under_its_own_name(settings, tiny_model_path, tmp_path):
    config = config_with(settings, tmp_path / "nothing", tmp_path)
    with pytest.raises(ValueError, match=r"^teacher\.path="):
        with_teacher(config, tiny_model_path, pytest.fail)


def test_a_run_that_is_not_there_is_refused_with_the_nearest(settings, tiny_model_path, tmp_path):
    (tmp_path / "runs" / "strong").mkdir(parents=True)
    config = config_with(settings, "strnog/best", tmp_path)
    with pytest.raises(ValueError, match=r"no run strnog .*did you mean strong\?"):
        with_teacher(config, tiny_model_path, pytest.fail)


def test_without_a_teacher_nothing_changes(settings, tiny_model_path):
    config = settings()
    assert with_teacher(config, tiny_model_path, pytest.fail) is config
