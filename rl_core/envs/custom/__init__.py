"""Custom: rows of a user's own, any question and any truth, judged by a function of the user's."""

from rl_core.envs.custom.settings import CustomConfig

__all__ = ["CustomConfig"]
