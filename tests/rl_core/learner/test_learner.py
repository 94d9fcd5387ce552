import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from rl_core.batch import collate
from rl_core.learner.experience import assemble
from rl_core.learner.learner import STATE_FOLDER
from rl_core.learner.state import read_state
from tests.support.learners import all_weights, assert_bitwise_equal, without_timings


def test_what_fills_up_the_rows_changes_nothing(new_learner, make_batch):
    results = []
    for pad_id in (0, 200):
        learner = new_learner()
        metrics, columns = learner.learn(make_batch(pad_id=pad_id))
        results.append((without_timings(metrics), columns, all_weights(learner)))
    assert results[0][:2] == results[1][:2]
    assert_bitwise_equal(results[0][2], results[1][2])


def test_before_any_update_the_ratio_is_1_and_the_reference_is_the_policy(new_learner, make_batch):
    learner = new_learner(actor={"mini_batch_size": 8})
    metrics, columns = learner.learn(make_batch())
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert metrics["critic/kl"] == 0.0
    assert columns["ref_kl"] == [0.0] * 8
    after, _ = learner.learn(make_batch())
    assert abs(after["critic/kl"]) > 1e-4


def test_metrics_have_verls_names(new_learner, make_batch):
    metrics, _ = new_learner().learn(make_batch())
    actor = ("entropy_loss", "pg_loss", "pg_clipfrac", "ppo_kl", "grad_norm", "lr")
    critic = ("kl", "kl_coeff", "vf_loss", "vf_clipfrac", "vpred_mean", "grad_norm", "lr")
    learned = {f"actor/{x}" for x in actor} | {f"critic/{x}" for x in critic}
    learned |= {"critic/vf_explained_var", "actor/skipped_steps", "critic/skipped_steps"}
    measured = [f"critic/{x}" for x in ("score", "rewards", "advantages", "returns", "values")]
    measured += ["response_length", "prompt_length", "global_seqlen"]
    spread = {f"{x}/{y}" for x in measured for y in ("mean", "max", "min")}
    others = {"response_length/clip_ratio", "prompt_length/clip_ratio"}
    others |= {f"global_seqlen/{x}" for x in ("minmax_diff", "balanced_min", "balanced_max")}
    others |= {"rollout/logprob_gap_mean", "rollout/logprob_gap_max"}
    others |= {"rollout/ess_frac", "rollout/dropped_frac"}
    phases = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
    costs = {f"{what}/{phase}" for what in ("timing_s", "memory/peak_gib") for phase in phases}
    costs |= {"mfu/actor", "mfu/critic"}
    repeated = set(phases) - {"adv"}
    costs |= {f"memory/{what}/{x}" for what in ("budget_tokens", "oom") for x in repeated}
    assert set(metrics) == learned | spread | others | costs
    assert all(np.isfinite(x) for x in metrics.values())
    assert metrics["actor/lr"] == 1e-3


def test_without_gae_there_is_no_critic_and_without_kl_no_reference(new_learner, make_batch):
    learner = new_learner(algorithm={"estimator": "grpo", "group_size": 2, "kl_mode": "none"})
    metrics, _ = learner.learn(make_batch(group_size=2))
    assert learner.models.critic is None
    assert learner.models.reference is None
    assert "group/zero_spread_frac" in metrics
    absent = {"critic/kl", "critic/vf_loss", "critic/values/mean", "timing_s/ref"}
    assert not absent & set(metrics)


def test_during_critic_warm_up_the_actor_stands_still(new_learner, make_batch):
    learner = new_learner(critic={"warmup_steps": 1})
    before = all_weights(learner)
    metrics, _ = learner.learn(make_batch())
    moved = {name for name, x in all_weights(learner).items() if not torch.equal(x, before[name])}
    assert moved
    assert all(name.startswith("critic.") for name in moved)
    assert "actor/pg_loss" not in metrics
    metrics, _ = learner.learn(make_batch(1))
    assert "actor/pg_loss" in metrics
    assert not torch.equal(
        learner.weights()["model.norm.weight"], before["actor.model.norm.weight"]
    )


def test_each_epoch_updates_once_per_mini_batch_and_the_schedule_once_per_step(
    new_learner, tmp_path, make_batch
):
    learner = new_learner(actor={"ppo_epochs": 3, "warmup_steps": 4})
    rates = [learner.learn(make_batch(step))[0]["actor/lr"] for step in range(2)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3])
    learner.save(tmp_path)
    tensors, numbers = read_state(tmp_path / STATE_FOLDER)
    updates = {name: x.item() for name, x in tensors.items() if name.endswith(".step")}
    assert set(updates.values()) == {2 * 3 * 2}  # steps, epochs, mini-batches
    assert {name.split(".")[0] for name in updates} == {"actor", "critic"}
    assert numbers["steps_done"] == 2


