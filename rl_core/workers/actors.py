"""What runs inside the Ray actors: one learner, or one rollout engine, per process.

Nothing heavy is imported before the process's environment is set.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ray

from rl_core.config.run import RunConfig
from rl_core.errors import out_of_memory_as
from rl_core.resources.memory_need import takes_turns
from rl_core.system.atomic import is_disk_full, open_own
from rl_core.system.log_file import RedactingFormatter
from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages, importing
from rl_core.system.process_group import dump_stacks_on_request
from rl_core.types import Completion, GenerationRequest, Rollout, SamplingSettings

if TYPE_CHECKING:
    import torch

    from rl_core.learner.learner import Learner
    from rl_core.learner.ranks import Ranks
    from rl_core.rollout.adaptive_engine import AdaptiveEngine

WRITING: Final = "writing"
"""Ray's concurrency group, a thread of the actor, for calls that run while its others do."""
_logger = logging.getLogger(__name__)


def prepare_process(environment: Mapping[str, str], log_file: Path) -> None:
    """Sets this process's environment and sends its output, and what we log, to `log_file`.

    The file descriptors are replaced, as C++ libraries and crash dumps write there. If the disk
    is full, output is lost, and the process continues.
    """
    os.environ.update(environment)
    apply_defaults()
    hide_cuda_only_packages()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        log = open_own(log_file, "a")
    except OSError as error:
        if not is_disk_full(error):
            raise
        log = io.FileIO(os.devnull, "w")
    with log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = io.TextIOWrapper(
        _Forgiving(1), errors="backslashreplace", line_buffering=True
    )
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter())
    logger = logging.getLogger("rl_core")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    # Harmless, as sent weights are only read; in a dead process's log it looks like the cause.
    warnings.filterwarnings("ignore", "Zero-copy tensor serialization")
    dump_stacks_on_request()


class _Forgiving(io.BufferedIOBase):
    """Writes to a file descriptor; output for which the disk has no room is lost."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, data)
        return len(data)

    def fileno(self) -> int:
        return self._descriptor


class LearnerActor:
    """The learner's process, or one of its ranks, which all get the same calls in one order."""

    def __init__(self, environment: Mapping[str, str], log_file: Path) -> None:
        prepare_process(environment, log_file)
        self._learner: Learner
        self._dtype: torch.dtype
        self._ranks: Ranks | None = None
        self._gathered: Mapping[str, torch.Tensor] | None = None
        self._digest: str | None = None

    def meet(self, rank: int, size: int, *, place: Path, own_host: str, timeout_s: float) -> None:
        """Waits for the other ranks, see `ranks.meet`."""
        from rl_core.learner.ranks import meet

        self._ranks = meet(rank, size, place=place, own_host=own_host, timeout_s=timeout_s)

    def load(self, config: RunConfig, model_path: Path, resume_from: Path | None) -> None:
        """Loads the models; not in the constructor, so that errors keep their type."""
        with out_of_memory_as("load_learner"):
            with importing():
                import torch

                from rl_core.learner.learner import Learner
                from rl_core.learner.ranks import ALONE

            ranks = self._ranks = self._ranks or ALONE
            self._learner = Learner(config, model_path, resume_from, ranks)
            self._config = config
            self._dtype = getattr(torch, config.compute_dtype)
            self._give_back()
        _logger.info(
            "%s in %s, micro-batches of up to %d tokens",
            model_path.name,
            config.compute_dtype,
            config.actor.micro_batch_tokens,
        )
        # Before the first save needs it, during the first rollouts.
        threading.Thread(target=self._learner.reserve_snapshot, daemon=True).start()

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Returns the metrics of `step` and the rollout log's columns, a number per rollout."""
        from rl_core.batch import collate

        done = self._learner.steps_done
        assert step == done + 1, f"step {step} asked of a learner that has done {done}"
        with self._in_phase("update"):
            return self._learner.learn(collate(rollouts))

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns all weights, on the CPU, in the type in which the engines compute."""
        from rl_core.models.weight_digest import weight_digest

        with self._in_phase("weights"):
            sent = dict(self._each_weight())
            self._digest = weight_digest(sent.items(), self._dtype)
        self._give_back()  # the engines wake up to take them
        return sent

    def digest(self) -> str:
        """Returns the digest of the weights that `weights` returned last, or would return first."""
        from rl_core.models.weight_digest import weight_digest

        if self._digest is None:
            with self._in_phase("weights"):
                self._digest = weight_digest(self._each_weight(), self._dtype)
            self._give_back()
        return self._digest

    def _each_weight(self) -> Iterator[tuple[str, torch.Tensor]]:
        gathered = self._gathered
        self._gathered = None
        # One by one: with adapters, all merged weights at once might not fit next to them.
        weights = self._learner.each_weight() if gathered is None else gathered.items()
        return ((name, tensor.to("cpu", self._dtype)) for name, tensor in weights)

    def gather_weights(self) -> None:
        """Gathers all weights on the first of several ranks, for `weights` to return them."""
        assert self._ranks is not None
        with self._in_phase("weights"):
            weights = self._learner.weights()
        if self._ranks.rank == 0:
            self._gathered = weights

    @contextlib.contextmanager
    def _in_phase(self, phase: str) -> Iterator[None]:
        """Raises the block's errors as `OutOfMemory` or `RankLost` if they are that."""
        from rl_core.learner.ranks import reporting_lost_rank
        from rl_core.system.heap import give_back_heap

        assert self._ranks is not None
        give_back_heap()  # else this phase's peak includes what the last one has left
        with out_of_memory_as(phase), reporting_lost_rank(self._ranks):
            yield

    def _give_back(self) -> None:
        """Frees the memory that torch caches on a card, for engines on the same card."""
        import torch

        if takes_turns(self._config):
            torch.cuda.empty_cache()

    def snapshot(self) -> int:
        """Copies what a checkpoint holds; must not run while `write_snapshot` does."""
        with self._in_phase("save"):
            return self._learner.snapshot()

    @ray.method(concurrency_group=WRITING)  # type: ignore[untyped-decorator]  # Ray's
    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot's checkpoint into `folder`, in a thread of its own."""
        with out_of_memory_as("save"):
            self._learner.write_snapshot(folder)


