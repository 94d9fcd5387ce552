import pytest
import torch
from torch import Tensor

from rl_core.rollout.shared_prompts import RoomyLayer, SharedPrompts

HEADS, QUERIES, SIZE, LONGEST = 2, 3, 8, 5
LENGTHS = (5, 2, 4)
"""Real tokens of the prompts, which are padded on the left."""


@pytest.fixture
def kept() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, HEADS, LONGEST, SIZE), torch.randn(3, HEADS, LONGEST, SIZE)


def prompts(kept: tuple[Tensor, Tensor], prompt_of_row: list[int]) -> SharedPrompts:
    is_padding = torch.arange(LONGEST) < LONGEST - torch.tensor(LENGTHS).unsqueeze(-1)
    return SharedPrompts.of([kept[0]], [kept[1]], is_padding[:, None, None], prompt_of_row)


def slowly(
    kept: tuple[Tensor, Tensor], prompt_of_row: list[int], query: Tensor, own: tuple[Tensor, Tensor]
) -> Tensor:
    """One row, head and query at a time, over the real tokens alone."""
    result = torch.empty_like(query)
    for row, prompt in enumerate(prompt_of_row):
        for head in range(HEADS):
            start = LONGEST - LENGTHS[prompt]
            keys = torch.cat([kept[0][prompt, head, start:], own[0][row, head]])
            values = torch.cat([kept[1][prompt, head, start:], own[1][row, head]])
            for q in range(QUERIES):
                result[row, head, q] = (keys @ query[row, head, q]).softmax(0) @ values
    return result


@pytest.mark.parametrize(
    "prompt_of_row", [[0, 0, 1, 1, 2, 2], [0, 1, 2], [2, 0, 1, 0, 0, 2], [1, 0, 2, 2, 2, 2, 2]]
)
def test_each_response_reads_its_prompt_and_itself(kept, prompt_of_row):
    num_rows = len(prompt_of_row)
    query = torch.randn(num_rows, HEADS, QUERIES, SIZE)
    own = torch.randn(num_rows, HEADS, 4, SIZE), torch.randn(num_rows, HEADS, 4, SIZE)
    read = prompts(kept, prompt_of_row).attend(0, query, *own)
    torch.testing.assert_close(read, slowly(kept, prompt_of_row, query, own))


def test_responses_that_are_left_keep_their_prompts_and_no_others(kept):
    before, rows = [0, 2, 1, 2, 0], [1, 3, 4]
    left = prompts(kept, before).keep(rows)
    assert len(left.keys[0]) == 2
    query = torch.randn(3, HEADS, QUERIES, SIZE)
    own = torch.randn(3, HEADS, 1, SIZE), torch.randn(3, HEADS, 1, SIZE)
    expected = slowly(kept, [before[row] for row in rows], query, own)
    torch.testing.assert_close(left.attend(0, query, *own), expected)


def test_a_layer_with_room_holds_what_it_was_given_through_growth_and_selection():
    layer = RoomyLayer()
    given = torch.randn(4, HEADS, 300, SIZE)
    rows = torch.arange(4)
    for token in range(300):
        if token == 150:
            rows = torch.tensor([3, 1])
            layer.reorder_cache(rows)
        new = given[rows][:, :, token : token + 1]
        keys, values = layer.update(new, -new)
    assert layer.get_seq_length() == 300
    assert torch.equal(keys, given[rows])
    assert torch.equal(values, -given[rows])
