"""The way of one puzzle: problem, prompt, rollout, advantage, loss, gradient, checkpoint."""
