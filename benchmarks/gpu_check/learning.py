"""Parts a and l: a step on the device and on the CPU, however it is split, and after a resume.

The measure is AdamW's first moment after a step, which is the clipped gradient: the distance as a
share of its length. In float32 two devices differ by the order of sums. In bfloat16 they round
differently, so both are compared with the CPU's float32, as the CPU's bfloat16 differs from it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.gpu_check.bench import TINY, Bench, Sections, merged, random_batch
from benchmarks.gpu_check.report import Row
from rl_core.algos.advantages import ESTIMATORS
from rl_core.batch import TrainBatch
from rl_core.learner.learner import Learner
from rl_core.learner.update import Pass
from rl_core.models.forward import forward_pass

_SHAPE = TINY | {
    "vocab_size": 4_096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Heads of 64, like Qwen2.5-0.5B's: attention's fast kernels are made for that size."""
_FLOAT32_BOUND = 1e-4
_METRICS_BOUND = 1e-3
"""In float32; of numbers below 1 the distance itself, and one token more or less is clipped."""
_BFLOAT16_BOUND = 0.02
"""Or twice the distance of the CPU's own bfloat16, if that is more."""
_BASE: Sections = {
    "actor": {"lr": 1e-5, "mini_batch_size": 4, "micro_batch_tokens": 1_024},
    "critic": {"lr": 1e-5},
    "algorithm": {"kl_coef": 0.05, "gae_lambda": 0.95, "group_size": 4},
}
_CASES: dict[str, Sections] = {
    **{
        name: {
            "algorithm": {"estimator": name} | ({"kl_mode": "none"} if row.ignores_rewards else {})
        }
        for name, row in ESTIMATORS.items()
        if name not in ("gae", "distill")
    },
    "gspo": {"algorithm": {"estimator": "grpo"}, "actor": {"policy_loss": "gspo"}},
    "cispo": {"algorithm": {"estimator": "grpo"}, "actor": {"policy_loss": "cispo"}},
    "KL in the loss": {
        "algorithm": {"estimator": "grpo", "kl_mode": "loss", "kl_estimator": "k2"},
        "actor": {"loss_aggregation": "seq-mean-token-mean"},
    },
    "adapters": {"model": {"lora_rank": 8}},
    "checkpointing": {"model": {"gradient_checkpointing": True}},
    "overlong masked": {
        "algorithm": {"estimator": "dr_grpo", "mask_truncated": True},
        "actor": {"loss_aggregation": "seq-mean-token-sum"},
    },
    # Not a KL in the reward: only in float32 would it be to the engine's log-probs.
    "one update": {
        "algorithm": {"kl_mode": "loss", "kl_estimator": "k2"},
        "actor": {"mini_batch_size": 8},
    },
}
_SAME: dict[str, Sections] = {
    "gae": {},
    "gae, offload": {"resources": {"offload": True}},
    "gae, split in pieces": {"actor": {"micro_batch_tokens": 64}},
    "gae, not split": {"actor": {"micro_batch_tokens": 8_192}},
}
"""Settings that must change nothing: compared with the CPU's result without them."""
_REHEARSED = ("gae", "gae, split in pieces", "adapters", "checkpointing")
"""The cases in bfloat16 on a CPU, which is slow."""


@dataclass(frozen=True)
class _Outcome:
    gradients: dict[str, Tensor]
    """By model, float64 on the CPU."""
    metrics: dict[str, float]


def checks(bench: Bench) -> Iterator[Row]:
    """Yields each case in both types, the worst of each type, and resumes."""
    shape = _SHAPE if bench.on_card else TINY
    model = bench.model("small", shape)
    sizes = ((24, 40), (16, 96)) if bench.on_card else ((4, 8), (4, 16))
    batch = random_batch(
        8, 4, prompt=sizes[0], response=sizes[1], vocab_size=int(shape["vocab_size"])
    )
    base = merged(_BASE, {"data": {"train_batch_size": 8}})
    rows: dict[str, list[Row]] = {"float32": [], "bfloat16": []}
    for variants in (_SAME, *({name: sections} for name, sections in _CASES.items())):
        for row in _cases(bench, model, batch, base, variants):
            yield row
            rows[str(row.numbers["dtype"])].append(row)
    for dtype, cases in rows.items():
        yield _worst(f"{dtype}: gradient of {len(cases)} cases", cases)
    yield from _resumes(bench, model, batch, base)


