"""Real Ray, real engines, a real learner: all slow, and nothing may be left running."""

import os
import re
import signal
import stat
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray._private.internal_api import memory_summary

from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, WorkerDied
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.system.process_group import PROCESS_GROUP
from rl_core.types import Completion, GenerationRequest, Rollout, SamplingSettings
from rl_core.workers.cluster import Workers
from rl_core.workers.ray_auth import _accepts
from tests.support.adapters import save_learner
from tests.support.programs import command_lines, living
from tests.support.runs import run_config
from tests.support.traps import addresses

pytestmark = pytest.mark.slow

OF_THE_SHELL = "a-token-of-another-cluster-" + "x" * 16
ZERO_COPY = "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
GREEDY = SamplingSettings(max_tokens=12, temperature=0.0)
REQUESTS = [GenerationRequest(tuple(range(5 + i, 25 + 3 * i)), seed=i) for i in range(7)]


def config(engine: str = "vllm", num_engines: int = 1, kv_cache_mib: int = 16) -> RunConfig:
    return run_config(
        data={"train_batch_size": 6, "max_prompt_length": 64, "max_response_length": 64},
        actor={"lr": 1e-2, "mini_batch_size": 3},
        critic={"lr": 1e-2},
        rollout={"engine": engine, "num_engines": num_engines, "kv_cache_mib": kv_cache_mib},
        resources={"learner_threads": 1},
    )


@pytest.fixture(scope="module")
def marker() -> Iterator[str]:
    """Marks all processes that start within this module, and proves at the end that all ended."""
    value = uuid.uuid4().hex
    os.environ["TEST_WORKERS_MARKER"] = value
    yield value
    del os.environ["TEST_WORKERS_MARKER"]
    left = living("TEST_WORKERS_MARKER", value)
    assert not left, [" ".join(p.cmdline()) for p in left]


@pytest.fixture(scope="class")
def class_mocker() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="class")
def workers(
    tiny_model_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    marker: str,
    class_mocker: pytest.MonkeyPatch,
) -> Iterator[Workers]:
    # A shell that is used for another cluster, and in whose home Ray would keep a token.
    class_mocker.setenv("RAY_AUTH_MODE", "disabled")
    class_mocker.setenv("RAY_AUTH_TOKEN", OF_THE_SHELL)
    class_mocker.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    logs = tmp_path_factory.mktemp("logs")
    heard: list[str] = []
    # What one session learns about memory is not for the next one that runs this test.
    storage = StorageConfig(root=tmp_path_factory.mktemp("out"))
    alone = config(num_engines=2).model_copy(update={"storage": storage})
    with Workers.start(alone, tiny_model_path, log_folder=logs, report=heard.append) as started:
        assert sorted(heard[1:]) == ["engine_0 is ready", "engine_1 is ready", "learner is ready"]
        names = {"engine_0.log", "engine_1.log", "learner.log"}
        assert {file.name for file in logs.iterdir()} == names
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
        yield started
    assert {n: signal.getsignal(n) for n in before} == before


def _session_folders() -> list[Path]:
    """Returns those of this process: its mark is in them."""
    marked = Path(tempfile.gettempdir()).glob(f"rl-*/{PROCESS_GROUP}")
    return [mark.parent for mark in marked if mark.read_text() == os.environ[PROCESS_GROUP]]


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [c.response_ids.tolist() for c in completions]


def locally(folder: Path) -> list[Completion]:
    engine = HfEngine(folder, dtype="float32", max_num_seqs=8, on_gpu=False)
    return in_order(engine.generate(REQUESTS, GREEDY))


def rollouts(make_rollout: Callable[..., Rollout], completions: list[Completion]) -> list[Rollout]:
    made = []
    for i, request in enumerate(REQUESTS[:6]):
        scored = {"score": float(i % 2), "verdict": "correct" if i % 2 else "wrong_value"}
        rollout = make_rollout(request.prompt_ids, [], group_id=i, **scored)
        made.append(replace(rollout, completion=completions[i]))
    return made


