"""Which run the same command continues, and what it says about that."""

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.runs.run_record import choose_run, recorded, run_to_continue
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import MAY_DIFFER, RunConfig
from rl_core.runs.lock import owned
from rl_core.runs.run_folder import RunFolder
from tests.support.programs import begun
from tests.support.runs import run_config

LIMIT = "budget.max_hours=2"
OTHERS = {
    "budget": {"max_hours": 4.0, "price_per_hour": 1.0},
    "checkpoints": {"keep_last": 1},
    "retry": {"max_retries": 0},
    "storage": {"min_free_gib": 0.5},
    "trainer": {"logger": ["tensorboard"], "stop_grace_s": 60.0, "wandb_project": "p"},
    "watchdog": {"stall_s": 60.0},
}


def config(root: Path, **sections: Any) -> RunConfig:
    return run_config(**sections | {"storage": {"root": root} | sections.get("storage", {})})


def left(root: Path, run_id: str, status: str, *, saved: int = 0, **record: Any) -> RunFolder:
    """A run of these settings that ended like this after a step that was saved."""
    run = RunFolder.create(config(root, run_id=run_id))
    run.metrics.append(saved, {"timing_s/step": 3600.0})
    if saved:
        save_checkpoint(run.path, saved, lambda folder: (folder / "x").write_text("abc"), None)
    run.update(status=status, steps=saved, **record)
    return run


def continued(root: Path, **sections: Any) -> tuple[str | None, str | None]:
    run, why = run_to_continue(config(root, **sections))
    return (None if run is None else run.run_id), why


@pytest.mark.parametrize(
    ("status", "record", "ended"),
    [
        ("failed", {"reason": "out of memory in gen; x"}, "failed: out of memory in gen"),
        ("interrupted", {"reason": "stopped by Ctrl-C; y"}, "was interrupted: stopped by Ctrl-C"),
        ("finished", {"stopped_by": LIMIT, "reason": "z"}, f"was stopped by {LIMIT}"),
    ],
)
def test_an_unfinished_run_is_continued_and_the_first_line_says_so(tmp_path, status, record, ended):
    left(tmp_path, "a", status, saved=7, **record)
    line = f"continuing run a from step 7; run_id=NEWNAME begins anew (it {ended})"
    assert continued(tmp_path) == ("a", line)
    assert choose_run(config(tmp_path), "new").run_id == "a"


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_without_a_saved_step_it_begins_again_in_the_same_folder(tmp_path, status):
    left(tmp_path, "a", status)
    run_id, why = continued(tmp_path)
    assert run_id == "a"
    assert "from step 0 (no step was saved); run_id=NEWNAME begins anew" in why


@pytest.mark.parametrize("section", OTHERS)
def test_settings_that_change_nothing_of_what_is_learned_may_differ(tmp_path, section):
    left(tmp_path, "a", "failed", saved=7)
    assert continued(tmp_path, **{section: OTHERS[section]})[0] == "a"


def test_all_other_settings_may_not(tmp_path):
    left(tmp_path, "a", "failed", saved=7)
    learned = RunConfig().model_dump(exclude=MAY_DIFFER)
    assert {"seed", "env", "data", "actor", "evaluation"} < learned.keys()
    assert {"total_steps", "save_freq"} < learned["trainer"].keys()
    for sections in (
        {"seed": 1},
        {"actor": {"lr": 1e-4}},
        {"trainer": {"total_steps": 5}},
        {"evaluation": {"samples_per_problem": 1}},
        {"resources": {"learner_threads": 1}},
    ):
        assert continued(tmp_path, **sections) == (None, None)


def test_a_run_that_reached_its_last_step_is_not_touched(tmp_path):
    left(tmp_path, "old", "failed", saved=7, started_at="2020-01-01T00:00:00+00:00")
    run = left(tmp_path, "a", "finished", saved=7)
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    assert continued(tmp_path) == (None, None)
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before


