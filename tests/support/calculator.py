"""A calculator as an env of tools, and one whose tools misbehave."""

import os
import time

from rl_core.envs.text_env import TextProblem


class Calculator:
    """Products that are easier with a tool."""

    def problems(self, rng):
        while True:
            a, b = rng.randrange(2, 100), rng.randrange(2, 100)
            yield TextProblem(f"What is {a} * {b}?", truth=str(a * b))

    def reset(self, problem):
        self.results = []

    def multiply(self, a: int, b: int) -> int:
        """Multiplies two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self.results.append(a * b)
        return a * b

    def reward(self, response, answer):
        return float(answer in response)


class Trouble(Calculator):
    """Counts its calls, and does what it is told."""

    def wait(self, seconds: float = 60.0) -> str:
        """Waits too long.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return "done"

    def leave(self) -> None:
        """Ends its process."""
        os._exit(3)

    def fail(self) -> None:
        """Raises an error."""
        raise KeyError("no such thing")

    def total(self) -> dict:
        """Says what was computed."""
        return {"results": self.results}

    def reward(self):
        return float(len(self.results))


class NoHints:
    """A tool that no model can be shown."""

    def reset(self, problem):
        """Nothing."""

    def say(self, text):
        """Says it."""
