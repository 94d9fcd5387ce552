import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rl_core.config.model import BaseModelConfig
from rl_core.envs.countdown.templates import render_messages
from rl_core.envs.countdown.traces import ANSWER_OPEN, SearchExamples, Trace, write_trace
from rl_core.envs.sft_examples import SftText
from rl_core.sft.train import Muon, make_base_model, orthogonalise, train_tokenizer
from rl_core.system.threads import MicroBatchThreads

TINY = BaseModelConfig(
    vocab_size=800,
    hidden_size=64,
    intermediate_size=64,
    num_layers=2,
    num_heads=1,
    steps=20,
    batch_size=16,
    warmup_steps=5,
    give_up_prob=0.5,
    max_response_tokens=16,
    num_threads=1,
)


def render_prompt(numbers, target) -> str:
    return render_messages("base", numbers, target)[0]["content"]


def some_problems(count: int, *, seed: int) -> list[tuple[tuple[int, ...], int]]:
    rng = random.Random(seed)
    problems: list[tuple[tuple[int, ...], int]] = []
    while len(problems) < count:
        numbers, target = tuple(rng.randint(1, 20) for _ in range(3)), rng.randint(10, 99)
        if write_trace(numbers, target, give_up_prob=0.0, rng=rng).solved:
            problems.append((numbers, target))
    return problems


def source_of(settings: BaseModelConfig, *, train, test) -> SearchExamples:
    train, test = ([(render_prompt(*problem), problem) for problem in s] for s in (train, test))
    return SearchExamples(settings.give_up_prob, train, test)


def make(folder: Path, stop_after: int | None = None) -> tuple[dict[str, float], list[float]]:
    losses: list[float] = []

    def on_step(step: int, num_steps: int, loss: float) -> None:
        losses.append(loss)
        if len(losses) == stop_after:
            raise KeyboardInterrupt

    source = source_of(TINY, train=some_problems(60, seed=1), test=some_problems(4, seed=2))
    return make_base_model(TINY, source, folder=folder, on_step=on_step), losses


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[dict[str, float], list[float], Path]:
    folder = tmp_path_factory.mktemp("base") / "model"
    return *make(folder), folder


@pytest.mark.slow
def test_the_same_seed_makes_the_same_weights_and_leaves_torch_alone(made, tmp_path):
    _, losses, folder = made
    torch.manual_seed(123)
    expected = torch.rand(1)
    threads = torch.get_num_threads()
    torch.manual_seed(123)
    _, again = make(tmp_path / "again")
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads
    assert again == losses
    name = "model.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_the_folder_loads_with_the_auto_classes_and_holds_the_report_and_nothing_else(made):
    measured, losses, folder = made
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.config.tie_word_embeddings
    assert model.dtype == torch.float32
    report = json.loads((folder / "warm_start.json").read_text())
    assert model.config.vocab_size == len(tokenizer) == report["vocab_size"]
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    text = render_prompt((3, 15, 9), 44)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.decode([i]) for i in tokenizer.encode("12")] == ["12"]
    assert len(losses) == TINY.steps
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert report["final_loss"] == losses[-1]  # of 20 steps
    assert measured.items() <= report.items()
    assert tuple(report["failed_gates"]) == SearchExamples.failed_gates(measured) != ()
    assert report["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_interruption_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "model", stop_after=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("target", "digits"), [(99, 3), (100, 1)])
def test_numbers_are_spelt_where_targets_are_many(target, digits):
    problems = [*some_problems(5, seed=1), ((1, 2, 3), target)]
    assert source_of(TINY, train=problems, test=problems).digits_per_token == digits


@pytest.mark.parametrize(
    ("problems", "message"),
    [([((1, 2, 3, 4, 5), 24)], "3 or 4 positive numbers"), ([], "0 train and 1 test problems")],
)
def test_unusable_problems_are_refused_before_any_work(problems, message):
    with pytest.raises(ValueError, match=message):
        source_of(TINY, train=problems, test=some_problems(1, seed=1))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["8 no *1 no</think>\n<answer>(5+3)+9</answer>"] * 9, vocab_size=400)


