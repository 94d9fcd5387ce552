"""What more learner ranks and engines cost: CPU seconds and bytes on the wire per step.

    .venv/bin/python benchmarks/scaling.py [ranks] [engines] [--sizes 1 2 4] [--steps 3]

`ranks`: only the learner, as 1, 2, 4 processes that meet over gloo, on the same batch (strong
scaling) and on a batch that grows with them (weak). `engines`: a learner and 1, 2, 4 transformers
engines under Ray, and the cost of Ray itself. Prints work per CPU second, since processes share
this machine's cores; bytes are counted on the loopback, in the program's own network namespace (as
root; otherwise they are not counted), beside those that `cluster_model.py` counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rl_core.system.process_env import apply_defaults  # noqa: E402  # before torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
apply_defaults()

from benchmarks.cluster_model import rank_traffic  # noqa: E402
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.resources.memory_plan import ModelShape  # noqa: E402

_SHAPE: Final = {
    "hidden_size": 256,
    "intermediate_size": 1_024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2_048,
    "tie_word_embeddings": True,
}
_PROMPT, _RESPONSE, _PROMPTS = 64, 64, 64
_OWN_NETWORK: Final = "SCALING_OWN_NETWORK"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["ranks", "engines"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if not set(options.parts) <= {"ranks", "engines"}:
        parser.error("ranks or engines")
    _enter_own_network()
    folder = Path(tempfile.mkdtemp(prefix="scaling-"))
    try:
        _write_model(folder)
        if "ranks" in options.parts:
            _ranks(folder, options.sizes, options.steps)
        if "engines" in options.parts:
            _engines(folder, options.sizes, options.steps)
    finally:
        shutil.rmtree(folder)


def _enter_own_network() -> None:
    """Starts this program again in a network namespace of its own, without other traffic."""
    if os.geteuid() != 0 or _OWN_NETWORK in os.environ or not shutil.which("unshare"):
        return
    command = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
    done = subprocess.run(
        ["unshare", "--net", *command], env=os.environ | {_OWN_NETWORK: "1"}, check=False
    )
    sys.exit(done.returncode)


def _write_model(folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_SHAPE))
    model.generation_config = transformers.GenerationConfig(eos_token_id=[])  # none ends early
    model.save_pretrained(folder)


def _config(*, num_prompts: int, ranks: int = 1, engines: int = 1) -> RunConfig:
    return RunConfig.model_validate(
        {
            "data": {
                "train_batch_size": num_prompts,
                "max_prompt_length": _PROMPT,
                "max_response_length": _RESPONSE,
            },
            "actor": {"mini_batch_size": num_prompts // 2, "micro_batch_tokens": 1_024},
            "algorithm": {"kl_mode": "loss", "kl_estimator": "k2"},
            "rollout": {"engine": "hf", "num_engines": engines},
            "resources": {"learner_ranks": ranks, "learner_threads": 1},
        }
    )


# The learner's ranks, without Ray.


def _ranks(folder: Path, sizes: Sequence[int], steps: int) -> None:
    shape = ModelShape.from_folder(folder)
    print(f"Learner ranks: PPO, {shape.num_parameters:,} weights, {_PROMPT} + {_RESPONSE} tokens")
    print("| scaling | ranks | prompts | CPU s per step | work per CPU s | MB sent | counted | |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("strong", "weak"):
        base = 0.0
        for size in sizes:
            num_prompts = _PROMPTS * (size if name == "weak" else 1)
            config = _config(num_prompts=num_prompts, ranks=size)
            cpu_s, sent = _on_ranks(folder, config, steps)
            rate = num_prompts / cpu_s
            base = base or rate
            tokens = num_prompts * (_PROMPT + _RESPONSE) / size
            fills = max(tokens / config.actor.micro_batch_tokens, 1.0)
            counted = size * rank_traffic(shape, config, _RESPONSE, fills).bytes_sent(size)
            share = f"{sent / counted:.2f}" if sent is not None and counted else ""
            megabytes = "" if sent is None else f"{sent / 1e6:.1f}"
            print(
                f"| {name} | {size} | {num_prompts} | {cpu_s:.2f} | {rate / base:.2f} | "
                f"{megabytes} | {counted / 1e6:.1f} | {share} |",
                flush=True,
            )


def _on_ranks(folder: Path, config: RunConfig, steps: int) -> tuple[float, float | None]:
    """Returns CPU seconds of all ranks and bytes that they sent, per step."""
    context = multiprocessing.get_context("spawn")
    size = config.resources.learner_ranks
    told: Any = context.Queue()
    with tempfile.TemporaryDirectory() as closed:
        place = Path(closed) / "ranks"
        processes = [
            context.Process(target=_rank, args=(rank, folder, config, steps, place, told))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        found = [told.get(timeout=1_800) for _ in processes]
        for process in processes:
            process.join()
    cpu_s = sum(seconds for seconds, _ in found) / steps
    sent = [number for _, number in found if number is not None]
    return cpu_s, max(sent) / steps if sent else None


def _rank(rank: int, folder: Path, config: RunConfig, steps: int, place: Path, told: Any) -> None:
    """Learns as one rank; the first also counts what all have sent."""
    import torch

    from rl_core.batch import TrainBatch
    from rl_core.learner.learner import Learner
    from rl_core.learner.ranks import ALONE, meet

    torch.set_num_threads(1)
    size = config.resources.learner_ranks
    ranks = ALONE
    if size > 1:
        ranks = meet(rank, size, place=place, own_host="127.0.0.1", timeout_s=600)
    rows = config.data.train_batch_size

    def full(value: int | bool, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype)

    torch.manual_seed(0)
    batch = TrainBatch(
        torch.randint(_SHAPE["vocab_size"], (rows, _PROMPT + _RESPONSE)),
        full(_PROMPT),
        full(_RESPONSE),
        torch.full((rows, _RESPONSE), -7.6),
        torch.rand(rows),
        torch.arange(rows),
        full(True, torch.bool),
        full(False, torch.bool),
    )
    learner = Learner(config, folder, ranks=ranks)
    learner.learn(batch)  # warms up
    ranks.add(torch.zeros(1))
    before, start = _sent(), time.process_time()
    for _ in range(steps):
        learner.learn(batch)
        learner.weights()  # gathered for the engines
    ranks.add(torch.zeros(1))
    cpu_s, after = time.process_time() - start, _sent()
    counted = None if before is None or after is None else after - before
    told.put((cpu_s, counted if rank == 0 else None))


def _sent() -> int | None:
    """Returns the bytes that were sent in this program's own network; None without one."""
    if _OWN_NETWORK not in os.environ:
        return None
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


