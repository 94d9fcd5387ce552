"""A whole training step, ours beside TRL's: CPU seconds and peak memory, taking turns.

    make bench                 # or: .venv/bin/python benchmarks/step_time.py [--threads 2] ...
    make bench MODEL=135m      # GRPO's step of SmolLM2-135M's shape, in float32 and bfloat16

Every contestant is a process that waits for its turn; the peers' environments are made on the first
run, under .benchmarks/. README.md says what is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from workload import MODELS, RESPONSE_TOKENS, VARIANTS, prompts

from rl_core.system.devices import cpu_info
from rl_core.system.process_env import process_environment

HERE = Path(__file__).parent
WORK = HERE.parent / ".benchmarks"
PINNED = ("torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0", "datasets==5.2.0")
PEERS = {"grpo": ("trl_grpo", "trl==1.16.0"), "ppo": ("trl_ppo", "trl==1.12.0")}
"""TRL removed PPO after 1.12."""
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
"""Of a CPU; the last three decide how fast it multiplies bfloat16."""
CONTESTANTS = ("trl", "hf", "vllm")
BY_CHOICE = "plain"
"""Ours, engine hf, with the pass for the values that a single critic update makes unnecessary."""


@dataclass(frozen=True)
class Target:
    """What a variant should reach beside TRL."""

    speed: float
    """TRL's seconds over ours, at least, with our faster engine."""
    memory: float
    """Our peak over TRL's, at most, with our faster engine."""
    vllm_speed: float | None
    """As `speed`, with engine vllm."""


TARGETS = {
    "grpo": Target(3.2, 0.6, 2.5),
    "grpo_ref": Target(3.2, 0.6, 2.5),
    "ppo_8x8": Target(3.6, 0.5, 3.0),
    "ppo_64x1": Target(1.9, 0.5, None),
    "grpo_135m": Target(2.5, 0.6, None),
    "grpo_135m_bf16": Target(2.5, 0.6, None),
}


class Contestant:
    """A process that does one step at a time."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.name, self._log, self.reports = name, log, list[dict[str, Any]]()
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )

    def read(self) -> dict[str, Any]:
        """Returns the next report.

        Raises:
            RuntimeError: the process has ended instead.
        """
        line = _stream(self._process.stdout).readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(f"{self.name} ended, see {self._log}:\n{tail}")
        report: dict[str, Any] = json.loads(line)
        return report

    def step(self) -> None:
        """Does one step."""
        stdin = _stream(self._process.stdin)
        stdin.write("\n")
        stdin.flush()
        self.reports.append(self.read())

    def close(self) -> None:
        """Ends the process."""
        _stream(self._process.stdin).close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # it never got as far as its gate
            self._process.kill()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def make_environments(algorithms: set[str]) -> None:
    """Makes the peers' environments that are missing, at the same time."""
    WORK.mkdir(exist_ok=True)
    uv = Path(sys.executable).with_name("uv")
    # Like our own: torch's CUDA build takes 300 MB more, which no step uses.
    wheels = shlex.split(os.environ.get("CPU_WHEELS", "")) or ["--torch-backend", "cpu"]
    installs = {}
    for algorithm in algorithms:
        name, requirement = PEERS[algorithm]
        folder, wanted = WORK / name, "\n".join((requirement, *PINNED, "CPU build"))
        stamp = folder / "built"
        if stamp.is_file() and stamp.read_text() == wanted:
            continue
        print(f"making {folder}: {requirement}", flush=True)
        subprocess.run([uv, "venv", "-q", "--clear", "-p", sys.executable, folder], check=True)
        command = [uv, "pip", "install", "-q", "-p", folder / "bin/python", *wheels]
        installs[stamp] = (subprocess.Popen([*command, requirement, *PINNED]), wanted)
    for stamp, (process, wanted) in installs.items():
        if process.wait():
            raise RuntimeError(f"{stamp.parent} could not be made, see above")
        stamp.write_text(wanted)


