"""CPU seconds of a sync and of a generation by vLLM: merged weights, or an adapter by LoRARequest.

python -m benchmarks.served_vllm merged|adapter
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_core.system.process_env import apply_defaults, process_environment

apply_defaults()
os.environ |= {"OMP_NUM_THREADS": "1"} | process_environment(num_threads=1, on_gpu=False)

import numpy as np  # noqa: E402  # torch reads its settings from the environment on import
import torch  # noqa: E402

from flows.settings.compose import compose  # noqa: E402
from rl_core.data.prompts import resolve_model  # noqa: E402
from rl_core.models.loading import load_actor  # noqa: E402
from rl_core.models.lora import add_adapters, merged_state, peft_name, save_adapter  # noqa: E402
from rl_core.rollout import vllm_engine  # noqa: E402
from rl_core.types import GenerationRequest, SamplingSettings  # noqa: E402

REPEATS, NUM_PROMPTS, GROUP_SIZE, PROMPT_TOKENS, RESPONSE_TOKENS = 4, 12, 8, 60, 16
RANK = 16


def main() -> None:
    """Prints a line per repeat."""
    is_merged = sys.argv[1] == "merged"
    torch.set_num_threads(1)
    config = compose(["preset=smollm2-laptop", f"model.lora_rank={RANK}"])
    model = resolve_model(str(config.model.path), config.storage.root)
    lora: dict[str, Any] = {"rank": RANK, "alpha": config.model.lora_alpha}
    actor = load_actor(model, torch.device("cpu"))
    add_adapters(actor, **lora)
    adapter = {name: x for name, x in actor.named_parameters() if ".lora_" in name}
    if not is_merged:
        from vllm import LLM

        options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": RANK}
        vllm_engine.LLM = lambda **others: LLM(**others, **options)
    engine = vllm_engine.VllmEngine(config, model, 256)
    enqueue = engine.llm.enqueue
    served: dict[str, Any] = {}
    engine.llm.enqueue = lambda *args, **options: enqueue(*args, **options, **served)
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    prompts = np.random.default_rng(0).integers(100, 40_000, (NUM_PROMPTS, PROMPT_TOKENS)).tolist()
    requests = [
        GenerationRequest(tuple(prompt), seed) for prompt in prompts for seed in range(GROUP_SIZE)
    ]

    @torch.no_grad()
    def sync(version: int) -> int:
        if is_merged:
            dtype = getattr(torch, config.compute_dtype)
            sent = {name: x.to("cpu", dtype) for name, x in merged_state(actor)}
            engine.update_weights(sent)
            return sum(x.nbytes for x in sent.values())
        from vllm.lora.request import LoRARequest

        files = folder / str(version)
        by_name = {peft_name(name): x for name, x in adapter.items()}
        save_adapter(by_name, files, **lora, base=str(model))
        request = LoRARequest(f"run-{version}", version, str(files))
        engine.llm.llm_engine.add_lora(request)
        if served:
            engine.llm.llm_engine.remove_lora(served["lora_request"].lora_int_id)
        served["lora_request"] = request
        assert engine.llm.reset_prefix_cache()
        return sum(file.stat().st_size for file in files.iterdir())

    def generate() -> int:
        sampling = SamplingSettings(RESPONSE_TOKENS, temperature=1.0)
        return sum(len(one.response_ids) for _, one in engine.generate(requests, sampling))

    for version in range(1, 1 + REPEATS):
        with torch.no_grad():
            for name, x in adapter.items():
                if ".lora_B." in name:
                    x.normal_(std=0.02)
        num_bytes, sync_s = timed(lambda version=version: sync(version))
        num_tokens, generate_s = timed(generate)
        rate = num_tokens / generate_s
        print(f"{num_bytes:,} bytes {sync_s:.2f} s, {generate_s:.1f} s, {rate:.0f} tokens/s")
    engine.close()
    shutil.rmtree(folder)


def timed(work: Callable[[], int]) -> tuple[int, float]:
    """Returns what a call returns, and its CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


if __name__ == "__main__":
    main()
