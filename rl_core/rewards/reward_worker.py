"""Stage 4: `python -m rl_core.rewards.reward_worker`, which calls a user's reward function.

Started and watched by `rl_core.rewards.scoring`. It imports very little, so it starts fast; a crash
in the function ends only this process. The first message names the function; the reply, once it is
loaded, is `{}` or `{"error": ...}`. From then on, each message gets a reply.
"""

import math
import numbers
import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rl_core.rewards.by_name import Call, caller_of
from rl_core.system.child_process import channel_to_parent
from rl_core.system.named_code import load_function
from rl_core.system.sealed import die_with, stay_among_own
from rl_core.system.words import cut, in_one_line

LONGEST_ANSWER: Final = 1_000
"""Characters of `pred` that are kept."""


def main() -> None:
    """Serves until the channel closes; arguments: MiB, the parent's pid."""
    channel = channel_to_parent()
    memory_mib, parent = sys.argv[1:]
    die_with(int(parent))
    limit = int(memory_mib) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stay_among_own()
    sys.path.append(str(Path.cwd()))  # where the user's module may lie: after all others
    try:
        function = load(channel.receive()["function"])
    except BaseException as error:  # noqa: BLE001  # even sys.exit in a user's module is an answer
        channel.send({"error": describe(error)})
        return
    channel.send({})
    own_pid = os.getpid()
    with suppress(EOFError):
        while True:
            said = answer(function, channel.receive())
            if os.getpid() != own_pid:  # the function forked, and this is the copy
                os._exit(0)
            channel.send(said)


def load(name: str) -> Call:
    """Returns what calls the function that `package.module:function` names."""
    return caller_of(load_function(name))


def answer(call: Call, question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of the user's function for one response, or why it is not a reward."""
    try:
        return checked(call(question))
    except BaseException as error:  # noqa: BLE001  # whatever a user's function raises is an answer
        return {"error": describe(error)}


def checked(result: object) -> dict[str, Any]:
    """Returns `score`, and `acc` and `pred` if they are given, as plain values.

    TypeError for neither a number nor a mapping with one, ValueError for a non-finite score.
    """
    said = result if isinstance(result, Mapping) else {"score": result}
    score: Any = said.get("score")
    # The score may be a number or a truth value, of Python, numpy or torch.
    if not isinstance(score, numbers.Real) and getattr(score, "shape", None) != ():
        kind = type(score if isinstance(result, Mapping) else result).__name__
        raise TypeError(f"returned {kind}, not a number or a mapping with a number 'score'")
    if not math.isfinite(score):
        raise ValueError(f"returned {float(score)}, which is no score")
    plain: dict[str, Any] = {"score": float(score)}
    is_right: Any = said.get("acc")
    if is_right is not None:
        plain["acc"] = bool(is_right >= 1)  # half of the tests passed is not correct
    if "pred" in said:
        read = said["pred"]
        text = "" if read is None else str(read)[:LONGEST_ANSWER].strip()
        # Half of a surrogate pair, as json.loads gives it, cannot be written to a file.
        plain["pred"] = text.encode(errors="replace").decode() or None
    return plain


def describe(error: BaseException) -> str:
    """Returns an error in a line of moderate length."""
    return cut(in_one_line(f"{type(error).__name__}: {error}"), 300)


if __name__ == "__main__":
    main()
