"""Part b: log-probs and entropy from hidden states, beside the plain way and the peers'.

The shape is Qwen2.5-0.5B's head on a card. TRL's and Liger's are measured if they are installed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

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
"""Log-probs and entropies, [N] each; of Liger only the mean negative log-prob."""
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


def trl(hidden: Tensor, weight: Tensor, targets: Tensor) -> Outputs:
    """Returns both by TRL's chunked function, with its trainer's chunk size."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    from trl.trainer import utils

    chunk = utils._CHUNKED_LOGPROB_CHUNK_SIZE
    logprobs, entropy, *_ = ChunkedLogProbFunction.apply(
        hidden, weight, None, targets, _TEMPERATURE, chunk, None, 1.0, ("entropy",)
    )
    return logprobs, entropy


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Outputs:
    """Returns the mean negative log-prob, at temperature 1: less than the others return."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return (LigerFusedLinearCrossEntropyLoss()(weight, hidden, targets),)


_PEERS: dict[str, tuple[str, Contestant]] = {
    "TRL's": ("trl", trl),
    "Liger's": ("liger_kernel", liger),
}


def checks(bench: Bench) -> Iterator[Row]:
    """Yields, for both types, ours and the peers' beside the plain way."""
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

        def measure(contestant: Contestant) -> _Measured:
            return _measured(bench, contestant, hidden, weight, targets, factors)  # noqa: B023  # called at once

        name = f"{num_tokens:,} x {hidden_size} x {vocab:,}, {str(dtype).removeprefix('torch.')}"
        base = measure(plain)
        yield Row(f"plain, {name}", None, _numbers(base))
        yield _judged(f"ours, {name}", measure(ours), base, _BOUNDS[dtype])
        for peer, (package, contestant) in _PEERS.items():
            if bench.on_card and find_spec(package) is not None:
                yield _of_peer(f"{peer}, {name}", lambda c=contestant: measure(c))  # type: ignore[misc]


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


def _judged(name: str, found: _Measured, base: _Measured, bounds: tuple[float, float]) -> Row:
    nats = max(
        float((x.float() - y.float()).abs().max())
        for x, y in zip(found.outputs, base.outputs, strict=True)
    )
    gradient = max(
        float((x.float() - y.float()).norm() / y.float().norm())
        for x, y in zip(found.grads, base.grads, strict=True)
    )
    ok = nats <= bounds[0] and gradient <= bounds[1] and 2 * found.num_bytes < base.num_bytes
    numbers = _numbers(found) | {
        "of plain's time": found.seconds / base.seconds,
        "of its memory": found.num_bytes / base.num_bytes,
        "nats away": nats,
        "gradient away": gradient,
    }
    return Row(name, ok, numbers, f"allowed {bounds[0]:g}, {bounds[1]:g}, half the memory")


def _of_peer(name: str, measure: Callable[[], _Measured]) -> Row:
    try:
        return Row(name, None, _numbers(measure()))
    except Exception as error:  # noqa: BLE001  # a peer of another version is no fault of ours
        return Row(name, None, note=f"{type(error).__name__}: {error}".splitlines()[0])
