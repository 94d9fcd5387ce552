"""reasoning-gym: the package's generated tasks, each with a scorer of its own."""

from rl_core.envs.reasoning_gym.env import ReasoningGymConfig

__all__ = ["ReasoningGymConfig"]
