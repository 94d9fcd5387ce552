"""A run of a spool, its copy in a real S3 server, and another machine's spool."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints.manifest import find_damage
from rl_core.checkpoints.store import checkpoints_folder, latest, save_checkpoint
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.waiting import waits_in_words
from rl_core.storage import download
from rl_core.storage import mirror as mirror_module
from rl_core.storage.download import all_but_checkpoints, download_run, listing_of
from rl_core.storage.mirror import Upload, mirrored
from rl_core.storage.object_store import ObjectStore, StoreError
from rl_core.storage.spool import Spool, files_of
from rl_core.system.atomic import remove_folder
from tests.support import s3
from tests.support.waiting import wait_for

QUICK = {"beat_s": 0.3, "patience_s": 3.0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "INTERVAL_S", 0.1)
    monkeypatch.setattr(mirror_module, "_PAUSE_IN_TROUBLE_S", 0.3)


def storage(root: Path) -> StorageConfig:
    return StorageConfig(root=root, url=s3.URL)


@contextmanager
def at_work(root: Path) -> Iterator[RunFolder]:
    with mirrored(storage(root), "r", **QUICK):
        yield RunFolder.create(RunConfig(run_id="r", storage=storage(root)))


def save(run: RunFolder, step: int, content: bytes = b"weights") -> Path:
    """A step as the trainer leaves it: metrics first, then the checkpoint."""
    run.metrics.append(step, {"reward": step / 10})

    def write(folder: Path) -> None:
        (folder / "trainer").mkdir()
        (folder / "trainer" / "state").write_bytes(b"state")
        (folder / "model.safetensors").write_bytes(content)

    return save_checkpoint(run.path, step, write, accuracy=step / 100)


def keys(store: ObjectStore) -> set[str]:
    return {key.removeprefix("runs/r/") for key in store.list("runs/r/")}


def content(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in files_of(folder)}


def upload(store: ObjectStore, root: Path) -> Upload:
    return Upload(store, Spool(root, store.url), "r")


def visit(root: Path, run_id: str = "r") -> Path:
    """What a start of a run sends and brings, and nothing else; returns the run's folder."""
    with mirrored(storage(root), run_id, **QUICK):
        return RunFolder.under(root, run_id).path


def a_run(root: Path) -> RunFolder:
    return RunFolder.create(RunConfig(run_id="r", storage=storage(root)))


def test_another_machine_gets_the_run_byte_for_byte(store, roots):
    here, there = roots
    with at_work(here) as run:
        save(run, 1)
        save(run, 2)
        wait_for(lambda: "checkpoints/step_000002/checkpoint.json" in keys(store))
        save(run, 3)
    left = content(run.path)
    came = visit(there)
    assert content(came) == left
    assert latest(came).step == 3
    assert (checkpoints_folder(came) / "latest").readlink() == Path("step_000003")


def test_what_is_deleted_or_replaced_here_is_so_there(store, roots):
    with at_work(roots[0]) as run:
        first = save(run, 1)
        (run.path / "rollouts").mkdir()
        (run.path / "rollouts" / "step_000001.parquet").write_bytes(b"1")
        wait_for(lambda: "rollouts/step_000001.parquet" in keys(store))
        (run.path / "rollouts" / "steps_000001_000002.parquet").write_bytes(b"12")
        (run.path / "rollouts" / "step_000001.parquet").unlink()
        save(run, 2)
        remove_folder(first)
        save(run, 2, b"other weights")
    assert keys(store) == set(files_of(run.path))
    found = store.read("runs/r/checkpoints/step_000002/model.safetensors")
    assert found[0] == b"other weights"
    assert not any("step_000001" in key for key in keys(store) if key.startswith("checkpoints"))


