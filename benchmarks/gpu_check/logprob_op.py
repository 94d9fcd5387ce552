"""Part b: log-probs and entropy from hidden states, next to the plain way.

The shape is Qwen2.5-0.5B's head on a card.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.peaks import peak_bytes
from benchmarks.gpu_check.report import Row
from rl_core.models.logprobs import Head, token_logprobs_and_entropy

_HIDDEN, _VOCAB, _TEMPERATURE = 896, 151_936, 0.9
_ROUNDS = 5
_BOUNDS = {torch.float32: (1e-3, 1e-4), torch.bfloat16: (0.1, 0.05)}
"""Bounds: of a log-prob or entropy in nats, of a gradient as a share of its length."""
_MIB = 2**20

Outputs = tuple[Tensor, ...]
"""Log-probs and entropies, [N] each."""
Contestant = Callable[[Tensor, Tensor, Tensor], Outputs]


@dataclass(frozen=True)
class _Measured:
    outputs: Outputs
    grads: tuple[Tensor, Tensor]
    seconds: float
    num_bytes: int


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Outputs:
    """Returns both from all logits at once, by torch's own softmax and autograd."""
    logits = (hidden @ weight.T).float() / _TEMPERATURE
    logprobs = logits.log_softmax(dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    probs = logits.softmax(dim=-1)
    return logprobs, logits.logsumexp(dim=-1) - (probs * logits).sum(dim=-1)


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Outputs:
    """Returns both from blocks of tokens of the vocabulary."""
    return token_logprobs_and_entropy(hidden, Head(weight), targets, temperature=_TEMPERATURE)


def checks(bench: Bench) -> Iterator[Row]:
    """Yields, for both types, ours next to the plain way."""
    num_tokens, hidden_size, vocab = (
        (2_048, _HIDDEN, _VOCAB) if bench.on_card else (256, 32, 16_384)
    )
    for dtype in (torch.float32, torch.bfloat16):
        draw = torch.Generator(bench.device).manual_seed(0)

        def normal(*shape: int, draw: torch.Generator = draw) -> Tensor:
            return torch.randn(*shape, generator=draw, device=bench.device)

        hidden = normal(num_tokens, hidden_size).to(dtype)
        weight = (0.05 * normal(vocab, hidden_size)).to(dtype)
        targets = torch.randint(vocab, (num_tokens,), generator=draw, device=bench.device)
        factors = normal(2, num_tokens)

        name = f"{num_tokens:,} x {hidden_size} x {vocab:,}, {str(dtype).removeprefix('torch.')}"
        base = _measured(bench, plain, hidden, weight, targets, factors)
        yield Row(f"plain, {name}", None, _numbers(base))
        measured = _measured(bench, ours, hidden, weight, targets, factors)
        yield _judged(f"ours, {name}", measured, base, _BOUNDS[dtype])


def _measured(
    bench: Bench,
    contestant: Contestant,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    factors: Tensor,
) -> _Measured:
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (hidden, weight)]

    def there_and_back() -> Outputs:
        for tensor in inputs:
            tensor.grad = None
        outputs = contestant(inputs[0], inputs[1], targets)
        sums = [(factor * x).sum() for factor, x in zip(factors, outputs, strict=False)]
        torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return tuple(x.detach() for x in outputs)

    there_and_back()
    for tensor in inputs:
        tensor.grad = None
    outputs, num_bytes = peak_bytes(bench.device, there_and_back)
    seconds: list[float] = []
    for _ in range(_ROUNDS if bench.on_card else 1):
        with bench.timed(seconds):
            there_and_back()
    first, second = (tensor.grad for tensor in inputs)
    assert first is not None
    assert second is not None
    return _Measured(outputs, (first, second), statistics.median(seconds), num_bytes)


def _numbers(measured: _Measured) -> dict[str, float | str]:
    return {"ms": 1e3 * measured.seconds, "MiB": measured.num_bytes / _MIB}


def _judged(name: str, measured: _Measured, base: _Measured, bounds: tuple[float, float]) -> Row:
    nats = max(
        float((x.float() - y.float()).abs().max())
        for x, y in zip(measured.outputs, base.outputs, strict=True)
    )
    gradient = max(
        float((x.float() - y.float()).norm() / y.float().norm())
        for x, y in zip(measured.grads, base.grads, strict=True)
    )
    ok = nats <= bounds[0] and gradient <= bounds[1] and 2 * measured.num_bytes < base.num_bytes
    numbers = _numbers(measured) | {
        "of plain's time": measured.seconds / base.seconds,
        "of its memory": measured.num_bytes / base.num_bytes,
        "nats away": nats,
        "gradient away": gradient,
    }
    return Row(name, ok, numbers, f"allowed {bounds[0]:g}, {bounds[1]:g}, half the memory")
