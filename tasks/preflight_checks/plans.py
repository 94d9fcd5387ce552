"""Preflight's arithmetic: what the run will need of memory and disk, and how long a text may be."""

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rl_core.config.model import NUM_POSITIONS
from rl_core.config.run import RunConfig
from rl_core.data.dataset import count_problems
from rl_core.data.gguf_source import local_folder
from rl_core.data.sampling import total_steps
from rl_core.resources.disk_plan import disk_plan
from rl_core.resources.levers import cheapest_fit, typed, value_of
from rl_core.resources.memory_need import (
    beside_cards,
    card_need,
    learner_peak,
    least_engine_gib,
    machine_need,
    starves_engine,
    why_not_split,
)
from rl_core.resources.memory_plan import ModelShape, compute_width, memory_plan
from rl_core.resources.model_shape import known_shape
from rl_core.system.model_folder import CONFIG, read_object
from rl_core.system.words import GIB, disk_size
from rl_core.tracking.host_memory import memory_left, own_bytes
from tasks.preflight_checks import Finding, fatal, ok, warning
from tasks.preflight_checks.device import cards_here

_VERSIONS_IN_FLIGHT: Final = 4  # Ray's store holds so many copies of the weights, see cluster.py
_SAVE_S_PER_GB: Final = 2.4  # snapshot and write, on a busy machine (benchmarks, checkpoints)
_NO_HELP: Final = (
    "data.train_batch_size and trainer.test_problems do not change the memory that is needed"
)
_STRETCHED: Final = ("linear", "dynamic")  # RoPE of `factor` times the config's positions


def memory_findings(config: RunConfig) -> Iterator[Finding]:
    """Compares the memory plan with the card or machine; yields settings that would make it fit."""
    shape = model_shape(config)
    if shape is None:
        return
    if (why := why_not_split(shape, config.rollout.tensor_parallel_size)) is not None:
        yield fatal("memory", why)
        return
    on_gpu = bool(config.resources.learner_gpus or config.resources.rollout_gpus)
    limit = config.resources.planned_card_gib if on_gpu else _machine_gib()
    if limit is None:  # no card is named: the smallest that is there
        limit = min((card.total_bytes / GIB for card in cards_here()), default=None)
    if limit is None:
        peak = learner_peak(memory_plan(shape, config))
        message = f"learner {peak.total_bytes / GIB:.2f} GiB at most ({peak.phase})"
        yield ok("memory", message, "resources.gpu_memory_gib=24 compares it with such a card")
        return
    needed = card_need(shape, config, limit) if on_gpu else machine_need(shape, config)
    place = f"a card of {limit:.3g} GiB" if on_gpu else f"this machine, {limit:.1f} GiB are free"
    message = f"{needed.total_gib:.1f} GiB on {place} ({needed})"
    starved = on_gpu and starves_engine(shape, config, limit)
    if starved:
        message += (
            f"; rollout.gpu_memory_utilization={config.rollout.gpu_memory_utilization:g} is less "
            f"than the {least_engine_gib(shape, config):.1f} GiB with which an engine starts"
        )
    yield (
        ok("memory", message)
        if needed.total_gib <= limit and not starved
        else warning("memory", message, *_what_fits(shape, config, limit, on_gpu))
    )


def _what_fits(shape: ModelShape, config: RunConfig, limit: float, on_gpu: bool) -> tuple[str, str]:
    # If the card was looked up, the search for settings needs its size, too.
    resources = config.resources.model_copy(update={"gpu_memory_gib": limit if on_gpu else None})

    def need_gib(settings: RunConfig) -> float:
        if on_gpu and starves_engine(shape, settings, limit):
            return math.inf
        need = card_need(shape, settings, limit) if on_gpu else machine_need(shape, settings)
        return need.total_gib

    fit = cheapest_fit(config.model_copy(update={"resources": resources}), shape, need_gib, limit)
    if fit.fits:
        costs = "; ".join(fit.costs)
        remedy = f"{fit.overrides} would fit, in {fit.need_gib:.1f} GiB (costs: {costs})"
        return f"{remedy}; {_NO_HELP}", fit.overrides
    closest = "no setting makes it fit"
    if math.isfinite(fit.need_gib) and fit.changes:
        closest += f"; {fit.overrides} comes closest, with {fit.need_gib:.1f} GiB"
    return (
        f"{closest}: take a smaller model, a smaller data.max_response_length, or more memory; "
        f"{_NO_HELP}",
        "",
    )


def machine_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields how much of the machine's memory a run takes whose learner is on a card."""
    shape = model_shape(config)
    if shape is None or config.resources.learner_gpus == 0:
        return
    need = beside_cards(shape, config)
    message = f"{need.total_gib:.1f} GiB of the machine's memory ({need})"
    if config.resources.ray_address is not None or not cards_here():
        yield ok("memory", message)
    elif need.total_gib <= (limit := _machine_gib()):
        yield ok("memory", f"{message}, {limit:.1f} are free")
    else:
        fill_it = ("checkpoints.in_background", "resources.offload")
        helpful = [typed({name: False}) for name in fill_it if value_of(config, name)]
        remedy = " or ".join(helpful) or "take a machine with more memory"
        yield warning("memory", f"{message}, {limit:.1f} are free", remedy)


def _machine_gib() -> float:
    """Returns the free memory, with that of this process, which the plan counts as well."""
    return (memory_left()[0] + own_bytes(os.getpid())) / GIB


