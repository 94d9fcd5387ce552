"""Part e: seconds of a learner's step by phase, and its share of the peak, beside the roofline's.

Qwen2.5-0.5B with PPO and a critic of its own: the shape of a first user's run, and a larger one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch

from benchmarks.gpu_check.bench import TINY, Bench, Sections, merged, random_batch
from benchmarks.gpu_check.report import Row
from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.learner.profiling import peak_flops
from rl_core.resources.cost import Spread
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.roofline import Lengths, Machine, step_time, with_bounds
from rl_core.system.devices import find_card

_PHASES = ("old_log_prob", "ref", "values", "update_critic", "update_actor")
_PROMPT = 145
"""Tokens of a Countdown prompt."""
_SHAPES = {"32 x 181": (32, 181), "256 x 512": (256, 512)}
"""Prompts, and mean tokens of their responses."""
_REHEARSED = {"4 x 16": (4, 16)}
_STEPS = 2


def checks(bench: Bench) -> Iterator[Row]:
    """Yields, for each shape, seconds beside the planned ones, and seconds by phase."""
    model = bench.model("Qwen/Qwen2.5-0.5B", None if bench.on_card else TINY)
    machine = _machine(bench)
    for name, (num_prompts, response) in (_SHAPES if bench.on_card else _REHEARSED).items():
        config = _config(bench, num_prompts, response)
        learner = Learner(config, model)
        batch = _batch(config, response)
        learner.learn(batch)
        steps = [learner.learn(batch)[0] for _ in range(_STEPS)]
        seconds = {
            phase: statistics.median(step[f"timing_s/{phase}"] for step in steps)
            for phase in _PHASES
            if f"timing_s/{phase}" in steps[0]
        }
        total = sum(seconds.values())
        planned = _planned(model_shape(bench), config, machine, batch)
        numbers: dict[str, float | str] = {
            "s": total,
            "planned": planned.typical,
            "from": planned.low,
            "to": planned.high,
            "mfu/actor": statistics.median(step["mfu/actor"] for step in steps),
            "mfu/critic": statistics.median(step["mfu/critic"] for step in steps),
        }
        # Tiny shapes cost mostly overhead, and the machine is shared: that is not judged.
        ok = planned.low <= total <= planned.high or not bench.on_card
        yield Row(f"{name}, {machine.name}", ok, numbers)
        yield Row(f"{name}, s by phase", None, dict(seconds))
        yield _set_up(bench, learner)
        del learner


def _set_up(bench: Bench, learner: Learner) -> Row:
    """Returns whether AdamW is fused, and memory is in expandable segments, as it should be."""
    fused = all(optimizer.is_fused for optimizer in learner.optimizers.values())
    numbers: dict[str, float | str] = {"AdamW fused": str(fused)}
    segments = torch.cuda.memory_snapshot() if bench.on_card else []
    grow = all(segment["is_expandable"] for segment in segments)
    numbers["segments that grow"] = str(grow) if segments else "not on a CPU"
    return Row("AdamW and segments of memory", fused and grow, numbers)


def model_shape(bench: Bench) -> ModelShape:
    """Returns the shape of the part's model."""
    return ModelShape.from_folder(bench.folder / "Qwen/Qwen2.5-0.5B")


def _config(bench: Bench, num_prompts: int, response: int) -> RunConfig:
    sections: Sections = {
        "data": {
            "train_batch_size": num_prompts,
            "max_prompt_length": 256,
            "max_response_length": 2 * response,
        },
        "actor": {"mini_batch_size": num_prompts // 2, "micro_batch_tokens": 8_192},
    }
    dtype = "bfloat16" if bench.on_card else "float32"
    return bench.config(merged(sections, {"model": {"dtype": dtype}}))


def _batch(config: RunConfig, response: int) -> TrainBatch:
    return random_batch(
        config.data.train_batch_size,
        1,
        prompt=(_PROMPT, _PROMPT),
        response=(1, 2 * response - 1),
        vocab_size=512,
    )


def _planned(shape: ModelShape, config: RunConfig, machine: Machine, batch: TrainBatch) -> Spread:
    responses = batch.response_lengths.float()
    lengths = Lengths(_PROMPT, float(responses.mean()), float(responses.max()))
    return with_bounds(step_time(shape, config, machine, lengths).learn)


def _machine(bench: Bench) -> Machine:
    """Returns the card by its data sheet; for a device without one, the measured rates."""
    if bench.on_card:
        properties = torch.cuda.get_device_properties(bench.device)
        card = find_card(properties.name, properties.total_memory / 2**30)
        if card is not None:
            flops = card.flops("bfloat16")
            return Machine(card.name, True, flops, flops, 1e9 * card.bandwidth_gb_s)
    flops = peak_flops(bench.device, torch.bfloat16 if bench.on_card else torch.float32, 1)
    return Machine("peaks as measured", bench.on_card, flops, flops, _bandwidth(bench))


def _bandwidth(bench: Bench) -> float:
    source = torch.ones(2**28 if bench.on_card else 2**22, device=bench.device)
    target, seconds = torch.empty_like(source), list[float]()
    for _ in range(4):
        with bench.timed(seconds):
            target.copy_(source)
    return 2 * source.nbytes / min(seconds)
