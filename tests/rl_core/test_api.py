"""`rl_core.train`: a run from Python, with learner and engine in the same process."""

import errno
import signal
from concurrent.futures import Future
from pathlib import Path

import polars as pl
import pytest
import torch
from pydantic import Field
from transformers import AutoModelForCausalLM

from rl_core import train
from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_problems
from rl_core.data.prompts import load_tokenizer, prompted, text_codec
from rl_core.envs.text_env import TextEnv, TextProblem
from rl_core.evaluation.rows import evaluate_model
from rl_core.loop import steps
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.types import ScoredText
from tests.support.programs import python

SMALL = {
    "env.prompt_template": "base",
    "model.dtype": "float32",
    "data.max_prompt_length": 512,
    "data.max_response_length": 6,
    "data.train_batch_size": 4,
    "actor.mini_batch_size": 4,
    "actor.lr": 1e-2,
    "algorithm.group_size": 4,
    "storage.min_free_gib": 0,
}
IMPORTS = """
import sys
from rl_core import train
train(model=sys.argv[1], problems=[{"prompt": f"say {i}", "answer": "a"} for i in range(8)],
      reward=lambda response: float("a" in response), steps=1, settings=dict(SMALL))
heavy = ("duckdb", "prefect", "ray", "wandb", "hydra", "vllm")
print([name for name in heavy if name in sys.modules])
"""


def rows(number: int) -> list[dict[str, str]]:
    return [
        {"prompt": f"Say the letter {chr(97 + i % 26)}, {i}", "answer": "e"} for i in range(number)
    ]


def letters(response: str, answer: str) -> float:
    """The share of letters: a random model writes some."""
    assert answer == "e"
    return sum(c.isascii() and c.isalpha() for c in response) / 6


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_from_python_learns_and_leaves_a_run_as_any(tiny_model_path, tmp_path, cli):
    settings = SMALL | {"algorithm.outcome_gate": False}
    given = {"problems": rows(40), "reward": letters, "settings": settings}
    run = train(model=tiny_model_path, steps=20, root=tmp_path, **given)
    assert run.steps == 20
    score = run.metrics["critic/score/mean"].drop_nulls()
    assert score[-3:].mean() > score[:3].mean() + 0.1, score.to_list()
    rollouts = run.rollouts
    assert len(rollouts) == 20 * 4 * 4
    one = rollouts.row(0, named=True)
    assert one["score"] == pytest.approx(letters(one["response"], "e"))
    AutoModelForCausalLM.from_pretrained(run.checkpoint)
    record = RunFolder(run.folder).read()
    assert (record.status, record.steps, record.preset) == ("finished", 20, "python")
    assert record.run_id in cli("runs").out
    cli("report", record.run_id)
    assert (run.folder / "report.html").is_file()


def test_a_run_of_adapters_ends_with_a_whole_model_and_continues_exactly(tiny_model_path, tmp_path):
    settings = SMALL | {"model.lora_rank": 4, "trainer.save_freq": 1, "trainer.test_freq": 1}
    given = {"problems": rows(24), "reward": letters, "settings": settings, "root": tmp_path}
    runs = [train(model=tiny_model_path, steps=3, run_id="whole", **given)]
    runs += [train(model=tiny_model_path, steps=steps, run_id="cut", **given) for steps in (2, 3)]
    one, _, other = [AutoModelForCausalLM.from_pretrained(run.checkpoint) for run in runs]
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name
    AutoModelForCausalLM.from_pretrained(runs[0].folder / "checkpoints/best")
    adapters = {file.parent.parent for file in runs[0].folder.rglob("adapter/*.safetensors")}
    assert {file.parent for file in runs[0].folder.rglob("model.safetensors")} < adapters