class TestOneSession:
    def test_two_engines_answer_an_odd_batch_in_order(self, workers, tiny_model_path):
        workers.engines.load_weights(tiny_model_path)
        answered = workers.engines.generate(REQUESTS, GREEDY)
        expected = locally(tiny_model_path)
        assert tokens(answered) == tokens(expected)
        for one, other in zip(answered, expected, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-3)
        assert tokens(workers.engines.generate(REQUESTS[:1], GREEDY)) == tokens(expected[:1])

    def test_a_learned_step_reaches_every_engine_and_the_checkpoint(
        self, workers, tiny_model_path, tmp_path, make_rollout
    ):
        workers.engines.load_weights(tiny_model_path)
        sampled = workers.engines.generate(REQUESTS, SamplingSettings(16, 1.0))
        learned_from = rollouts(make_rollout, sampled)
        metrics, columns = workers.learn(learned_from, step=1)
        assert metrics["actor/grad_norm"] > 0
        assert len(columns["advantage_mean"]) == 6
        # The learner recomputes what the engines returned: float32 against float32.
        assert max(columns["logprob_gap_mean"]) < 1e-3
        unsynced = workers.engines.generate(REQUESTS, GREEDY)
        workers.sync_weights()
        synced = workers.engines.generate(REQUESTS, GREEDY)
        self._learn_while_a_snapshot_is_written(workers, tmp_path / "checkpoint", learned_from)
        assert tokens(unsynced) == tokens(locally(tiny_model_path))
        assert tokens(synced) == tokens(locally(tmp_path / "checkpoint"))
        assert all(a != b for a, b in zip(tokens(synced), tokens(unsynced), strict=True))
        assert tokens(in_order(workers.engines.stream(REQUESTS, GREEDY))) == tokens(synced)
        assert workers.engines.end_step() == {
            "memory/budget_seqs/gen": 256,
            "memory/oom/gen": 0,
            "rollout/engine_restarts": 0,
        }

    def _learn_while_a_snapshot_is_written(
        self, workers: Workers, folder: Path, learned_from: list[Rollout]
    ) -> None:
        """The write waits at a pipe, which only this process empties, until a step is learned."""
        folder.mkdir()
        os.mkfifo(folder / "config.json")
        workers.snapshot()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(workers.write_snapshot, folder)
            workers.learn(learned_from, step=2)
            assert not writing.done()
            # Written twice: by transformers, then with the type of the weights.
            _, model_config = ((folder / "config.json").read_text() for _ in range(2))
            writing.result(timeout=60)
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(model_config)

    def test_old_weights_have_left_rays_store_when_new_ones_come(self, workers, monkeypatch):
        stored, weights = [], workers.weights

        def counted() -> Any:
            address = ray.get_runtime_context().gcs_address
            stats = memory_summary(address, stats_only=True)
            stored.append(int(re.search(r"(\d+) objects", stats)[1]))
            return weights()

        monkeypatch.setattr(workers, "weights", counted)
        for _ in range(3):
            workers.sync_weights()
        assert stored[1:] == [0, 0]

    def test_nobody_else_reaches_its_ray(self, workers):
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        lines = command_lines(family)
        assert {"gcs_server", "raylet", "ray::LearnerActor"} <= {*re.findall(r"[\w:]+", str(lines))}
        assert not re.findall(r"\w*(?:monitor|dashboard)\.py", str(lines))  # unused: not started
        assert set().union(*addresses(family).values()) == {"127.0.0.1"}, addresses(family)
        head = ray.get_runtime_context().gcs_address
        (learner,) = (process for process, line in lines.items() if "ray::LearnerActor" in line)
        token = learner.environ()["RAY_AUTH_TOKEN"]
        accepted = [_accepts(head, sent) for sent in (None, OF_THE_SHELL, token)]
        assert accepted == [False, False, True]
        (folder,) = _session_folders()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in (*folder.rglob("*"), *Path.home().rglob("*"), *workers._place.logs.rglob("*")):
            assert not file.is_file() or token.encode() not in file.read_bytes(), file

    def test_an_actors_error_arrives_as_it_is_and_is_no_death(self, workers, tmp_path):
        with pytest.raises(ValueError, match=r"holds no model\.safetensors file") as caught:
            workers.engines.load_weights(tmp_path)
        assert "\n" not in str(caught.value)

        def raise_it(actor: object) -> None:  # what cannot be sent
            raise ValueError(threading.Lock())

        raised = workers.ranks["learner"].__ray_call__.remote(raise_it).future()
        said = r"^learner raised what cannot be sent; see .*learner\.log$"
        with pytest.raises(RuntimeError, match=said) as caught:
            workers._result("learner", raised)
        assert not isinstance(caught.value, WorkerDied)


def test_engines_get_what_an_adapter_makes_of_the_base(tiny_model_path, marker, tmp_path):
    """From the learner if there is one, else from the checkpoint and its base."""
    trained = save_learner(tiny_model_path, tmp_path / "saved")
    engine = HfEngine(tiny_model_path, dtype="float32", max_num_seqs=8, on_gpu=False)
    engine.update_weights(trained.weights())
    expected = tokens(in_order(engine.generate(REQUESTS, GREEDY)))
    assert expected != tokens(locally(tiny_model_path))
    adapters = config("hf").model_copy(update={"model": trained.config.model})
    for learner in (True, False):
        start = Workers.start(
            adapters, tiny_model_path, resume_from=tmp_path / "saved", learner=learner
        )
        with start as workers:
            assert tokens(workers.engines.generate(REQUESTS, GREEDY)) == expected


def test_an_engine_that_does_not_fit_is_out_of_memory(tiny_model_path, marker):
    with (
        pytest.raises(OutOfMemory) as caught,
        Workers.start(config(kv_cache_mib=10**9), tiny_model_path, learner=False),
    ):
        pass
    assert caught.value.phase == "load_engine"


def test_a_ray_too_slow_to_start_is_worth_another_attempt_and_leaves_its_logs(
    tiny_model_path, marker, tmp_path
):
    done = threading.Event()

    def suspend_raylet() -> None:
        while not done.wait(0.01):
            for child in psutil.Process().children():
                with suppress(psutil.NoSuchProcess):  # some live for a moment
                    if child.name() == "raylet":
                        child.suspend()
                        return

    watcher = threading.Thread(target=suspend_raylet)
    watcher.start()
    try:
        with (
            pytest.raises(WorkerDied, match=r"it did not start .*timed out") as caught,
            Workers.start(config("hf"), tiny_model_path, learner=False, log_folder=tmp_path),
        ):
            pass
    finally:
        done.set()
        watcher.join()
    assert caught.value.worker == "Ray"
    assert f"all its logs: {tmp_path / 'ray'}" in str(caught.value)
    assert (tmp_path / "ray" / "gcs_server.out").is_file()
