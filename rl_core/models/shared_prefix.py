"""Hidden states that predict response tokens; a group's prompt is computed once for all its rows.

Legend: H hidden size, N response tokens.
"""

from typing import Any, Final

from torch import Tensor, nn

from rl_core.batch import TrainBatch
from rl_core.models.packing import packed_states, select_rows, takes_packed_rows

_PADDING: Final = 0.1
"""Rows without a shared prompt are packed above this share of padding: gathering costs, too."""


def sees_all_tokens(backbone: Any) -> bool:
    """Returns whether each layer sees all earlier tokens: no window of positions and no state.

    Soft-capped scores count as a window, too: they need an attention that reads single rows.
    """
    config = backbone.config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    limits = (getattr(config, x, None) for x in ("sliding_window", "attn_logit_softcapping"))
    return set(layer_types) == {"full_attention"} and all(limit is None for limit in limits)


def can_share_prompts(backbone: Any) -> bool:
    """Returns whether a group's prompt is read once for all its responses: rows can be packed."""
    return sees_all_tokens(backbone) and takes_packed_rows(backbone)


def response_states(backbone: nn.Module, batch: TrainBatch) -> Tensor:
    """Returns the states that predict the response tokens, [N, H], row after row.

    The backbone is a causal LM's decoder, without its head. Rows are packed to read a group's
    prompt once, and on a card to save padding.
    """
    if can_share_prompts(backbone) and (len(batch.prompts()[0]) < len(batch) or _is_padded(batch)):
        return packed_states(backbone, batch)
    states = backbone(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    return select_rows(states.flatten(0, 1), batch.predictor_index())


def _is_padded(batch: TrainBatch) -> bool:
    return _on_card(batch) and 1.0 - int(batch.lengths.sum()) / batch.input_ids.numel() > _PADDING


def _on_card(batch: TrainBatch) -> bool:
    return batch.input_ids.is_cuda
