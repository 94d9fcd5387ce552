"""Batches, engines, cards, saves, tests and learning rates: verl's settings -> ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.data.sampling import steps_per_epoch
from tasks.importers.verl_files import num_problems
from tasks.importers.verl_values import Given, Settings, at, count, is_true, number
from tasks.preflight_checks.finding import Finding

_ACTOR: Final = "actor_rollout_ref.actor."
_ROLLOUT: Final = "actor_rollout_ref.rollout."
_CHECKPOINTED: Final = (
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.actor.enable_gradient_checkpointing",
    "critic.model.enable_gradient_checkpointing",
)
_ENGINES: Final = ("vllm", "hf")
_SCHEDULES: Final = ("lr_scheduler_type", "warmup_style", "lr_decay_style")


def loop_findings(given: Mapping[str, Given], settings: Settings, line: int) -> Iterator[Finding]:
    """Adds what the script says of the loop, and says what is wrong with it.

    Args:
        given: the settings of the script.
        settings: ours so far, with the problems and the algorithm.
        line: where its command begins.
    """
    yield from _batches(given, settings)
    yield from _sampling(given, settings)
    yield from _cards(given, settings, line)
    yield from _checkpointing(given, settings)
    yield from _frequencies(given, settings)
    yield from _schedules(given, settings)
    yield from _optimizers(given, settings)
    yield from _loggers(given, settings)


def _batches(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """Mini-batches that divide the batch, and micro-batches in tokens."""
    batch, mini = settings["data.train_batch_size"], settings["actor.mini_batch_size"]
    asked = given.get(_ACTOR + "ppo_mini_batch_size") or given.get("data.train_batch_size")
    if asked is not None and isinstance(batch, int) and isinstance(mini, int) and min(batch, mini):
        divisor = next(size for size in range(min(batch, mini), 0, -1) if batch % size == 0)
        settings["actor.mini_batch_size"] = divisor
        if mini > batch:
            yield at(
                asked.line,
                f"ppo_mini_batch_size {mini} is above train_batch_size {batch}: verl divides by "
                f"the mini-batch that is never filled, so gradients are scaled by {batch / mini:g}",
                f"the preset has actor.mini_batch_size={divisor} and gradients in full",
            )
        elif mini != divisor:
            yield at(
                asked.line,
                f"ppo_mini_batch_size {mini} does not divide train_batch_size {batch}",
                f"the preset has actor.mini_batch_size={divisor}",
            )
    lengths = [settings[f"data.max_{part}_length"] for part in ("prompt", "response")]
    for name in ("ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size"):
        micro = count(given, _ACTOR + name)
        if micro is not None and all(isinstance(length, int) for length in lengths):
            if not is_true(given, _ACTOR + "use_dynamic_bsz"):
                settings["actor.micro_batch_tokens"] = micro * sum(lengths)
            settings.setdefault("actor.micro_batch_tokens", micro * sum(lengths))
            return


def _sampling(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """The engine, and what would cut the distribution that it samples from."""
    engine = given.get(_ROLLOUT + "name")
    if engine is not None:
        settings["rollout.engine"] = engine.value if engine.value in _ENGINES else _ENGINES[0]
    if engine is not None and engine.value not in _ENGINES:
        said = f"{_ROLLOUT}name={engine.value} is not known here"
        yield at(engine.line, said, "the preset has rollout.engine=vllm", is_grave=False)
    for name, all_words in (("top_p", 1), ("top_k", 0)):
        value = settings.get(f"rollout.{name}")
        if isinstance(value, int | float) and (value < 1 if name == "top_p" else value > 0):
            settings[f"rollout.{name}"] = all_words
            yield at(
                given[_ROLLOUT + name].line,
                f"{name}={value} samples from fewer words than the learner reckons with: its "
                "log-probs do not match",
                f"the preset has rollout.{name}={all_words}, all words",
            )
    if (most := count(given, "data.val_max_samples")) is not None:
        settings["trainer.test_problems"] = most


def _cards(given: Mapping[str, Given], settings: Settings, line: int) -> Iterator[Finding]:
    """GPUs of learner and engines, and what waits in the machine's memory."""
    per_node = given.get("trainer.n_gpus_per_node")
    cards = (count(given, "trainer.n_gpus_per_node") or 1) * (count(given, "trainer.nnodes") or 1)
    parallel = given.get(_ROLLOUT + "tensor_model_parallel_size")
    parts = count(given, _ROLLOUT + "tensor_model_parallel_size") or 1
    if per_node is None:
        said = "how many GPUs there are is not said, and verl's default is 8"
        yield at(line, said, "the preset has one card", is_grave=False)
    elif parallel is not None and parts > cards:
        yield at(
            parallel.line,
            f"tensor_model_parallel_size {parts} needs more than the {cards} GPUs that "
            "trainer.n_gpus_per_node and trainer.nnodes give",
            "at most as many",
        )
    share = 1 if cards > 1 else 0.5
    settings["model.dtype"] = "bfloat16"
    settings["resources.learner_gpus"] = settings["resources.rollout_gpus"] = share
    if any(re.search(r"fsdp.*_offload$", key) and one.plain is True for key, one in given.items()):
        settings["resources.offload"] = True
    if cards == 1:
        if is_true(given, _ROLLOUT + "free_cache_engine"):
            settings["rollout.sleep"] = True
    elif per_node is not None:
        ranks = min(cards // 2, settings["actor.mini_batch_size"])
        while parts > cards - ranks:
            parts //= 2  # still divides the heads
        engines = (cards - ranks) // parts
        settings["rollout.num_engines"] = engines
        generate = f"{cards - ranks} generate"
        if ranks > 1:
            settings["resources.learner_ranks"] = ranks
        if parts > 1:
            settings["rollout.tensor_parallel_size"] = parts
            generate = f"{engines} engine{'s' * (engines > 1)} of {parts} cards generate"
        yield at(
            per_node.line,
            f"{cards} GPUs: verl shards the learner over all of them",
            f"here {'one card learns' if ranks == 1 else f'{ranks} cards learn'} and {generate}",
            is_grave=False,
        )


def _checkpointing(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """Gradient checkpointing, which is one setting for actor and critic."""
    asked = [key for key in _CHECKPOINTED if key in given]
    if not asked:
        return
    settings["model.gradient_checkpointing"] = any(is_true(given, key) for key in asked)
    if len({is_true(given, key) for key in asked}) > 1 or asked == [_CHECKPOINTED[-1]]:
        yield at(
            given[asked[-1]].line,
            f"{asked[-1]}={given[asked[-1]].value} holds for actor and critic here",
            "the preset has model.gradient_checkpointing="
            + str(settings["model.gradient_checkpointing"]).lower(),
            is_grave=False,
        )


def _frequencies(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """Saves and tests that verl leaves out altogether."""
    for name, never in (("save", "verl keeps nothing of the run"), ("test", "verl never tests")):
        key = f"trainer.{name}_freq"
        one = given.get(key)
        if one is not None and one.is_number and one.plain < 1:
            settings.pop(key, None)
            default = getattr(RunConfig().trainer, f"{name}_freq")
            yield at(
                one.line,
                f"{key}={one.value}: {never}",
                f"here every {default} steps and in the end",
                is_grave=False,
            )


def _schedules(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """Warm-up and decay of the learning rates, which need the number of steps."""
    total, is_given = settings.get("trainer.total_steps"), "trainer.total_steps" in settings
    if not is_given and (problems := num_problems(given, settings)) is not None:
        batch = settings["data.train_batch_size"]
        if isinstance(batch, int) and 0 < batch <= problems:
            total = settings["trainer.total_epochs"] * steps_per_epoch(problems, batch)
    for part, optimizer in (("actor", _ACTOR + "optim."), ("critic", "critic.optim.")):
        yield from _warm_up(given, settings, part, optimizer, total)
        asked = (given.get(optimizer + name) for name in _SCHEDULES)
        style = next((one for one in asked if one is not None and one.plain is not None), None)
        if style is None or style.value == "constant":
            continue
        if style.value not in ("linear", "cosine") or total is None:
            why = "not known here" if total is not None else "without a known number of steps"
            yield at(style.line, f"{part}: the schedule {style.value} is {why}", "now constant")
            continue
        settings[f"{part}.lr_schedule"] = style.value
        settings["trainer.total_steps"] = total


def _optimizers(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """AdamW, in float32 or with 8 bits, whichever package verl takes it from."""
    for part in (_ACTOR, "critic."):
        one = given.get(f"{part}optim.optimizer")
        if one is None or one.plain is None or one.value == "AdamW":
            continue
        said = f"{part}optim.optimizer={one.value}"
        if one.value not in ("AdamW8bit", "_AdamW8bit"):
            yield at(one.line, f"{said} is not known here", "now AdamW")
        elif settings.get("resources.learner_ranks", 1) > 1:
            remedy = "now AdamW in float32, whose moments are divided among the ranks"
            yield at(one.line, f"{said} knows one learner process here", remedy, is_grave=False)
        else:
            settings["actor.optimizer"] = "adamw_8bit"


def _warm_up(
    given: Mapping[str, Given], settings: Settings, part: str, optimizer: str, total: Any
) -> Iterator[Finding]:
    """Steps until the rate is reached: verl's number, else its share of all steps."""
    steps = count(given, optimizer + "lr_warmup_steps")
    share = number(given, optimizer + "lr_warmup_steps_ratio")
    key = optimizer + ("lr_warmup_steps" if steps else "lr_warmup_steps_ratio")
    if steps is None and share is None:
        return
    if part == "critic":
        said = f"{key}={given[key].value} does nothing here"
        yield at(given[key].line, said, "the critic's rate starts in full", is_grave=False)
    elif steps is not None:
        settings["actor.warmup_steps"] = steps
    elif share is not None and total is not None:
        settings["actor.warmup_steps"] = int(share * total)
        said = f"{key}={given[key].value} of {total:,} steps"
        remedy = f"the preset has actor.warmup_steps={int(share * total)}"
        yield at(given[key].line, said, remedy, is_grave=False)
    else:
        said = f"{key}={given[key].value} of an unknown number of steps is left out"
        yield at(given[key].line, said, "actor.warmup_steps takes steps")


def _loggers(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    asked = settings.get("trainer.logger")
    if asked is None:
        return
    names = asked if isinstance(asked, list) else [asked]
    known = [name for name in names if name in ("console", "wandb", "tensorboard")]
    settings["trainer.logger"] = known
    if len(known) < len(names):
        others = ", ".join(str(name) for name in names if name not in known)
        yield at(
            given["trainer.logger"].line,
            f"trainer.logger={others} is not known here",
            "console, wandb and tensorboard are",
            is_grave=False,
        )
