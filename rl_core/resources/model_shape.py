"""The sizes of a model, from its `config.json`: what memory, time and FLOPs are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.config.model import BaseModelConfig
from rl_core.system.model_folder import CONFIG, read_object

_FLOAT32 = 4


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
    in_bfloat16: bool = False
    """Whether the files hold bfloat16."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Returns the shape that a Hugging Face `config.json` describes.

        Raises:
            ValueError: if it describes no such decoder.
        """
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            kind = config.get("model_type")
            return cls(
                hidden_size=hidden,
                intermediate_size=int(config["intermediate_size"]),
                num_layers=int(config["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or hidden // heads),
                vocab_size=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                attention_bias=bool(config.get("attention_bias", kind == "qwen2")),
                qk_norm=kind == "qwen3",
                in_bfloat16=config.get("dtype", config.get("torch_dtype")) == "bfloat16",
            )
        except KeyError as error:
            raise ValueError(f"config.json has no {error}: its memory cannot be planned") from None

    @classmethod
    def from_folder(cls, folder: Path) -> ModelShape:
        """Returns the shape of a model folder, see `from_config`."""
        return cls.from_config(read_object(folder / CONFIG))

    @classmethod
    def of_base_model(cls, settings: BaseModelConfig) -> ModelShape:
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
        """Parameters in the matrices of one layer, without biases."""
        attention = 2 * (self._query_size + self._kv_size)
        return self.hidden_size * (attention + 3 * self.intermediate_size)

    @property
    def attention_size(self) -> int:
        """Numbers that attention keeps per token and layer: query, key, value, output."""
        return 2 * (self._query_size + self._kv_size)

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer."""
        bias = self._query_size + 2 * self._kv_size if self.attention_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_size if self.qk_norm else 0)
        return self.num_layer_matrices + bias + norms

    @property
    def num_backbone_parameters(self) -> int:
        """Parameters without an output embedding: those of a critic without its head."""
        layers = self.num_layers * self.num_layer_parameters
        return self.vocab_size * self.hidden_size + layers + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Parameters of the causal LM; a tied embedding counts once."""
        head = 0 if self.tied else self.vocab_size * self.hidden_size
        return self.num_backbone_parameters + head

    def num_adapter_parameters(self, rank: int) -> int:
        """Parameters of low-rank adapters on all linear layers."""
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
            in_float32 = 4 * hidden + self.num_heads + 2
            per_token = 2 * (inside + 5 * hidden) + _FLOAT32 * in_float32
            weights = 2 * self.num_layer_parameters if casts_weights else 0
        layer = num_tokens * per_token + weights
        if checkpointed:
            return self.num_layers * num_tokens * hidden * _FLOAT32 + layer
        return self.num_layers * layer

    def kv_bytes(self, width: int) -> int:
        """Returns the bytes of a token in a KV cache whose numbers have `width` bytes."""
        return 2 * self.num_layers * self._kv_size * width