def disk_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields what training will write, the place of temporary files, and when the disk is full."""
    shape = model_shape(config)
    if shape is None:
        return
    try:
        num_steps = total_steps(config, count_problems(config))
    except ValueError:
        return  # another check reports it
    plan = disk_plan(shape, config, num_steps)
    root = config.storage.root.absolute()
    free = shutil.disk_usage(next(p for p in (root, *root.parents) if p.exists())).free
    at = plan.fills_at(free)
    message = (
        f"a checkpoint takes {disk_size(plan.checkpoint_bytes)}, those kept "
        f"{disk_size(plan.kept_bytes)} with the one being written; rollouts, tests and metrics "
        f"{disk_size(plan.step_bytes)} a step at most; {disk_size(plan.total_bytes)} after "
        f"{num_steps:,} steps, {disk_size(free)} are free"
    )
    if at == 0:
        yield fatal(
            "disk plan",
            message,
            "even the checkpoints do not fit: lower checkpoints.keep_last, train adapters "
            "(model.lora_rank=64), or set storage.root to a larger disk",
        )
    elif at is not None:
        yield warning("disk plan", message, f"the disk would be full at step {at:,}")
    else:
        seconds = _SAVE_S_PER_GB * plan.checkpoint_bytes / 10**9
        grace_s = config.trainer.stop_grace_s
        too_long = (
            f"one takes about {seconds:.0f} s to write and SIGTERM leaves {grace_s:g} s: raise "
            "trainer.stop_grace_s, and give what sends SIGTERM 15 s more than that, or a stop "
            "loses the steps since the last checkpoint"
        )
        yield ok("disk plan", message, too_long if seconds > grace_s else "")
    if plan.checkpoint_bytes > config.checkpoints.quota_bytes:
        yield warning(
            "disk plan",
            f"checkpoints.quota_bytes={config.checkpoints.quota_bytes} is less than one checkpoint",
            f"latest and best are kept anyway; set it to {3 * plan.checkpoint_bytes} or more",
        )
    # Ray keeps weights on their way to the engines in shared memory, else in its temp folder.
    shared = Path("/dev/shm")
    spill = Path(tempfile.gettempdir())
    in_flight = _VERSIONS_IN_FLIGHT * compute_width(config) * shape.num_parameters
    free = shutil.disk_usage(shared).free if shared.is_dir() else 0
    on_disk = shutil.disk_usage(spill).free
    if in_flight > free:
        yield (warning if in_flight <= on_disk else fatal)(
            "disk plan",
            f"Ray needs {disk_size(in_flight)} for weights on their way, {shared} has "
            f"{disk_size(free)} free; it will use {spill} ({disk_size(on_disk)} free), which is "
            "slower",
            "give the machine (or container: --shm-size) more shared memory",
        )


def model_shape(config: RunConfig) -> ModelShape | None:
    """Returns the model's shape; None if it is not known here, or its kind cannot be planned."""
    path = config.model.path
    if path is None:
        return ModelShape.of_base_model(config.base_model)
    folder = local_folder(path, config.storage.root)
    if not folder.is_dir() and (known := known_shape(path)) is not None:
        return known
    with suppress(OSError, ValueError):
        return ModelShape.from_folder(folder)
    return None


_GAP: Final = 0.04
"""Standard deviation of a token's log-prob, learner less engine, in bfloat16 as measured."""


def importance_findings(config: RunConfig) -> Iterator[Finding]:
    """Warns of bounds of a response's mean that rounding alone exceeds: short ones have more."""
    actor = config.actor
    longest = config.data.max_response_length
    band = min(1 - (actor.importance_low or 0.0), (actor.importance_cap or math.inf) - 1)
    noise = _GAP / math.sqrt(longest)
    is_weighed = actor.importance_cap is not None
    if actor.importance_level == "geometric" and is_weighed and noise > band / 2:
        yield warning(
            "lengths",
            f"actor.importance_level=geometric drops what is {band:.3g} away from 1, and rounding "
            f"moves responses of data.max_response_length={longest} tokens by {noise:.2g}",
            f"bounds {4 * noise:.1g} away from 1, or actor.importance_level=token",
        )


def length_findings(config: RunConfig) -> Iterator[Finding]:
    """Refuses rollouts longer than the model reads; else vLLM would refuse them as it loads."""
    positions = _positions(config)
    data = config.data
    longest = data.max_prompt_length + data.max_response_length
    model = config.model.path or "the home-made base model"
    if positions is not None and longest > positions:
        yield fatal(
            "lengths",
            f"data.max_prompt_length={data.max_prompt_length} and data.max_response_length="
            f"{data.max_response_length} are {longest:,} tokens, and {model} reads {positions:,}",
            "lower one of them, or set model.path to a model that reads more",
        )


def _positions(config: RunConfig) -> int | None:
    if config.model.path is None:
        return NUM_POSITIONS
    settings: Mapping[str, Any] = {}
    with suppress(OSError, ValueError):  # another check reports it
        settings = read_object(local_folder(config.model.path, config.storage.root) / CONFIG)
    if (positions := settings.get("max_position_embeddings")) is None:
        return None
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    is_stretched = rope.get("rope_type", rope.get("type")) in _STRETCHED
    return int(positions * (rope.get("factor") or 1)) if is_stretched else int(positions)
