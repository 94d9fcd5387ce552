"""The sizes of a model, from its `config.json`: what memory, time and FLOPs are computed from."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rl_core.config.model import BaseModelConfig
from rl_core.system.model_folder import CONFIG, read_object, tensors_of, weight_files

_FLOAT32 = 4
_SPELLINGS: Final = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
}
"""Other names of a setting."""
_MLP: Final = 4  # times the hidden size, where a config leaves it to its class
_EMBEDDINGS: Final = ("embed", "wte", "wpe", "lm_head", "output_projection")


class StoredSizes(NamedTuple):
    """Numbers of parameters in a model's files, which formulas miss of many kinds."""

    in_all: int
    in_matrices: int
    """Of linear layers: those that adapters and 4 bits reach, without experts."""
    around_matrices: int
    """Rows and columns of the matrices that have adapters: parameters at rank 1."""

    @classmethod
    def of(cls, folder: Path, *, tied: bool) -> Self:
        """Returns the sizes that headers say; ValueError without files, or if one is damaged."""
        shapes = {
            name: tensor.shape
            for file in weight_files(folder)
            for name, tensor in tensors_of(folder / file).items()
        }
        if tied:
            shapes.pop("lm_head.weight", None)
        has_experts = any(".experts." in name for name in shapes)
        matrices = {
            name: shape
            for name, shape in shapes.items()
            if len(shape) == 2
            and name.endswith(".weight")
            and ".experts." not in name
            and not any(part in name for part in _EMBEDDINGS)
        }
        return cls(
            in_all=sum(map(prod, shapes.values())),
            in_matrices=sum(map(prod, matrices.values())),
            around_matrices=sum(
                shape[0] + shape[1] * (4 if "gqkv_proj" in name else 1)  # which loads as four
                for name, shape in matrices.items()
                if takes_adapter(name, has_experts=has_experts)
            ),
        )


_NO_ADAPTER_BESIDE_EXPERTS: Final = frozenset(
    ["gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"]
)


