"""Preflight: whether an estimator and a policy loss of the user's can be used."""

import os
from collections.abc import Iterator
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.system.child_process import Child
from tasks.preflight_checks import Finding, fatal, ok

_TIMEOUT_S: Final = 300.0
"""torch and the user's module are loaded first."""


def own_algorithm_findings(config: RunConfig) -> Iterator[Finding]:
    """Tries them on two rows, in a process of its own."""
    if not (named := config.own_algorithms):
        return
    words = " and ".join(f"{key}={name}" for key, name in named.items())
    child = Child("rl_core.learner.own_check", os.getpid())
    try:
        child.send({"named": named, "options": config.algorithm.options}, _TIMEOUT_S)
        reason = child.receive(_TIMEOUT_S)["reason"]
    except (OSError, EOFError, ValueError) as error:
        reason = f"{words} ended its process or took too long ({type(error).__name__})"
    finally:
        child.close()
    if reason is None:
        yield ok("algorithm", f"{words}, tried on two rows")
    else:
        yield fatal(
            "algorithm",
            reason,
            "docs/training.md, An algorithm of your own, has what it is given and returns",
        )
