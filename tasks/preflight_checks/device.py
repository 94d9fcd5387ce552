"""Preflight's check of the card: can this torch compute on it, and what else uses it.

torch is loaded in a separate process, and only if the settings need a GPU: it takes seconds to
load, and would hold memory of the card while the run is prepared.
"""

import ctypes
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.resources.placement import card_tenants
from rl_core.system.devices import has_fast_bfloat16
from rl_core.system.process_env import environment_of_child
from rl_core.system.versions import version_of
from rl_core.system.words import as_path, in_one_line
from tasks.preflight_checks import Finding, fatal, ok, warning

_PROBE_TIMEOUT_S: Final = 30.0
_PROBE: Final = """
import json, torch
cards = []
for i in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(i)
    cards.append([torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i), total, free])
arches = torch.cuda.get_arch_list()
print(json.dumps({"torch": torch.__version__, "arches": arches, "cards": cards}))
"""
_NUMA: Final = "libnuma.so.1"
_WHEELS: Final = {12: "CUDA 12.8 or newer (cu128)", 10: "CUDA 12.8 or newer (cu128)"}
"""The CUDA that a card needs its torch wheel to be built with, by major compute capability."""
_OLD_WHEELS: Final = "CUDA 12.6 (cu126), the last that supports cards so old"
_BUSY_SHARE: Final = 0.1  # of a card's memory: if others use more, it is a warning


@dataclass(frozen=True)
class Card:
    """One GPU as torch and the driver see it."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class DeviceFacts:
    """What was found out about this machine's GPUs."""

    torch: str  # version, with its build: `2.13.0+cu128`
    arches: tuple[str, ...]  # what that build has kernels for: `sm_80`, `compute_90`, ...
    cards: tuple[Card, ...]
    driver: str | None
    neighbours: tuple[str, ...]  # other processes on the cards, as `nvidia-smi` names them


def device_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields what was found about the device that the settings need."""
    torch = version_of("torch") or "no torch"
    if not config.resources.learner_gpus and not config.resources.rollout_gpus:
        yield from _cpu_findings(config, torch)
    elif torch.endswith("+cpu"):
        yield fatal(
            "device",
            f"resources ask for a GPU, and torch {torch} is a build without CUDA",
            "GPU=1 make env, or a preset for the CPU (quickstart)",
        )
    elif (facts := read_device()) is None:
        yield warning("device", f"torch {torch} did not list its cards", "try nvidia-smi")
    else:
        yield from judge_device(facts)
        needed = len(card_tenants(config))
        there = len(facts.cards)
        if config.resources.ray_address is None and 0 < there < needed:
            yield fatal(  # Ray would wait for the missing ones
                "device",
                f"learner and engines need {needed} cards, and there "
                f"{'is' if there == 1 else 'are'} {there}",
                "fewer rollout.num_engines, shares of a card (resources.learner_gpus and "
                "resources.rollout_gpus of 0.5), or a cluster (resources.ray_address)",
            )


def _cpu_findings(config: RunConfig, torch: str) -> Iterator[Finding]:
    if config.compute_dtype == "bfloat16" and not has_fast_bfloat16():
        yield warning(
            "device",
            f"CPU, torch {torch}: here model.dtype=bfloat16 takes two to four times as long as "
            "float32 (only AMX and AMD's AVX-512 BF16 are faster)",
            "model.dtype=auto",
        )
    else:
        faster = config.compute_dtype == "float32" and config.model.path and has_fast_bfloat16()
        hint = "; model.dtype=auto takes its bfloat16: a model of 135M learned 1.5 times as fast"
        yield ok("device", f"CPU, torch {torch}{hint if faster else ''}")
    if config.rollout.engine == "vllm" and config.resources.ray_address is None:
        try:
            ctypes.CDLL(_NUMA)
        except OSError:  # vLLM's first call would fail without naming it
            yield fatal(
                "device",
                f"vLLM on a CPU needs the library {_NUMA}, which is not installed",
                "apt-get install libnuma1 (elsewhere numactl-libs or numactl), or "
                "rollout.engine=hf",
            )


def quantization_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields settings of 4 or 8 bits that lack a package or would round what a model learned."""
    needs_it = {
        "actor.optimizer=adamw_8bit": config.actor.optimizer == "adamw_8bit",
        "model.load_in_4bit=true": config.model.load_in_4bit,
        "teacher.load_in_4bit=true": config.teacher.load_in_4bit,
    }
    for setting, is_on in needs_it.items():
        if is_on and importlib.util.find_spec("bitsandbytes") is None:
            yield fatal(
                "device",
                f"{setting} needs the package bitsandbytes, which is not installed",
                "pip install bitsandbytes, or leave the setting out",
            )
    if not config.model.load_in_4bit or config.model.path is None:
        return
    state = as_path(config.model.path) / "trainer" / "learner.json"
    is_rounded = False  # a checkpoint of adapters on weights of 4 bits
    with suppress(OSError, ValueError, KeyError):
        is_rounded = json.loads(state.read_text("utf-8"))["settings"].get("model.load_in_4bit")
    if is_rounded:
        yield fatal(
            "model",
            f"model.path={config.model.path} was trained on weights of 4 bits, and "
            "model.load_in_4bit=true would round away what it has learned",
            "continue that run (run_id=RUN), or set model.load_in_4bit=false",
        )


