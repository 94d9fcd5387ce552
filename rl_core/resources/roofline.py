"""A step's time, estimated before the first step: a roofline of generation, learning and sync.

Nothing is measured, and torch is not imported: it takes shapes, settings and a device's peak rates.
A decoding step reads all weights and the KV cache, so memory bandwidth bounds it; arithmetic bounds
prompts and the learner; launches bound small passes. `Shares` has what a device reaches.

Legend: N responses of a step, m mean and D longest response, p prompt, in tokens.

Source: Williams, Waterman, Patterson 2009, "Roofline"; operations as `profiling.training_flops`.
"""

import math
from typing import Final, NamedTuple

from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spread
from rl_core.resources.levers import Value, with_unchecked
from rl_core.resources.memory_plan import ModelShape, compute_width, model_sizes, moment_bytes
from rl_core.resources.placement import shares_a_card

_WITHIN: Final = 2  # every step that was timed lies between half and twice the estimate
_ADAM_BYTES: Final = 7 * 4  # weight, gradient, two moments are read, all but the gradient written
_HOST_LINK: Final = 3e9  # bytes/s of weights to engines, through the machine's memory
_USUAL_RESPONSE: Final = 256
"""Tokens. First responses of a 0.5B model took 181 of 1,024 allowed on Countdown (the diary) and
239 of 512 on GSM8K (verl's quickstart)."""
_REPLACED: Final = 0.5
"""Assumed share of a round's groups that teach nothing and are replaced: it differs by task, and is
larger at the beginning and at the end of a run."""
_SEARCH_SHARE: Final = 1 / 3
"""Of the longest allowed response, for models that were shown our searches. Quickstart's took 27 of
128 tokens at first and 43 at the end, SmolLM2's 59 of 160 (benchmarks/README.md)."""


class Shares(NamedTuple):
    """The part of its peak that a device reaches, and the seconds that are lost in between."""

    learner: float
    engine: float
    bandwidth: float
    decode_s: float  # scheduling and sampling of a decoding step of vLLM
    decode_layer_s: float  # launches of a layer in a decoding step of the engine `hf`
    layer_s: float  # launches of a layer's pass over a micro-batch, without its arithmetic
    step_s: float  # rewards, logs and messages of a training step


H200: Final = Shares(0.35, 0.4, 0.6, 0.005, 0.001, 0.002, 0.7)
"""Seconds as measured there, 2026-11-27 (benchmarks/README.md): a model of 0.5B, 128 responses at a
time, 24,800 tokens/s with vLLM and 5,250 with hf; 2 ms a layer of a pass over 8,192 tokens."""
CPU: Final = Shares(0.5, 0.5, 0.5, 0.010, 0.0, 0.0002, 0.3)


class Machine(NamedTuple):
    """A device and its peak rates: a card, or the CPU threads of each process."""

    name: str
    on_gpu: bool
    learner_flops: float  # operations/s in the run's type, of all learner ranks
    engine_flops: float  # of one engine
    bandwidth: float  # bytes/s of an engine


class Lengths(NamedTuple):
    """Tokens: a prompt's and a response's mean, and a step's longest response."""

    prompt: float
    response: float
    longest: float


class StepTime(NamedTuple):
    """Seconds of a step by their use; with `is_ahead` generation and learning overlap."""

    generate: float
    learn: float
    sync: float
    other: float
    is_ahead: bool

    @property
    def total(self) -> float:
        """Seconds until the next step."""
        work = max(self.generate, self.learn) if self.is_ahead else self.generate + self.learn
        return work + self.sync + self.other


def with_bounds(seconds: float) -> Spread:
    """Returns an estimate with the bounds that all measured steps kept."""
    return Spread(seconds / _WITHIN, seconds, seconds * _WITHIN)


