"""A teacher in the learner: what it adds to the loss, to which rows, and what is measured."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from rl_core.learner.ranks import ALONE as ONE_RANK
from rl_core.models.loading import complete_weights, load_actor
from rl_core.resources.memory_plan import ModelShape, memory_plan
from tests.rl_core.learner.test_ranks import assert_equal_to_rounding
from tests.support.learners import (
    all_weights,
    assert_close,
    check_that_a_resume_is_exact,
    without_timings,
)
from tests.support.rank_processes import on_ranks
from tests.support.rank_work import learn

ALONE = {"estimator": "distill", "group_size": 2}
NO_BONUS = {"entropy_coef": 0.0}


@pytest.fixture(scope="session")
def teacher_path(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with other weights, with wider MLPs."""
    folder = tmp_path_factory.mktemp("teacher")
    small = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    torch.manual_seed(7)
    settings = small.config.to_dict() | {"intermediate_size": 96}
    teacher = AutoModelForCausalLM.from_config(type(small.config)(**settings))
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    teacher.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_path).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("signal", ["tokens", "full"])
def test_a_policy_comes_closer_to_its_teacher(new_learner, make_batch, teacher_path, signal):
    teacher = {"path": str(teacher_path), "signal": signal}
    learner = new_learner(algorithm=ALONE, actor=NO_BONUS, teacher=teacher)
    assert learner.models.reference is None
    assert learner.models.critic is None
    distances = []
    for _ in range(3):
        batch = make_batch(group_size=2)
        batch.rewards.zero_()  # no group has spread, and all teach
        batch.correct[:] = False
        metrics, _ = learner.learn(batch)
        distances.append(metrics["teacher/kl" if signal == "tokens" else "actor/teacher_loss"])
    # Of the same tokens each time: they get the probability that the teacher gives them.
    assert distances[2] < distances[1] < distances[0]
    assert metrics["teacher/kl_max"] >= metrics["teacher/kl"]
    assert metrics["teacher/bounded_frac"] == 0.0
    assert metrics["critic/advantages/max"] == 0.0


@pytest.mark.parametrize("signal", ["tokens", "full"])
def test_equal_models_teach_nothing(new_learner, make_batch, tiny_model_path, signal):
    learner = new_learner(
        algorithm=ALONE,
        actor=NO_BONUS | {"mini_batch_size": 8},
        teacher={"path": str(tiny_model_path), "signal": signal},
        rollout={"temperature": 0.8},
    )
    before = all_weights(learner)
    metrics, _ = learner.learn(make_batch(group_size=2))
    assert (metrics["teacher/kl"], metrics["teacher/kl_max"]) == (0.0, 0.0)
    if signal == "full":  # the same states, read by micro-batches of another size
        assert metrics["actor/teacher_loss"] == pytest.approx(0.0, abs=1e-6)
        assert metrics["actor/grad_norm"] < 1e-5
        return
    assert metrics["actor/grad_norm"] == 0.0
    assert_close(all_weights(learner), before, atol=0)


def test_it_adds_to_rewards_what_it_would_teach_alone(new_learner, make_batch, teacher_path):
    """One update: the gradient of both is the sum of each one's."""
    gradients = []
    teacher = {"path": str(teacher_path), "coef": 0.5}
    reward = {"estimator": "grpo", "group_size": 2, "kl_mode": "none"}
    for algorithm, given in ((reward, teacher), (reward, {}), (ALONE, teacher)):
        learner = new_learner(
            algorithm=algorithm, actor=NO_BONUS | {"mini_batch_size": 8}, teacher=given
        )
        experience, _ = learner.make_experience(make_batch(group_size=2))
        rows = [torch.arange(4), torch.arange(4, 8)]
        learner.updater.accumulate("actor", experience, rows, kl_coef=0.0)
        gradients.append(
            torch.cat([p.grad.flatten().double() for p in learner.models.actor.parameters()])
        )
    both, of_reward, of_teacher = gradients
    assert of_reward.norm() > 1e-3
    assert of_teacher.norm() > 1e-3
    torch.testing.assert_close(both, of_reward + of_teacher, atol=1e-6, rtol=1e-5)


def test_a_bound_cuts_and_is_counted(new_learner, make_batch, teacher_path):
    learner = new_learner(
        algorithm=ALONE, teacher={"path": str(teacher_path), "bound": 1e-6}, actor=NO_BONUS
    )
    metrics, _ = learner.learn(make_batch(group_size=2))
    assert metrics["teacher/bounded_frac"] > 0.9
    assert abs(metrics["actor/pg_loss"]) < 2e-6


@pytest.mark.parametrize("signal", ["tokens", "full"])
def test_micro_batches_and_adapters_change_nothing(new_learner, make_batch, teacher_path, signal):
    seen = []
    for micro_batch_tokens in (16, 10_000):
        learner = new_learner(
            algorithm=ALONE,
            actor={"micro_batch_tokens": micro_batch_tokens, "mini_batch_size": 8},
            teacher={"path": str(teacher_path), "signal": signal},
            model={"lora_rank": 2},
        )
        metrics, _ = learner.learn(make_batch(group_size=2))
        seen.append(without_timings(metrics))
    assert seen[0] == pytest.approx(seen[1], abs=1e-5)