def test_a_run_that_could_not_be_saved_says_so(tiny_model_path, tmp_path, monkeypatch):
    def demand_room(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr("rl_core.checkpoints.background_save.demand_room", demand_room)
    run = train(model=tiny_model_path, problems=rows(24), reward=letters, steps=1, settings=SMALL)
    with pytest.raises(ValueError, match=r"has no checkpoint: its run\.json and log\.txt say why"):
        _ = run.checkpoint
    record = RunFolder(run.folder).read()
    assert record.status == "finished"
    assert str(record.reason).startswith("step 1 was not saved ([Errno 28] No space left")


def test_the_loop_on_one_page_gives_the_same_numbers(tiny_model_path, tmp_path):
    run = train(model=tiny_model_path, problems=rows(24), reward=letters, steps=2, settings=SMALL)
    config = RunConfig.model_validate(read_settings(run.folder))
    (data,) = (file.parent for file in tmp_path.glob("outputs/data/*/train.parquet"))
    problems = read_problems(data / "train.parquet")

    def score(response: str, problem: object) -> ScoredText:
        share = letters(response, "e")
        return ScoredText(share, "correct" if share >= 1 else "incorrect", None)

    logged = run.metrics.filter(pl.col("step") > 0).to_dicts()
    for step, row in zip(steps(config, tiny_model_path, problems, score), logged, strict=True):
        for name in (
            "critic/score/mean",
            "actor/pg_loss",
            "actor/grad_norm",
            "response_length/mean",
        ):
            assert step.metrics.get(name, row[name]) == pytest.approx(row[name], rel=1e-5), name


def test_tests_in_training_sample_the_very_responses_of_the_evaluation(tiny_model_path, tmp_path):
    sampled = {"decoding": "sampled", "samples_per_problem": 3, "top_k": 20, "temperature": 1.5}
    settings = SMALL | {f"evaluation.{name}": value for name, value in sampled.items()}
    run = train(
        model=tiny_model_path, problems=rows(24), reward=letters, steps=1, settings=settings
    )
    config = RunConfig.model_validate(read_settings(run.folder))
    (data,) = (file.parent for file in tmp_path.glob("outputs/data/*/test.parquet"))
    tokenizer = load_tokenizer(str(tiny_model_path))
    problems = prompted(read_problems(data / "test.parquet"), tokenizer, chat_template=False)
    engine = HfEngine(tiny_model_path, dtype="float32", max_num_seqs=64, on_gpu=False)

    def score(response: str, _: object) -> ScoredText:
        return ScoredText(letters(response, "e"), "unknown", None)

    def later(response: str, problem: object, turns: object) -> Future[ScoredText]:
        scored: Future[ScoredText] = Future()
        scored.set_result(score(response, problem))
        return scored

    longest = config.data.max_response_length
    evaluated = evaluate_model(
        lambda requests, mode, _: in_order(
            engine.generate(requests, config.evaluation.sampling(longest, mode))
        ),
        problems,
        decode=text_codec(tokenizer)[0],
        score=later,
        other_scores={},
        settings=config.evaluation,
    )
    (at_start, *_) = run.metrics["val/score"].to_list()
    assert at_start == pytest.approx(sum(row["score"] for row in evaluated) / len(evaluated))
    kept = [row for row in RunFolder(run.folder).held_out.read() if row["step"] == 0]
    assert len(evaluated) == 3 * len(kept) == 3 * len(problems)
    assert {row["mode"] for row in kept} == {"sampled"}
    assert [row["response"] for row in kept] == [row["response"] for row in evaluated[::3]]


def test_ctrl_c_leaves_a_run_that_can_be_continued(tiny_model_path):
    asked = 0

    def interrupts(response: str, answer: str) -> float:
        nonlocal asked
        asked += 1
        if asked == 3 * 16 + 8:  # in step 3, before its update; 5 test answers came first
            signal.raise_signal(signal.SIGINT)
        return letters(response, answer)

    def begin(reward: object, name: str) -> object:
        return train(
            model=tiny_model_path,
            problems=rows(40),
            reward=reward,
            steps=4,
            settings=SMALL,
            run_id=name,
        )

    with pytest.raises(KeyboardInterrupt):
        begin(interrupts, "stopped")
    record = RunFolder(Path("outputs/runs/stopped")).read()
    assert record.status == "interrupted"
    assert 0 < record.steps < 4
    resumed, whole = begin(letters, "stopped"), begin(letters, "whole")
    assert resumed.steps == 4
    weights = [
        AutoModelForCausalLM.from_pretrained(run.checkpoint).state_dict()
        for run in (resumed, whole)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


@pytest.mark.slow
def test_nothing_of_the_pipeline_is_imported(tiny_model_path):
    done = python(IMPORTS.replace("SMALL", repr(SMALL)), tiny_model_path, timeout_s=300)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


class Repeat(TextEnv):
    """Say a letter again."""

    num_letters: int = Field(26, ge=3, le=26)
    """Letters that may be asked for."""

    def problems(self, rng):
        while True:
            letters = "".join(chr(97 + rng.randrange(self.num_letters)) for _ in range(3))
            yield TextProblem(f"Say the last letter of {letters}: ", truth=letters[-1])

    def score(self, response, truth):
        return self.scored(response[:1] or None, right=response[:1] == truth)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"problems": "nowhere.jsonl"}, "problems='nowhere.jsonl' is no file, folder or env"),
        ({"problems": "countdwn"}, "did you mean countdown?"),
        ({"problems": [{"answer": "5"}] * 3}, "problems[0] has no `question` and no `prompt`"),
        ({"problems": [{"question": "2 + 3?"}] * 3}, "problems[0] has no `answer`"),
        (
            {"settings": {"rollout.staleness": 1}},
            "rollout.staleness=1 needs processes of their own",
        ),
        ({"problems": rows(1)}, "problems has 1 row: one to train on and one to test"),
        ({"problems": None}, "problems=None must be rows, a frame, a file, a folder or an env"),
        ({"processes": "threads"}, "processes='threads' must be 'this' or 'ray'"),
        ({"steps": "20"}, "steps='20' must be a whole number"),
        ({"settings": {"actor": {"lr": 1}}}, "settings: 'actor' must be the name of one setting"),
        (
            {"settings": {"actor.learning_rate": 1}},
            "unknown setting 'actor.learning_rate'; did you",
        ),
        ({"settings": {"actor.lr": -1}}, "actor.lr=-1: "),
        ({"settings": {"algorithm.estimator": "grop"}}, "did you mean grpo?"),
        ({"model": "/nowhere"}, "model.path=/nowhere is no folder"),
        ({"reward": lambda text, target: 0.0}, "it takes text, target, and no response"),
        ({"reward": "no_module:f"}, "env.reward=no_module:f cannot be loaded"),
        ({"steps": 0}, "trainer.total_steps=0"),
    ],
)
def test_bad_input_is_told_in_one_line(tiny_model_path, changed, message):
    given = {"model": tiny_model_path, "problems": rows(8), "reward": letters, "settings": SMALL}
    settings = SMALL | changed.pop("settings", {})
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is what is tested
        train(**{**given, "settings": settings, **changed})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(Path().glob("outputs/runs/*"))
