"""How the help groups the commands, and what other programs call them."""

from collections.abc import Mapping
from typing import Final

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("run", "generate", "validate", "train", "evaluate", "watch", "stop"),
    "look at runs": (
        "runs",
        "logs",
        "report",
        "audit",
        "open",
        "note",
        "compare",
        "sql",
        "data",
        "ask",
        "play",
        "rescore",
    ),
    "plan and set up": ("preflight", "reward", "config", "explain", "import", "completion"),
    "keep and share": ("export", "prune", "sync", "serve", "notify"),
}
"""How the help lists the commands."""
ELSEWHERE: Final = {
    **dict.fromkeys(("resume", "continue", "restart"), "run run_id=RUN continues a run"),
    **dict.fromkeys(("ls", "list", "ps", "status"), "runs lists the runs and how they ended"),
    **dict.fromkeys(("tail", "log"), "logs -f RUN follows a run's log"),
    **dict.fromkeys(("rm", "delete", "clean"), "prune RUN deletes what a run no longer needs"),
    **dict.fromkeys(("kill", "cancel"), "stop RUN stops a run, which saves first"),
    **dict.fromkeys(
        ("login", "wandb"), "sync RUN uploads to wandb, with the login of `wandb login`"
    ),
    **dict.fromkeys(("eval", "test", "benchmark"), "evaluate RUN evaluates base and trained model"),
    **dict.fromkeys(
        ("chat", "infer", "generate-text"), 'ask RUN "QUESTION" asks the trained model'
    ),
    **dict.fromkeys(
        ("merge", "push", "save"), "export RUN/best to=FOLDER writes a model for others"
    ),
    **dict.fromkeys(("diff",), "compare RUN RUN shows results and settings that differ"),
    **dict.fromkeys(("init", "new", "setup"), "config prints all settings, run starts a run"),
}
"""What other programs call it, and the command that does it here."""
