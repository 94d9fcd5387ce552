from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rl_core.batch import TrainBatch, balanced_rows, collate, micro_batches, mini_batches
from rl_core.types import Rollout


@pytest.fixture
def batch(make_rollout: Callable[..., Rollout]) -> TrainBatch:
    return collate(
        [
            make_rollout([17, 4, 9], [8, 2], logprobs=[-0.5, -0.25], score=0.1, group_id=5),
            make_rollout([6], [7], score=1.0, verdict="correct", group_id=4),
            make_rollout([3, 3], [1, 5, 6], group_id=6, finish_reason="length"),
        ],
        pad_id=99,
    )


def test_collate_by_hand(batch):
    assert batch.input_ids.tolist() == [[17, 4, 9, 8, 2], [6, 7, 99, 99, 99], [3, 3, 1, 5, 6]]
    assert batch.prompt_lengths.tolist() == [3, 1, 2]
    assert batch.response_lengths.tolist() == [2, 1, 3]
    assert batch.lengths.tolist() == [5, 2, 5]
    assert batch.rollout_logprobs.tolist() == [[-0.5, -0.25, 0], [-1, 0, 0], [-1, -1, -1]]
    assert batch.rewards.tolist() == pytest.approx([0.1, 1.0, 0.0])
    assert batch.group_ids.tolist() == [5, 4, 6]
    assert batch.correct.tolist() == [False, True, False]
    assert batch.truncated.tolist() == [False, False, True]
    assert batch.response_mask.int().tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


def test_each_response_token_stands_right_after_its_predictor(batch):
    assert batch.sampled_ids().tolist() == [8, 2, 7, 1, 5, 6]
    flat = batch.input_ids.flatten()
    assert flat[batch.predictor_index()].tolist() == [9, 8, 6, 3, 1, 5]


def test_select_takes_rows_in_order_and_trims_to_the_longest(batch):
    chosen = batch.select(torch.tensor([1]))
    assert chosen.input_ids.tolist() == [[6, 7]]
    assert chosen.rollout_logprobs.tolist() == [[-1.0]]
    reordered = batch.select(torch.tensor([2, 0]))
    assert reordered.sampled_ids().tolist() == [1, 5, 6, 8, 2]
    assert reordered.truncated.tolist() == [True, False]
    assert reordered.group_ids.tolist() == [6, 5]


def sized(rows: list[tuple[int, int, int]]) -> TrainBatch:
    """A batch of rows (prompt tokens, response tokens, group)."""
    prompts, responses, groups = (torch.tensor(column) for column in zip(*rows, strict=True))
    zeros = torch.zeros(len(rows))
    return TrainBatch(
        input_ids=torch.zeros(len(rows), int((prompts + responses).max()), dtype=torch.int64),
        prompt_lengths=prompts,
        response_lengths=responses,
        rollout_logprobs=torch.zeros(len(rows), int(responses.max())),
        rewards=zeros,
        group_ids=groups,
        correct=zeros.bool(),
        truncated=zeros.bool(),
    )


def test_micro_batches_by_hand():
    # 6 tokens hold a row of 5; then two rows of 3; then one of 2 beside one of 2.
    batch = sized([(1, 2, 0), (1, 1, 1), (2, 3, 2), (1, 1, 3), (2, 1, 4)])
    parts = micro_batches(batch, 6, share_prompts=True)
    assert [part.tolist() for part, _ in parts] == [[2], [0, 4], [1, 3]]
    assert [size for _, size in parts] == [5, 6, 4]


def test_micro_batches_share_prompts_by_hand():
    # Two groups, prompts of 10. A group of one prompt and three responses of at most 4 takes 22.
    batch = sized([(10, 4, 0), (10, 3, 1), (10, 2, 0), (10, 3, 1), (10, 1, 0)])
    shared = micro_batches(batch, 22, share_prompts=True)
    assert [part.tolist() for part, _ in shared] == [[0, 2, 4], [1, 3]]
    plain = micro_batches(batch, 28, share_prompts=False)
    assert [part.tolist() for part, _ in plain] == [[0, 1], [3, 2], [4]]


def test_groups_are_torn_where_padding_would_cost_more_than_their_prompts():
    batch = sized([(1, 20, 0), (1, 2, 0), (1, 20, 1), (1, 2, 1)])
    parts = micro_batches(batch, 45, share_prompts=True)
    assert [part.tolist() for part, _ in parts] == [[0, 2], [1, 3]]


Rows = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 50), min_size=1, max_size=6)),
    min_size=1,
    max_size=12,
)


def rows_of(groups: list[tuple[int, list[int]]]) -> list[tuple[int, int, int]]:
    return [
        (prompt, response, group)
        for group, (prompt, responses) in enumerate(groups)
        for response in responses
    ]


@given(Rows.map(rows_of), st.integers(1, 200), st.booleans())
def test_micro_batches_hold_each_row_once_within_the_budget(rows, budget, share_prompts):
    batches = micro_batches(sized(rows), budget, share_prompts=share_prompts)
    parts = [part.tolist() for part, _ in batches]
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    for part, (_, computed) in zip(parts, batches, strict=True):
        prompts, responses, members = zip(*(rows[row] for row in part), strict=True)
        size = len(part) * max(p + r for p, r in zip(prompts, responses, strict=True))
        if share_prompts and len(set(members)) < len(part):
            size = len(set(members)) * max(prompts) + len(part) * max(responses)
        assert len(part) == 1 or size <= budget
        assert computed == size
    if not share_prompts:
        in_order = [sum(rows[row][:2]) for part in parts for row in part]
        assert in_order == sorted(in_order, reverse=True)


def test_parts_are_of_whole_groups_with_like_many_tokens():
    rows = [(1, 4, 0), (2, 1, 1), (1, 4, 0), (1, 6, 2), (2, 1, 1), (3, 3, 3)]  # groups: 10 6 7 6
    parts = [part.tolist() for part in balanced_rows(sized(rows), 2)]
    assert parts == [[0, 2, 5], [1, 3, 4]]  # 16 and 13: 10, then 7, 6 beside 7, 6 beside 10


@given(Rows, st.integers(1, 5))
def test_no_two_parts_differ_by_more_than_a_group(groups, num_parts):
    rows = rows_of(groups)
    assume(len({row[2] for row in rows}) >= num_parts)
    parts = [part.tolist() for part in balanced_rows(sized(rows), num_parts)]
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    members = [{rows[row][2] for row in part} for part in parts]
    assert sum(map(len, members)) == len(set[int]().union(*members))
    sizes = [sum(sum(rows[row][:2]) for row in part) for part in parts]
    largest = max(sum(prompt + response for response in of) for prompt, of in groups)
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= largest


def test_mini_batches_keep_groups_whole_and_in_order():
    group_ids = torch.tensor([9, 2, 9, 7, 2, 5])
    parts = [part.tolist() for part in mini_batches(group_ids, 2)]
    assert parts == [[0, 1, 2, 4], [3, 5]]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 6))
def test_no_group_is_split_between_mini_batches(groups, num_groups):
    parts = [part.tolist() for part in mini_batches(torch.tensor(groups), num_groups)]
    assert sorted(row for part in parts for row in part) == list(range(len(groups)))
    members = [{groups[row] for row in part} for part in parts]
    assert sum(len(m) for m in members) == len(set(groups))
    assert all(len(m) == num_groups for m in members[:-1])
    assert 1 <= len(members[-1]) <= num_groups