def test_a_machine_that_dies_while_it_brings_a_run_down_deletes_nothing_of_it(
    store, roots, monkeypatch
):
    here, there = roots
    with at_work(here) as run:
        save(run, 1)
        save(run, 2)
    whole = download.ObjectStore.download
    for number in range(1, 5):
        left = iter(range(number))

        def some(self: ObjectStore, *arguments: Any, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise StoreError("dead")
            whole(self, *arguments)

        monkeypatch.setattr(ObjectStore, "download", some)
        with pytest.raises(StoreError), at_work(there):
            pass
    monkeypatch.setattr(ObjectStore, "download", whole)
    with at_work(there) as came:
        pass
    assert set(files_of(run.path)) <= set(files_of(came.path)) == keys(store)


def test_a_folder_that_was_removed_by_hand_is_brought_back_not_lost(store, roots):
    with at_work(roots[0]) as run:
        save(run, 1)
    spool = Spool(roots[0], s3.URL)
    spool.write("r", spool.read("r").model_copy(update={"is_pending": True}))
    before = keys(store)
    shutil.rmtree(run.path)
    visit(roots[0], "another")
    assert keys(store) == before
    assert set(files_of(visit(roots[0]))) == before


class Recorder(ObjectStore):
    """The real store, which notes what is asked of it, and may die at the n-th request."""

    def watch(self, dies_at: float = math.inf) -> Recorder:
        object.__setattr__(self, "done", [])
        object.__setattr__(self, "dies_at", dies_at)
        return self

    done: list[str]
    dies_at: float

    def _note(self, what: str) -> None:
        if len(self.done) >= self.dies_at:
            raise StoreError("dead")
        self.done.append(what)

    def put(self, key: str, content: bytes | Path) -> str | None:
        self._note(f"put {key}")
        return super().put(key, content)

    def delete(self, keys: object) -> None:
        names = list(keys)
        if names:
            self._note(f"delete {' '.join(names)}")
            super().delete(names)


def test_logs_go_before_checkpoints_and_manifests_last_and_leave_first(store, roots):
    recorder = Recorder(s3.URL).watch()
    run = a_run(roots[0])
    save(run, 1)
    up = upload(recorder, roots[0])
    up.send()
    order = [line.removeprefix("put runs/r/") for line in recorder.done]
    assert order.index("metrics.jsonl") < order.index("checkpoints/step_000001/model.safetensors")
    assert order[-1] == "checkpoints/step_000001/checkpoint.json"
    recorder.watch()
    remove_folder(checkpoints_folder(run.path) / "step_000001")
    up.send()
    assert recorder.done[0] == "delete runs/r/checkpoints/step_000001/checkpoint.json"
    assert "model.safetensors" in recorder.done[1]


def test_wherever_publishing_dies_the_store_holds_a_run_to_go_on_with(tmp_path):
    """Every request in turn is the last; what a reader then finds is sound, logs included."""
    last, deaths = -1, 0
    while last != deaths:
        here, there = tmp_path / f"here{deaths}", tmp_path / f"there{deaths}"
        (tmp_path / f"store{deaths}").mkdir()
        run = a_run(here)
        store = Recorder((tmp_path / f"store{deaths}").as_uri()).watch()
        up = upload(store, here)
        save(run, 1)
        up.send()
        save(run, 2)
        remove_folder(checkpoints_folder(run.path) / "step_000001")
        store.watch(dies_at=deaths)
        try:
            up.send(everything=True)
            last = deaths
        except StoreError:
            deaths += 1
        assert latest_elsewhere(store.url, there) in (1, 2)
        # The next start of the same spool ends what this one began.
        upload(Recorder(store.url).watch(), here).send(everything=True)
        assert latest_elsewhere(store.url, there) == 2
        assert keys(store) == set(files_of(run.path))
    assert deaths > 5


def bring(store: ObjectStore, root: Path, only: Callable[[str], bool] = lambda path: True) -> int:
    return download_run(store, Spool(root, store.url), "r", only, listing_of(store, "r"))


def latest_elsewhere(url: str, root: Path) -> int:
    bring(ObjectStore(url), root)
    run = RunFolder.under(root, "r")
    found = latest(run.path)
    assert find_damage(found.path) is None
    assert max(row["step"] for row in run.metrics.read()) >= found.step
    return found.step


def test_no_fault_of_the_store_loses_anything_or_stops_the_writer(proxy, roots):
    faults: tuple[s3.Fault, ...] = ("slow", "reset", "503", "gone", "lost part")
    big = os.urandom(9 * 2**20)
    with at_work(roots[0]) as run:
        for step, fault in enumerate(faults, start=1):
            proxy.fault = fault
            save(run, step, big)
            wait_for(lambda fault=fault: proxy.harmed.get(fault, 0) >= 2)
        proxy.fault = "none"
    assert set(proxy.harmed) == set(faults)
    store = ObjectStore(s3.URL)
    assert keys(store) == set(files_of(run.path))
    assert content(visit(roots[1])) == content(run.path)


def test_what_a_store_that_is_gone_did_not_take_is_told_and_sent_by_the_next_start(
    proxy, roots, monkeypatch, caplog
):
    monkeypatch.setattr(mirror_module, "END_S", 1.0)
    with at_work(roots[0]) as run:
        wait_for(lambda: "run.json" in keys(ObjectStore(s3.URL)))
        proxy.fault = "gone"
        save(run, 1)
    said = [r.getMessage() for r in caplog.records if "not in s3://" in r.getMessage()]
    assert len(said) == 1
    assert "the next command with this storage.root sends them" in said[0]
    proxy.fault = "none"
    assert not any(key.startswith("checkpoints") for key in keys(ObjectStore(s3.URL)))
    visit(roots[0], "another")
    assert keys(ObjectStore(s3.URL)) == set(files_of(run.path))


def test_what_was_never_sent_is_set_aside_where_others_went_on(proxy, roots, monkeypatch):
    here, there = roots
    with monkeypatch.context() as patched, at_work(here) as run:
        patched.setattr(mirror_module, "END_S", 0.5)
        save(run, 1)
        wait_for(lambda: "checkpoints/step_000001/checkpoint.json" in keys(ObjectStore(s3.URL)))
        proxy.fault = "gone"
        save(run, 2)
    proxy.fault = "none"
    with at_work(there) as other:
        save(other, 3)
    steps = checkpoints_folder(visit(here)).glob("step_*")
    assert {folder.name for folder in steps} == {"step_000001", "step_000003"}
    (aside,) = (here / "superseded").iterdir()
    assert find_damage(checkpoints_folder(aside) / "step_000002") is None


def test_a_second_process_on_the_same_folder_leaves_publishing_to_the_first(store, roots):
    with at_work(roots[0]) as run, mirrored(storage(roots[0]), "r", **QUICK):
        (run.path / "report.html").write_text("page")
        wait_for(lambda: "report.html" in keys(store))


def test_questions_bring_what_is_small_and_only_what_changed(store, roots):
    here, there = roots
    with at_work(here) as run:
        save(run, 1)
    assert bring(store, there, all_but_checkpoints) == 3  # run.json, config.yaml, metrics.jsonl
    assert bring(store, there, all_but_checkpoints) == 0
    assert RunFolder.under(there, "r").metrics.values("reward") == [0.1]
    with at_work(here) as run:
        run.metrics.append(2, {"reward": 0.2})
    bring(store, there, all_but_checkpoints)
    assert RunFolder.under(there, "r").metrics.values("reward") == [0.1, 0.2]


def test_a_record_names_the_places_of_the_folder_that_it_came_to(store, roots):
    here, there = roots
    for name in ("data", "models"):
        (there / name / "x").mkdir(parents=True)
    with at_work(here) as run:
        run.update(data=str(here / "data" / "x"), model="/somewhere/else")
    for path in (here / "data").glob("*"):
        path.rmdir()
    bring(store, there)
    record = RunFolder.under(there, "r").read()
    assert record.data == str(there / "data" / "x")
    assert record.model == "/somewhere/else"


def test_a_long_log_is_sent_no_more_often_than_its_size_allows(store, roots):
    recorder = Recorder(s3.URL).watch()
    run = a_run(roots[0])
    log = run.path / "log.txt"
    log.write_bytes(b"x" * 2**25)  # 32 s at 1 MiB/s
    up = upload(recorder, roots[0])
    up.send()
    recorder.watch()
    log.write_bytes(b"y" * (2**25 + 1))
    up.send()
    assert recorder.done == []
    save(run, 1)  # no checkpoint lies ahead of the logs
    up.send()
    sent = [line.removeprefix("put runs/r/") for line in recorder.done]
    assert sent.index("log.txt") < sent.index("checkpoints/step_000001/checkpoint.json")


def test_without_a_url_nothing_is_asked_for(tmp_path):
    before = threading.active_count()
    with mirrored(StorageConfig(root=tmp_path), "r"):
        assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


def test_no_object_holds_a_key(store, roots):
    with at_work(roots[0]) as run:
        save(run, 1)
    everything = {key: store.read(key) for key in store.list()}
    assert len(everything) > 5
    for found in everything.values():
        assert s3.KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in found[0]
    lease = json.loads(everything["locks/r.json"][0])
    assert lease["released"] is True


def test_an_upload_that_goes_on_or_is_refused_is_named(tmp_path, proxy):
    with at_work(tmp_path) as run:

        def shown(words: str) -> bool:
            return any(line.startswith(words) for line in waits_in_words(run.path))

        for fault, words in (("slow", "upload for "), ("503", "upload: ")):
            proxy.fault = fault
            (run.path / "log.txt").write_text(fault)
            wait_for(lambda words=words: shown(words), 60)
            proxy.fault = "none"
            wait_for(lambda: waits_in_words(run.path) == [], 60)
    assert waits_in_words(run.path) == []
