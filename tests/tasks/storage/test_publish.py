import json
from pathlib import Path

from flows.runs.run_record import choose_run
from flows.settings.compose import compose
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.object_store import ObjectStore
from tasks.prune import prune_runs
from tasks.storage import bring_records, inputs_published, published
from tests.rl_core.storage.test_mirror import save
from tests.support import s3

URL = f"storage.url={s3.URL}"
SMALL = ["data.train_size=64", "data.test_size=16"]
SMALL += ["data.train_batch_size=8", "actor.mini_batch_size=4"]


def config(root: Path, run_id: str = "r") -> RunConfig:
    base = RunConfig(run_id=run_id, storage=StorageConfig(root=root, url=s3.URL))
    return compose(SMALL, base=base)


def test_another_machine_asks_about_a_run_prunes_it_and_makes_its_report(s3_port, cli, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with published(config(here)):
        run = RunFolder.create(config(here))
        for step in (1, 2, 3):
            save(run, step)
        run.update(status="finished")
    select = "select step, value from metrics where metric = 'reward' order by step"
    answer = cli("sql", "-q", select, "--format", "json", URL, root=there).out
    assert [row["step"] for row in json.loads(answer)] == [1, 2, 3]
    assert not (there / "runs" / "r" / "checkpoints").exists()
    assert "finished" in cli("runs", URL, root=there).out

    left_alone = prune_runs([(config(there), RunFolder.under(there, "r"))], dry_run=False)
    assert [row["decision"] for row in left_alone] == ["left alone"]
    assert "written by another machine" in left_alone[0]["why"]

    cli("prune", "run_id=r", URL, "checkpoints.keep_last=0", root=there)
    cli("report", "run_id=r", URL, root=there)
    keys = ObjectStore(s3.URL).list("runs/r/")
    steps = {key.split("/")[3] for key in keys if "/checkpoints/" in key}
    assert steps == {"step_000003"}  # latest and best
    assert "runs/r/report.html" in keys


def test_a_run_that_was_stopped_elsewhere_is_found_by_its_settings_alone(s3_port, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with published(config(here)):
        RunFolder.create(config(here)).update(status="interrupted")
    unnamed = config(there).model_copy(update={"run_id": None})
    assert choose_run(unnamed, None).run_id != "r"
    bring_records(unnamed.storage)
    assert choose_run(unnamed, None).run_id == "r"
    other = unnamed.model_copy(update={"seed": 1})
    assert choose_run(other, None).run_id != "r"


def test_a_data_set_is_made_once_for_all_machines(s3_port, cli, tmp_path):
    for name in ("here", "there"):
        cli("generate", URL, *SMALL, root=tmp_path / name)
    (folder,) = (tmp_path / "here" / "data").glob("[!.]*")
    for file in folder.glob("*.parquet"):
        other = tmp_path / "there" / "data" / folder.name / file.name
        assert other.read_bytes() == file.read_bytes()
    with inputs_published(config(tmp_path / "third")):
        pass


def test_a_store_that_cannot_be_used_is_refused_in_a_line(s3_port, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = cli("generate", code=2, root="s3://nobody/x").err
    assert "there is no such bucket: make it, or name another" in error
    assert error.count("\n") == 1
