"""The path of one puzzle: problem, prompt, rollout, advantage, loss, gradient, checkpoint."""
