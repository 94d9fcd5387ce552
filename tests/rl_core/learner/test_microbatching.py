"""Running out of memory costs a pass, not the run: the step's result is that of a run that fits."""

import gc
import itertools
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from rl_core.batch import micro_batches
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.learner.learner import Learner
from rl_core.learner.microbatching import Microbatching
from rl_core.system.threads import MicroBatchThreads
from tests.support.learners import all_weights, assert_bitwise_equal, assert_close, without_timings
from tests.support.memory_faults import MESSAGE, SAID, out_of_memory
from tests.support.runs import merged

EVALUATIONS = ("old_log_prob", "ref", "values")
UPDATES = ("update_critic", "update_actor")
RUNS = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text())["out of memory"]


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, settings: Any) -> tuple[RunConfig, set[str]]:
    """A kind of run, and its phases."""
    sections, phases = RUNS[request.param]["settings"], set(RUNS[request.param]["phases"])
    # Small, for where a gradient is next to 0, Adam makes a whole step of its rounding.
    common = {
        "actor": {"micro_batch_tokens": 60, "lr": 1e-5},
        "critic": {"lr": 1e-5},
        "resources": {"learner_threads": 1},
    }
    return settings(**merged(common, sections)), phases


def make_learner(
    config: RunConfig, folder: Path, budgets: dict[str, dict[str, Any]] | None = None
) -> Learner:
    learner = Learner(config, folder)
    learner.microbatching.budgets.restore(budgets or {})
    return learner


def learned_budgets(learner: Learner) -> dict[str, dict[str, Any]]:
    return learner.microbatching.budgets.learned()


def state_of(learner: Learner) -> dict[str, Tensor]:
    """Weights, moments and random state."""
    state = all_weights(learner) | {"rng": torch.get_rng_state()}
    for name, optimizer in learner.optimizers.items():
        state |= {k: x.clone() for k, x in optimizer.state_tensors(f"moments.{name}").items()}
    return state


@pytest.mark.slow  # some seconds each, a minute and more together
@pytest.mark.chaos
def test_what_did_not_fit_leaves_no_trace_in_the_result(tiny_model_path, make_batch, run, survived):
    config, phases = run
    injected = list[str]()
    call = 1  # of the second micro-batch, when the gradient of the first is there
    batches = [make_batch(seed, group_size=config.algorithm.group_size) for seed in (1, 2)]
    uninjured = make_learner(config, tiny_model_path)
    before = state_of(uninjured)
    expected = [uninjured.learn(batch) for batch in batches]
    learner = make_learner(config, tiny_model_path)
    for batch, backward, (metrics, columns) in zip(batches, (False, True), expected, strict=True):
        injured = phases & set(UPDATES) if backward else phases
        with ExitStack() as stack:
            failed = {
                phase: stack.enter_context(out_of_memory(learner, phase, {call}, backward=backward))
                for phase in injured
            }
            actual, actual_columns = learner.learn(batch)
        assert failed == {phase: [call] for phase in injured}
        injected += sorted(injured)
        ooms = {n.rsplit("/", 1)[1]: x for n, x in actual.items() if n.startswith("memory/oom/")}
        assert ooms == {phase: float(phase in injured) for phase in phases}
        assert without_timings(actual) == pytest.approx(
            without_timings(metrics), rel=1e-4, abs=1e-6
        )
        for name, column in columns.items():
            np.testing.assert_allclose(actual_columns[name], column, rtol=1e-4, atol=1e-5)
    assert_close(state_of(learner), state_of(uninjured), 1e-6)
    after = state_of(learner)
    assert max((after[name] - x).abs().max() for name, x in before.items() if name != "rng") > 1e-5
    assert learner.steps_done == len(batches)
    for phase in injected:
        survived("OOM", phase)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    ["ppo on 2 threads, 2 epochs", "grpo on 2 threads, on-policy, checkpointed, prompts shared"],
    indirect=True,
)
def test_a_step_done_again_is_bit_for_bit_one_that_was_split_so_at_once(
    tiny_model_path, make_batch, run
):
    config, phases = run
    batch = make_batch(1, group_size=config.algorithm.group_size)
    learner = make_learner(config, tiny_model_path)
    with ExitStack() as stack:
        for phase in phases:
            stack.enter_context(out_of_memory(learner, phase, {0}, backward=phase in UPDATES))
        metrics, columns = learner.learn(batch)
    budgets = learned_budgets(learner)
    assert budgets.keys() == phases
    smaller = make_learner(config, tiny_model_path, budgets)
    expected, expected_columns = smaller.learn(batch)
    assert without_timings(metrics) == without_timings(expected)
    np.testing.assert_array_equal(list(columns.values()), list(expected_columns.values()))
    assert_bitwise_equal(state_of(learner), state_of(smaller))


