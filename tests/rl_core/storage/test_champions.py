import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_core.checkpoints.champion import Contender, champion_file, read_champion
from rl_core.evaluation.promotion import Promotion
from rl_core.storage import champions
from rl_core.storage.champions import bring_champion, promote_published
from rl_core.storage.mirror import mirrored
from rl_core.storage.object_store import StoreError
from tests.rl_core.evaluation.test_promotion import PROBLEMS, challenge, contender
from tests.rl_core.storage.test_mirror import storage

ENV = "countdown"


def trained(root: Path, run_id: str, fill: bytes) -> Contender:
    """A run whose checkpoint and rows are in the store."""
    with mirrored(storage(root), run_id):
        made = contender(root, run_id, fill=fill)
        (root / "runs" / run_id / "run.json").write_text("{}")
        (root / "evaluations").mkdir(exist_ok=True)
        (root / made.rows).write_bytes(fill)
    return made


def promote(root: Path, one: Contender, solved: int, champion_solved: int | None) -> Promotion:
    return promote_published(
        storage(root),
        ENV,
        PROBLEMS,
        lambda: challenge(root, one, solved, champion_solved=champion_solved),
        needed=(f"{one.checkpoint}/checkpoint.json", one.rows),
    )


def test_a_champion_comes_with_what_it_names(store, roots):
    here, there = roots
    assert bring_champion(storage(there), ENV, PROBLEMS) is None
    one = trained(here, "one", b"1")
    assert promote(here, one, 20, None).is_champion
    assert bring_champion(storage(there), ENV, PROBLEMS) is not None
    champion = read_champion(champion_file(there, ENV, PROBLEMS))
    assert champion.is_there(there)
    assert (there / one.rows).read_bytes() == b"1"


def test_of_two_at_a_time_the_second_is_judged_by_the_first(store, roots):
    """Both have judged before either writes: without compare-and-swap the later would win."""
    runs = [trained(root, root.name, root.name.encode()) for root in roots]
    meeting = threading.Barrier(2)
    judged: dict[str, int] = {}

    def judge(root: Path, one: Contender, solved: int) -> Promotion:
        judged[one.run_id] = judged.get(one.run_id, 0) + 1
        champion = read_champion(champion_file(root, ENV, PROBLEMS))
        known = {"here": 18, "there": 28}
        asked = None if champion is None else known[champion.current.run_id]
        result = challenge(root, one, solved, champion_solved=asked)
        if judged[one.run_id] == 1:
            meeting.wait(60)
        return result

    def contend(number: int) -> Promotion:
        root, one, solved = roots[number], runs[number], (18, 28)[number]
        return promote_published(
            storage(root), ENV, PROBLEMS, lambda: judge(root, one, solved), needed=()
        )

    with ThreadPoolExecutor(2) as pool:
        weaker, stronger = pool.map(contend, range(2))
    assert stronger.is_champion
    assert sorted(judged.values()) == [1, 2]
    for root in roots:
        bring_champion(storage(root), ENV, PROBLEMS)
        champion = read_champion(champion_file(root, ENV, PROBLEMS))
        assert champion.current.run_id == "there"
        assert [before.run_id for before in champion.history] == (
            ["here"] if weaker.is_champion else []
        )


def test_without_a_store_nobody_is_promoted_and_the_champion_stays(proxy, roots, monkeypatch):
    here, _ = roots
    first, second = trained(here, "first", b"1"), trained(here, "second", b"2")
    assert promote(here, first, 20, None).is_champion
    monkeypatch.setattr(champions, "_PUBLISHED_S", 0.0)

    def judge_as_it_goes() -> Promotion:
        proxy.fault = "gone"
        return challenge(here, second, 29, champion_solved=20)

    with pytest.raises(StoreError):
        promote_published(storage(here), ENV, PROBLEMS, judge_as_it_goes, needed=(second.rows,))
    champion = read_champion(champion_file(here, ENV, PROBLEMS))
    assert champion.current.run_id == "first"
    proxy.fault = "none"
    assert promote(here, second, 29, 20).is_champion


def test_no_champion_is_told_before_its_checkpoint_is_there(store, roots, monkeypatch):
    here, _ = roots
    one = contender(here, "never-published")
    monkeypatch.setattr(champions, "_PUBLISHED_S", 0.0)
    with pytest.raises(StoreError, match="is not there yet"):
        promote(here, one, 20, None)
    assert store.list("champions/") == {}
    assert not champion_file(here, ENV, PROBLEMS).exists()