def guess_lengths(config: RunConfig) -> Lengths:
    """Returns the usual lengths, guessed before the first response."""
    most = config.data.max_response_length
    searches = config.model.path is None or config.sft.data == "traces"
    usual = most * _SEARCH_SHARE if searches else min(most, _USUAL_RESPONSE)
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    return Lengths(
        config.data.max_prompt_length / 2, usual, expected_longest(usual, num_rows, most)
    )


def expected_longest(mean: float, num_rows: int, most: int) -> float:
    """Returns the expected longest of N exponential lengths, at most `most`: m (ln N + 0.58)."""
    return min(most, mean * (math.log(num_rows) + 0.5772)) if num_rows > 1 else min(most, mean)


def step_time(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    lengths: Lengths | None = None,
    shares: Shares | None = None,
) -> StepTime:
    """Returns the seconds of one step, of guessed lengths; the critic has the actor's backbone."""
    lengths = lengths or guess_lengths(config)
    shares = shares or (H200 if machine.on_gpu else CPU)
    rounds = range(config.algorithm.resample_rounds + 1)
    drawn = [config.data.train_batch_size * _REPLACED**i for i in rounds]
    return StepTime(
        generate=sum(
            _generate(shape, config, machine, lengths, shares, num_prompts)
            for num_prompts in drawn
            if num_prompts >= 1
        ),
        learn=_learn(shape, config, machine, lengths, shares),
        sync=compute_width(config) * shape.num_parameters * config.rollout.num_engines / _HOST_LINK,
        other=shares.step_s,
        is_ahead=config.rollout.staleness > 0 and not shares_a_card(config),
    )


def test_s(shape: ModelShape, config: RunConfig, machine: Machine) -> float:
    """Returns the seconds of one test during training."""
    asks = {
        "data.train_batch_size": min(config.trainer.test_problems, config.data.test_size),
        "algorithm.group_size": config.evaluation.samples_that_count,
        "algorithm.resample_rounds": 0,
    }
    return step_time(shape, with_unchecked(config, asks), machine).generate


def sft_step_s(shape: ModelShape, config: RunConfig, machine: Machine) -> float:
    """Returns the seconds of a step of SFT (`sft.data` is set): one process, no critic."""
    sft = config.sft
    learns: dict[str, Value] = {
        "algorithm.estimator": "grpo",
        "algorithm.group_size": 1,
        "algorithm.kl_mode": "none",
        "data.train_batch_size": sft.batch_size,
        "actor.mini_batch_size": sft.batch_size,
        "actor.ppo_epochs": 1,
        "resources.learner_ranks": 1,
        "resources.offload": False,
    }
    if sft.data != "traces":  # those are at most as long as training allows
        learns["data.max_prompt_length"] = learns["data.max_response_length"] = sft.max_length // 2
    if sft.lora_rank is not None:
        learns["model.lora_rank"] = sft.lora_rank
    return step_time(shape, with_unchecked(config, learns), machine).learn


def decoding_steps(num_rows: float, lengths: Lengths, max_num_seqs: int) -> float:
    """Returns D, plus m / C for each response beyond the C = `max_num_seqs` at a time."""
    waiting = max(0.0, num_rows - max_num_seqs)
    return lengths.longest + waiting * lengths.response / max_num_seqs


def forward_flops(
    shape: ModelShape, num_rows: float, lengths: Lengths, *, num_prompts: float, has_head: bool
) -> float:
    """Returns the operations of one forward pass over N rows.

    A prompt is computed once for all rows of a group. The output layer (an actor's, not a critic's)
    computes only response tokens.
    """
    num_tokens = num_rows * lengths.response + num_prompts * lengths.prompt
    weights = shape.num_layers * shape.num_layer_parameters * num_tokens
    row = lengths.prompt + lengths.response
    attention = shape.num_layers * shape.num_heads * shape.head_size * num_rows * row**2
    head = shape.vocab_size * shape.hidden_size * num_rows * lengths.response
    return 2 * (weights + attention + has_head * head)


