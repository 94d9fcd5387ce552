"""Rewards of users, good and bad, as `env.reward=tests.support.user_rewards:...` names them."""

import asyncio
import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NOT_A_FUNCTION = 3


def same_text(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)


def share_of_letters(data_source, solution_str, ground_truth, extra_info=None):
    """Tells responses of a random model apart, which all fail by any rule."""
    return sum(character.isalpha() for character in solution_str) / max(len(solution_str), 1)


def letters_at_leisure(data_source, solution_str, ground_truth, extra_info=None):
    """The same after a pause, so that fewer steps are done while a test waits for other things."""
    time.sleep(float(os.environ.get("REWARD_PAUSE_S", "0")))
    return share_of_letters(data_source, solution_str, ground_truth, extra_info)


def as_mapping(**arguments: Any) -> Any:
    """Says what it was asked, as the answer it read."""
    return {"score": -1, "acc": arguments["solution_str"] == "right", "pred": repr(arguments)}


def _crash() -> None:
    raise KeyError("no such thing")


def _loop() -> None:
    while True:
        pass


def _start_children() -> None:
    for _ in range(20):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100.7)"])
    time.sleep(100)


def _make_noise() -> float:
    sys.stdout.write("x" * 1_000_000)
    os.write(2, b"y" * 1_000_000)
    sys.stdin.read()
    return 1.0


def _recurse() -> None:
    _recurse()


_BEHAVIOURS = {
    "crash": _crash,
    "exit": lambda: sys.exit(3),
    "leave": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "hog": lambda: len(bytearray(2**34)),
    "recurse": _recurse,
    "loop": _loop,
    "children": _start_children,
    "fork": lambda: float(os.fork() >= 0),
    "noise": _make_noise,
    "nan": lambda: float("nan"),
    "text": lambda: "1.0",
    "nothing": lambda: None,
    "empty": dict,
    "list": lambda: [1.0],
}


def misbehave(data_source, solution_str, ground_truth, extra_info=None):
    """Does what the response says; anything else is right."""
    return _BEHAVIOURS.get(solution_str, lambda: 1.0)()


def environment_of(data_source, solution_str, ground_truth, extra_info=None):
    """Reads a process's environment: its own, or that of the pid in the response."""
    if not solution_str:
        return {"score": 1, "pred": "\n".join(f"{k}={v}" for k, v in os.environ.items())[-900:]}
    return {"score": 1, "pred": Path(f"/proc/{solution_str}/environ").read_text()[-900:]}


def says_whether_it_read(data_source, solution_str, ground_truth, extra_info=None):
    """The number in a response, None where there is none."""
    number = solution_str if solution_str.isdigit() else None
    return {"score": float(number == ground_truth), "pred": number}


def slow(data_source, solution_str, ground_truth, extra_info=None):
    """Writes which process works, and never ends."""
    Path(solution_str).write_text(str(os.getpid()))
    while True:
        pass


async def awaited(response):
    """Misbehaves as `misbehave`, after a wait with others; a number is the seconds to wait."""
    await asyncio.sleep(float(response) if response.replace(".", "").isdigit() else 0.2)
    if response == "never":
        await asyncio.Event().wait()
    return _BEHAVIOURS.get(response, lambda: 1.0)()


class _Awaited:
    async def __call__(self, completions: list[str]) -> list[float]:
        return [0.5 for _ in completions]


awaited_instance = _Awaited()


async def yields(response):
    """An iterator, which is no reward."""
    yield 1.0


def of_no_response(data_source, ground_truth):
    """It takes no response."""
    return 1.0


def of_another_truth(data_source, solution_str, ground_truth, extra_info=None):
    """It expects an object as the truth."""
    return float(ground_truth["city"] in solution_str)


def awaits_inside(**arguments: Any) -> Any:
    """An async call that no signature shows."""
    return awaited(arguments["solution_str"])


def has_login(response):
    """Whether the process has a variable that looks like a credential."""
    return float("FLIPPED_TOKEN" in os.environ)


def takes_a_gib(response):
    """Whether a GiB of memory can be had."""
    with mmap.mmap(-1, 2**30) as memory:
        return float(len(memory) == 2**30)


def process_number(response):
    """The number of its process, after a moment in which others start to work."""
    time.sleep(0.05)
    return float(os.getpid())


_together = 0


async def calls_together(response):
    """How many calls the process had at the end of this one."""
    global _together
    _together += 1
    await asyncio.sleep(0.1)
    _together -= 1
    return float(_together + 1)


def pays_for_letters(response):
    """A reward that can be hacked: it pays for letters, and only the truth counts as correct."""
    return {"score": share_of_letters("", response, ""), "acc": response.strip() == "the truth"}


def always_right(response):
    """Whatever is written."""
    return 1.0
