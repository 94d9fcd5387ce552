"""A random model of some million parameters of each decoder class that transformers has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.conftest import build_tiny_model
from tests.support.engines import perturb

_ENCODERS = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
_DECODERS = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
_LEFT_OUT = (
    *("gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody"),
    *("cohere_compass_text", "fuyu", "gemma3n", "phi4_multimodal"),
)
KINDS: Final = {
    kind: name
    for kind, name in _DECODERS.items()
    if kind not in (*_ENCODERS, *_LEFT_OUT)
    and not getattr(getattr(transformers, name), "_is_stateful", False)
}
"""The class of each `model_type` that is a decoder, carries no state and needs no other model."""
SIZES: Final = {
    256: "hidden_size n_embd d_model dim embed_dim hidden_dim hidden_size_per_layer_input",
    512: "intermediate_size n_inner ffn_dim decoder_ffn_dim d_ff dff dim_ff ffn_hidden_size "
    "max_position_embeddings n_positions n_ctx original_max_position_embeddings "
    "shared_expert_intermediate_size intermediate_size_mlp",
    2048: "vocab_size vocab_size_per_layer_input",
    4: "num_hidden_layers n_layer n_layers num_layers decoder_layers num_attention_heads n_head "
    "n_heads num_heads decoder_attention_heads num_local_experts num_experts n_routed_experts "
    "moe_num_experts",
    2: "num_key_value_heads num_experts_per_tok moe_k moe_topk num_experts_per_token",
    1: "n_group topk_group eos_token_id n_shared_experts num_shared_experts moe_num_shared_experts "
    "first_k_dense_replace num_kv_shared_layers",
    0: "pad_token_id bos_token_id",
    64: "head_dim kv_channels attention_head_size global_head_dim qk_head_dim",
    128: "moe_intermediate_size moe_ffn_hidden_size expert_ffn_hidden_size kv_lora_rank "
    "q_lora_rank",
    32: "qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim",
    8: "sliding_window attention_window_size attention_chunk_size",
}
_SLIDING = ["sliding_attention", "full_attention"] * 2
OTHERS: Final[dict[str, dict[str, Any]]] = {
    **{
        kind: {"head_dim": 32, "num_key_value_heads": 4}
        for kind in (
            "axk1",
            "axk2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "minicpm3",
        )
    },
    **{
        kind: {"attention_multiplier": 0.125}
        for kind in (
            "granite",
            "granitemoe",
            "granitemoeshared",
        )
    },
    "falcon": {"ffn_hidden_size": 1024},  # four times the rest, as vLLM takes for granted
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "youtu": {"head_dim": 32, "num_key_value_heads": 4, "pad_token_id": None},  # or its row is 0
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "longcat_flash": {"head_dim": 32, "num_key_value_heads": 4, "num_layers": 2},
    "gemma2": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "vaultgemma": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gemma4_text": {"layer_types": _SLIDING, "num_experts": None},
    "gemma4_unified_text": {"layer_types": _SLIDING},
}
"""Settings of kinds whose defaults are for one size only."""


def small_config(kind: str) -> Any:
    """A kind's configuration: its defaults, with the sizes of a small model."""
    made = CONFIG_MAPPING[kind]
    defaults = made().to_dict()
    return made(**_shrunk(defaults) | OTHERS.get(kind, {}))


def _shrunk(defaults: Mapping[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {
        name: size
        for size, names in SIZES.items()
        for name in names.split()
        if isinstance(defaults.get(name), int | None | list) and name in defaults
    }
    for name, value in defaults.items():
        if isinstance(value, dict) and "model_type" in value:
            kind = value["model_type"]
            small[name] = {"model_type": kind} | _shrunk(value) | OTHERS.get(kind, {})
    return small


def write_small_model(kind: str, folder: Path) -> Any:
    """Writes a random model of a kind, with a byte-level tokenizer; returns it."""
    build_tiny_model(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    config = small_config(kind)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.eval().float()
    perturb(model, 0)
    for name, weight in model.named_parameters():
        if kind.startswith("gemma4") and name.endswith("q_norm.weight"):
            weight.data /= 8  # whose scores are so large that float32 rounds gradients by 1e-4
    model.generation_config = transformers.GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    return model
