"""What phases cost: seconds, memory peaks, and what share of the device's arithmetic they use."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.resources.memory_plan import ModelShape
from rl_core.system.words import GIB

_PAGES = ("VmHWM", "RssFile", "RssShmem")


@contextmanager
def measured(phase: str, device: torch.device, metrics: dict[str, float]) -> Iterator[None]:
    """Writes to `metrics` what the block costs: `timing_s/<phase>` and `memory/peak_gib/<phase>`.

    On a GPU the peak is of all tensors, and the time includes queued kernels; on a CPU the peak is
    of the process's own memory, as in `memory/host_gib/learner`, without pages that others share.
    A GPU also has `memory/card_gib`, its total memory, and `memory/card_left_gib/<phase>`: what no
    process used of it at the peak.
    """
    start = time.perf_counter()
    _reset_peak(device)
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    metrics[f"timing_s/{phase}"] = time.perf_counter() - start
    metrics[f"memory/peak_gib/{phase}"] = _peak_bytes(device) / GIB
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # Memory that torch caches can be used again, so it counts as free.
        mine = torch.cuda.memory_reserved(device)
        metrics[f"memory/card_left_gib/{phase}"] = (free + mine - _peak_bytes(device)) / GIB
        metrics["memory/card_gib"] = total / GIB


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # If the system does not allow it, the peak is the highest since the start.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    held = {name: int(status.split(f"{name}:")[1].split()[0]) * 1024 for name in _PAGES}
    # Linux records only the peak of all pages; shared ones hardly change within a phase.
    return held["VmHWM"] - held["RssFile"] - held["RssShmem"]


class Utilisation:
    """The share of the device's measured peak that updates use (`mfu/*`), if shapes are known.

    If it `shares_prompts`, a group's prompt is computed once for all its responses.
    """

    def __init__(
        self, config: RunConfig, model_path: Path, device: torch.device, *, shares_prompts: bool
    ) -> None:
        self._shares_prompts = shares_prompts
        self._epochs = config.actor.ppo_epochs
        self._shape: ModelShape | None = None
        with suppress(ValueError):
            self._shape = ModelShape.from_folder(model_path)
        dtype = torch.bfloat16 if config.compute_dtype == "bfloat16" else torch.float32
        resources = config.resources
        self._peak = resources.learner_ranks * peak_flops(device, dtype, resources.learner_threads)

    def shares(
        self, batch: TrainBatch, teaches: Tensor, seconds: Mapping[str, float]
    ) -> dict[str, float]:
        """Returns `mfu/actor` and `mfu/critic`, of those that were updated.

        The actor's gradient comes from the rows that `teaches` (bool [B]); `seconds` has
        `timing_s/update_actor` and `timing_s/update_critic`.
        """
        if self._shape is None:
            return {}
        own_prompt = torch.ones_like(batch.prompt_lengths, dtype=torch.bool)
        if self._shares_prompts:
            own_prompt[:] = False
            own_prompt[batch.prompts()[0]] = True
        shares = {}
        for model, has_head in (("actor", True), ("critic", False)):
            phase = f"timing_s/update_{model}"
            if phase in seconds:
                flops = self._epochs * training_flops(
                    self._shape,
                    batch.prompt_lengths,
                    batch.response_lengths,
                    own_prompt=own_prompt,
                    backward=teaches if has_head else None,
                    has_head=has_head,
                )
                shares[f"mfu/{model}"] = flops / (seconds[phase] * self._peak)
        return shares


def training_flops(
    shape: ModelShape,
    prompt_lengths: Tensor,
    response_lengths: Tensor,
    *,
    own_prompt: Tensor | None = None,
    backward: Tensor | None = None,
    has_head: bool,
) -> float:
    """Returns the floating-point operations of one forward and backward pass over a batch.

    Two per weight and token forward, twice that backward; attention over half of each square; the
    output layer only at response tokens. Padding and what is computed again do not count
    (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). Lengths are tokens, int64 [B].

    `own_prompt` (bool [B]) are the rows whose prompt is computed, one of each group where a group
    shares it, and `backward` (bool [B]) those with a backward pass; None for all. An actor has an
    output layer, a critic does not.
    """
    shared = 0 if own_prompt is None else prompt_lengths.double() * ~own_prompt
    lengths = (prompt_lengths + response_lengths).double()
    weights = shape.num_layers * shape.num_layer_parameters * (lengths - shared)
    query_size = shape.num_heads * shape.head_size
    attention = shape.num_layers * query_size * (lengths.square() - shared**2)
    head = shape.vocab_size * shape.hidden_size * response_lengths.double() * has_head
    passes = 3 if backward is None else 1 + 2 * backward.double()
    return float((passes * 2 * (weights + attention + head)).sum())


def peak_flops(device: torch.device, dtype: torch.dtype, num_threads: int) -> float:
    """Returns the rate of a large matrix product, operations per second: the best of a few.

    On a CPU each thread computes a product of its own, in float32 if that is faster than `dtype`,
    and CPU time counts: other programs distort the clock's.
    """
    on_gpu = device.type == "cuda"
    size = 8192 if on_gpu else 512
    clock = time.perf_counter if on_gpu else time.process_time
    best = 0.0
    for kind in {dtype, torch.float32}:
        left = torch.ones(size, size, device=device, dtype=kind)
        for _ in range(4 if on_gpu else 10):
            start = clock()
            torch.mm(left, left)
            if on_gpu:
                torch.cuda.synchronize(device)
            best = max(best, 2 * size**3 / (clock() - start))
    return best * (1 if on_gpu else num_threads)