def test_the_full_signal_is_the_kl_over_the_whole_vocabulary(
    new_learner, make_batch, teacher_path, tiny_model_path
):
    """The loss and its gradient, against logits of transformers, row by row."""
    learner = new_learner(
        algorithm=ALONE,
        actor=NO_BONUS | {"mini_batch_size": 8},
        teacher={"path": str(teacher_path), "signal": "full", "coef": 0.5},
    )
    batch = make_batch(group_size=2)
    experience, _ = learner.make_experience(batch)
    rows = [torch.arange(3), torch.arange(3, 8)]
    metrics, _ = learner.updater.accumulate("actor", experience, rows, kl_coef=0.0)
    actor, teacher = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (tiny_model_path, teacher_path)
    )
    loss = torch.zeros(())
    for row in range(8):
        start, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        ids = batch.input_ids[row : row + 1, :end]
        p, q = (x(ids).logits[0, start - 1 : end - 1].log_softmax(-1) for x in (actor, teacher))
        loss = loss + (p.exp() * (p - q.detach())).sum() / int(batch.sampled_mask.sum())
    (0.5 * loss).backward()
    assert metrics["actor/teacher_loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    expected = {name: x.grad for name, x in actor.named_parameters()}
    actual = {name: x.grad for name, x in learner.models.actor.named_parameters()}
    assert_close(actual, expected, atol=1e-6)


@pytest.mark.parametrize("signal", ["tokens", "full"])
def test_in_4_bits_it_teaches_what_its_rounded_weights_compute(
    new_learner, make_batch, teacher_path, tiny_model_path, tmp_path, signal
):
    packed = load_actor(teacher_path, torch.device("cpu"), in_4bit=True)
    rounded = AutoModelForCausalLM.from_pretrained(teacher_path, dtype=torch.float32)
    rounded.load_state_dict(complete_weights(packed), strict=False)
    rounded.save_pretrained(tmp_path)
    results, planned = [], []
    for path, in_4bit in ((teacher_path, True), (tmp_path, False), (teacher_path, False)):
        learner = new_learner(
            algorithm=ALONE,
            actor=NO_BONUS | {"mini_batch_size": 8},
            teacher={"path": str(path), "signal": signal, "load_in_4bit": in_4bit},
        )
        experience, _ = learner.make_experience(make_batch(group_size=2))
        taught = experience.teacher_logprobs
        results.append(experience.teacher_states if taught is None else taught)
        shape = ModelShape.from_folder(tiny_model_path)
        planned.append(memory_plan(shape, learner.config)[0].parts["weights"])
        if in_4bit:
            held = sum(weight.nbytes for weight in learner.models.teacher.parameters())
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)
    assert (results[0] - results[2]).abs().max() > 1e-3
    bytes_of_whole = sum(weight.nbytes for weight in rounded.parameters())
    assert planned[1] - planned[0] == pytest.approx(bytes_of_whole - held, rel=0.01)


def test_a_teacher_without_linear_layers_is_refused_by_its_own_setting(new_learner, tmp_path):
    shape = GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path)
    teacher = {"path": str(tmp_path), "load_in_4bit": True}
    with pytest.raises(ValueError, match=r"^teacher.load_in_4bit=true: GPT2LMHeadModel has no l"):
        new_learner(algorithm=ALONE, teacher=teacher)


def test_a_resume_is_exact(settings, make_batch, tiny_model_path, teacher_path, tmp_path):
    config = settings(algorithm=ALONE, teacher={"path": str(teacher_path)})
    check_that_a_resume_is_exact(config, tiny_model_path, tmp_path / "saved", make_batch)


@pytest.mark.slow
def test_two_ranks_learn_from_it_what_one_process_learns(
    settings, make_batch, tiny_model_path, teacher_path
):
    configs = [
        settings(
            actor=NO_BONUS | {"lr": 1e-5},
            algorithm=ALONE,
            teacher={"path": str(teacher_path), "load_in_4bit": rank > 0},
            model={"lora_rank": rank},
        )
        for rank in (0, 2)
    ]
    asked = configs, tiny_model_path, [make_batch(group_size=2)] * 2
    expected = learn(ONE_RANK, *asked)
    for results in on_ranks(2, learn, *asked):
        for of_variant, one_process in zip(results, expected, strict=True):
            assert_equal_to_rounding(of_variant, one_process, 1e-6, 1e-6)


def test_a_teacher_in_shards_has_no_whole_embedding(settings):
    with pytest.raises(ValueError, match=r"teacher.signal=full .*learner_ranks=2"):
        settings(
            algorithm=ALONE,
            teacher={"path": "any", "signal": "full"},
            resources={"learner_ranks": 2},
        )


@pytest.mark.parametrize("signal", ["tokens", "full"])
def test_in_bfloat16_and_moved_for_its_pass_it_is_nearly_the_same(
    new_learner, make_batch, teacher_path, signal
):
    distances = []
    for dtype in ("float32", "bfloat16"):
        learner = new_learner(
            algorithm=ALONE,
            actor=NO_BONUS | {"mini_batch_size": 8},
            teacher={"path": str(teacher_path), "signal": signal},
            model={"dtype": dtype},
        )
        reader = learner._reader
        reader._offload_to = torch.device("cpu")
        reader._away = [learner.models.teacher]
        metrics, _ = learner.learn(make_batch(group_size=2))
        name = "teacher/kl" if signal == "tokens" else "actor/teacher_loss"
        distances.append(metrics[name])
    assert distances[1] == pytest.approx(distances[0], abs=0.02)
    assert distances[0] > 0.02
