"""An exported folder as a model's repository of the Hugging Face hub: only when it is asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from rl_core.errors import first_line
from rl_core.system.network import hubs_are_off

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def check_push(name: str) -> None:
    """Raises ValueError where a model could not be pushed, before anything is written."""
    if not _REPOSITORY.fullmatch(name):
        raise ValueError(f"push={name} must be OWNER/NAME of the Hugging Face hub")
    if hubs_are_off():
        raise ValueError(f"push={name}, and HF_HUB_OFFLINE is set: unset it, or leave push= out")


def push_folder(folder: Path, name: str) -> str:
    """Uploads a folder and returns the repository's address; a new one is private.

    The hub is `HF_ENDPOINT`'s, the token that of `hf auth login` or `HF_TOKEN`.

    Raises:
        ValueError: the hub refuses or does not answer; the folder stays.
    """
    hub = HfApi()
    try:
        hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Add the model")
    except (HfHubHTTPError, OSError) as error:
        raise ValueError(
            f"push={name}: the hub did not take it ({first_line(error)}); the folder {folder} is "
            "complete: check HF_TOKEN and its rights, and push again from an empty to="
        ) from error
    return f"{hub.endpoint}/{name}"
