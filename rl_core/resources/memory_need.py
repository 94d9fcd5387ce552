"""What a card, or the machine, must hold for a run: the memory plans of all its processes together.

Computed before anything is loaded; profiling.py and host_memory.py measure it during a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.memory_plan import (
    ModelShape,
    PhaseMemory,
    compute_width,
    memory_plan,
    offloaded_bytes,
    resting_learner,
    snapshot_bytes,
)
from rl_core.resources.placement import LEARNER, card_tenants, shares_a_card
from rl_core.system.words import GIB

_LEARNER_GIB: Final = 0.5
_ENGINE_GIB: Final = {"hf": 0.4, "vllm": 1.1}
"""Of the machine, for a learner's or an engine's process, without its model."""
_BESIDE_GIB: Final = {"trainer": 0.4, "Ray": 0.35, "flow and Prefect's server": 0.65}
"""Of the machine, for any model. Measured: benchmarks, a model of a real size."""
CUDA_GIB: Final = 0.5
"""Of a card, for each process that uses it."""
ENGINE_ITSELF_GIB: Final = 1.0
"""Of a card, besides weights and KV cache: vLLM takes it for a step and keeps it while asleep."""


@dataclass(frozen=True)
class Moment:
    """What one memory holds at the same time: GiB by name."""

    parts: Mapping[str, float]

    @property
    def total_gib(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        return " + ".join(f"{name} {gib:.2f}" for name, gib in self.parts.items())


@dataclass(frozen=True)
class Need:
    """The moments of the fullest memory: one, or two if engines sleep."""

    moments: Sequence[Moment]

    @property
    def total_gib(self) -> float:
        """The fullest moment, which the memory must be able to hold."""
        return max(moment.total_gib for moment in self.moments)

    def __str__(self) -> str:
        return ", then ".join(map(str, self.moments))


def learner_peak(plan: Sequence[PhaseMemory]) -> PhaseMemory:
    """Returns the learner's largest phase."""
    return max((p for p in plan if p.process == "learner"), key=lambda p: p.total_bytes)


def takes_turns(config: RunConfig) -> bool:
    """Returns whether learner and engines use one card in turns, and not at the same time."""
    return config.rollout.sleep and config.rollout.engine == "vllm" and shares_a_card(config)


def card_need(shape: ModelShape, config: RunConfig, card_gib: float) -> Need:
    """Returns what the fullest card must hold, if learner or engines use one.

    vLLM takes its share of the card at its start, and new weights come on top. Engines that take
    turns with the learner hold their share only while the learner is at rest.
    """
    plan = memory_plan(shape, config)
    rollout = config.rollout
    peak = learner_peak(plan)
    engine = plan[-1]

    def on_card(tenants: Sequence[str]) -> Need:
        num_engines = sum(name != LEARNER for name in tenants)
        engines = _several(num_engines, "engine", "engines")
        cuda = {"CUDA": CUDA_GIB * len(tenants)}
        awake = dict[str, float]()
        if num_engines and rollout.engine == "hf":
            awake = {engines: num_engines * engine.total_bytes / GIB}
        elif num_engines:
            share = rollout.gpu_memory_utilization
            incoming = engine.parts["incoming_weights"]
            awake = {
                f"{engines} ({share:g} of the card)": num_engines * share * card_gib,
                "new weights on their way": num_engines * incoming / GIB,
            }
        if LEARNER not in tenants:
            return Need([Moment(awake | cuda)])
        works = {f"learner ({peak.phase})": peak.total_bytes / GIB}
        if not (num_engines and takes_turns(config)):
            return Need([Moment(works | awake | cuda)])
        rests = {"learner at rest": resting_learner(shape, config).total_bytes / GIB}
        asleep = {f"{engines} asleep": num_engines * ENGINE_ITSELF_GIB}
        return Need([Moment(works | asleep | cuda), Moment(rests | awake | cuda)])

    return max(map(on_card, card_tenants(config)), key=lambda need: need.total_gib)


def least_engine_gib(shape: ModelShape, config: RunConfig, num_sequences: int = 1) -> float:
    """Returns the GiB of a card that vLLM needs for the model and so many longest responses."""
    weights = shape.num_parameters * compute_width(config)
    held = weights + num_sequences * longest_bytes(config, shape)
    return held / config.rollout.tensor_parallel_size / GIB + ENGINE_ITSELF_GIB


