"""Log-probs and entropy from hidden states, forward and backward: ours beside the peers'.

    .venv/bin/python benchmarks/logprob_memory.py [--tokens 2048] [--rounds 3]

The shape is Qwen2.5-0.5B's head. Each contestant runs in a process of its own, in turn, on one
thread; the table gives medians of CPU seconds and of MB above the inputs' own, with the ratio to
the plain way (all logits at once, as TinyZero and verl's default do it). TRL's and verl's functions
come from their packages, which are unpacked into a folder of their own and not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rl_core.system.process_env import apply_defaults

apply_defaults()

import torch  # noqa: E402  # reads its settings from the environment on import
from torch import Tensor  # noqa: E402

from rl_core.models.logprobs import token_logprobs_and_entropy  # noqa: E402

HIDDEN, VOCAB = 896, 151_936
TEMPERATURE = 0.9
PEERS = Path(__file__).parents[1] / "outputs" / "peers"
REQUIREMENTS = ("trl==1.16.0", "verl==0.9.1")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Contestant = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both from all logits at once, by torch's own softmax and autograd."""
    logits = (hidden @ weight.T).float() / TEMPERATURE
    logprobs = logits.log_softmax(dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    probs = logits.softmax(dim=-1)
    return logprobs, logits.logsumexp(dim=-1) - (probs * logits).sum(dim=-1)


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both from blocks of tokens of the vocabulary."""
    return token_logprobs_and_entropy(hidden, weight, targets, temperature=TEMPERATURE)


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def trl(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both by TRL's chunked function, with its trainer's chunk size."""
    utils = types.ModuleType("trl.trainer.utils")
    utils.maybe_gather_lm_head_ctx = lambda *_: nullcontext()  # type: ignore[attr-defined]  # all it needs of TRL's trainer, for sharded models
    for name in ("trl", "trl.trainer", "trl.kernels"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["trl.trainer.utils"] = utils
    module = _load("trl.kernels.chunked_logprob", PEERS / "trl/kernels/chunked_logprob.py")
    source = (PEERS / "trl/trainer/utils.py").read_text(encoding="utf-8")
    found = re.search(r"_CHUNKED_LOGPROB_CHUNK_SIZE = (\d+)", source)
    assert found is not None
    logprobs, entropy, *_ = module.ChunkedLogProbFunction.apply(
        hidden, weight, None, targets, TEMPERATURE, int(found[1]), None, 1.0, ("entropy",)
    )
    return logprobs, entropy


def verl(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both by verl's fused linear function."""
    module = _load("verl_fused", PEERS / "verl/utils/experimental/torch_functional.py")
    logprobs, entropy = module.FusedLinearForPPO()(hidden, weight, targets, TEMPERATURE)
    return logprobs, entropy


CONTESTANTS: dict[str, Contestant] = {"plain": plain, "trl": trl, "verl": verl, "ours": ours}


def _memory_mb(field: str) -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def measure(name: str, dtype: torch.dtype, num_tokens: int) -> dict[str, float]:
    """Returns CPU seconds, MB above the inputs, and a checksum of each result and gradient."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(VOCAB, HIDDEN, dtype=dtype)
    for block in weight.split(4_096):
        block.copy_(torch.randn(block.shape, generator=generator) * 0.05)
    hidden = torch.randn(num_tokens, HIDDEN, generator=generator).to(dtype)
    targets = torch.randint(VOCAB, (num_tokens,), generator=generator)
    factors = torch.randn(2, num_tokens, generator=generator)
    contestant = CONTESTANTS[name]
    small = [hidden[:8].clone().requires_grad_(), weight[:1_024].clone().requires_grad_()]
    sum(x.sum() for x in contestant(small[0], small[1], targets[:8] % 1_024)).backward()  # type: ignore[union-attr]  # warms up what torch sets up once
    hidden.requires_grad_()
    weight.requires_grad_()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before, start = _memory_mb("VmRSS"), time.process_time()
    logprobs, entropy = contestant(hidden, weight, targets)
    loss = (factors[0] * logprobs).sum() + (factors[1] * entropy).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    seconds, peak = time.process_time() - start, _memory_mb("VmHWM")
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "cpu_s": seconds,
        "mb": peak - before,
        "logprob": float(logprobs.double().mean()),
        "entropy": float(entropy.double().mean()),
        "hidden_grad": float(hidden.grad.double().norm()),
        "weight_grad": float(weight.grad.norm()),
    }


def main() -> None:
    """Prints one table per dtype."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2_048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, help="measure one contestant at one dtype, print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        name, dtype = arguments.one
        print(json.dumps(measure(name, DTYPES[dtype], arguments.tokens)))
        return
    uv = Path(sys.executable).with_name("uv")
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--target", PEERS, *REQUIREMENTS]
    subprocess.run(install, check=True)
    for dtype in DTYPES:
        results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
        for _ in range(arguments.rounds):
            for name, measured in results.items():
                command = [sys.executable, __file__, "--one", name, dtype]
                command += ["--tokens", str(arguments.tokens)]
                output = subprocess.run(command, check=True, capture_output=True, text=True)
                measured.append(json.loads(output.stdout.splitlines()[-1]))
        _print_table(dtype, arguments.tokens, results)


def _print_table(dtype: str, num_tokens: int, results: dict[str, list[dict[str, float]]]) -> None:
    medians = {
        name: {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        for name, measured in results.items()
    }
    base = medians["plain"]
    print(f"\n{dtype}, {num_tokens:,} tokens x {HIDDEN} x {VOCAB:,}, one thread")
    print("contestant   CPU s  of plain      MB  of plain   logprob  entropy  |dh|  |dW|")
    for name, row in medians.items():
        print(
            f"{name:10} {row['cpu_s']:7.1f} {row['cpu_s'] / base['cpu_s']:9.2f} {row['mb']:7.0f} "
            f"1/{base['mb'] / row['mb']:<7.1f} {row['logprob']:9.4f} {row['entropy']:8.4f} "
            f"{row['hidden_grad']:.4g} {row['weight_grad']:.4g}"
        )


if __name__ == "__main__":
    main()