def takes_adapter(name: str, *, has_experts: bool) -> bool:
    """Returns whether a matrix gets an adapter: no router does, nor the layers around experts.

    peft takes some names for the experts'.
    """
    parts = set(name.split("."))
    return "router" not in parts and not (has_experts and parts & _NO_ADAPTER_BESIDE_EXPERTS)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder with gated MLPs and grouped attention (Qwen, Llama)."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    tied: bool
    """Whether input and output embedding are one tensor."""
    attention_bias: bool
    qk_norm: bool = False
    """Whether queries and keys are normalised, head by head (Qwen3)."""
    caps_scores: bool = False
    """Whether attention's scores are soft-capped, which needs all of them in memory (Gemma 2)."""
    in_bfloat16: bool = False
    """Whether the files hold bfloat16."""
    stored: StoredSizes | None = field(default=None, compare=False)
    """What the files hold, if they are here."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the shape that a Hugging Face `config.json` describes.

        Raises:
            ValueError: if it describes no such decoder.
        """
        text = dict(config.get("text_config") or config)
        for name, others in _SPELLINGS.items():
            for other in others:
                if text.get(other) is not None:
                    text.setdefault(name, text[other])
        try:
            heads = _number(text["num_attention_heads"])
            hidden = _number(text["hidden_size"])
            kind = text.get("model_type")
            return cls(
                hidden_size=hidden,
                intermediate_size=_number(text.get("intermediate_size") or _MLP * hidden),
                num_layers=_number(text["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=_number(text.get("num_key_value_heads") or heads),
                head_size=_number(text.get("head_dim") or hidden // heads),
                vocab_size=_number(text["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                attention_bias=bool(text.get("attention_bias", kind == "qwen2")),
                qk_norm=kind == "qwen3",
                caps_scores=text.get("attn_logit_softcapping") is not None,
                in_bfloat16=config.get("dtype", config.get("torch_dtype")) == "bfloat16",
            )
        except KeyError as error:
            raise ValueError(f"config.json has no {error}: its memory cannot be planned") from None

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Returns the shape of a model folder, see `from_config`, with what its files hold."""
        shape = cls.from_config(read_object(folder / CONFIG))
        with suppress(ValueError, OSError):  # none, or damaged: `check_model_folder` says why
            return replace(shape, stored=StoredSizes.of(folder, tied=shape.tied))
        return shape

    @classmethod
    def of_base_model(cls, settings: BaseModelConfig) -> Self:
        """Returns the shape of the home-made base model."""
        return cls(
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_layers=settings.num_layers,
            num_heads=settings.num_heads,
            num_kv_heads=settings.num_heads,
            head_size=settings.hidden_size // settings.num_heads,
            vocab_size=settings.vocab_size,
            tied=True,
            attention_bias=True,
        )

    @property
    def _query_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def _kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def num_layer_matrices(self) -> int:
        """Parameters in the matrices of one layer, without biases and experts."""
        if self.stored is not None:
            return self.stored.in_matrices // self.num_layers
        attention = 2 * (self._query_size + self._kv_size)
        return self.hidden_size * (attention + 3 * self.intermediate_size)

    @property
    def attention_size(self) -> int:
        """Numbers that attention keeps per token and layer: query, key, value, output."""
        return 2 * (self._query_size + self._kv_size)

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer."""
        if self.stored is not None:
            outside = self._head_size + (self.vocab_size + 1) * self.hidden_size
            return (self.stored.in_all - outside) // self.num_layers
        bias = self._query_size + 2 * self._kv_size if self.attention_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_size if self.qk_norm else 0)
        return self.num_layer_matrices + bias + norms

    @property
    def num_backbone_parameters(self) -> int:
        """Parameters without an output embedding: those of a critic without its head."""
        if self.stored is not None:
            return self.stored.in_all - self._head_size
        layers = self.num_layers * self.num_layer_parameters
        return self.vocab_size * self.hidden_size + layers + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Parameters of the causal LM; a tied embedding counts once."""
        return self.num_backbone_parameters + self._head_size

    @property
    def _head_size(self) -> int:
        return 0 if self.tied else self.vocab_size * self.hidden_size

    def num_adapter_parameters(self, rank: int) -> int:
        """Parameters of low-rank adapters on all linear layers, see models/lora.py."""
        if self.stored is not None:
            return rank * self.stored.around_matrices
        hidden = self.hidden_size
        inner = self.intermediate_size
        attention = 2 * (hidden + self._query_size) + 2 * (hidden + self._kv_size)
        return self.num_layers * rank * (attention + 3 * (hidden + inner))

    def activation_bytes(
        self, num_tokens: int, *, dtype: str, checkpointed: bool, casts_weights: bool = True
    ) -> int:
        """Returns what a forward pass over a padded micro-batch keeps for its backward pass.

        Under autocast, norms keep float32, and bfloat16 copies of the weights are kept too, unless
        the weights are bfloat16. With checkpoints each layer keeps only its input; only one layer
        at a time keeps the rest too.
        """
        hidden = self.hidden_size
        inside = 4 * self.intermediate_size + self.attention_size
        if dtype == "float32":
            per_token = _FLOAT32 * (inside + 6 * hidden + self.num_heads + 2)
            weights = 0
        else:
            per_token = 2 * (inside + 5 * hidden) + _FLOAT32 * (4 * hidden + self.num_heads + 2)
            weights = 2 * self.num_layer_parameters if casts_weights else 0
        layer = num_tokens * per_token + weights
        if checkpointed:
            return self.num_layers * num_tokens * hidden * _FLOAT32 + layer
        return self.num_layers * layer

    def kv_bytes(self, width: int) -> int:
        """Returns the bytes of a token in a KV cache whose numbers have `width` bytes."""
        return 2 * self.num_layers * self._kv_size * width


def _number(value: Any) -> int:
    """Returns a size; of a list, which has one for each layer, the largest."""
    return int(max(value) if isinstance(value, list) else value)


_FIELDS: Final = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
_SIZES: Final = {
    "Qwen2.5-0.5B": (896, 4_864, 24, 14, 2, 151_936, True),
    "Qwen2.5-1.5B": (1_536, 8_960, 28, 12, 2, 151_936, True),
    "Qwen2.5-3B": (2_048, 11_008, 36, 16, 2, 151_936, True),
    "Qwen2.5-7B": (3_584, 18_944, 28, 28, 4, 152_064, False),
    "Qwen3-0.6B": (1_024, 3_072, 28, 16, 8, 151_936, True),
    "Qwen3-1.7B": (2_048, 6_144, 28, 16, 8, 151_936, True),
    "Qwen3-4B": (2_560, 9_728, 36, 32, 8, 151_936, True),
    "Qwen3-8B": (4_096, 12_288, 36, 32, 8, 151_936, False),
}
"""Source: `config.json` of each model as published by its authors."""
_SHARED: Final[dict[str, dict[str, Any]]] = {
    "Qwen2.5": {"model_type": "qwen2"},
    "Qwen3": {"model_type": "qwen3", "head_dim": 128, "attention_bias": False},
}


def known_config(name: str) -> dict[str, Any] | None:
    """Returns what `config.json` of a hub model, base or instruct, says of its shape, or None."""
    match = re.fullmatch(r"(?:modelscope:)?Qwen/(.+?)(?:-Instruct|-Base)?", name)
    if match is None or match[1] not in _SIZES:
        return None
    shared = _SHARED[match[1].partition("-")[0]]
    return shared | dict(zip(_FIELDS, _SIZES[match[1]], strict=True))


def known_shape(name: str) -> ModelShape | None:
    """Returns the shape of a hub model, or None."""
    config = known_config(name)
    return None if config is None else ModelShape.from_config(config)