def float16(bench: Bench) -> Iterator[Row]:
    """Part l: yields gradients in float16, which the product lacks, next to float32's."""
    shape = _SHAPE if bench.on_card else TINY
    model = bench.model("small", shape)
    batch = random_batch(
        8, 4, prompt=(4, 40), response=(4, 64), vocab_size=int(shape["vocab_size"])
    )
    sizes: Sections = {"data": {"train_batch_size": 8}, "actor": {"mini_batch_size": 8}}
    base = merged(_BASE, sizes, {"algorithm": {"estimator": "grpo", "kl_mode": "none"}})

    def gradient(dtype: str, half_scale: int = 0) -> Tensor:
        outcome = _outcome(
            bench, model, batch, base, dtype, on_card=bench.on_card, half_scale=half_scale
        )
        return outcome.gradients["actor"]

    exact = gradient("float32")
    kinds = {"bfloat16": gradient("bfloat16")} | {
        f"float16, loss times {scale:,}": gradient("float32", scale) for scale in (1, 2**10)
    }
    for name, rounded in kinds.items():
        distance = rounded / rounded.norm() - exact / exact.norm()  # clipping changes the lengths
        became_0 = ((rounded == 0) & (exact != 0)).double().mean()
        numbers = {"distance to float32's": float(distance.norm()), "became 0": float(became_0)}
        ok = float(distance.norm()) <= _BFLOAT16_BOUND
        yield Row(f"direction of the gradient, {name}", ok, numbers)


@contextmanager
def _in_float16(learner: Learner, scale: int) -> Iterator[None]:
    """Makes a learner compute in float16, its loss times `scale`; clipping undoes the factor."""
    updater = learner.updater
    passed = updater._actor_pass
    forward = partial(forward_pass, compute_dtype=torch.float16)

    def scaled(*arguments: Any) -> tuple[Tensor, Pass]:
        loss, done = passed(*arguments)
        return loss * scale, done

    autocast = partial(torch.autocast, dtype=torch.float16)
    with (
        patch.object(updater, "_forward", forward),
        patch.object(updater, "_actor_pass", scaled),
        patch.object(torch, "autocast", lambda device, **_: autocast(device)),
    ):
        yield


def _worst(name: str, rows: list[Row]) -> Row:
    worst = max(rows, key=lambda row: float(row.numbers["gradient"]))
    numbers = {name: worst.numbers[name] for name in ("gradient", "allowed")}
    return Row(f"{name}, the worst", all(row.ok for row in rows), numbers, worst.check)


def _cases(
    bench: Bench, model: Path, batch: TrainBatch, base: Sections, variants: dict[str, Sections]
) -> Iterator[Row]:
    """Yields variants of one case, compared with the first one on the CPU."""
    plain = merged(base, next(iter(variants.values())))
    exact = _outcome(bench, model, batch, plain, "float32", on_card=False)
    for name, sections in variants.items():
        for dtype in ("float32", "bfloat16"):
            if dtype == "bfloat16" and not bench.on_card and name not in _REHEARSED:
                continue
            settings = merged(base, sections)
            outcome = _outcome(bench, model, batch, settings, dtype, on_card=bench.on_card)
            gap, metrics = _distance(outcome, exact), _metrics_gap(outcome, exact)
            if dtype == "float32":
                allowed, ok = _FLOAT32_BOUND, metrics <= _METRICS_BOUND
            else:
                allowed, ok = _BFLOAT16_BOUND, True
                if gap > allowed:
                    rounded = _outcome(bench, model, batch, plain, dtype, on_card=False)
                    allowed = max(allowed, 2 * _distance(rounded, exact))
            numbers = {"dtype": dtype, "gradient": gap, "allowed": allowed, "metrics": metrics}
            yield Row(f"{name}, {dtype}", ok and gap <= allowed, numbers, is_case=True)


