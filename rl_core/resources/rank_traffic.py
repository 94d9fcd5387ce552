"""What the learner's ranks send each other in a step, in bytes: counted, not measured.

Every pass has its weights gathered whole before it; an update's gradients are added up after it,
each rank keeping its share (models/sharding.py). FSDP's own hooks would gather twice per update:
for the forward and the backward pass. All of it in float32, as the weights are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.collectives import Links
from rl_core.resources.memory_plan import ModelShape, model_sizes

_FLOAT32: Final = 4
_WEIGHTS_PER_LAYER: Final = 12
"""Tensors: four projections, three biases, an MLP's three and two norms."""


@dataclass(frozen=True)
class RankTraffic:
    """A step's collectives among ranks, by kind: bytes of whole tensors, and how many there are."""

    gathered_bytes: int
    """Weights for passes; of each, a rank receives what the others hold."""
    num_gathers: int
    scattered_bytes: int
    """Gradients that are added up, of which each rank keeps its share."""
    num_scatters: int
    summed_bytes: int
    """Results per token, of which each rank has computed its rows."""
    num_sums: int
    handed_bytes: int
    """Weights gathered for the engines, tensor by tensor."""
    num_handed: int

    def bytes_sent(self, num_ranks: int) -> float:
        """Returns what a rank sends in a step, by rings; it receives as much."""
        once = self.gathered_bytes + self.scattered_bytes + self.handed_bytes
        return (num_ranks - 1) / num_ranks * (once + 2 * self.summed_bytes)

    def seconds(self, links: Links, num_ranks: int) -> float:
        """Returns how long a step waits for all of it."""

        def wait(way: Callable[[float, int], float], num_bytes: int, number: int) -> float:
            return number * way(num_bytes / number, num_ranks) if number else 0.0

        return (
            wait(links.all_gather, self.gathered_bytes, self.num_gathers)
            + wait(links.reduce_scatter, self.scattered_bytes, self.num_scatters)
            + wait(links.all_reduce, self.summed_bytes, self.num_sums)
            + wait(links.all_gather, self.handed_bytes, self.num_handed)
        )


def rank_traffic(shape: ModelShape, config: RunConfig, longest: float) -> RankTraffic:
    """Returns what several ranks send each other in a step; one sends nothing.

    Args:
        shape: of the actor without adapters.
        config: the run's settings.
        longest: response of the step, in tokens, to which results per token are padded.
    """
    sizes, data = model_sizes(shape, config), config.data
    shares_trunk, rank = config.critic.share_trunk, config.model.lora_rank
    has_critic = sizes.critic > 0
    # Beside adapters the reference is the actor without them, and nothing of it is cut.
    reference = sizes.frozen if sizes.frozen and not rank else 0
    critic = sizes.critic + (sizes.actor if shares_trunk else 0)
    passes: list[int] = []  # numbers of parameters that are gathered
    num_outputs = 0
    if not config.has_one_update:
        passes.append(sizes.actor + (sizes.critic if shares_trunk else 0))
        num_outputs += 1 + (has_critic and shares_trunk)
    if reference:
        passes.append(reference)
    num_outputs += 1 if config.algorithm.has_reference else 0
    if has_critic and (config.has_one_update or not shares_trunk):
        if not config.has_one_critic_update:
            passes.append(critic)
        num_outputs += 1
    num_updates = config.actor.ppo_epochs * (data.train_batch_size // config.actor.mini_batch_size)
    updated = num_updates * (sizes.actor + sizes.critic)
    num_models = 1 + (has_critic and not shares_trunk)
    num_outputs += 1 if config.has_one_update else 0
    num_rows = data.train_batch_size * config.algorithm.group_size
    # What adapters add to a weight is as large as the weight.
    handed = shape.num_layers * shape.num_layer_parameters if rank else sizes.actor
    units, weights = shape.num_layers + 1, _WEIGHTS_PER_LAYER * shape.num_layers + 2
    return RankTraffic(
        gathered_bytes=_FLOAT32 * (sum(passes) + updated),
        num_gathers=units * (len(passes) + num_updates * num_models),
        scattered_bytes=_FLOAT32 * updated,
        num_scatters=weights * num_updates * num_models,
        summed_bytes=int(num_outputs * _FLOAT32 * num_rows * longest),
        num_sums=num_outputs,
        handed_bytes=_FLOAT32 * handed,
        num_handed=weights,
    )