# The engines, and the cost of Ray.


def _engines(folder: Path, sizes: Sequence[int], steps: int) -> None:
    print(f"\nEngines under Ray: {_PROMPTS} prompts of {_PROMPT}, {_RESPONSE} tokens each")
    print(
        "| engines | CPU s per step: engines | learner | driver | Ray's own | wall s: generate | "
        "learn | of it handover | sync |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size in sizes:
        _under_ray(folder, _config(num_prompts=_PROMPTS, engines=size), steps)


def _under_ray(folder: Path, config: RunConfig, steps: int) -> None:
    import numpy as np

    from rl_core.types import GenerationRequest, Problem, Rollout, SamplingSettings, ScoredText
    from rl_core.workers.cluster import Workers

    size = config.rollout.num_engines
    prompts = np.random.default_rng(0).integers(_SHAPE["vocab_size"], size=(_PROMPTS, _PROMPT))
    requests = [GenerationRequest(tuple(ids), seed=i) for i, ids in enumerate(prompts.tolist())]
    sampling = SamplingSettings(_RESPONSE)
    seconds: dict[str, float] = dict.fromkeys(("generate", "learn", "handover", "sync"), 0.0)

    def step(number: int) -> None:
        times = [time.perf_counter()]
        completions = workers.engines.generate(requests, sampling)
        times.append(time.perf_counter())
        rollouts = [
            Rollout(
                problem=Problem(i, "random", (), {}, 0),
                group_id=i,
                sample_index=0,
                prompt_text="",
                prompt_ids=requests[i].prompt_ids,
                completion=completion,
                response_text="",
                scored=ScoredText(float(i % 2), "correct", None),
            )
            for i, completion in enumerate(completions)
        ]
        metrics, _ = workers.learn(rollouts, number)
        times.append(time.perf_counter())
        workers.sync_weights()
        times.append(time.perf_counter())
        for name, start, end in zip(("generate", "learn", "sync"), times, times[1:], strict=False):
            seconds[name] += end - start
        seconds["handover"] += metrics["timing_s/handover"]

    with Workers.start(config, folder) as workers:
        step(1)  # warms up
        seconds = dict.fromkeys(seconds, 0.0)
        before, driver = _cpu_by_kind(), time.process_time()
        for number in range(2, 2 + steps):
            step(number)
        spent = {kind: s - before[kind] for kind, s in _cpu_by_kind().items()}
        driver = time.process_time() - driver
    cpu = [spent["RolloutActor"], spent["LearnerActor"], driver, spent["Ray"]]
    cells = [f"{s / steps:.2f}" for s in (*cpu, *seconds.values())]
    print(f"| {size} | {' | '.join(cells)} |", flush=True)


def _cpu_by_kind() -> dict[str, float]:
    """Returns CPU seconds so far of the processes below this one, by what they are."""
    found = {"RolloutActor": 0.0, "LearnerActor": 0.0, "Ray": 0.0}
    for process in psutil.Process().children(recursive=True):
        try:
            name, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.Error:
            continue
        kind = next((kind for kind in found if kind in name), "Ray")
        found[kind] += times.user + times.system
    return found


if __name__ == "__main__":
    main()
