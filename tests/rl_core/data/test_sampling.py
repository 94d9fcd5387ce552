import itertools
import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.config.operations import TrainerConfig
from rl_core.config.run import DataConfig, RunConfig
from rl_core.data.dataset import difficulty_classes, write_dataset
from rl_core.data.sampling import (
    LEAST_WEIGHT,
    Curriculum,
    Floats,
    Place,
    ProblemOrder,
    epoch_order,
    read_place,
    total_steps,
)
from rl_core.envs.countdown import Countdown
from tests.support.runs import run_config


def of_batches(size: int, **settings: object) -> RunConfig:
    data, actor = {"train_batch_size": size}, {"mini_batch_size": size}
    return run_config(data=data, actor=actor, **settings)


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
            # Another seed is of the responses alone, once the run has begun.
            config = of_batches(batch_size, seed=5 + step)
            order = ProblemOrder(read_place(config, num_problems, checkpoint), batch_size)
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
    assert first.last_step(TrainerConfig(total_epochs=1)) == 8
    asked = [first.choose(step) for step in range(1, 9)]
    first.hold(8)
    first.save(tmp_path)
    then = ProblemOrder(read_place(of_batches(16), 64, tmp_path), 16)
    assert then.last_step(TrainerConfig(total_epochs=3)) == 16
    assert then.last_step(TrainerConfig(total_epochs=3, total_steps=9)) == 9
    assert then.last_step(TrainerConfig(total_epochs=1)) == 8
    asked += [then.choose(step) for step in range(9, 17)]
    assert sorted(itertools.chain(*asked)) == sorted([*range(64)] * 3)
    assert [then.before(step).epoch for step in (9, 12, 13, 16)] == [1, 1, 2, 2]


def test_epochs_and_seeds_differ_while_a_repeated_step_does_not():
    def first(seed: int, step: int) -> list[int]:
        return chosen(seed=seed, step=step, num_problems=100, batch_size=50)

    assert first(0, 1) == first(0, 1)
    assert first(0, 1) != first(0, 3)  # step 3 opens the second epoch
    assert first(0, 1) != first(1, 1)
    assert sorted(first(0, 1) + first(0, 2)) == list(range(100))


def test_total_steps_is_the_smaller_of_epochs_and_steps():
    def steps(**trainer: int) -> int:
        return total_steps(of_batches(32, trainer=trainer), 100)

    assert steps(total_epochs=4) == 12
    assert steps(total_epochs=4, total_steps=5) == 5
    assert steps(total_epochs=1, total_steps=50) == 3


def test_too_few_problems_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="train_batch_size=8 is above the 7 training problems"):
        ProblemOrder(Place(seed=0, num_problems=7), 8)


CLASSES = ["easy", "easy", "hard", "hard", "new"]


def curriculum(
    classes: list[str] = CLASSES,
    *,
    batch_size: int = 4,
    group_size: int = 2,
    ahead: int = 0,
    **more: object,
) -> Curriculum:
    sections = {"algorithm": {"group_size": group_size}, "rollout": {"staleness": ahead}}
    config = of_batches(batch_size, seed=0, **sections)
    return Curriculum(classes, config, **more)


def weights_after(*steps: dict[int, int]) -> Floats:
    chooser = curriculum()
    for step, num_correct in enumerate(steps, start=1):
        chooser.choose(step)
        chooser.observe(step, num_correct)
    return chooser.weights(len(steps))


def test_weights_are_variances_by_the_own_record_and_that_of_the_like():
    # Rates of easy (3 + 1) / (4 + 2), of hard (0 + 1) / (2 + 2), of what was never asked 1/2; a
    # problem's own: (2 + 2/3) / 3 = 8/9, (1 + 2/3) / 3 = 5/9, (0 + 1/4) / 3 = 1/12.
    by_hand = [4 * 8 / 81, 4 * 20 / 81, 4 * 11 / 144, 4 * 3 / 16, 1]
    assert weights_after({0: 2, 1: 1, 2: 0}) == pytest.approx(by_hand)

    # Of classes nine tenths of the step before are left: easy (4.7 + 1) / (5.6 + 2) = 3/4, hard
    # 1 / 3.8; of problem 0, asked again, half of its own: (3 + 3/4) / 4 = 15/16.
    hard = 1 / 3.8
    rates = [15 / 16, (1 + 3 / 4) / 3, hard / 3, hard, 1 / 2]
    twice = weights_after({0: 2, 1: 1, 2: 0}, {0: 2})
    assert twice == pytest.approx([4 * rate * (1 - rate) for rate in rates])


def test_while_nothing_is_measured_the_order_is_that_without_a_curriculum():
    chooser = curriculum(["one"] * 50, batch_size=10)
    order = ProblemOrder(Place(seed=0, num_problems=50), batch_size=10)
    for step in range(1, 6):
        assert chooser.choose(step) == order.choose(step)


