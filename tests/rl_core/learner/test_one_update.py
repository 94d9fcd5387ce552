from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.models.forward import forward_pass
from tests.support.learners import all_weights, assert_bitwise_equal, without_timings

RUNS = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text())


@pytest.mark.parametrize(("phase", "sections"), RUNS["one update"])
def test_one_update_needs_no_log_probs_or_values_from_before_it(
    new_learner, make_batch, monkeypatch, phase, sections
):
    def run() -> tuple[list[Any], dict[str, Tensor]]:
        learner = new_learner(actor={"mini_batch_size": 8}, **sections)
        size = 2 if "algorithm" in sections else 1
        learned = [learner.learn(make_batch(step, group_size=size)) for step in range(3)]
        return learned, all_weights(learner)

    saved, weights = run()
    assert all(f"timing_s/{phase}" not in metrics for metrics, _ in saved)
    if phase == "old_log_prob":
        assert all(metrics["actor/ppo_kl"] == 0.0 for metrics, _ in saved)
        monkeypatch.setattr(Learner, "next_update_is_on_policy", lambda self: False)
    else:
        monkeypatch.setattr(RunConfig, "has_one_critic_update", False)
    recomputed, expected = run()
    assert all(f"timing_s/{phase}" in metrics for metrics, _ in recomputed)
    assert_bitwise_equal(weights, expected)
    for (actual, columns), (reference, others) in zip(saved, recomputed, strict=True):
        assert without_timings(actual) == without_timings(reference)
        np.testing.assert_array_equal(list(columns.values()), list(others.values()))


def test_the_engines_log_probs_serve_a_penalty_that_is_wanted_before_the_only_update(
    new_learner, make_batch, monkeypatch
):
    results = []
    for is_recomputed in (False, True):
        learner = new_learner(actor={"mini_batch_size": 8}, algorithm={"kl_coef": 0.3})
        learner.learn(make_batch(1))  # away from the reference
        batch = make_batch()
        with torch.no_grad():
            said = forward_pass(batch, actor=learner.models.actor, compute_dtype=torch.float32)
        batch.rollout_logprobs.copy_(said.logprobs)
        if is_recomputed:
            monkeypatch.setattr(Learner, "next_update_is_on_policy", lambda self: False)
        metrics, columns = learner.learn(batch)
        assert ("timing_s/old_log_prob" in metrics) == is_recomputed
        results.append((without_timings(metrics), columns))
    (saved, columns), (recomputed, expected) = results
    assert saved == pytest.approx(recomputed, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(columns["reward"], expected["reward"], atol=1e-5)
    assert max(abs(kl) for kl in columns["ref_kl"]) > 0.01


@pytest.mark.parametrize("sections", RUNS["more than one update, or one that comes too late"])
def test_log_probs_are_recomputed_where_the_update_comes_too_late_or_more_than_once(
    new_learner, make_batch, sections
):
    metrics, _ = new_learner(**sections).learn(make_batch())
    assert "timing_s/old_log_prob" in metrics
    assert metrics["rollout/logprob_gap_mean"] > 0
