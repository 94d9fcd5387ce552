"""Low-rank adapters (LoRA): few weights learn, the base model's stay as they are.

A linear layer with weight W computes W x + (alpha / rank) B A x, and only A [rank, in] and B
[out, rank] learn. Engines and a checkpoint's model get the merged weights W + (alpha / rank) B A as
new tensors: adding to W and subtracting again would lose precision. For a W in 4 bits (QLoRA), W is
the dequantized one of the learner, not the original. A checkpoint also has the adapter itself, in
PEFT's form.

Source: Hu et al. 2021 (arXiv:2106.09685).
"""

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from rl_core.models.fast_linear import FastLinear
from rl_core.models.linear_4bit import Linear4bit
from rl_core.models.shares import whole_tensor
from rl_core.resources.model_shape import takes_adapter
from rl_core.system.model_folder import ADAPTER_WEIGHTS

_logger = logging.getLogger(__name__)
_ADAPTER = "default"
"""peft's name for the only adapter of a layer."""


def add_adapters(model: transformers.PreTrainedModel, *, rank: int, alpha: float) -> None:
    """Puts an adapter on every linear layer but the output embedding, and freezes all else.

    In a mixture of experts only attention has adapters. At first B is 0, so the model computes what
    it did; A is drawn from torch's generator.
    """
    import peft  # here: it takes a second, which a run without adapters saves

    output = model.get_output_embeddings()
    has_experts = any(name.endswith(".experts") for name, _ in model.named_modules())
    # Not peft's "all-linear", which in a mixture of experts means the experts, too.
    layers = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | transformers.pytorch_utils.Conv1D)
        and layer is not output
        and takes_adapter(name, has_experts=has_experts)
    ]
    # Whole names: peft shortens a list of many to endings, which others may have, too.
    names = "|".join(map(re.escape, layers))
    # peft types alpha as int, and only divides by the rank.
    settings = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names)
    peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    model.eval()


@torch.no_grad()
def hold_frozen_in_bfloat16(*models: nn.Module) -> None:
    """Keeps frozen matrices in bfloat16, in which passes under autocast use them anyway.

    Only if every value stays what it is, as those of a model published in bfloat16 do. Norms and
    biases, which are few and meet float32 numbers, stay as they are, and embeddings return float32.
    """
    layers: list[nn.Linear | nn.Embedding] = []
    others: set[nn.Parameter] = set()
    for module in (module for model in models for module in model.modules()):
        # Not other kinds of embeddings: some scale in the type of their weight.
        is_plain = type(module) in (nn.Linear, FastLinear, nn.Embedding)
        if is_plain and isinstance(module, nn.Linear | nn.Embedding):
            layers.append(module)
        else:
            others.update(module.parameters(recurse=False))
    frozen = {layer.weight for layer in layers if not layer.weight.requires_grad} - others
    if not all(torch.equal(weight, weight.bfloat16().float()) for weight in frozen):
        _logger.info(
            "model.dtype: the frozen weights stay in float32, 4 bytes each: bfloat16 would round "
            "them"
        )
        return
    for weight in frozen:
        weight.data = weight.data.bfloat16()
    for layer in layers:
        if isinstance(layer, nn.Embedding) and layer.weight in frozen:
            layer.register_forward_hook(_in_float32)


def _in_float32(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.float()


@torch.no_grad()
def merged_state(model: transformers.PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yields `model.state_dict()` with every adapter merged, under the names of a plain model.

    All are float32. Layers with adapters give new tensors, gathered by collectives if the model is
    sharded; all others give the model's own if these are float32, and shards are not gathered. A
    tied weight comes only once.
    """
    adapted = {
        f"{name}.base_layer.weight": layer
        for name, layer in model.named_modules()
        if hasattr(layer, "base_layer")
    }
    packed = {
        f"{name}.weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, Linear4bit)
    }
    # Tied weights, under all names but the first.
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    repeated = every - {name for name, _ in model.named_parameters()}
    for name, tensor in model.state_dict().items():
        beside = ".lora_A." in name or ".lora_B." in name
        if beside or name.endswith(".absmax") or name in repeated:
            continue
        if name in packed:
            tensor = packed[name].whole_weight()
        if name in adapted:
            tensor = whole_tensor(adapted[name].get_delta_weight(_ADAPTER)).add_(tensor)
        elif tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        yield name.replace(".base_layer.", "."), tensor


def peft_name(parameter: str) -> str:
    """Returns the name that PEFT's files give to an adapter's parameter of ours."""
    return f"base_model.model.{parameter.replace(f'.{_ADAPTER}.', '.')}"


def _ending(layer: list[str]) -> str:
    """Returns what PEFT knows a layer by: its name in a block, with the list's if it is in one."""
    return ".".join(layer[-2:] if layer[-1].isdigit() else layer[-1:])


def save_adapter(
    weights: Mapping[str, Tensor], folder: Path, *, rank: int, alpha: float, base: str
) -> None:
    """Writes an adapter as PEFT's `from_pretrained` reads it, float32.

    `weights` are by `peft_name`, on any device; `base` is what the folder names as its base model.
    """
    import peft

    # peft types alpha as int, and only divides by the rank.
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=sorted({_ending(name.split(".")[:-2]) for name in weights}),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    settings.save_pretrained(str(folder))
    on_cpu = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(on_cpu, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
