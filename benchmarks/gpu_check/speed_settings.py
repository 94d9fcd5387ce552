"""Part h: `model.attention=flex`, `use_torch_compile` and `use_liger`: step time, and equality."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.gpu_check.bench import TINY, Bench
from benchmarks.gpu_check.report import Row
from rl_core.batch import TrainBatch
from rl_core.models import decoder
from rl_core.models.forward import forward_pass
from rl_core.models.kernels import compile_layers, use_liger
from rl_core.models.loading import checkpoint_gradients
from rl_core.models.packing import allow_packing, use_flex

_MODEL = "Qwen/Qwen2.5-0.5B"
_BOUNDS = {torch.bfloat16: 0.02, torch.float32: 1e-4}
"""Of the gradient's distance from the plain one, in parts of its norm."""
_ON_A_CARD = ("attention_flex", "use_liger")
"""On a CPU torch has no backward pass of FlexAttention, and Triton no kernels."""


def checks(bench: Bench) -> Iterator[Row]:
    """Yields the diary's shape with each setting; one that is refused here is told, not judged."""
    folder = bench.model(_MODEL, None if bench.on_card else TINY)
    dtype = torch.bfloat16 if bench.on_card else torch.float32
    figures = speed_settings(
        bench.device,
        shape=transformers.Qwen2Config.from_pretrained(folder).to_dict(),
        num_groups=8 if bench.on_card else 2,
        group_size=4 if bench.on_card else 2,
        prompt_tokens=96 if bench.on_card else 8,
        response_tokens=181 if bench.on_card else 8,
        compute_dtype=dtype,
        repeats=5 if bench.on_card else 1,
        backend="inductor" if bench.on_card else "aot_eager",
    )
    errors = [x for name, x in figures.items() if name.endswith("_grad_error")]
    ok = "plain_s" in figures and all(float(x) <= _BOUNDS[dtype] for x in errors)
    yield Row("passes with each setting", ok, figures, f"allowed {_BOUNDS[dtype]:g} of the norm")


def speed_settings(
    device: torch.device,
    *,
    shape: Mapping[str, Any],
    num_groups: int,
    group_size: int,
    prompt_tokens: int,
    response_tokens: int,
    compute_dtype: torch.dtype = torch.bfloat16,
    repeats: int = 5,
    backend: str = "inductor",
) -> dict[str, float | str]:
    """Returns seconds of a forward and backward pass, plain and with each setting, and its error.

    `<setting>_first_s` has the compiling in it; `<setting>_logprob_error` is the largest difference
    of a log-prob from the plain pass, `<setting>_grad_error` the gradient's, in parts of its norm.
    What cannot run here has a `<setting>` that says why. Liger's comes last: it changes the
    process's models for good.

    Args:
        device: a GPU; a CPU leaves out what wants one, and transformers' layers compute there too.
        shape: fields of a Qwen2Config; weights are random.
        num_groups: prompts, each with `group_size` ragged responses; layers are checkpointed.
        group_size: at least 2.
        prompt_tokens: of each prompt.
        response_tokens: of the longest response; the shortest has half.
        compute_dtype: of the passes.
        repeats: passes timed; the fastest counts.
        backend: torch.compile's.
    """
    torch.manual_seed(0)
    base = transformers.Qwen2ForCausalLM._from_config(
        transformers.Qwen2Config(**shape), attn_implementation="sdpa"
    )
    base = base.to(device=device, dtype=torch.float32).eval()
    base.config.use_cache = False
    batch = _batch(base.config.vocab_size, num_groups, group_size, prompt_tokens, response_tokens)
    batch = batch.to(device)
    figures: dict[str, float | str] = {}
    expected: tuple[Tensor, Tensor] | None = None
    settings: dict[str, Callable[[Any], None]] = {
        "plain": lambda model: None,
        "attention_flex": use_flex,
        "use_torch_compile": lambda model: compile_layers(model, backend=backend),
        "use_liger": use_liger,
    }
    for name, switch_on in settings.items():
        if name in _ON_A_CARD and device.type == "cpu":
            figures[name] = "not on a CPU"
            continue
        model = copy.deepcopy(base)
        allow_packing(model)
        checkpoint_gradients(model)
        try:
            switch_on(model)
            times, results = _passes(model, batch, compute_dtype, repeats)
        except Exception as error:  # noqa: BLE001  # the other settings still have figures
            figures[name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        figures |= {f"{name}_first_s": times[0], f"{name}_s": min(times[1:])}
        if expected is None:
            expected = results
        else:
            figures[f"{name}_logprob_error"] = (results[0] - expected[0]).abs().max().item()
            error_norm = (results[1] - expected[1]).norm() / expected[1].norm()
            figures[f"{name}_grad_error"] = error_norm.item()
        del model
        gc.collect()
    return figures


def _passes(
    model: Any, batch: TrainBatch, compute_dtype: torch.dtype, repeats: int
) -> tuple[list[float], tuple[Tensor, Tensor]]:
    """Returns seconds of each pass, the first apart, and the last one's log-probs and gradient."""
    assert not decoder.supports(model.get_decoder()), "checkpointed layers are transformers'"
    times = []
    for _ in range(1 + repeats):
        model.zero_grad(set_to_none=True)
        _wait(batch)
        start = time.perf_counter()
        logprobs = forward_pass(batch, actor=model, compute_dtype=compute_dtype).logprobs
        assert logprobs is not None
        (logprobs.sum() / len(batch)).backward()
        _wait(batch)
        times.append(time.perf_counter() - start)
    grads = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return times, (logprobs.detach(), torch.cat(grads))


def _wait(batch: TrainBatch) -> None:
    if batch.input_ids.is_cuda:
        torch.cuda.synchronize()


def _batch(
    vocab_size: int, num_groups: int, group_size: int, prompt_tokens: int, response_tokens: int
) -> TrainBatch:
    num_rows = num_groups * group_size
    groups = torch.arange(num_rows) // group_size
    prompts = torch.randint(vocab_size, (num_groups, prompt_tokens))[groups]
    responses = torch.randint(vocab_size, (num_rows, response_tokens))
    lengths = torch.linspace(response_tokens / 2, response_tokens, num_rows).long().clamp(min=1)
    return TrainBatch(
        input_ids=torch.cat([prompts, responses], dim=1),
        prompt_lengths=torch.full((num_rows,), prompt_tokens),
        response_lengths=lengths,
        rollout_logprobs=torch.zeros(num_rows, response_tokens),
        rewards=torch.zeros(num_rows),
        group_ids=groups,
        correct=torch.zeros(num_rows, dtype=torch.bool),
        truncated=torch.zeros(num_rows, dtype=torch.bool),
    )