def test_the_adaptive_controller_follows_the_kl(new_learner, make_batch):
    algorithm = {"kl_controller": "adaptive", "kl_coef": 0.1, "kl_target": 6.0, "kl_horizon": 80}
    learner = new_learner(algorithm=algorithm)
    learner.learn(make_batch())
    # At first the KL is 0, far under its target: a fifth of 8 / 80 less.
    metrics, _ = learner.learn(make_batch(1))
    assert metrics["critic/kl_coeff"] == pytest.approx(0.1 * 0.98)


def test_prepare_changes_nothing_and_agrees_with_the_formulas(new_learner, make_batch, settings):
    learner = new_learner()
    batch, before = make_batch(), all_weights(learner)
    experience, metrics = learner.make_experience(batch)
    again, metrics_again = learner.make_experience(batch)
    assert without_timings(metrics) == without_timings(metrics_again)
    assert_bitwise_equal(before, all_weights(learner))
    # Micro-batches sort by length: each result must be back in its own row.
    for row in range(len(batch)):
        alone, _ = learner.make_experience(batch.select(torch.tensor([row])))
        length = int(batch.response_lengths[row])
        torch.testing.assert_close(
            experience.old_logprobs[row, :length], alone.old_logprobs[0], atol=1e-5, rtol=1e-5
        )
    expected = assemble(
        batch,
        old_logprobs=again.old_logprobs,
        ref_logprobs=again.ref_logprobs,
        values=again.values,
        config=settings(),
        kl_coef=0.05,
    )
    assert torch.equal(expected.advantages, experience.advantages)


def test_bfloat16_trains_float32_weights(new_learner, make_batch):
    learner = new_learner(model={"dtype": "bfloat16"})
    before = all_weights(learner)
    metrics, _ = learner.learn(make_batch())
    after = all_weights(learner)
    assert {x.dtype for x in after.values()} == {torch.float32}
    assert not torch.equal(after["actor.model.norm.weight"], before["actor.model.norm.weight"])
    reference, _ = new_learner().learn(make_batch())
    assert metrics["rollout/logprob_gap_mean"] == pytest.approx(
        reference["rollout/logprob_gap_mean"], rel=0.05
    )


def test_gradient_checkpointing_of_actor_and_critic_changes_no_bit(new_learner, make_batch):
    weights = []
    for checkpointed in (False, True):
        learner = new_learner(model={"gradient_checkpointing": checkpointed})
        learner.learn(make_batch())
        weights.append(all_weights(learner))
        assert learner.models.critic is not None
        for model in (learner.models.actor, learner.models.critic):
            layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
            assert {m.training and m.gradient_checkpointing for m in layers} == {checkpointed}
    assert_bitwise_equal(*weights)


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_bandit_is_learned(new_learner, make_rollout, estimator):
    """One prompt, one token of answer, reward for one of 258 tokens: its probability must rise."""
    lucky, prompt = 65, [70, 71, 72]
    learner = new_learner(
        data={"train_batch_size": 32},
        actor={"mini_batch_size": 16, "micro_batch_tokens": 1_000, "lr": 2e-3},
        algorithm={"estimator": estimator, "group_size": 4, "kl_coef": 0.001},
    )
    generator = torch.Generator().manual_seed(0)

    def distribution() -> Tensor:
        with torch.no_grad():
            return learner.models.actor(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)

    before = distribution()[lucky].exp().item()
    assert before < 0.05
    for _ in range(20):
        logprobs = distribution()
        # Half of the samples are uniform, so that the lucky token is ever seen.
        probs = 0.5 * logprobs.exp() + 0.5 / len(logprobs)
        probs[lucky] += 0.1
        tokens = torch.multinomial(probs, 128, replacement=True, generator=generator).tolist()
        rollouts = [
            make_rollout(
                prompt,
                [token],
                logprobs=[logprobs[token].item()],
                score=float(token == lucky),
                verdict="correct" if token == lucky else "wrong_value",
                group_id=row // 4,
            )
            for row, token in enumerate(tokens)
        ]
        learner.learn(collate(rollouts, 0))
    assert distribution()[lucky].exp().item() > max(0.5, 10 * before)
