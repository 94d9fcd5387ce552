"""The command `countdown-train play env=NAME`."""

import sys
from collections.abc import Sequence
from itertools import takewhile

from flows.cli.terminal import say
from flows.settings.compose import compose
from rl_core.system.words import printable
from tasks.play import play as play_with


def play(words: Sequence[str]) -> None:
    """Shows prompts and scores; a response ends with an empty line."""
    config = compose(words)
    say("A response ends with an empty line, the game with the end of the input (Ctrl-D).")
    verdicts = []
    for scored, reward in play_with(config, _show, _read):
        answer = "" if scored.answer is None else f": {printable(scored.answer)}"
        parts = "".join(f", {name} {score:g}" for name, score in scored.rewards)
        worth = "" if reward == scored.score else f", reward {reward:g}"
        say(f"-- {scored.verdict}{answer}, score {scored.score:g}{parts}{worth}")
        verdicts.append(scored.verdict)
    say(f"{verdicts.count('correct')} of {len(verdicts)} correct")


def _show(text: str) -> None:
    if text:
        say(f"\n{text}\n")


def _read() -> str | None:
    """Returns the lines up to an empty one; None at the end of the input."""
    return "".join(takewhile(str.strip, sys.stdin)).removesuffix("\n") or None