def _outcome(
    bench: Bench,
    model: Path,
    batch: TrainBatch,
    sections: Sections,
    dtype: str,
    *,
    on_card: bool,
    half_scale: int = 0,
) -> _Outcome:
    config = bench.config(merged(sections, {"model": {"dtype": dtype}}), on_card=on_card)
    learner = Learner(config, model)
    with _in_float16(learner, half_scale) if half_scale else nullcontext():
        metrics, _ = learner.learn(batch)
    return _Outcome(
        {
            name: torch.cat(
                [
                    tensor.detach().to("cpu", torch.float64).flatten()
                    for key, tensor in optimizer.state_tensors(name).items()
                    if key.endswith(".exp_avg")
                ]
            )
            for name, optimizer in learner.optimizers.items()
        },
        {
            key: value
            for key, value in metrics.items()
            if key.startswith(("actor/", "critic/")) and not key.endswith("/lr")
        },
    )


def _distance(outcome: _Outcome, expected: _Outcome) -> float:
    return max(
        float((outcome.gradients[name] - exact).norm() / exact.norm())
        for name, exact in expected.gradients.items()
    )


def _metrics_gap(outcome: _Outcome, expected: _Outcome) -> float:
    return max(
        abs(outcome.metrics[key] - value) / max(abs(value), 1.0)
        for key, value in expected.metrics.items()
    )


def _resumes(bench: Bench, model: Path, batch: TrainBatch, base: Sections) -> Iterator[Row]:
    """Yields whether a resume gives the same bits, by torch's deterministic kernels and by any."""
    for name in ("gae", "grpo") if bench.on_card else ("grpo",):
        sections = merged(base, {"algorithm": {"estimator": name}, "model": {"dtype": "bfloat16"}})
        again, resumed, note = _repeats_exactly(bench, model, batch, sections)
        yield Row(
            f"resume, {name}, deterministic kernels",
            resumed == again == 0,
            {"other bits after a resume": resumed, "in a second run": again},
            note,
        )
        if bench.on_card:
            again, resumed = _repeats(bench, model, batch, sections)
            numbers = {"other bits after a resume": resumed, "in a second run": again}
            yield Row(f"resume, {name}, all kernels", None, numbers)


def _repeats_exactly(
    bench: Bench, model: Path, batch: TrainBatch, sections: Sections
) -> tuple[int, int, str]:
    """Returns the result of `_repeats`, and the operation without deterministic kernel, if any."""
    try:
        with _deterministic(warn_only=False):
            return *_repeats(bench, model, batch, sections), ""
    except RuntimeError as error:
        message = str(error).splitlines()[0]
        if "deterministic" not in message:
            raise
    # Then attention's kernels, too, may add up in any order.
    with _deterministic(warn_only=True):
        return *_repeats(bench, model, batch, sections), message


def _repeats(bench: Bench, model: Path, batch: TrainBatch, sections: Sections) -> tuple[int, int]:
    """Returns how many numbers differ in a second run of two steps, and in a resumed one."""
    config, folder = bench.config(sections), bench.folder / "checkpoint"
    ends = []
    for _ in range(2):
        learner = Learner(config, model)
        learner.learn(batch)
        learner.save(folder)
        learner.learn(batch)
        ends.append(_bits(learner))
    resumed = Learner(config, model, folder)
    resumed.learn(batch)
    return _differing(ends[0], ends[1]), _differing(ends[1], _bits(resumed))


def _bits(learner: Learner) -> dict[str, Tensor]:
    tensors = {f"weights.{name}": tensor for name, tensor in learner.weights().items()}
    for name, optimizer in learner.optimizers.items():
        weights = optimizer.weight_tensors().items()
        tensors |= {f"{name}_weights.{weight}": tensor for weight, tensor in weights}
        tensors |= optimizer.state_tensors(name)
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def _differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    assert one.keys() == other.keys()
    return sum(int((tensor != other[name]).sum()) for name, tensor in one.items())


@contextmanager
def _deterministic(*, warn_only: bool) -> Iterator[None]:
    """Makes torch use kernels that add up in one order, and fail if it has none."""
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
