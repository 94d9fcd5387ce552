"""A checkpoint as a folder for others, with a model card."""

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from safetensors.torch import load_file, save_file

from rl_core.checkpoints.manifest import read_manifest
from rl_core.config.operations import protocol_of
from rl_core.data.adapter_source import merge
from rl_core.evaluation.statistics import wilson_interval
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.system.atomic import disk_errors_as_os_errors, new_folder
from rl_core.system.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_FOLDER,
    ADAPTER_WEIGHTS,
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    TOKENIZER_FILES,
    adapter_in,
    check_files,
    copy_files,
    read_object,
    weight_files,
)
from rl_core.system.words import as_path, in_one_line
from tasks.prefect_ui.artifacts import plain
from tasks.queries import sql
from tasks.queries.checkpoint_names import NamedModel
from tasks.queries.run_tables import num_tested
from tasks.report_page.page import render_text

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LICENSES: Final = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt")
_NOT_SHOWN: Final = ("storage", "resources", "checkpoints", "retry", "budget", "watchdog", "run_id")


def model_card(model: NamedModel, root: Path, *, holds: str, library: str) -> str:
    """Returns the card as Markdown; without a run it has no accuracy and no settings."""
    facts: dict[str, Any] = {"base_model": None, "settings": None}
    if model.run is not None:
        settings = read_settings(model.run.path)
        base = settings.get("model", {}).get("path")
        if isinstance(base, str) and not as_path(base).is_absolute():
            facts["base_model"] = base.removeprefix("modelscope:")
        # Only settings that affect what is learned, not places of files and machines.
        shown = {name: value for name, value in settings.items() if name not in _NOT_SHOWN}
        facts["settings"] = shown and yaml.safe_dump(shown, sort_keys=False).rstrip()
        facts |= _measured(model, model.run, root) | {"protocol": protocol_of(settings)}
    facts["version"] = importlib.metadata.version("countdown-train")
    return render_text("card.md.j2", model=model, holds=holds, library=library, **facts)


def _measured(model: NamedModel, run: RunFolder, root: Path) -> dict[str, Any]:
    """Returns `rows` of accuracies; `tested_on` problems, if only a test has the model's."""
    rows = sql.ask("evaluation_summary", root=root, run=run.run_id).to_dicts()
    rows = [row for row in rows if row["model"] in ("base", model.model)]
    tested_on = None
    if not any(row["model"] == model.model for row in rows):
        manifest = read_manifest(model.folder)
        tested_on = num_tested(run.path)
        if isinstance(manifest, str) or manifest.accuracy is None or tested_on is None:
            return {"rows": [], "tested_on": None}
        low, high = wilson_interval(round(manifest.accuracy * tested_on), tested_on)
        row = {"model": model.model, "problems": tested_on, "accuracy": manifest.accuracy}
        rows.append({**row, "accuracy_low": low, "accuracy_high": high})
    for row in rows:
        row["interval"] = f"{row['accuracy_low']:.3f} to {row['accuracy_high']:.3f}"
    return {"rows": rows, "tested_on": tested_on}


def export_model(model: NamedModel, root: Path, *, dtype: str, to: Path) -> Path:
    """Writes a model's folder, whole or not at all, and returns it; `dtype` is one of `DTYPES`.

    ValueError if there is something at `to`, a weight is too large for the type, or the folder is
    damaged or holds a link that leads out of it.
    """
    check_files(model.folder)
    _refuse_filled(to)
    with disk_errors_as_os_errors(to.absolute().parent), new_folder(to.absolute()) as temporary:
        copy_files(model.folder, (GENERATION_CONFIG, *TOKENIZER_FILES, *_LICENSES), temporary)
        weights = model.folder
        if (adapter := adapter_in(weights)) is not None:
            weights = temporary / "merged"
            merge(adapter, weights)
        for name in weight_files(weights):
            _write_weights(weights / name, temporary / name, DTYPES[dtype])
        if (weights / INDEX).is_file():  # weights in several files: which file has which
            total = sum(file.stat().st_size for file in temporary.glob("*.safetensors"))
            index = read_object(weights / INDEX) | {"metadata": {"total_size": total}}
            (temporary / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        if adapter is not None:
            shutil.rmtree(weights)
        settings = read_object(model.folder / CONFIG) | {"dtype": dtype}
        settings.pop("torch_dtype", None)
        (temporary / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        (temporary / "README.md").write_text(
            model_card(model, root, holds=f"Weights in {dtype}", library="transformers"),
            encoding="utf-8",
        )
    return to


def export_adapter(model: NamedModel, root: Path, *, to: Path) -> Path:
    """Writes a checkpoint's adapter as PEFT's `from_pretrained` reads it, and its tokenizer.

    ValueError as `export_model`, or if all weights were trained.
    """
    check_files(model.folder)
    _refuse_filled(to)
    adapter = model.folder / ADAPTER_FOLDER
    if not adapter.is_dir():
        raise ValueError(f"{model.name} holds no adapter (model.lora_rank=0): leave adapter out")
    check_files(adapter)
    with disk_errors_as_os_errors(to.absolute().parent), new_folder(to.absolute()) as temporary:
        copy_files(adapter, (ADAPTER_CONFIG, ADAPTER_WEIGHTS), temporary)
        copy_files(model.folder, TOKENIZER_FILES, temporary)
        base = str(read_object(adapter / ADAPTER_CONFIG).get("base_model_name_or_path"))
        shown = as_path(base).name if as_path(base).is_absolute() else base  # others lack the place
        holds = f"An adapter (LoRA) of {plain(in_one_line(shown))}"
        card = model_card(model, root, holds=holds, library="peft")
        (temporary / "README.md").write_text(card, encoding="utf-8")
    return to


def _refuse_filled(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"to={to} exists already: name a new folder, or empty this one")


def _write_weights(file: Path, target: Path, dtype: torch.dtype) -> None:
    """Casts one file of weights, so that only one is in memory at a time."""
    weights = load_file(file)
    for name, weight in weights.items():
        if weight.is_floating_point():
            cast = weight.to(dtype)
            if torch.isinf(cast).any() and not torch.isinf(weight).any():
                raise ValueError(
                    f"{name} holds {weight.abs().max().item():g}, too large for {dtype}: "
                    "use dtype=bfloat16"
                )
            weights[name] = cast
    save_file(weights, target, metadata={"format": "pt"})
