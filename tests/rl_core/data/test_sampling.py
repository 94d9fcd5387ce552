import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.config.run import RunConfig
from rl_core.data.sampling import batch_indices, steps_per_epoch, total_steps


@given(st.integers(1, 60), st.data())
def test_an_epoch_shows_each_problem_at_most_once_and_leaves_out_less_than_a_batch(size, data):
    batch = data.draw(st.integers(1, size))
    seen = [
        i
        for step in range(1, steps_per_epoch(size, batch) + 1)
        for i in batch_indices(seed=3, step=step, num_problems=size, batch_size=batch)
    ]
    assert len(seen) == len(set(seen))
    assert size - batch < len(seen) <= size
    assert set(seen) <= set(range(size))


def test_epochs_and_seeds_differ_while_a_repeated_step_does_not():
    def first(seed: int, step: int) -> list[int]:
        return batch_indices(seed=seed, step=step, num_problems=100, batch_size=50)

    assert first(0, 1) == first(0, 1)
    assert first(0, 1) != first(0, 3)  # step 3 opens the second epoch
    assert first(0, 1) != first(1, 1)
    assert sorted(first(0, 1) + first(0, 2)) == list(range(100))


def test_total_steps_is_the_smaller_of_epochs_and_steps():
    def steps(**trainer: int) -> int:
        settings = {
            "data": {"train_batch_size": 32, "train_size": 100},
            "actor": {"mini_batch_size": 32},
            "trainer": trainer,
        }
        return total_steps(RunConfig.model_validate(settings), 100)

    assert steps(total_epochs=4) == 12
    assert steps(total_epochs=4, total_steps=5) == 5
    assert steps(total_epochs=1, total_steps=50) == 3


def test_too_few_problems_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="train_batch_size=8 is above the 7 training problems"):
        steps_per_epoch(7, 8)
