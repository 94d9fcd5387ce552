"""CPU seconds of a sync and of a generation by engine hf: merged weights, or an adapter in place.

python -m benchmarks.served_adapter preset=smollm2-laptop model.lora_rank=16
"""

import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from flows.settings.compose import compose
from rl_core.data.prompts import resolve_model
from rl_core.models.loading import load_actor
from rl_core.models.lora import add_adapters, merged_state
from rl_core.rollout.hf_engine import HfEngine
from rl_core.system.process_env import process_environment
from rl_core.types import GenerationRequest, SamplingSettings

REPEATS, NUM_PROMPTS, GROUP_SIZE, PROMPT_TOKENS, RESPONSE_TOKENS = 2, 3, 8, 60, 16


def main() -> None:
    """Prints a line for each of the two."""
    os.environ |= process_environment(num_threads=1, on_gpu=False)
    torch.set_num_threads(1)
    config = compose(sys.argv[1:])
    model = resolve_model(str(config.model.path), config.storage.root)
    lora = {"rank": config.model.lora_rank, "alpha": config.model.lora_alpha}
    actor = load_actor(model, torch.device("cpu"))
    add_adapters(actor, **lora)
    prompts = np.random.default_rng(0).integers(100, 40_000, (NUM_PROMPTS, PROMPT_TOKENS)).tolist()
    requests = [
        GenerationRequest(tuple(prompt), seed) for prompt in prompts for seed in range(GROUP_SIZE)
    ]
    for is_merged in (True, False):
        engine = HfEngine(model, dtype=config.compute_dtype, max_num_seqs=64, on_gpu=False)
        theirs = engine._model
        if not is_merged:
            add_adapters(theirs, **lora)
        served = {name: x for name, x in theirs.named_parameters() if ".lora_" in name}

        @torch.no_grad()
        def sync(engine: HfEngine = engine, served: dict[str, torch.Tensor] = served) -> int:
            dtype = getattr(torch, config.compute_dtype)
            if not served:
                sent = {name: x.to("cpu", dtype) for name, x in merged_state(actor)}
                engine.update_weights(sent)
            else:
                sent = {name: x for name, x in actor.named_parameters() if name in served}
                for name, x in sent.items():
                    served[name].copy_(x)
            return sum(x.nbytes for x in sent.values())

        def generate(engine: HfEngine = engine) -> int:
            sampling = SamplingSettings(RESPONSE_TOKENS, temperature=1.0)
            return sum(len(one.response_ids) for _, one in engine.generate(requests, sampling))

        num_bytes, sync_s = least(sync)
        num_tokens, generate_s = least(generate)
        print(
            f"{'merged' if is_merged else 'adapter':8} {num_bytes:,} bytes in {sync_s:.2f} s, "
            f"{num_tokens} tokens in {generate_s:.2f} s ({num_tokens / generate_s:.0f} tokens/s)"
        )


def least(work: Callable[[], int]) -> tuple[int, float]:
    """Returns what a call returns, and the fewest CPU seconds that one took."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        result = work()
        seconds.append(time.process_time() - start)
    return result, min(seconds)


if __name__ == "__main__":
    main()
