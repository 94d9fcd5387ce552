"""Peak memory of each learner rank, by phase, beside the planned one.

    .venv/bin/python benchmarks/rank_memory.py [--sizes 2 4] [--layers 12]

PPO on a CPU, one thread each, two micro-batches an update; anonymous memory, less that of a process
before it loads a model. Measured as `tests/rl_core/resources/test_memory_plan.py` does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rl_core.config.run import RunConfig
from rl_core.resources.memory_plan import ModelShape, memory_plan
from tests.rl_core.resources.test_memory_plan import SMALL, measured_peaks


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    wide = {"hidden_size": 384, "intermediate_size": 1_536, "num_attention_heads": 8}
    shape = SMALL | wide | {"num_hidden_layers": options.layers, "vocab_size": 8_000}
    planned_shape = ModelShape.from_config(shape | {"model_type": "qwen2"})
    print(f"{planned_shape.num_parameters:,} weights; MB, planned in brackets")
    for size in options.sizes:
        config = RunConfig.model_validate(
            {
                "data": {
                    "train_batch_size": 16,
                    "max_prompt_length": 16,
                    "max_response_length": 16,
                },
                "actor": {"mini_batch_size": 8, "micro_batch_tokens": 64},
                "resources": {"learner_threads": 1, "learner_ranks": size},
            }
        )
        planned = {x.phase: x.total_bytes for x in memory_plan(planned_shape, config)}
        with tempfile.TemporaryDirectory() as folder:
            for rank, peaks in enumerate(measured_peaks(Path(folder), shape, config)):
                cells = [f"{x / 1e6:.0f} ({planned[name] / 1e6:.0f})" for name, x in peaks.items()]
                print(f"| {size} | {rank} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
