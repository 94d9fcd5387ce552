import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from rl_core.models.packing import allow_packing
from rl_core.sft.fit import Example, Fitting, schedule, split_by_tokens, split_evenly
from rl_core.system.threads import MicroBatchThreads
from tests.support.model_shapes import SMALL

APART = [
    Example([5, 6, 7, 8, 9, 1], [0.0, 0.0, 1.0, 3.0, 1.0, 1.0]),
    # What an env said in between, and an end that teaches nothing.
    Example([5, 6, 20, 21, 22, 23, 24, 25], [0.0, 0.5, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0]),
    # No prompt: nothing predicts the first token, whatever it weighs.
    Example([11, 12, 13], [1.0, 1.0, 1.0]),
    Example([14, 15], [0.0, 6.0]),
]
# The same five tokens first; one learns from the last of them on, in another an env speaks.
ALIKE = [
    Example([3, 4, 5, 6, 7, *more], [*[0.0] * 4, *weights])
    for more, weights in (
        ([8, 9, 10, 11], [0.0, 0.0, 1.0, 1.0, 2.0]),
        ([12, 13], [1.0, 0.5, 1.0]),
        ([8, 9, 20, 21, 22], [0.0, 1.0, 1.0, 0.0, 0.0, 3.0]),
        ([30], [0.0, 1.0]),
    )
]


def new_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    more = {"attn_implementation": "sdpa", "dtype": "float32", "tie_word_embeddings": True}
    return Qwen2ForCausalLM(Qwen2Config(**SMALL, **more, initializer_range=0.2))


def plain_loss(model: Qwen2ForCausalLM, examples: list[Example]) -> torch.Tensor:
    """The weighted mean over all examples, each alone."""
    losses = []
    for example in examples:
        ids = torch.tensor([example.ids])
        logits = model(input_ids=ids).logits[0, :-1]
        each = functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        losses.append((each * torch.tensor(example.weights[1:])).sum())
    return sum(losses) / sum(sum(example.weights) for example in examples)


@pytest.mark.parametrize("examples", [APART, ALIKE], ids=["apart", "alike"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_loss_and_gradient_are_those_of_each_example_alone(
    whole, threads, is_checkpointed, examples
):
    plain, model = new_model(), new_model()
    allow_packing(model)
    if is_checkpointed:
        model.gradient_checkpointing_enable()
        model.train()
    expected = plain_loss(plain, examples)
    expected.backward()

    fitting = Fitting(model, 0, MicroBatchThreads(threads), whole_logits=whole)
    got = fitting.backward(examples, split_evenly(examples, count=2))

    assert got == pytest.approx(expected.item(), rel=1e-5)
    for (name, want), parameter in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, want.grad, rtol=1e-4, atol=1e-6, msg=name)
    mean_loss = fitting.mean_loss(examples, split_by_tokens(examples, max_tokens=20, threads=1))
    assert mean_loss == pytest.approx(expected.item(), rel=1e-5)


def test_the_beginning_that_all_share_is_read_once():
    model, fed = new_model(), []
    allow_packing(model)
    model.model.embed_tokens.register_forward_hook(lambda _, ids, out: fed.append(ids[0].numel()))
    Fitting(model, 0, MicroBatchThreads(1)).mean_loss(ALIKE, [ALIKE])
    # Up to the token before the first that one of them learns; a row's last predicts none.
    assert fed == [3 + 5 + 3 + 6 + 2]
    fed.clear()
    Fitting(model, 0, MicroBatchThreads(1)).mean_loss(APART, [APART])
    assert fed == [4 * 6]


def of_lengths(lengths: list[int]) -> list[Example]:
    return [Example([0] * length, [1.0] * length) for length in lengths]


def test_threads_get_about_as_many_tokens_by_hand():
    # Of 100 tokens each begins in the quarter before it: 40 at 0, 20 at 40, 14 at 60, 13 at 74, ...
    parts = split_evenly(of_lengths([4, 13, 40, 9, 20, 14]), count=4)
    assert [[len(e.ids) for e in part] for part in parts] == [[40], [20], [14, 13], [9, 4]]


@given(st.lists(st.integers(2, 400), min_size=1, max_size=40), st.integers(1, 6))
def test_parts_hold_each_example_once_and_none_is_a_part_too_long(lengths, count):
    parts = split_evenly(of_lengths(lengths), count=count)
    split = [[len(e.ids) for e in part] for part in parts]
    assert [length for part in split for length in part] == sorted(lengths, reverse=True)
    assert 1 <= len(parts) <= count
    # A part ends with the example that reaches its share.
    assert max(sum(part) for part in split) < sum(lengths) / count + max(lengths)


@given(
    st.lists(st.integers(2, 400), min_size=1, max_size=40), st.integers(2, 900), st.integers(1, 4)
)
def test_micro_batches_hold_each_example_once_and_fit(lengths, max_tokens, threads):
    parts = split_by_tokens(of_lengths(lengths), max_tokens=max_tokens, threads=threads)
    split = [[len(e.ids) for e in part] for part in parts]
    assert [length for part in split for length in part] == sorted(lengths, reverse=True)
    assert all(len(part) == 1 or len(part) * max(part) <= max_tokens for part in split)


def test_sixteen_examples_of_a_length_are_four_micro_batches_of_four():
    """By tokens alone they would be 5, 5, 5 and 1: of two threads one had 10, the other 6."""
    parts = split_by_tokens(of_lengths([200] * 16), max_tokens=1_024, threads=2)
    assert [len(part) for part in parts] == [4, 4, 4, 4]


def test_the_schedule_by_hand():
    shares = [schedule(step, warmup_steps=2, num_steps=6) for step in range(7)]
    assert shares == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)
