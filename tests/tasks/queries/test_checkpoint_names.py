from pathlib import Path

import pytest

from rl_core.checkpoints.store import save_checkpoint
from tasks.queries.checkpoint_names import find_model
from tasks.queries.run_tables import find_runs
from tests.support.checkpoint_files import writer
from tests.support.runs import new_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for run_id, accuracies in (("alpha", {10: 0.9, 20: 0.2}), ("beta", {5: 0.1})):
        run = new_run(tmp_path, run_id)
        model = tmp_path / "models" / run_id
        model.mkdir(parents=True)
        run.update(model=str(model))
        for step, accuracy in accuracies.items():
            save_checkpoint(run.path, step, writer(), accuracy)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("alpha", "alpha/step_000020"),  # the latest: see docs/evaluation.md
        ("alpha/latest", "alpha/step_000020"),
        ("alpha/best", "alpha/step_000010"),
        ("alpha/step_000010", "alpha/step_000010"),
        ("beta", "beta/step_000005"),
        ("al", "alpha/step_000020"),
        ("alph/best", "alpha/step_000010"),
        ("{root}/runs/alpha/checkpoints/step_000010", "alpha/step_000010"),
        ("{root}/runs/alpha/checkpoints/best", "alpha/step_000010"),
    ],
)
def test_a_checkpoint_has_many_names(root, name, found):
    model = find_model(name.format(root=root), root)
    run_id, _, folder = found.partition("/")
    assert (model.name, model.model) == (found, folder)
    assert model.folder.resolve() == root / "runs" / run_id / "checkpoints" / folder
    assert model.step == int(folder.removeprefix("step_"))
    assert model.run.run_id == run_id


def test_without_a_run_the_given_or_the_latest_run_is_meant(root):
    assert find_model("best", root, run_id="alpha").name == "alpha/step_000010"
    assert find_model("latest", root).name == "beta/step_000005"
    base = find_model("base", root, run_id="alpha")
    assert (base.name, base.model, base.step) == ("alpha/base", "base", 0)
    assert base.folder == root / "models" / "alpha"
    assert find_model("beta/base", root).folder == root / "models" / "beta"


def test_a_run_is_named_by_its_beginning_if_no_other_begins_so(root):
    new_run(root, "alps")
    assert [path.name for path in find_runs(root, "alph")] == ["alpha"]
    with pytest.raises(
        ValueError, match=r"2 runs in .* begin with 'al' \(alpha, alps\): write more"
    ):
        find_runs(root, "al")
    with pytest.raises(ValueError, match=r"no run ''"):
        find_runs(root, "")
    new_run(root, "al")
    assert [path.name for path in find_runs(root, "al")] == ["al"]


def test_a_folder_is_a_model_of_no_run(root, tiny_model_path):
    model = find_model(str(tiny_model_path), root)
    assert (model.name, model.model) == (str(tiny_model_path), str(tiny_model_path))
    assert (model.folder, model.run) == (tiny_model_path.resolve(), None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("alpha/step_000011", r"alpha has no checkpoint 'step_000011' \(there are: step_000010, "),
        ("alhpa", r"checkpoint=alhpa is no folder .*; did you mean alpha\?"),
        ("alhpa/best", r"checkpoint=alhpa/best .*; did you mean alpha\?"),
        ("/no/such/folder", "checkpoint=/no/such/folder is no folder and no cached hub model"),
        ("{root}", "is a folder without config.json"),
        ("none.gguf", r"checkpoint=none\.gguf: there is no such file"),
        ("step_000099", "beta has no checkpoint 'step_000099'"),
    ],
)
def test_what_means_nothing_is_one_line(root, name, words):
    with pytest.raises(ValueError, match=words) as caught:
        find_model(name.format(root=root), root)
    assert "\n" not in str(caught.value)
