"""Two people, or two terminals, start the same run at once on one outputs folder."""

import json

import polars as pl
import pytest

from rl_core.system.atomic import TEMPORARY_PREFIX, TRASH_PREFIX
from tests.flows.test_run import LIMIT_S, Place
from tests.tasks.test_base_model import SMALL

NUM_STEPS = 3


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_both_finish_and_share_what_is_made_once(tmp_path, tiny_overrides):
    small = SMALL.model_dump(exclude_unset=True)
    overrides = [text for text in tiny_overrides if not text.startswith("model.path=")]
    overrides += [f"base_model.{name}={value}" for name, value in small.items()]
    overrides += [f"trainer.total_steps={NUM_STEPS}", "rollout.engine=hf"]
    place = Place(tmp_path, overrides)
    both = [place.start(), place.start()]
    said = [process.communicate(timeout=LIMIT_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [err for _, err in said] == ["", ""]
    assert place.processes() == []

    folders = list((place.root / "runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        record = json.loads((folder / "run.json").read_text())
        assert (record["status"], record["steps"]) == ("finished", NUM_STEPS)
        rows = (folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(row)["step"] for row in rows] == list(range(NUM_STEPS + 1))
        rollouts = pl.read_parquet(folder / "rollouts" / "*.parquet")
        assert set(rollouts["run_id"]) == {folder.name}
        assert (folder / "report.html").read_text().rstrip().endswith("</html>")

    for shared in ("data", "models"):
        made = [path for path in (place.root / shared).iterdir() if path.is_dir()]
        assert len(made) == 1
    logs = "".join((folder / "log.txt").read_text() for folder in folders)
    assert logs.count(" made in ") == 1
    assert logs.count("warm-starting the home-made base model") == 1
    for path in place.root.rglob("*"):
        assert not path.name.startswith((TEMPORARY_PREFIX, TRASH_PREFIX)), path
