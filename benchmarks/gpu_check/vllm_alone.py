"""Part k: vLLM asleep and awake, and its refusal while another process gives memory back."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu_check.bench import TINY, Bench, random_rollouts
from benchmarks.gpu_check.generation import SHAPE, UTILIZATION, config_of
from benchmarks.gpu_check.report import Row
from rl_core.rollout.protocol import in_order
from rl_core.types import GenerationRequest, SamplingSettings

_GIB = 2**30
_ROUNDS = 3
_HOLDS = "import torch; kept = torch.empty(8 * 2**30, dtype=torch.uint8, device='cuda'); "
_WAITS = "print(flush=True); input()"


def checks(bench: Bench) -> Iterator[Row]:
    """Yields both, if vLLM is installed."""
    if find_spec("vllm") is None:
        yield Row("vLLM", None, note="not installed")
        return
    yield _sleep(bench)
    yield _refusal(bench)


def _sleep(bench: Bench) -> Row:
    """Returns seconds to fall asleep and to wake up, what is free, and if the answers stay."""
    engine = _engine(bench)
    rollouts = random_rollouts(4, 2, prompt=(4, 8), response=(1, 1), vocab_size=512)
    requests = [GenerationRequest(one.prompt_ids, seed=0) for one in rollouts]
    asleep, awake = list[float](), list[float]()
    answers: list[list[list[int]]] = []
    free_gib = 0.0
    for _ in range(_ROUNDS):
        with bench.timed(awake):
            engine._wake_up()
        completions = in_order(engine.generate(requests, SamplingSettings(8, temperature=0.0)))
        answers.append([completion.response_ids.tolist() for completion in completions])
        engine._wake_up()  # it falls asleep after its last answer
        with bench.timed(asleep):
            engine._go_to_sleep()
        if bench.on_card:
            gc.collect()
            torch.cuda.empty_cache()
            free_gib = torch.cuda.mem_get_info()[0] / _GIB
    total_gib = torch.cuda.mem_get_info()[1] / _GIB if bench.on_card else 0.0
    numbers = {"s to sleep": min(asleep), "s to wake": min(awake), "GiB free": free_gib}
    ok = answers == _ROUNDS * answers[:1] and free_gib >= (1 - UTILIZATION / 2) * total_gib
    engine.close()
    return Row("asleep and awake", ok, numbers | {"of GiB": total_gib})


def _refusal(bench: Bench) -> Row:
    """Returns how often vLLM measured, while another process gave 8 GiB back in between.

    On a CPU, where vLLM measures no free memory, the first time raises its error.
    """
    name = "gpu_worker:Worker" if bench.on_card else "cpu_worker:CPUWorker"
    worker = resolve_name(f"vllm.v1.worker.{name}")
    measure = worker.determine_available_memory
    tries = 0
    command = [sys.executable, "-c", f"{_HOLDS if bench.on_card else ''}{_WAITS}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()  # it has the memory

        def after_the_first_look(self: Any) -> int:
            nonlocal tries
            tries += 1
            holder.kill()
            holder.wait()
            if tries == 1 and not bench.on_card:
                raise AssertionError("Error in memory profiling, as rehearsed")
            return int(measure(self))

        with patch.object(worker, "determine_available_memory", after_the_first_look):
            seconds: list[float] = []
            with bench.timed(seconds):
                engine = _engine(bench)
    engine.close()
    return Row("starts after a refusal", tries == 2, {"tries": tries, "s": seconds[0]})


def _engine(bench: Bench) -> Any:
    from rl_core.rollout.vllm_engine import VllmEngine

    config = config_of(bench, "bfloat16" if bench.on_card else "float32")
    model = bench.model("engine", SHAPE if bench.on_card else TINY)
    return VllmEngine(config, model, config.rollout.max_num_seqs)