def why_not_split(shape: ModelShape, parts: int) -> str | None:
    """Returns why tensor parallelism cannot use so many shards of the model, or None.

    Each shard has whole attention heads; those of keys and values are divided or copied.
    """
    heads = shape.num_heads
    kv_heads = shape.num_kv_heads
    possible = [
        number
        for number in range(1, heads + 1)
        if heads % number == 0 and (kv_heads % number == 0 or number % kv_heads == 0)
    ]
    if parts in possible:
        return None
    return (
        f"rollout.tensor_parallel_size={parts} does not divide the model's {heads} attention "
        f"heads ({kv_heads} of keys and values): use {' or '.join(map(str, possible))}"
    )


def longest_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Returns the bytes of the longest prompt and response in an engine's KV cache."""
    num_tokens = config.data.max_prompt_length + config.data.max_response_length
    return num_tokens * shape.kv_bytes(compute_width(config))


def starves_engine(shape: ModelShape, config: RunConfig, card_gib: float) -> bool:
    """Returns whether vLLM would refuse to start: its share of the card is too small."""
    if config.rollout.engine != "vllm" or not config.resources.rollout_gpus:
        return False
    share_gib = config.rollout.gpu_memory_utilization * card_gib
    return share_gib < least_engine_gib(shape, config)


def machine_need(shape: ModelShape, config: RunConfig) -> Need:
    """Returns what the machine's memory must hold for a run without a GPU.

    Its fullest moment is generation, an update, or the transfer of new weights. Then Ray holds them
    once for all engines, and the learner its own copy. If engines generate ahead, Ray still holds
    the old weights too; if not, transformers' engines hold nothing during an update.
    """
    plan = memory_plan(shape, config)
    ranks = config.resources.learner_ranks
    peak = learner_peak(plan)
    num_engines = config.rollout.num_engines
    version = plan[-1].parts["incoming_weights"]
    runs_ahead = config.rollout.staleness > 0
    # Each shard of an engine receives all new weights.
    copies = config.rollout.tensor_parallel_size - 1
    engines = num_engines * (plan[-1].total_bytes - version + copies * version)
    rests = ranks * resting_learner(shape, config).total_bytes
    # Then the learner sends copies, not its own tensors.
    is_made = config.model.lora_rank or ranks > 1 or config.compute_dtype != "float32"

    def moment(phase: str, learner_bytes: int, engine_bytes: int, num_versions: int) -> Moment:
        in_bytes = {
            f"{_several(ranks, 'learner', 'learner ranks')} ({phase})": learner_bytes,
            _several(num_engines, "engine", "engines"): engine_bytes,
            "weights on their way": num_versions * version,
        }
        return Moment(_in_gib(in_bytes) | _processes(config) | _BESIDE_GIB)

    stays = engines if config.rollout.engine == "vllm" or runs_ahead else 0
    moments = (
        moment(peak.phase, ranks * peak.total_bytes, stays, 1),
        moment("gen", rests, engines, 1),
        moment("sync", rests + (version if is_made else 0), engines, 2 if runs_ahead else 1),
    )
    return Need([max(moments, key=lambda moment: moment.total_gib)])


def beside_cards(shape: ModelShape, config: RunConfig) -> Moment:
    """Returns the memory of the machine that a run uses if its learner is on cards, all ranks."""
    in_bytes = {
        "offloaded": offloaded_bytes(shape, config),
        "snapshot": snapshot_bytes(shape, config) if config.checkpoints.in_background else 0,
        "weights on their way": 2 * compute_width(config) * shape.num_parameters,
    }
    held = {name: size for name, size in in_bytes.items() if size}
    return Moment(_in_gib(held) | _processes(config) | _BESIDE_GIB)


def _in_gib(in_bytes: Mapping[str, int]) -> dict[str, float]:
    return {name: size / GIB for name, size in in_bytes.items()}


def _processes(config: RunConfig) -> dict[str, float]:
    """Returns the GiB of all processes; an engine of several shards has one each, and a caller."""
    ranks = config.resources.learner_ranks
    parts = config.rollout.tensor_parallel_size
    num_engines = config.rollout.num_engines * (1 if parts == 1 else 1 + parts)
    gib = ranks * _LEARNER_GIB + num_engines * _ENGINE_GIB[config.rollout.engine]
    return {f"{ranks + num_engines} processes": gib}


def _several(number: int, one: str, more: str) -> str:
    return one if number == 1 else f"{number} {more}"
