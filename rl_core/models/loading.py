"""Actor, critic and reference: how they are loaded, and which weights of an actor are served.

Weights are float32, except frozen ones under adapters (lora.py). Modules stay in eval mode:
dropout would make the ratio of new to old policy differ from 1 before any update. Not here:
forward passes (forward.py), saving (saving.py).
"""

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from rl_core.config.run import RunConfig
from rl_core.models.fast_linear import use_fast_products
from rl_core.models.folder_check import check_model_folder, refuse_not_finite
from rl_core.models.linear_4bit import pack_linear_layers
from rl_core.models.logprobs import Head, capped
from rl_core.models.lora import add_adapters, hold_frozen_in_bfloat16, merged_state
from rl_core.models.packing import allow_packing
from rl_core.models.shares import whole_tensor

_PROBE_TOKENS = 4
Module = TypeVar("Module", bound=nn.Module)


class Critic(nn.Module):
    """A backbone and a linear head that starts at value 0 everywhere."""

    def __init__(self, backbone: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


def load_causal_lm(path: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Returns the complete causal LM of a folder, on the CPU; every load of a model calls this.

    Attention is torch's SDPA, unless scores are soft-capped (Gemma 2), which SDPA would leave out.

    Raises:
        ValueError: as `check_model_folder` does; a parameter is in no file and would stay random;
            a weight is not finite.
    """
    check_model_folder(path)
    transformers.utils.logging.disable_progress_bar()  # the terminal is the trainer's
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    caps_scores = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation="eager" if caps_scores else "sdpa",
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    lacking = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if lacking:
        raise ValueError(
            f"model.path={path}: {len(lacking)} tensors would be random, as its files do not hold "
            f"them ({lacking[0]} ...): copy the model again"
        )
    for name, weight in model.named_parameters():
        refuse_not_finite(path, name, weight)
    loaded: transformers.PreTrainedModel = model
    return loaded


def load_actor(
    path: Path, device: torch.device, *, in_4bit: bool = False
) -> transformers.PreTrainedModel:
    """Returns the causal LM of a folder: float32 weights, eval mode.

    With `in_4bit` its linear layers are frozen and packed, see `pack_linear_layers`.

    Raises:
        ValueError: as `load_causal_lm` does, or its logits are not what `Head` makes of its last
            hidden state.
    """
    model = load_causal_lm(path, torch.float32)
    model.config.use_cache = False
    if in_4bit:
        pack_linear_layers(model, device)
    model.to(device).eval()
    use_fast_products(model)
    _check_logits(model, path)
    return model


def checkpoint_gradients(model: transformers.PreTrainedModel) -> None:
    """Makes each layer keep only its input, and compute the rest again in the backward pass.

    The model is in eval mode, and all that is inside its layers stays so: dropout is off.

    Raises:
        ValueError: if the architecture has no layers that can do that.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"model.gradient_checkpointing=true: {type(model).__name__} does not support it"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True  # transformers needs it; not .train(), which sets inner ones, too
        for name, value in vars(layer).items():
            if name.endswith("dropout") and isinstance(value, float):  # the layer's own functions
                setattr(layer, name, 0.0)


def copy_sharing_frozen(model: Module) -> Module:
    """Returns a copy with trainable weights of its own, which shares the frozen ones' tensors."""
    shared = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    return copy.deepcopy(model, shared)


def make_critic(actor: transformers.PreTrainedModel) -> Critic:
    """Returns a critic that starts from an actor, with a value head of zeros."""
    backbone = copy_sharing_frozen(actor.get_decoder())
    critic = Critic(backbone, actor.config.get_text_config().hidden_size)
    return critic.to(next(actor.parameters()).device)


@dataclass(frozen=True)
class Models:
    """All models of a learner, on one device."""

    actor: transformers.PreTrainedModel
    reference: transformers.PreTrainedModel | None
    """The frozen base model, if there is a KL."""
    critic: Critic | None
    """If the estimator needs one."""
    teacher: transformers.PreTrainedModel | None = None
    """Frozen, of another folder and maybe another shape."""


def load_models(
    config: RunConfig, model_path: Path, resume_from: Path | None, device: torch.device
) -> Models:
    """Returns the models of a run, before a learner's saved state is restored.

    The actor is that of the checkpoint `resume_from`, if any, else the base model.

    Raises:
        ValueError: as `load_actor` and `checkpoint_gradients` do.
    """
    # With adapters, a checkpoint has merged weights: load the base, restore adapters later.
    rank = config.model.lora_rank
    folder = model_path if resume_from is None or rank else resume_from
    actor = load_actor(folder, device, in_4bit=config.model.load_in_4bit)
    actor.requires_grad_(not rank)
    allow_packing(actor)
    reference = None
    if config.algorithm.has_reference:
        reference = copy_sharing_frozen(actor) if rank else _load_frozen(model_path, device)
        reference.requires_grad_(False)
    if rank:
        add_adapters(actor, rank=rank, alpha=config.model.lora_alpha)
        if config.compute_dtype == "bfloat16":
            hold_frozen_in_bfloat16(*(model for model in (actor, reference) if model is not None))
    if config.model.gradient_checkpointing:
        checkpoint_gradients(actor)
    critic = make_critic(actor) if config.algorithm.formula.needs_critic else None
    return Models(actor, reference, critic, _load_teacher(config, device))


def _load_teacher(config: RunConfig, device: torch.device) -> transformers.PreTrainedModel | None:
    """Returns the frozen teacher, if there is one; ValueError as `load_actor`, by its settings."""
    if config.teacher.path is None:
        return None
    try:
        folder = Path(config.teacher.path)
        return _load_frozen(folder, device, in_4bit=config.teacher.load_in_4bit)
    except ValueError as error:
        message = re.sub(r"\bmodel\.(path|load_in_4bit)=", r"teacher.\1=", str(error))
        raise ValueError(message) from None


def _load_frozen(
    folder: Path, device: torch.device, *, in_4bit: bool = False
) -> transformers.PreTrainedModel:
    model = load_actor(folder, device, in_4bit=in_4bit)
    model.requires_grad_(False)
    allow_packing(model)
    return model


@torch.no_grad()
def _check_logits(model: transformers.PreTrainedModel, path: Path) -> None:
    """Log-probs are computed from hidden states: refuses a model for which that would be wrong."""
    ids = torch.arange(_PROBE_TOKENS, device=model.device).unsqueeze(0)
    expected = model(input_ids=ids, use_cache=False).logits
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    head = Head.of(model)
    divisor, cap = head.tempered(temperature=1.0)
    actual = capped(hidden @ head.weight.T / divisor, cap)
    if not torch.allclose(actual, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"model.path={path}: its logits are transformed after the output embedding "
            f"({type(model).__name__}), which log-probs from hidden states do not support: take "
            "another model, such as Qwen2 or Llama"
        )


def complete_weights(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Returns every weight once under its Hugging Face name, detached, on the model's device.

    Adapters are merged, see `lora.py`. A tied output embedding is left out (it IS the input
    embedding): loaders tie it again.
    """
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, shard in merged_state(model):
        tensor = whole_tensor(shard)
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            weights[name] = tensor.detach()
    return weights