def test_problems_always_or_never_solved_are_asked_ever_more_rarely():
    """A hundred of each, eight responses; in classes of their own, or in one with all others."""
    rates = [1.0] * 100 + [0.0] * 100 + [0.5] * 100
    kinds = ["always"] * 100 + ["never"] * 100 + ["at times"] * 100
    for classes, least in ((kinds, 0.88), (["all"] * 300, 0.75)):
        chooser = curriculum(classes, batch_size=20, group_size=8)
        rng, asked = np.random.default_rng(5), []
        for step in range(1, 121):
            chosen = chooser.choose(step)
            chooser.observe(step, {i: int(rng.binomial(8, rates[i])) for i in chosen})
            asked.append(Counter(kinds[i] for i in chosen))
        late = sum(asked[-60:], Counter())
        assert asked[0]["at times"] <= 10
        assert late["at times"] / late.total() > least
        # Not quite never: a model that has become better is found out.
        assert min(late["always"], late["never"]) > 0
        # Nor are replacements drawn from all: with equal chances a third of them would be.
        spares = chooser.spares(121)
        assert sorted(spares) == list(range(300))
        assert Counter(kinds[i] for i in spares[:60])["at times"] > 40
    assert chooser.weights(120).min() >= LEAST_WEIGHT


def test_spares_are_drawn_by_their_weights():
    chooser = curriculum(["a", "b", "b"], batch_size=3, group_size=1_000)
    chooser.choose(1)
    chooser.observe(1, {0: 500, 1: 53, 2: 53})  # variances 1 / 4 and 1 / 20: weights 5, 1 and 1
    firsts = Counter[int]()
    for seed in range(2_000):
        chooser._seed = seed
        firsts[chooser.spares(2)[0]] += 1
    assert firsts[0] / 2_000 == pytest.approx(5 / 7, abs=0.04)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.data())
def test_a_step_has_different_problems_even_where_it_takes_them_all(size, data):
    batch_size = data.draw(st.integers(1, size))
    chooser = curriculum(["a"] * size, batch_size=batch_size)
    for step in range(1, 5):
        chosen = chooser.choose(step)
        assert len(set(chosen)) == len(chosen) == batch_size
        passed_over = chooser.observe(step, {i: data.draw(st.integers(0, 2)) for i in chosen})
        assert 0 <= passed_over["curriculum/passed_over_frac"] < 1


def test_what_was_passed_over_is_measured():
    chooser = curriculum(["a"] * 8, batch_size=8, group_size=50)
    chooser.choose(1)
    outcomes = {i: 25 if i == 3 else 50 for i in range(8)}
    assert chooser.observe(1, outcomes) == {"curriculum/passed_over_frac": 0}
    # All but one are nearly sure, and a step needs all: it takes several passes.
    chooser.choose(2)
    assert chooser.observe(2, {})["curriculum/passed_over_frac"] > 0.5


def play(chooser: Curriculum, first: int, last: int) -> list[list[int]]:
    """Chooses steps whose outcomes depend on problem and step alone."""
    steps = []
    for step in range(first, last + 1):
        steps.append(chooser.choose(step))
        chooser.observe(step, {i: random.Random(f"{i}/{step}").randrange(3) for i in steps[-1]})
    return steps


def test_a_resumed_curriculum_goes_on_as_if_it_had_not_stopped(tmp_path):
    classes = [f"class {i % 7}" for i in range(100)]
    chooser = curriculum(classes, batch_size=16, ahead=1)
    whole = play(chooser, 1, 8)
    chooser.hold(7)  # a step is ahead of the one that is saved
    whole += play(chooser, 9, 20)  # and more follow before it is written
    chooser.save(tmp_path / "trainer")
    resumed = curriculum(classes, batch_size=16, step=7, checkpoint=tmp_path / "trainer")
    assert play(resumed, 8, 20) == whole[7:]
    assert play(curriculum(classes, batch_size=16), 1, 20) == whole
    assert play(curriculum(["one"] * 100, batch_size=16), 1, 20) != whole
    # A checkpoint of a run that had no curriculum: nothing is known.
    fresh = curriculum(classes, batch_size=16, step=7, checkpoint=tmp_path)
    assert fresh.choose(8) == whole[0]


def test_a_checkpoint_of_other_problems_is_refused_with_both_numbers(tmp_path):
    curriculum().save(tmp_path)
    with pytest.raises(ValueError, match="on 5 problems of 3 kinds, and the data set has 4 pro"):
        curriculum(CLASSES[:4], checkpoint=tmp_path)


def test_countdown_s_like_problems_have_as_many_numbers_and_the_same_operators(tmp_path):
    env = Countdown(max_operands=4, max_number=20)
    write_dataset(env, DataConfig(train_size=300, test_size=10, train_batch_size=1), tmp_path / "d")
    classes = difficulty_classes(env, tmp_path / "d" / "train.parquet")
    assert len(classes) == 300
    assert {"countdown 3 ++", "countdown 3 *-", "countdown 4 ++-"} <= set(classes)
    assert len(set(classes)) < 40
