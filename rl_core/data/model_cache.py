"""Stage 2: models that are on this machine, in a folder or in a hub's cache."""

from pathlib import Path

from rl_core.data.modelscope_source import MODEL_FILES, cached_from_modelscope, modelscope_name
from rl_core.system.words import as_path


def find_model_here(path: str) -> Path | None:
    """Returns the folder of a model if it is on this machine, else None; no hub is contacted."""
    if (name := modelscope_name(path)) is not None:
        return cached_from_modelscope(name)
    folder = as_path(path)
    if folder.is_dir():
        return folder.resolve()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, local_files_only=True, allow_patterns=MODEL_FILES))
    except (OSError, ValueError):
        return None