def _generate(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    lengths: Lengths,
    shares: Shares,
    num_prompts: float,
) -> float:
    """Returns the seconds of the responses to so many prompts."""
    width = compute_width(config)
    rollout = config.rollout
    # Engines that are not split: several on one card share its bandwidth.
    share_of_card = min(1.0, config.resources.rollout_gpus) if machine.on_gpu else 1.0
    num_prompts /= max(1, math.floor(rollout.num_engines * share_of_card))
    num_rows = num_prompts * config.algorithm.group_size
    # Of more engines than rows, each has one row or none: those with one decide.
    decodes = decoding_steps(max(num_rows, 1.0), lengths, rollout.max_num_seqs)
    # Each token of each response reads the keys and values of all tokens before it.
    tokens_read = num_rows * lengths.response * (lengths.prompt + lengths.response / 2)
    num_read = decodes * width * shape.num_parameters + shape.kv_bytes(width) * tokens_read
    read_s = num_read / (machine.bandwidth * shares.bandwidth)
    per_token = shape.num_layers * shape.num_layer_parameters + shape.vocab_size * shape.hidden_size
    rate = machine.engine_flops * shares.engine
    compute_s = 2 * per_token * num_rows * lengths.response / rate
    # A group's prompt is read once.
    prefill = forward_flops(
        shape,
        num_prompts,
        Lengths(lengths.prompt, 0, 0),
        num_prompts=num_prompts,
        has_head=False,
    )
    launch_s = shape.num_layers * shares.decode_layer_s if rollout.engine == "hf" else 0.0
    parts = rollout.tensor_parallel_size if machine.on_gpu else 1
    whole_s = prefill / rate + max(read_s, compute_s)
    return whole_s / parts + decodes * max(launch_s, shares.decode_s)


def _learn(
    shape: ModelShape, config: RunConfig, machine: Machine, lengths: Lengths, shares: Shares
) -> float:
    """Returns the seconds of a step's passes and updates."""
    ranks = config.resources.learner_ranks
    num_prompts = config.data.train_batch_size
    num_rows = num_prompts * config.algorithm.group_size
    of_actor, of_critic = (
        forward_flops(shape, num_rows, lengths, num_prompts=num_prompts, has_head=has_head)
        for has_head in (True, False)
    )
    sizes = model_sizes(shape, config)
    actor_passes, critic_passes = _passes(config)
    actor_passes += sizes.teacher / shape.num_parameters  # one forward pass, of its own size
    flops = actor_passes * of_actor + critic_passes * of_critic
    num_updates = config.actor.ppo_epochs * (num_prompts // config.actor.mini_batch_size)
    # A rank has at least one pass in each update, however small.
    num_tokens = num_rows * (lengths.prompt + lengths.response)
    num_micro = max(num_tokens / config.actor.micro_batch_tokens / ranks, num_updates)
    launch_s = (actor_passes + critic_passes) * num_micro * shape.num_layers * shares.layer_s
    share = math.ceil((sizes.actor + sizes.critic) / ranks)
    adam_s = num_updates * _ADAM_BYTES * share / (machine.bandwidth * shares.bandwidth)
    # Offloaded moments go to the card and back in each update.
    offloads = machine.on_gpu and config.resources.offload
    moved = 2 * num_updates * moment_bytes(share, config) if offloads else 0
    compute_s = flops / (machine.learner_flops * shares.learner)
    return max(compute_s, launch_s) + adam_s + moved / _HOST_LINK


def _passes(config: RunConfig) -> tuple[float, float]:
    """Returns a step's work, in forward passes of the actor and of a critic's backbone."""
    # Forward, and twice that backward; the gradient of weights below adapters is not computed.
    of_update = 3 + config.model.gradient_checkpointing - (config.model.lora_rank > 0)
    update = config.actor.ppo_epochs * of_update
    actor = update + (not config.has_one_update) + config.algorithm.has_reference
    critic = update + (not config.has_one_critic_update)
    return actor, critic if config.algorithm.formula.needs_critic else 0
