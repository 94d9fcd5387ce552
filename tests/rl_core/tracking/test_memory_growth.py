from collections.abc import Callable

import numpy as np
import pytest

from rl_core.tracking.host_memory import full_at, growths

Curve = Callable[[int], float]


def held(curve: Curve, num_steps: int = 60) -> list[tuple[int, float]]:
    return [(step, curve(step)) for step in range(1, num_steps + 1)]


def test_steady_growth_is_named_with_the_step_at_which_the_machine_is_full():
    found = growths(
        {
            "learner": held(lambda step: 0.5 + 0.04 * step, 40),
            "trainer": held(lambda step: 0.2, 40),
            "engine_0": held(lambda step: 1.0 + 0.01 * step, 40),
        }
    )
    assert [growth.process for growth in found] == ["learner", "engine_0"]
    assert found[0].gib_per_step == pytest.approx(0.04)
    assert str(found[0]) == "learner 0.74 -> 2.10 GiB from step 6 to 40, 41.0 MiB per step"
    # 10 GiB are left: at 0.05 GiB per step they last for 200 steps more.
    assert full_at(found, 10.0) == 240


def test_the_last_two_hundred_steps_count():
    late = growths({"learner": held(lambda step: 1.0 + 0.01 * max(step - 800, 0), 1_000)})
    assert late[0].first_step == 801
    early = growths({"learner": held(lambda step: 1.0 + 0.01 * min(step, 800), 1_000)})
    assert not early


NOISE = np.random.default_rng(0).normal(size=1_001)


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param(lambda step: 2.0 if step < 20 else 3.0, id="jump"),
        pytest.param(lambda step: 2.0 - 0.7 ** (step - 5), id="fills up"),
        pytest.param(lambda step: 1.0 + 0.1 * (step % 10), id="saw"),
        pytest.param(lambda step: 1.0 + 0.3 * NOISE[step], id="noise"),
        pytest.param(lambda step: 3.0 - 0.02 * step, id="falls"),
        pytest.param(lambda step: 1.0 + 0.0001 * step, id="0.1 MiB per step"),
    ],
)
def test_what_is_no_steady_growth_is_not_named(curve):
    assert not growths({"learner": held(curve)})


def test_growth_shows_through_noise_and_spikes():
    def curve(step: int) -> float:
        return 1.0 + 0.02 * step + 0.05 * NOISE[step] + (2.0 if step % 17 == 0 else 0.0)

    (found,) = growths({"engine_1": held(curve)})
    assert found.gib_per_step == pytest.approx(0.02, abs=0.003)


def test_noise_alone_is_hardly_ever_taken_for_growth():
    rng = np.random.default_rng(1)
    named = 0
    for _ in range(200):
        noise = rng.normal(size=100)
        named += bool(growths({"x": held(lambda step, n=noise: 1.0 + 0.02 * n[step], 99)}))
    assert named == 0


def test_a_few_steps_say_nothing():
    assert not growths({"learner": held(lambda step: 0.5 + 0.04 * step, 20)})
    assert growths({"learner": held(lambda step: 0.5 + 0.04 * step, 21)})
