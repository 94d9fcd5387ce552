import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.config.run import RunConfig
from rl_core.data.sampling import Place, ProblemOrder, epoch_order, read_place, total_steps


def chosen(*, seed: int, step: int, num_problems: int, batch_size: int) -> list[int]:
    return ProblemOrder(Place(seed, num_problems), batch_size).choose(step)


def by_steps(*, seed: int, step: int, num_problems: int, batch_size: int) -> list[int]:
    """Oracle: as it was when the place followed from the step's number."""
    epoch, position = divmod(step - 1, num_problems // batch_size)
    order = epoch_order(seed, epoch, num_problems)
    return order[position * batch_size : (position + 1) * batch_size].tolist()


@given(st.integers(1, 30), st.integers(1, 40), st.data())
def test_without_a_stop_it_is_the_order_of_old_runs(num_problems, step, data):
    batch_size = data.draw(st.integers(1, num_problems))
    same = {"seed": 5, "step": step, "num_problems": num_problems, "batch_size": batch_size}
    assert chosen(**same) == by_steps(**same)


STOPS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 16)), min_size=1, max_size=8)


@given(st.integers(16, 60), STOPS)
def test_any_stops_and_batch_sizes_ask_each_problem_once_per_epoch(num_problems, parts):
    """Each part: so many steps with such a batch size, from the checkpoint of the part before."""
    with tempfile.TemporaryDirectory() as folder:
        asked: dict[int, list[int]] = {}
        left_by, step, checkpoint = {}, 0, None
        for num_steps, batch_size in parts:
            config = RunConfig.model_validate(
                {
                    "seed": 5 + step,  # of the responses alone, once the run has begun
                    "data": {"train_batch_size": batch_size},
                    "actor": {"mini_batch_size": batch_size},
                }
            )
            order = ProblemOrder(read_place(config, num_problems, step, checkpoint), batch_size)
            for step in range(step + 1, step + num_steps + 1):  # noqa: B020
                epoch = order.before(step).epoch
                asked.setdefault(epoch, []).extend(order.choose(step))
                left_by.setdefault(epoch - 1, batch_size)  # its first step ends the one before
            order.hold(step)
            checkpoint = Path(folder) / "trainer"
            if num_steps:
                order.save(checkpoint)
            elif step == 0:
                checkpoint = None
    assert sorted(asked) == list(range(len(asked)))
    for epoch, problems in asked.items():
        assert len(problems) == len(set(problems))
        assert set(problems) <= set(range(num_problems))
        if epoch + 1 in asked:  # it ended, as what was left filled no batch
            assert num_problems - len(problems) < left_by[epoch]
        first = epoch_order(5, epoch, num_problems)[: len(problems)]
        assert problems == first.tolist()


def test_batch_sizes_that_fit_leave_no_problem_out_and_the_last_step_follows(tmp_path):
    """64 problems by 8 for one epoch, then by 16 up to three: 16 steps, each problem thrice."""
    first = ProblemOrder(Place(seed=0, num_problems=64), 8)
    assert first.last_step(total_epochs=1, total_steps=None) == 8
    asked = [first.choose(step) for step in range(1, 9)]
    first.hold(8)
    first.save(tmp_path)
    config = RunConfig.model_validate(
        {"data": {"train_batch_size": 16}, "actor": {"mini_batch_size": 16}}
    )
    then = ProblemOrder(read_place(config, 64, 8, tmp_path), 16)
    assert then.last_step(total_epochs=3, total_steps=None) == 16
    assert then.last_step(total_epochs=3, total_steps=9) == 9
    assert then.last_step(total_epochs=1, total_steps=None) == 8
    asked += [then.choose(step) for step in range(9, 17)]
    assert sorted(itertools.chain(*asked)) == sorted([*range(64)] * 3)
    assert [then.before(step).epoch for step in (9, 12, 13, 16)] == [1, 1, 2, 2]


def test_a_checkpoint_without_a_place_goes_on_as_it_did(tmp_path):
    config = RunConfig.model_validate(
        {"seed": 2, "data": {"train_batch_size": 4}, "actor": {"mini_batch_size": 4}}
    )
    order = ProblemOrder(read_place(config, 10, 3, tmp_path), 4)
    for step in range(4, 12):
        assert order.choose(step) == by_steps(seed=2, step=step, num_problems=10, batch_size=4)


def test_epochs_and_seeds_differ_while_a_repeated_step_does_not():
    def first(seed: int, step: int) -> list[int]:
        return chosen(seed=seed, step=step, num_problems=100, batch_size=50)

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
        ProblemOrder(Place(seed=0, num_problems=7), 8)