def judge_device(facts: DeviceFacts) -> Iterator[Finding]:
    """Yields a finding per card: whether torch has kernels for it, and how much of it is free."""
    driver = f"driver {facts.driver}" if facts.driver else "no NVIDIA driver found"
    if not facts.cards:
        yield fatal(
            "device",
            f"resources ask for a GPU, and torch {facts.torch} sees none ({driver})",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use a preset for the CPU (quickstart)",
        )
    for card in facts.cards:
        arch = f"sm_{card.capability[0]}{card.capability[1]}"
        message = f"{card.name}, {arch}, torch {facts.torch}, {driver}"
        if not has_kernels(card.capability, facts.arches):
            is_new = card.capability > max(map(_capability, facts.arches), default=(0, 0))
            wheel = _WHEELS.get(card.capability[0], "a newer CUDA") if is_new else _OLD_WHEELS
            yield fatal(
                "device",
                f"{message}, which was built for {', '.join(facts.arches)}: "
                "it has no kernel image for this card",
                f"install a torch wheel built with {wheel}",
            )
            continue
        used = 1 - card.free_bytes / card.total_bytes
        if used > _BUSY_SHARE:
            others = ", ".join(facts.neighbours) or "unknown to nvidia-smi"
            message += f"; {100 * used:.0f}% of its memory is in use by others ({others})"
            yield warning("device", message, "stop them, or lower rollout.gpu_memory_utilization")
        else:
            yield ok("device", message)


def has_kernels(capability: tuple[int, int], arches: tuple[str, ...]) -> bool:
    """Returns whether a build runs on a card.

    Binary code (`sm_86`) runs on cards of the same major capability and no lower minor one;
    intermediate code (`compute_80`) is compiled for any card from there on (NVIDIA, CUDA C++
    Programming Guide, "Binary Compatibility", "PTX Compatibility").
    """
    return any(
        _capability(arch) <= capability
        and (arch.startswith("compute_") or _capability(arch)[0] == capability[0])
        for arch in arches
    )


@lru_cache(maxsize=1)
def read_device() -> DeviceFacts | None:
    """Returns what torch and nvidia-smi say; None if torch does not answer."""
    facts = ask_python(_PROBE)
    if facts is None:
        return None
    return DeviceFacts(
        torch=facts["torch"],
        arches=tuple(facts["arches"]),
        cards=tuple(Card(n, (c[0], c[1]), total, free) for n, c, total, free in facts["cards"]),
        driver=next(iter(_nvidia_smi("--query-gpu=driver_version")), None),
        neighbours=tuple(_nvidia_smi("--query-compute-apps=process_name,used_memory")),
    )


def cards_here() -> tuple[Card, ...]:
    """Returns the cards of this machine; none if this torch computes on CPUs only."""
    is_cpu_build = (version_of("torch") or "").endswith("+cpu")
    return () if is_cpu_build or (facts := read_device()) is None else facts.cards


def ask_python(program: str, **environment: str) -> Any:
    """Returns the JSON that a Python program prints last; None if it prints none."""
    printed = _lines([sys.executable, "-P", "-c", program], environment_of_child() | environment)
    with suppress(ValueError, IndexError):
        return json.loads(printed[-1])
    return None


def _lines(command: list[str], environment: dict[str, str] | None = None) -> list[str]:
    """Returns what a command prints; nothing if it fails."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
            env=environment,
        ).stdout.splitlines()
    return []


def _capability(arch: str) -> tuple[int, int]:
    """`sm_90a` is (9, 0), `compute_120` is (12, 0)."""
    digits = re.sub(r"\D", "", arch.partition("_")[2])
    return (int(digits[:-1]), int(digits[-1])) if len(digits) > 1 else (0, 0)


def _nvidia_smi(query: str) -> list[str]:
    printed = _lines(["nvidia-smi", query, "--format=csv,noheader"])
    return [in_one_line(line) for line in printed if line.strip()]