@pytest.mark.parametrize(("exhausted", "last"), [(False, 6.0), (True, 1.0)])
def test_weights_turn_a_tenth_of_giving_up_into_six_tenths(tokenizer, exhausted, last):
    trace = Trace(" +8 no *1 no</think>\n<answer>(5", solved=False, exhausted=exhausted)
    response = tokenizer.encode(trace.text)
    marks = [tokenizer.encode(text)[0] for text in (" no", " yes", "</think>\n<answer>(")]
    settings, problem = TINY.model_copy(update={"give_up_prob": 0.6}), [((1, 2, 3), 10)]
    source = source_of(settings, train=problem, test=problem)
    weights = source.weigh(SftText("", trace.text, trace), response, marks)
    by_token = [(tokenizer.decode([i]), w) for i, w in zip(response, weights, strict=True)]
    # Continuing: 0.4 / 0.9. Giving up: 0.6 / 0.1, unless there was nothing left to do.
    assert by_token[3] == (" no", 3.0)
    assert by_token[4] == (" *", pytest.approx(0.4 / 0.9))
    assert by_token[6:] == [
        (" no", 3.0), ("</think>\n<answer>(", pytest.approx(last)), ("5", 1.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "weight", "answer"),
    [((4, 6, 7), 5.0, ANSWER_OPEN + "("), ((4, 6, 7, 1), 10.0, ANSWER_OPEN + "((")],
)
def test_giving_up_is_rarer_in_traces_of_four_numbers_and_weighs_as_much_more(
    numbers, weight, answer
):
    source = source_of(TINY, train=[(numbers, 5000)], test=[(numbers, 5000)])  # 0.5 at 0.1 or 0.05
    drawn = source.draw(400, random.Random(0))
    tokenizer = train_tokenizer([text.response for text in drawn], vocab_size=400)
    assert len(tokenizer.encode(answer)) == 1  # of four numbers it is another token
    marks = [tokenizer.encode(mark)[0] for mark in source.marks]
    text = next(d for d in drawn if not d.note.exhausted)
    weights = source.weigh(text, tokenizer.encode(text.response), marks)
    assert max(weights) == pytest.approx(weight)
    gave_up_at_once = sum(d.response.count(" no") == 1 for d in drawn) / len(drawn)
    assert gave_up_at_once == pytest.approx(0.5 / weight, abs=0.04)


def test_failed_gates_are_named_with_value_and_limit():
    good = {"format_share": 1, "arithmetic_share": 1, "judging_share": 0.9}
    assert SearchExamples.failed_gates(good) == ()
    failed = SearchExamples.failed_gates(good | {"arithmetic_share": 0.8})
    assert failed == ("arithmetic_share is 0.800, below 0.9",)


def test_orthogonalised_matrices_have_singular_values_near_one():
    matrices = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(0))
    result = orthogonalise(matrices)
    assert torch.linalg.svdvals(result).sub(1).abs().max() < 0.35
    one_by_one = torch.cat([orthogonalise(matrix[None]) for matrix in matrices])
    assert torch.allclose(result, one_by_one, atol=1e-5)


def test_muon_moves_along_the_gradient_by_hand():
    # The first update is along the gradient's sign; 4 rows of 1 column scale it by sqrt(4) = 2.
    tall = torch.nn.Parameter(torch.zeros(4, 1))
    tall.grad = torch.tensor([[5.0], [0.0], [0.0], [0.0]])
    Muon([tall]).step(lr=0.1, threads=MicroBatchThreads(1))
    size = orthogonalise(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]))[0, 0, 0].item()
    assert tall[:, 0].tolist() == pytest.approx([-0.2 * size, 0.0, 0.0, 0.0], rel=1e-4)
    assert 0.65 < size < 1.25