class RolloutActor:
    """A rollout engine's process."""

    def __init__(self, environment: Mapping[str, str], log_file: Path) -> None:
        prepare_process(environment, log_file)
        self._engine: AdaptiveEngine
        self._ended: Iterator[tuple[int, Completion]]
        self._is_stopped = False

    def load(
        self,
        config: RunConfig,
        model_path: Path,
        weights: Path | Mapping[str, torch.Tensor] | None,
        policy_version: int,
    ) -> tuple[int, str]:
        """Builds the engine from a folder that outlives the run, with its weights or `weights`.

        Returns what `set_weights` does.
        """
        with out_of_memory_as("load_engine"):
            with importing():
                from rl_core.rollout.adaptive_engine import AdaptiveEngine

                import_module(f"rl_core.rollout.{config.rollout.engine}_engine")

            self._engine = AdaptiveEngine(config, model_path)
        _logger.info(
            "%s in %s on %s, up to %d responses at a time",
            model_path.name,
            config.compute_dtype,
            config.rollout.engine,
            config.rollout.max_num_seqs,
        )
        if weights is not None:
            return self.set_weights(weights, policy_version)
        self._engine.engine.policy_version = policy_version
        return policy_version, self._engine.engine.digest

    def begin(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str
    ) -> None:
        """Takes requests to generate; what is left of earlier ones is dropped."""
        self._is_stopped = False
        self._ended = self._engine.generate(requests, sampling, phase)

    @ray.method(concurrency_group=WRITING)  # type: ignore[untyped-decorator]  # Ray's
    def stop_generating(self) -> None:
        """Lets all calls of `next_finished` that wait return nothing."""
        self._is_stopped = True

    def next_finished(self, limit: int) -> list[tuple[int, Completion]]:
        """Generates until `limit` more have ended, or all; returns them with their positions."""
        if self._is_stopped:
            self._ended = iter(())  # ends the generator, and so the engine's work
        return list(itertools.islice(self._ended, limit))

    def end_step(self) -> dict[str, float]:
        """Returns the engine's memory metrics since the last call."""
        return self._engine.end_step()

    def release_weights(self) -> None:
        """Drops the tensors in Ray's store that `set_weights` brought; new ones come next."""
        self._engine.engine.release_weights()

    def set_weights(
        self, weights: Path | Mapping[str, torch.Tensor], policy_version: int
    ) -> tuple[int, str]:
        """Replaces all weights by the learner's, or by those of a saved model's folder.

        Returns how many updates made them, and the digest of what the engine now holds.
        """
        from rl_core.rollout.model_files import read_weights

        with out_of_memory_as("sync"):
            if isinstance(weights, Path):
                weights = read_weights(weights)
            self._engine.engine.update_weights(weights)
            self._engine.engine.policy_version = policy_version
        return policy_version, self._engine.engine.digest
