import itertools
import json
import multiprocessing
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints.champion import (
    Contender,
    all_champions,
    champion_file,
    champion_steps,
    read_champion,
)
from rl_core.checkpoints.manifest import model_digest
from rl_core.checkpoints.pruning import prune
from rl_core.checkpoints.store import list_checkpoints, save_checkpoint
from rl_core.evaluation.promotion import Promotion, promote
from tests.support.checkpoint_files import save_steps, writer
from tests.support.faults import kills_at_each_event

PROBLEMS = "5eed" * 16


def rows(num_solved: int, *, num_problems: int = 30) -> list[dict[str, Any]]:
    verdicts = ["correct"] * num_solved + ["wrong_value"] * (num_problems - num_solved)
    return [
        {"mode": "greedy", "prompt_index": i, "prompt": f"p{i}", "ground_truth": "t", "verdict": v}
        for i, v in enumerate(verdicts)
    ]


def contender(root: Path, run_id: str, *, step: int = 5, fill: bytes = b"w") -> Contender:
    path = save_checkpoint(root / "runs" / run_id, step, writer(fill=fill), 0.5)
    return Contender(
        run_id=run_id,
        step=step,
        checkpoint=str(path.relative_to(root)),
        model_digest=model_digest(path),
        accuracy=0.5,
        num_problems=30,
        evaluation={"seed": 0},
        rows="evaluations/x.parquet",
    )


def challenge(
    root: Path,
    one: Contender,
    num_solved: int,
    *,
    champion_solved: int | None = None,
    problems: str = PROBLEMS,
) -> Promotion:
    """A base model of 10 solved problems; the champion's rows are missing where not given."""
    return promote(
        root,
        one,
        env="countdown",
        problems=problems,
        now=f"2026-11-21T{one.step:02d}",
        rows=rows(num_solved),
        base_rows=rows(10),
        champion_rows=lambda _: None if champion_solved is None else rows(champion_solved),
    )


def test_the_first_champion_beats_its_own_base_model(tmp_path):
    one = contender(tmp_path, "one")
    # 5 won, 0 lost: p = 2/32
    refused = challenge(tmp_path, one, 15)
    assert not refused.is_champion
    assert refused.reason == (
        "not promoted: cannot tell from its base model (p = 0.062, 5 problems won and 0 lost of 30)"
    )
    assert all_champions(tmp_path) == []
    promoted = challenge(tmp_path, one, 16)
    assert promoted.is_champion
    assert promoted.reason == (
        "promoted: better than its base model (p = 0.031, 6 problems won and 0 lost of 30)"
    )
    file = champion_file(tmp_path, "countdown", PROBLEMS)
    assert file == tmp_path / "champions" / "countdown-5eed5eed5eed.json"
    written = json.loads(file.read_text())
    assert written["current"]["checkpoint"] == "runs/one/checkpoints/step_000005"
    assert written["current"]["promoted_at"] == "2026-11-21T05"
    assert read_champion(file) == promoted.champion
    assert challenge(tmp_path, one, 30).reason == "one/step_000005 is the champion already"


def test_only_a_better_one_takes_the_place(tmp_path):
    challenge(tmp_path, contender(tmp_path, "one"), 20)
    two = contender(tmp_path, "two", step=6, fill=b"2")
    for solved, words in (
        (20, "cannot tell from the champion one/step_000005 (p = 1,"),
        (25, "cannot tell from the champion one/step_000005 (p = 0.062, 5 problems won"),
        (14, "worse than the champion one/step_000005 (p = 0.031, 0 problems won and 6 lost"),
    ):
        refused = challenge(tmp_path, two, solved, champion_solved=20)
        assert not refused.is_champion
        assert refused.reason.startswith(f"not promoted: {words}")
    unknown = challenge(tmp_path, two, 30)
    assert unknown.reason == (
        "not promoted: the champion one/step_000005 could not be asked the same problems"
    )
    assert challenge(tmp_path, two, 30, champion_solved=20).is_champion
    (champion,) = all_champions(tmp_path)
    assert champion.current.name == "two/step_000006"
    assert [reign.name for reign in champion.history] == ["one/step_000005"]


def test_fewer_problems_than_made_it_champion_take_its_place_from_nobody(tmp_path):
    challenge(tmp_path, contender(tmp_path, "one"), 20)
    two = contender(tmp_path, "two", step=6, fill=b"2")
    asked_less = two.model_copy(update={"num_problems": 29})
    refused = challenge(tmp_path, asked_less, 30, champion_solved=20)
    assert refused.reason == (
        "not promoted: better than the champion one/step_000005 (p = 0.002, 10 problems won and "
        "0 lost of 30), but the champion was chosen on 30 problems: evaluate on at least as many"
    )
    assert [c.current.run_id for c in all_champions(tmp_path)] == ["one"]
    assert challenge(tmp_path, two, 30, champion_solved=20).is_champion