def environment(num_threads: int, *, ours: bool) -> dict[str, str]:
    """Returns a contestant's environment variables: bounded threads, no network, no telemetry."""
    python_path = [str(HERE), str(HERE.parent)] if ours else [str(HERE)]
    variables = process_environment(num_threads=num_threads, on_gpu=False)
    return (os.environ | variables if ours else dict(os.environ)) | {
        "PYTHONPATH": os.pathsep.join(python_path),
        "OMP_NUM_THREADS": str(num_threads),
        "MKL_NUM_THREADS": str(num_threads),
        "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": str(WORK / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


def model_folder(model: str) -> Path:
    """Returns the folder of a model."""
    return WORK / f"model-{model}"


def make_model(model: str) -> dict[str, float]:
    """Writes a model; returns the flops per second of one thread in each dtype."""
    output = subprocess.run(
        [sys.executable, HERE / "step_model.py", model_folder(model), model],
        env=environment(1, ours=True),
        stdout=subprocess.PIPE,
        check=True,
    )
    rates: dict[str, float] = json.loads(output.stdout)
    return rates


@contextmanager
def started(variant: str, names: Sequence[str], num_threads: int) -> Iterator[list[Contestant]]:
    """Yields the contestants of a variant, all ready to step."""
    peer, _ = PEERS[VARIANTS[variant].algorithm]
    model = model_folder(VARIANTS[variant].model)
    with ExitStack() as stack:
        contestants = []
        for name in names:
            command = [str(WORK / peer / "bin/python"), str(HERE / f"peers/{peer}.py")]
            command += [str(model), variant]
            if name != "trl":
                command = [sys.executable, str(HERE / "ours_step.py"), str(model), variant]
                command += [name, str(num_threads)]
            env = environment(num_threads, ours=name != "trl")
            contestant = Contestant(name, command, env, WORK / f"{variant}-{name}.log")
            stack.callback(contestant.close)
            contestants.append(contestant)
        for contestant in contestants:
            contestant.read()
        yield contestants


def floor_flops(variant: str) -> float:
    """Returns the flops that no step can save: matrix products, a prompt's once per pass."""
    chosen = VARIANTS[variant]
    model = MODELS[chosen.model]
    hidden, layers = model.hidden_size, model.num_hidden_layers
    heads, head_dim = model.num_attention_heads, model.head_dim
    projections = head_dim * 2 * (heads + model.num_key_value_heads)
    weights = layers * hidden * (projections + 3 * model.intermediate_size)
    forward = head = 0.0
    for prompt in (len(ids) for ids in prompts(chosen)):
        tokens = prompt + chosen.group_size * RESPONSE_TOKENS
        seen = prompt**2 / 2
        seen += chosen.group_size * RESPONSE_TOKENS * (prompt + RESPONSE_TOKENS / 2)
        forward += 2 * weights * tokens + 4 * layers * heads * head_dim * seen
        head += 2 * hidden * model.vocab_size * chosen.group_size * RESPONSE_TOKENS
    flops = 4 * (forward + head)  # generation, and the actor's forward and backward
    if chosen.has_reference:
        flops += forward + head
    if chosen.algorithm == "ppo":
        flops += 4 * forward  # values, and the critic's forward and backward
    return flops


def rows(variant: str, results: dict[str, list[dict[str, Any]]], key: str) -> Iterator[str]:
    """Yields the table's rows of a variant.

    A ratio is the median of the rounds' ratios: other load slows both sides of a round.
    """
    target = TARGETS[variant]
    seconds = {name: [r[key] for r in reports] for name, reports in results.items()}
    ours = [name for name in results if name != "trl"]
    faster = min(ours, key=lambda name: statistics.median(seconds[name]), default=None)
    for name, reports in results.items():
        cpu, wall, peak = (
            statistics.median(r[field] for r in reports) for field in ("cpu_s", "wall_s", "peak_mb")
        )
        row = f"{variant:14} {name:5} {cpu:7.2f} {wall:7.2f} {peak:8.0f}"
        if name != "trl" and "trl" in results:
            speed = statistics.median(
                theirs / own for theirs, own in zip(seconds["trl"], seconds[name], strict=True)
            )
            memory = peak / statistics.median(r["peak_mb"] for r in results["trl"])
            row += f" {speed:6.2f} {memory:6.2f}  "
            wanted = []
            if name == faster:
                wanted.append((speed >= target.speed, f"{target.speed} x faster"))
                wanted.append((memory <= target.memory, f"{target.memory} of the memory"))
            if name == "vllm" and target.vllm_speed is not None:
                wanted.append((speed >= target.vllm_speed, f"{target.vllm_speed} x with vllm"))
            row += ", ".join(f"{what}: {'met' if met else 'NOT met'}" for met, what in wanted)
        yield row


def phases(results: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yields each contestant's time by phase, medians in seconds."""
    for name, reports in results.items():
        medians = {
            p: statistics.median(r["phases"][p] for r in reports) for p in reports[0]["phases"]
        }
        yield f"  {name}: " + ", ".join(f"{p} {s:.3f}" for p, s in medians.items())


def main() -> None:
    """Prints one table per number of threads, each variant's rows as soon as it is through."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each contestant")
    parser.add_argument("--model", default="3m", choices=MODELS, help="whose variants, by default")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS)
    choices = (*CONTESTANTS, BY_CHOICE)
    parser.add_argument("--contestants", nargs="+", default=CONTESTANTS, choices=choices)
    arguments = parser.parse_args()
    chosen = arguments.variants or [v for v in VARIANTS if VARIANTS[v].model == arguments.model]
    if "trl" in arguments.contestants:
        make_environments({VARIANTS[variant].algorithm for variant in chosen})
    WORK.mkdir(exist_ok=True)
    for model in {VARIANTS[variant].model for variant in chosen}:
        rates = make_model(model)
    key = "cpu_s" if arguments.threads == 1 else "wall_s"
    print(
        f"{arguments.threads} thread(s), ratios of {key}; one thread multiplies at "
        + ", ".join(f"{rate / 1e9:.0f} GFLOP/s ({name})" for name, rate in rates.items())
        + f"\nthe CPU has {', '.join(one for one in INSTRUCTIONS if one in cpu_info()) or 'none'}"
        + f" of {', '.join(INSTRUCTIONS)}"
        + "\nvariant        who     CPU s  wall s  peak MB  speed memory"
        + "  (TRL's / ours, ours / TRL's)",
        flush=True,
    )
    for variant in chosen:
        with started(variant, arguments.contestants, arguments.threads) as contestants:
            for _ in range(1 + arguments.steps):
                for contestant in contestants:
                    contestant.step()
        dtype = "bfloat16" if VARIANTS[variant].in_bfloat16 else "float32"
        results = {c.name: c.reports[1:] for c in contestants}  # the first step warms up
        print(*rows(variant, results, key), sep="\n")
        print(f"{variant:14} floor {floor_flops(variant) / rates[dtype]:7.2f}")
        print(*phases(results), sep="\n", flush=True)


if __name__ == "__main__":
    main()