def test_of_several_the_newest_is_taken_that_nobody_works_on(tmp_path):
    for day, run_id in enumerate("abc", start=1):
        started_at = datetime(2026, 1, day, tzinfo=UTC).isoformat()
        left(tmp_path, run_id, "failed", saved=day, started_at=started_at)
    assert continued(tmp_path)[0] == "c"
    holder = (
        "import sys, time\nfrom pathlib import Path\nfrom rl_core.runs.lock import owned\n"
        "from rl_core.runs.run_folder import RunFolder\nwith owned(RunFolder(Path(sys.argv[1]))):\n"
        "    print('held', flush=True)\n    time.sleep(1000)\n"
    )
    with begun(holder, tmp_path / "runs" / "c") as process:
        assert process.stdout.readline() == "held\n"
        assert continued(tmp_path)[0] == "b"
    (tmp_path / "runs" / "b").rename(tmp_path / "away")
    RunFolder.under(tmp_path, "c").update(status="running")  # of another machine, or alive
    with owned(RunFolder.under(tmp_path, "c")):
        assert continued(tmp_path)[0] == "a"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_somebody_elses_run_is_left_alone(tmp_path):
    run = left(tmp_path, "a", "failed", saved=7)
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    assert continued(tmp_path) == (None, None)


def damage_content(step: Path) -> None:
    (step / "x").write_text("xyz")  # of the same size: only its checksum tells


def damage_manifest(step: Path) -> None:
    (step / "checkpoint.json").write_text("{")


@pytest.mark.parametrize("damage", [damage_content, damage_manifest])
def test_a_run_whose_checkpoints_cannot_be_read_is_not_continued_and_the_line_says_why(
    tmp_path, damage
):
    run = left(tmp_path, "a", "failed", saved=7)
    damage(run.path / "checkpoints" / "step_000007")
    run_id, why = continued(tmp_path)
    assert run_id is None
    assert why.startswith("a new run begins, since a has no sound checkpoint to continue from: ")
    assert "step_000007 is damaged" in why
    save_checkpoint(run.path, 5, lambda folder: (folder / "x").write_text("abc"), None)
    assert continued(tmp_path)[1].startswith("continuing run a from step 5;")


def test_a_run_without_its_checkpoints_that_its_budget_stopped_keeps_its_logs(tmp_path):
    run = left(tmp_path, "a", "finished", saved=7, stopped_by=LIMIT)
    shutil.rmtree(run.path / "checkpoints")
    run_id, why = continued(tmp_path)
    assert run_id is None
    assert "no checkpoint is there to continue from after step 7" in why


def test_the_first_line_says_that_the_budget_is_still_used_up(tmp_path):
    left(tmp_path, "a", "finished", saved=7, stopped_by="budget.max_hours=1.5")
    used_up = (
        ", but budget.max_hours=1.5 allows no step more: set a larger budget.max_hours; run_id"
    )
    assert used_up in continued(tmp_path, budget={"max_hours": 1.5})[1]
    assert "allows no step" not in continued(tmp_path, budget={"max_hours": 5})[1]


@pytest.mark.parametrize(
    ("status", "record", "chosen"),
    [
        ("interrupted", {}, "a"),
        ("failed", {}, "new"),
        ("finished", {"stopped_by": LIMIT}, "new"),
        ("finished", {}, "new"),
    ],
)
def test_a_night_continues_only_an_interrupted_one(tmp_path, status, record, chosen):
    left(tmp_path, "a", status, saved=7, **record)
    assert choose_run(config(tmp_path), "new", is_night=True).run_id == chosen


def test_a_continued_run_forgets_how_it_ended(tmp_path):
    left(tmp_path, "a", "finished", saved=7, stopped_by=LIMIT, next_step="raise it")
    run = RunFolder.create(config(tmp_path, run_id="a"))
    assert (run.read().stopped_by, run.read().next_step) == (None, None)
    with recorded(run):
        pass
    assert continued(tmp_path) == (None, None)
