"""Hidden states that predict response tokens; a group's prompt is computed once for all its rows.

Legend: B rows, G prompts, P longest prompt, T longest response, H hidden size, N response tokens.
"""

from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rl_core.batch import TrainBatch
from rl_core.models.packing import packed_states, select_rows, takes_packed_rows

_PADDING: Final = 0.1
"""Rows without a shared prompt are packed above this share of padding: gathering costs, too."""


def can_share_prompts(backbone: Any) -> bool:
    """Returns whether a group's prompt is read once for all its responses.

    Not if layers see a window of positions or carry a state, for which padded prompts would be
    wrong; nor if a micro-batch must be one pass, see `_reads_once`, unless rows can be packed.
    """
    config = backbone.config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    has_window = getattr(config, "sliding_window", None) is not None
    is_plain = set(layer_types) == {"full_attention"} and not has_window
    return is_plain and (not _reads_once(backbone) or takes_packed_rows(backbone))


def _reads_once(backbone: Any) -> bool:
    """Whether a micro-batch must be one pass through the layers.

    Checkpointed layers drop their keys and compute them again; sharded layers wait for other
    ranks, which must do as many passes whichever rows share a prompt.
    """
    is_sharded = any(isinstance(module, FSDPModule) for module in backbone.modules())
    return backbone.is_gradient_checkpointing or is_sharded


def response_states(backbone: nn.Module, batch: TrainBatch) -> Tensor:
    """Returns the states that predict the response tokens, [N, H], row after row.

    If several rows are of one group and the backbone (a causal LM's decoder, without its head)
    allows it, their prompt is read once and its keys and values serve them all, gradients included.
    """
    is_shared = len(batch.prompts()[0]) < len(batch)
    if _packs(backbone, batch, is_shared=is_shared):
        return packed_states(backbone, batch)
    if is_shared and can_share_prompts(backbone):
        states = _continued_states(backbone, batch)
        index = batch.response_mask.flatten().nonzero().squeeze(-1)
    else:
        states = backbone(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        index = batch.predictor_index()
    return select_rows(states.flatten(0, 1), index)


def _packs(backbone: Any, batch: TrainBatch, *, is_shared: bool) -> bool:
    """Returns whether rows are packed: to read them in one pass, or to save a mask or padding."""
    if not (takes_packed_rows(backbone) and can_share_prompts(backbone)):
        return False
    if is_shared:
        return _reads_once(backbone) or _on_card(batch)
    return _on_card(batch) and 1.0 - int(batch.lengths.sum()) / batch.input_ids.numel() > _PADDING


def _on_card(batch: TrainBatch) -> bool:
    return batch.input_ids.is_cuda


def _continued_states(backbone: Any, batch: TrainBatch) -> Tensor:
    """Returns the states before each response token, [B, T, H], from G prompts and B responses."""
    prompt_rows, prompt_of_row = batch.prompts()
    lengths = batch.prompt_lengths[prompt_rows]
    longest = int(lengths.max())
    columns = torch.arange(longest, device=lengths.device)
    num_columns = batch.rollout_logprobs.shape[1] - 1
    positions = batch.prompt_lengths.unsqueeze(-1) + torch.arange(
        num_columns, device=lengths.device
    )
    # A shorter prompt is followed by tokens of its response: the mask below hides them.
    prompts = batch.input_ids[prompt_rows, :longest]
    # Past the end of a row any token will do: no real token sees it.
    responses = batch.input_ids.gather(1, positions.clamp(max=batch.input_ids.shape[1] - 1))
    # Looked up at once: each lookup's gradient is a tensor of the embedding's size.
    embedded = backbone.get_input_embeddings()(torch.cat([prompts.flatten(), responses.flatten()]))
    cache = transformers.DynamicCache()
    read = backbone(
        inputs_embeds=embedded[: prompts.numel()].view(*prompts.shape, -1),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    last = torch.arange(len(prompt_rows), device=lengths.device) * longest + lengths - 1
    states = select_rows(read.flatten(0, 1), last).index_select(0, prompt_of_row).unsqueeze(1)
    if num_columns == 0:
        return states
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(0, prompt_of_row)
        layer.values = layer.values.index_select(0, prompt_of_row)
    is_prompt = columns < batch.prompt_lengths.unsqueeze(-1)
    continued = backbone(
        inputs_embeds=embedded[prompts.numel() :].view(*responses.shape, -1),
        attention_mask=torch.cat([is_prompt, torch.ones_like(positions, dtype=torch.bool)], dim=1),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([states, continued], dim=1)