def test_metrics_tell_what_did_not_fit_and_what_holds_from_now_on(new_learner, make_batch):
    actor, batch = {"micro_batch_tokens": 10_000, "mini_batch_size": 8}, make_batch(1)
    learner = new_learner(actor=actor, resources={"learner_threads": 1})
    all_tokens = 8 * int(batch.lengths.max())
    with out_of_memory(learner, "update_actor", {0, 1}):
        metrics, _ = learner.learn(batch)
    assert metrics["memory/oom/update_actor"] == 2
    assert metrics["memory/oom_tokens/update_actor"] == all_tokens
    second = micro_batches(batch, all_tokens // 2, share_prompts=True)
    failed = max(size for _, size in second)
    assert metrics["memory/budget_tokens/update_actor"] == failed // 2
    assert metrics["memory/budget_tokens/update_critic"] == 10_000
    assert metrics["memory/oom/update_critic"] == 0
    metrics, _ = learner.learn(batch)
    assert metrics["memory/oom/update_actor"] == 0
    assert "memory/oom_tokens/update_actor" not in metrics


@pytest.mark.parametrize("phase", [*EVALUATIONS, *UPDATES])
def test_a_single_row_that_does_not_fit_ends_the_step_and_names_phase_size_and_knobs(
    new_learner, make_batch, phase
):
    learner, batch = new_learner(), make_batch(1)
    with out_of_memory(learner, phase, range(1000)), pytest.raises(OutOfMemory) as caught:
        learner.learn(batch)
    assert caught.value.phase == phase
    assert caught.value.detail.startswith(SAID)
    assert "single row" in caught.value.detail
    assert ("gradient_checkpointing=true" in caught.value.detail) is (phase in UPDATES)
    assert "resources.learner_threads=1" in caught.value.detail


def test_moments_that_do_not_fit_at_once_are_made_in_the_next_attempt(
    tiny_model_path, make_batch, settings, monkeypatch
):
    """When half of the actor's were there."""
    config = settings(algorithm={"estimator": "grpo", "group_size": 4})
    learner, zeros_like = make_learner(config, tiny_model_path), torch.zeros_like
    half = len(learner.optimizers["actor"].parameters)
    calls = itertools.count()

    def fail_once(tensor: Tensor, **options: Any) -> Tensor:
        if isinstance(tensor, torch.nn.Parameter) and next(calls) == half + 1:
            raise torch.OutOfMemoryError(MESSAGE)
        return zeros_like(tensor, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros_like", fail_once)
        metrics, _ = learner.learn(make_batch(1))
    assert metrics["memory/oom/update_actor"] == 1
    smaller = make_learner(config, tiny_model_path, learned_budgets(learner))
    smaller.learn(make_batch(1))
    assert_bitwise_equal(state_of(learner), state_of(smaller))


def test_weights_move_without_any_memory_and_never_twice(new_learner, make_batch, monkeypatch):
    learner = new_learner()
    critic = learner.optimizers["critic"]
    step, calls = critic.step, itertools.count()
    allocated: list[int] = []

    def measured(norm: Tensor) -> None:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            step(norm)
        allocated.extend(max(0, event.self_cpu_memory_usage) for event in seen.key_averages())

    monkeypatch.setattr(critic, "step", measured)
    learner.learn(make_batch(1))
    assert len(allocated) > 0
    assert sum(allocated) < 1_000  # a few numbers; the model has 90,000 weights

    def fail(norm: Tensor) -> None:
        next(calls)
        raise torch.OutOfMemoryError(MESSAGE)

    monkeypatch.setattr(critic, "step", fail)
    with pytest.raises(OutOfMemory, match="update_critic"):
        learner.learn(make_batch(2))
    assert next(calls) == 1


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_next_attempt_begins_when_all_of_the_last_is_free(
    new_learner, make_batch, settings, num_threads
):
    batch, threads = make_batch(1), MicroBatchThreads(num_threads)
    model = new_learner().models.actor
    device = torch.device("cpu")
    microbatching = Microbatching(settings(), model, device)
    alive: list[weakref.ref[Tensor]] = []
    gc.disable()

    def work(rows: Tensor) -> Tensor:
        weight = torch.ones(3, requires_grad=True)
        hidden = weight * 2
        cycle: list[Any] = [hidden.sin()]
        cycle.append(cycle)
        alive.extend((weakref.ref(hidden), weakref.ref(cycle[0])))
        if 0 in rows:
            raise torch.OutOfMemoryError(MESSAGE)
        return hidden

    def attempt(parts: list[Tensor]) -> int:
        assert [tensor() for tensor in alive] == [None] * len(alive)
        for _ in threads.map(work, parts):
            pass
        return len(parts)

    try:
        with pytest.raises(OutOfMemory):
            microbatching.run("update_actor", batch, attempt)
    finally:
        gc.enable()
    assert len(alive) >= 4


def test_other_errors_pass(new_learner, make_batch):
    learner, calls = new_learner(), itertools.count()

    def attempt(parts: list[Tensor]) -> None:
        next(calls)
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        learner.microbatching.run("ref", make_batch(), attempt)
    assert next(calls) == 1


def test_a_resumed_run_keeps_its_budgets_and_goes_on_bit_for_bit(
    tiny_model_path, tmp_path, make_batch, settings
):
    config = settings(resources={"learner_threads": 1})
    learner = make_learner(config, tiny_model_path)
    with out_of_memory(learner, "update_actor", {0}):
        learner.learn(make_batch(1))
    learner.learn(make_batch(2))
    learner.save(tmp_path)
    resumed = Learner(config, tiny_model_path, resume_from=tmp_path)
    assert learned_budgets(resumed) == learned_budgets(learner)
    assert learned_budgets(resumed)["update_actor"]["clean_steps"] == 1
    metrics, _ = resumed.learn(make_batch(3))
    expected, _ = learner.learn(make_batch(3))
    assert without_timings(metrics) == without_timings(expected)
    assert_bitwise_equal(all_weights(resumed), all_weights(learner))
