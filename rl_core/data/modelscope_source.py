"""Stage 2: models that are on this machine, and those of ModelScope (the extra `modelscope`)."""

from __future__ import annotations

import importlib.util
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rl_core.system.atomic import locked
from rl_core.system.model_folder import CONFIG, INDEX, names_in_index
from rl_core.system.network import hubs_are_off, why_unreachable
from rl_core.system.words import as_path

if TYPE_CHECKING:
    from modelscope_hub import HubConfig

MODEL_FILES: Final = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
"""Files that a model is loaded from; pickled weights and pictures are not downloaded."""
_PREFIX: Final = "modelscope:"
_NAME: Final = re.compile(r"[\w.-]*\w[\w.-]*/[\w.-]*\w[\w.-]*")


def modelscope_name(path: str) -> str | None:
    """Returns OWNER/NAME of `modelscope:OWNER/NAME`, None for other paths; or ValueError."""
    if not path.startswith(_PREFIX):
        return None
    name = path.removeprefix(_PREFIX)
    if not _NAME.fullmatch(name):
        raise ValueError(f"model.path={path}: a model of ModelScope is {_PREFIX}OWNER/NAME")
    if importlib.util.find_spec("modelscope_hub") is None:
        raise ValueError(
            f"model.path={path} needs the package modelscope-hub, which is not installed: "
            "pip install modelscope-hub (the extra `modelscope`), or give a local folder"
        )
    return name


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


def fetch_from_modelscope(name: str) -> Path:
    """Returns the folder of OWNER/NAME; what the local cache lacks is downloaded, or ValueError.

    A broken download is continued. If the cache has all files, the network is not used.
    """
    if (folder := cached_from_modelscope(name)) is not None:
        return folder
    refused = f"model.path={_PREFIX}{name} is not in ModelScope's local cache"
    if hubs_are_off():
        raise ValueError(
            f"{refused}, and HF_HUB_OFFLINE is set: unset it to fetch it, or give a local folder"
        )
    if (why := why_unreachable(modelscope_url())) is not None:
        raise ValueError(
            f"{refused}, and {modelscope_url()} does not answer ({why}): "
            "connect this machine, fill the cache elsewhere, or give a local folder"
        )
    settings = _settings()
    # Another run may be fetching it.
    with locked(settings.cache_dir / ".countdown-train" / name.replace("/", "--")):
        return cached_from_modelscope(name) or _download(settings, name, refused)


def cached_from_modelscope(name: str) -> Path | None:
    """Returns a model's folder in ModelScope's cache; None if it is missing or not complete."""
    from modelscope_hub import CacheNotFound, HubApi

    try:
        folder = HubApi(_settings()).download_repo(name, "model", local_files_only=True)
    except CacheNotFound:
        return None
    # A file gets its name only when it is whole: the copy is whole if no file is missing.
    names = names_in_index(folder) if (folder / INDEX).is_file() else ["model.safetensors"]
    is_whole = all((folder / file).is_file() for file in (CONFIG, *names))
    return folder.resolve() if is_whole and not any(folder.glob("*.incomplete")) else None


def modelscope_url() -> str:
    """Returns the URL of ModelScope's first site; a model may also be on its other site."""
    return str(_settings().endpoint)


def _download(settings: HubConfig, name: str, refused: str) -> Path:
    from modelscope_hub import HubApi, HubError

    try:
        site = HubApi(settings).resolve_endpoint_for_read(name)
        # The report names every file that failed. Unlike a plain download, this one refuses paths
        # that would lead out of the cache.
        with closing(
            HubApi(settings, endpoint=site).download_repo_report(
                name, "model", allow_patterns=MODEL_FILES, retry_failed=True
            )
        ) as report:
            failed = [f"{file.path}: {file.error}" for file in report.iter_files() if file.error]
            reasons = [report.global_error, *report.listing_errors, *failed, report.status]
            reason = None if report.complete else next(filter(None, reasons))
            folder = Path(report.output_dir)
    except (HubError, OSError) as error:
        reason = str(error)
    if reason is not None:
        why = reason.strip().partition("\n")[0][:200]  # a whole answer may follow
        raise ValueError(
            f"{refused}, and ModelScope did not give it whole ({why}): check the name and, for a "
            "private model, MODELSCOPE_API_TOKEN; the same command continues from what did arrive"
        )
    if not (folder / "config.json").is_file():
        raise ValueError(f"{refused}, and what ModelScope has of it holds no config.json: no model")
    return folder.resolve()


def _settings() -> HubConfig:
    from modelscope_hub import HubConfig

    class Anonymous(HubConfig):
        """Sends no identifier of this installation: that is ModelScope's telemetry."""

        def get_session_id(self) -> str:
            return ""  # then each request carries a new random one

    return Anonymous()