def test_a_champion_whose_files_are_gone_leaves_the_place_and_is_reported(tmp_path):
    challenge(tmp_path, contender(tmp_path, "one"), 20)
    two = contender(tmp_path, "two", step=6, fill=b"2")
    shutil.rmtree(tmp_path / "runs" / "one")
    refused = challenge(tmp_path, two, 12)
    assert refused.reason.endswith("; the champion one/step_000005 is gone from the disk")
    assert not refused.is_champion
    promoted = challenge(tmp_path, two, 18)
    assert promoted.is_champion
    assert promoted.reason.startswith("promoted: better than its base model")
    shutil.rmtree(tmp_path / "runs" / "two" / "checkpoints" / "step_000006")
    three = contender(tmp_path, "three", step=7)
    gone = three.model_copy(update={"checkpoint": "runs/three/checkpoints/step_000009"})
    assert challenge(tmp_path, gone, 30).reason == "not promoted: three/step_000009 is gone"


def test_each_set_of_problems_has_a_champion_which_is_that_very_model(tmp_path):
    challenge(tmp_path, contender(tmp_path, "one"), 20)
    challenge(tmp_path, contender(tmp_path, "two", step=6), 20, problems="ab" * 32)
    one, two = all_champions(tmp_path)
    assert (one.current.run_id, two.current.run_id) == ("one", "two")
    assert one.is_there(tmp_path)
    contender(tmp_path, "one", fill=b"x")  # the same step, trained otherwise
    assert not one.is_there(tmp_path)


def test_a_champion_is_never_pruned_and_a_former_one_is(tmp_path):
    run = tmp_path / "runs" / "one"
    one = contender(tmp_path, "one", step=1, fill=b"1")
    challenge(tmp_path, one, 20)
    save_steps(run, {2: 0.9, 3: 0.1, 4: 0.2})
    assert champion_steps(run) == {1}
    decisions = prune(run, keep_last=0, quota_bytes=1)
    assert [(d.checkpoint.step, d.keep, d.reason) for d in decisions] == [
        (4, True, "latest"),
        (3, False, "older than the newest 0 besides latest and best"),
        (2, True, "best"),
        (1, True, "champion"),
    ]
    two = contender(tmp_path, "two", step=6, fill=b"2")
    challenge(tmp_path, two, 30, champion_solved=20)
    prune(run, keep_last=0, quota_bytes=1)
    assert [c.step for c in list_checkpoints(run)] == [2, 4]
    (only,) = prune(tmp_path / "runs" / "two", keep_last=0, quota_bytes=1)
    assert only.reason == "latest and best and champion"


def test_where_the_champion_is_not_known_nothing_is_deleted(tmp_path, caplog):
    run = tmp_path / "runs" / "one"
    save_steps(run, {1: 0.5, 2: 0.5, 3: 0.5})
    (tmp_path / "champions").mkdir()
    (tmp_path / "champions" / "countdown-0.json").write_text('{"half')
    assert all(decision.keep for decision in prune(run, keep_last=0, quota_bytes=1))
    assert "no checkpoint is deleted, any may be a champion" in caplog.text
    with pytest.raises(ValueError, match="does not name a champion: delete it"):
        all_champions(tmp_path)


def test_a_promotion_killed_at_any_system_event_leaves_the_old_or_the_new_champion(tmp_path):
    for root, kill in kills_at_each_event(tmp_path, more_than=5):
        challenge(root, contender(root, "one"), 20)
        two = contender(root, "two", step=6, fill=b"2")
        kill(partial(challenge, root, two, 30, champion_solved=20))
        (champion,) = all_champions(root)
        assert champion.current.run_id in ("one", "two")
        assert challenge(root, two, 30, champion_solved=20).is_champion
        (champion,) = all_champions(root)
        assert (champion.current.run_id, len(champion.history)) == ("two", 1)


def test_two_runs_that_end_at_once_become_champion_one_after_the_other(tmp_path):
    """Eight processes promote at the same time: no promotion is lost, each beat the one before."""
    contenders = [contender(tmp_path, f"run{i}", step=i, fill=b"%d" % i) for i in range(1, 9)]
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(contenders))

    def run(one: Contender) -> None:
        start.wait()
        # Always six problems better than whoever reigns, as far as the test can tell.
        challenge(tmp_path, one, 26, champion_solved=20)

    processes = [context.Process(target=run, args=(one,)) for one in contenders]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    (champion,) = all_champions(tmp_path)
    reigned = [*champion.history, champion.current]
    assert sorted(reign.run_id for reign in reigned) == [f"run{i}" for i in range(1, 9)]
    for before, after in itertools.pairwise(reigned):
        assert before.name in after.reason
    assert "its base model" in reigned[0].reason


@pytest.mark.parametrize("other", [{"run_id": "../x"}, {"checkpoint": "runs/a/../../../x"}])
def test_no_champion_is_outside_of_its_root(tmp_path, other):
    """Its file may come from a bucket that others write to."""
    fields = contender(tmp_path, "a").model_dump()
    with pytest.raises(ValueError, match=f"{next(iter(other))}\n.*should match pattern"):
        Contender.model_validate(fields | other)
