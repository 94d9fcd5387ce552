"""The path of one puzzle: problem, prompt, rollout, advantage, loss, gradient, checkpoint.

`from rl_core import train` trains from Python, see `rl_core/api.py` and docs/from-python.md.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_core.api import TrainedRun as TrainedRun
    from rl_core.api import train as train


def __getattr__(name: str) -> Any:
    """Imports the API when it is first used: most processes need one room of this package."""
    if name not in ("train", "TrainedRun"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rl_core import api

    return getattr(api, name)
