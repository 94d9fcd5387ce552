"""Stage 3 with vLLM, inside this process (the only vllm import).

Set the environment first (`rl_core.system.process_env`): `VLLM_ENABLE_V1_MULTIPROCESSING=0` keeps
the engine in-process: it starts in a third of the time and half the memory, and leaves no children.
"""

import gc
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import ValidationError
from transformers import AutoConfig

from rl_core.config.run import RunConfig
from rl_core.errors import allocation_in_words, is_out_of_memory
from rl_core.models.folder_check import check_model_folder, refuse_for_vllm
from rl_core.models.weight_digest import weight_digest
from rl_core.rollout.model_files import (
    complete_weights,
    finite_weights,
    stop_token_ids,
    weight_shapes,
)
from rl_core.rollout.protocol import RolloutEngine
from rl_core.system.process_env import hide_cuda_only_packages
from rl_core.types import Completion, GenerationRequest, SamplingSettings

hide_cuda_only_packages()

from vllm import LLM, ModelRegistry, SamplingParams  # noqa: E402  # after the guard above
from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: E402
    VocabParallelEmbedding,
)

_CPU_BLOCK_TOKENS = 32
"""The smallest block that vLLM's attention on a CPU takes."""
_MEMORY_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Shares of the memory that the settings give, tried in this order when an engine is rebuilt."""
_TRIES = 3
"""Attempts to measure the free memory of a card that others use, too."""


class WeightUpdates:
    """What vLLM mixes into its worker class: the receiving end of `VllmEngine`'s updates."""

    model_runner: Any

    def replace_weights(self, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> str:
        """Loads `weights`, all of the model's, in place; returns the digest of what was loaded.

        Each tensor as vLLM takes it: what it fuses and packs them to cannot be compared.
        """
        taken: list[tuple[str, torch.Tensor]] = []

        def each() -> Iterator[tuple[str, torch.Tensor]]:
            for one in weights.items():
                taken.append(one)
                yield one

        self.model_runner.reload_weights(weights_iterator=each())
        for layer in self.model_runner.get_model().modules():
            # The reload repacks every linear layer for the CPU's kernels but not a tied lm_head,
            # whose logits would silently stay those of the old weights.
            if isinstance(layer, VocabParallelEmbedding):
                layer.quant_method.process_weights_after_loading(layer)
        return weight_digest(taken, dtype)


class VllmEngine(RolloutEngine):
    """A vLLM engine on one device whose weights are replaced in place."""

    def __init__(self, config: RunConfig, model_path: Path, max_num_seqs: int) -> None:
        """Loads the model; generates `max_num_seqs` responses at a time.

        In float32 log-probs agree with the learner's to about 1e-5, in bfloat16 to about 0.05. With
        `rollout.sleep` the engine frees a GPU's memory after each `generate`, and keeps the weights
        in the machine's memory until the next call.
        """
        if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
            raise RuntimeError(
                "VLLM_ENABLE_V1_MULTIPROCESSING is not 0: start the process with the environment "
                "of rl_core.system.process_env, or vLLM's own child processes outlive it"
            )
        check_model_folder(model_path)
        refuse_for_vllm(model_path)
        self._shapes = weight_shapes(model_path)
        self._dtype: torch.dtype = getattr(torch, config.compute_dtype)
        read = finite_weights(model_path)
        self.digest = weight_digest(((n, x) for n, x in read if n in self._shapes), self._dtype)
        self._stop_token_ids = stop_token_ids(model_path)
        model_config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
        _inspect_in_process(model_config)
        rollout = config.rollout
        self._on_gpu = config.resources.rollout_gpus > 0
        self.sleeps = rollout.sleep and self._on_gpu
        self._is_asleep = False
        self._weights: Mapping[str, torch.Tensor] | None = None
        self._options: dict[str, Any] = {
            "model": str(model_path),
            # Only responses of several turns end at texts (`env.stop`).
            "skip_tokenizer_init": config.env.max_turns == 1,
            "trust_remote_code": False,
            "hf_overrides": _overrides(model_config),
            "load_format": "safetensors",  # never a pickle, which could execute code
            "generation_config": "vllm",  # no sampling defaults hidden in the model folder
            "dtype": config.compute_dtype,
            "max_model_len": config.data.max_prompt_length + config.data.max_response_length,
            "logprobs_mode": "processed_logprobs",  # after temperature: what was sampled from
            "worker_extension_cls": f"{WeightUpdates.__module__}.{WeightUpdates.__name__}",
            "disable_log_stats": True,
        }
        cpu_options = {
            "kv_cache_memory_bytes": rollout.kv_cache_mib * 2**20,
            "enforce_eager": True,
            # Prompts of a group share whole blocks: with the default of 128 most would share none.
            "block_size": _CPU_BLOCK_TOKENS,
            # After part of a prompt vLLM rewinds the request's random generator, which a generator
            # of the CPU cannot do: prompts are read whole, or in the next step.
            "enable_chunked_prefill": False,
        }
        gpu_options = {
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "enable_sleep_mode": rollout.sleep,
        }
        self._options |= gpu_options if self._on_gpu else cpu_options
        if rollout.tensor_parallel_size > 1:
            # A child process for each shard, even if Ray could start them: they end with this
            # process, and use its cards.
            self._options |= {
                "tensor_parallel_size": rollout.tensor_parallel_size,
                "distributed_executor_backend": "mp",
            }
        self.llm = self._build(max_num_seqs)
        """vLLM itself."""
        self.policy_version = 0

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> Iterator[tuple[int, Completion]]:
        """Yields completions with their positions; see `RolloutEngine.generate`."""
        if not requests:
            return
        self._wake_up()
        ids = self.llm.enqueue(
            [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
            [self._params(request, sampling) for request in requests],
            use_tqdm=False,
        )
        # Outputs have the number that vLLM gave each request, without the suffix that it adds.
        positions = {id_.partition("-")[0]: i for i, id_ in enumerate(ids)}
        engine = self.llm.llm_engine
        try:
            while engine.has_unfinished_requests():
                outputs = engine.step()
                if not engine.has_unfinished_requests():
                    # Before the last yield: a caller that counts its answers does not come back.
                    self._go_to_sleep()
                ended = [
                    (positions.pop(output.request_id), output.outputs[0]) for output in outputs
                ]
                for i, output in ended:
                    yield i, _completion(output, self.policy_version)
        except GeneratorExit:  # the caller needs no more
            engine.abort_request(list(positions))
            self._go_to_sleep()
            raise

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces all weights in place; see `RolloutEngine.update_weights`."""
        self._wake_up()
        complete = complete_weights(weights, self._shapes)
        digests = self.llm.collective_rpc("replace_weights", args=(complete, self._dtype))
        self.digest = "/".join(sorted(set(digests)))  # of all shards' processes, which take all
        self._weights = weights
        if not self.llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM refused to reset its prefix cache after a weight update: prompts would be "
                "answered from keys and values of the old weights"
            )

    def release_weights(self) -> None:
        """Drops the weights that `resize` would load again; see `RolloutEngine.release_weights`."""
        self._weights = None

    def resize(self, max_num_seqs: int) -> None:
        """Builds the engine again: after a failed step its state is unknown.

        If memory is too short for that, it gets a half, a quarter, ... of the cache, in which
        responses then wait for each other.
        """
        self.close()
        message = ""
        for share in _MEMORY_SHARES:
            try:
                self.llm = self._build(max_num_seqs, share=share)
                break
            except (RuntimeError, ValueError, MemoryError) as error:
                # A later error, such as a cache too small for one response, has the same cause.
                if not message and not is_out_of_memory(error):
                    raise
                message = message or allocation_in_words(error)
            gc.collect()
        else:
            raise MemoryError(message)
        if self._weights is not None:
            self.update_weights(self._weights)

    def close(self) -> None:
        """Frees the model and its KV cache."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        torch.cuda.empty_cache()

    def _build(self, max_num_seqs: int, *, share: float = 1.0) -> LLM:
        """Returns vLLM's engine with a share of the memory that the settings give it."""
        name = "gpu_memory_utilization" if self._on_gpu else "kv_cache_memory_bytes"
        memory = {name: type(self._options[name])(share * self._options[name])}
        self._is_asleep = False
        with _torch_untouched():
            try:
                options = self._options | memory | {"max_num_seqs": max_num_seqs}
                return _undisturbed(lambda: LLM(**options))
            except ValidationError as error:  # cannot be sent between processes
                reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ").splitlines()[0]
                raise ValueError(f"vLLM refuses {self._options['model']}: {reason}") from None

    def _go_to_sleep(self) -> None:
        if self.sleeps and not self._is_asleep:
            self.llm.sleep(level=1)
            self._is_asleep = True

    def _wake_up(self) -> None:
        if self._is_asleep:
            self.llm.wake_up()
            self._is_asleep = False

    def _params(self, request: GenerationRequest, sampling: SamplingSettings) -> SamplingParams:
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=min(request.max_tokens or sampling.max_tokens, sampling.max_tokens),
            seed=request.seed,
            stop=list(sampling.stop),
            include_stop_str_in_output=bool(sampling.stop),
            stop_token_ids=list(self._stop_token_ids),
            logprobs=0,  # only of the sampled token
            flat_logprobs=True,
            detokenize=bool(sampling.stop),
        )


def _completion(output: Any, policy_version: int) -> Completion:
    return Completion(
        response_ids=np.array(output.token_ids, dtype=np.int64),
        logprobs=np.array(output.logprobs.logprobs, dtype=np.float32),
        finish_reason=cast("Literal['stop', 'length']", output.finish_reason),
        policy_version=policy_version,
    )


def _undisturbed(build: Callable[[], LLM]) -> LLM:
    """Returns `build()`; tries again if the card's free memory grew while vLLM measured it."""
    for _ in range(_TRIES):
        try:
            return build()
        except AssertionError as error:
            if "memory profiling" not in str(error):
                raise
        gc.collect()
        torch.cuda.empty_cache()
    raise RuntimeError(
        f"{_TRIES} times another process gave memory of this card back while vLLM measured what is "
        "free: start again when the card is quiet, or set rollout.engine=hf"
    )


def _inspect_in_process(config: Any) -> None:
    """Registers the model's class itself, instead of its name.

    vLLM would start a further Python, with torch and vLLM, only to look at the class: 15 seconds
    on a machine without vLLM's cache.
    """
    for architecture in config.architectures or ():
        entry = ModelRegistry.models.get(architecture)
        if entry is not None and hasattr(entry, "module_name"):
            ModelRegistry.register_model(architecture, entry.load_model_cls())


def _overrides(config: Any) -> dict[str, int]:
    """Returns the settings of config.json that vLLM reads otherwise than transformers, mended."""
    if config.model_type == "gpt_bigcode" and config.multi_query:
        return {"num_key_value_heads": 1}
    if config.model_type == "cohere2" and config.sliding_window:
        return {"sliding_window": config.sliding_window - 1}  # vLLM's is longer by a token
    return {}


@contextmanager
def _torch_untouched() -> Iterator[None]:
    """Restores what an engine's construction changes in its process.

    It reseeds Python's, numpy's and torch's global generators, and on the CPU replaces
    `torch.set_num_threads` by a function that only warns.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    set_num_threads = torch.set_num_threads
    num_threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)
