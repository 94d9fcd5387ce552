"""Turns a verl or TinyZero launch script into a preset of ours, and says what is wrong with it."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from rl_core.config import GROUP_ESTIMATORS, RunConfig
from rl_core.data_order import total_steps
from rl_core.disk_plan import checkpoint_bytes
from rl_core.known_shapes import known_shape
from tasks.finding import Finding
from tasks.shell_script import Command, Script, Word, read_script
from tasks.verl_settings import ESTIMATORS, IDLE, KL_ESTIMATORS, SAME, TOGETHER

_SETTING = re.compile(r"^\+{0,2}(?P<key>[A-Za-z_]\w*(?:\.\w+)+)=(?P<value>.*)$", re.DOTALL)
_KNOWN: Final = (*SAME, *TOGETHER, *IDLE)
_LEARNS_NOTHING_ALONE: Final = 8
"""Responses per prompt that a preset gets where a script's one would teach nothing."""
_ACTOR: Final = "actor_rollout_ref.actor."
_ROLLOUT: Final = "actor_rollout_ref.rollout."


@dataclass(frozen=True)
class Imported:
    """A script as settings of ours."""

    settings: dict[str, Any]
    """Our dotted keys; a preset holds these."""
    findings: list[Finding]

    def preset(self, source: str) -> str:
        """Returns the settings as the text of a preset file."""
        head = f"# @package _global_\n# Made from {source} by countdown-train import.\n"
        return head + yaml.safe_dump(nested(self.settings), sort_keys=False)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns dotted keys as sections within sections."""
    sections: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        section = sections
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return sections


@dataclass(frozen=True)
class _Given:
    """One KEY=VALUE of the script."""

    value: str
    line: int


def import_script(text: str) -> Imported:
    """Returns what a launch script asks for, in our settings, and what is wrong with it.

    Raises:
        ValueError: no command in it looks like a trainer's.
    """
    script = read_script(text)
    command, stray = _training_command(script)
    findings = list(_shell_findings(script, command, stray))
    given, doubles = _settings([*command.words, *stray])
    findings += doubles
    settings, more = _translate(given)
    findings += [*more, *_key_findings(given)]
    return Imported(settings, sorted(findings, key=_line))


def import_settings(values: Mapping[str, Any]) -> Imported:
    """Returns verl's settings, by dotted key as its log holds them, in ours."""
    given = {
        key: _Given("null" if value is None else str(value), line)
        for line, (key, value) in enumerate(values.items(), start=1)
    }
    return Imported(*_translate(given))


def _line(finding: Finding) -> int:
    return int(finding.check.removeprefix("line "))


def _at(line: int, message: str, remedy: str, *, is_grave: bool = True) -> Finding:
    return Finding(f"line {line}", "warning" if is_grave else "ok", message, remedy)


def _training_command(script: Script) -> tuple[Command, list[Word]]:
    """Returns the command that trains, and settings cut off from it: commands of their own."""
    counts = [sum(map(_is_setting, command.words)) for command in script.commands]
    named = [any("main_ppo" in word.text for word in command.words) for command in script.commands]
    if not any(counts):
        raise ValueError("no command with settings like data.train_batch_size=256 is in it")
    chosen = named.index(True) if any(named) else counts.index(max(counts))
    stray = [
        word
        for command in script.commands[chosen + 1 :]
        if _is_setting(command.words[0])
        for word in command.words
    ]
    return script.commands[chosen], stray


def _is_setting(word: Word) -> bool:
    return _SETTING.match(word.text) is not None


def _shell_findings(script: Script, command: Command, stray: list[Word]) -> Iterator[Finding]:
    for line in script.broken_lines:
        lost = sum(map(_is_setting, stray))
        yield _at(
            line,
            "ends in a backslash and a blank, so the command ends here"
            + (f" and loses {lost} settings, from {stray[0].text!r} on" if lost else ""),
            "delete the blank; the preset has all of them",
        )
    all_piped = [c for c in script.commands if "tee" in c.piped_into]
    if all_piped and not script.has_pipefail:
        yield _at(
            all_piped[0].line,
            "its exit code is tee's: a crash looks like success",
            "set -o pipefail; here log.txt is written anyway and the run's state tells the truth",
        )
    for name, line in script.unset_variables:
        yield _at(
            line,
            f"${name} is not set in this script",
            "settings that use it are left out of the preset",
            is_grave=False,
        )


def _settings(words: list[Word]) -> tuple[dict[str, _Given], list[Finding]]:
    """Returns the settings, the last of each key, and what is said of doubles."""
    given: dict[str, _Given] = {}
    findings = []
    for word in words:
        match = _SETTING.match(word.text)
        if match is None:
            continue
        key, value = match["key"], match["value"]
        if key in given:
            before = given[key]
            findings.append(
                _at(
                    word.line,
                    f"{key} is given twice, {before.value} in line {before.line} and {value} here",
                    f"the last one wins: {value}",
                )
            )
        given[key] = _Given(value, word.line)
    return given, findings


def _key_findings(given: Mapping[str, _Given]) -> Iterator[Finding]:
    """What is said of keys that do nothing, and of those that nobody knows."""
    for key, one in given.items():
        if key in IDLE:
            yield _at(one.line, f"{key} does nothing here", IDLE[key], is_grave=False)
        elif key not in SAME and key not in TOGETHER:
            nearest = difflib.get_close_matches(key, _KNOWN, n=1, cutoff=0.6)
            hint = f"did you mean {nearest[0]}?" if nearest else "left out of the preset"
            yield _at(one.line, f"{key} is no setting that verl is known to have", hint)


def _translate(given: Mapping[str, _Given]) -> tuple[dict[str, Any], list[Finding]]:
    settings: dict[str, Any] = {}
    for key, one in given.items():
        if key in SAME and "$" not in one.value:
            settings[SAME[key]] = _plain(one.value)
    findings = [
        *_files(given, settings),
        *_estimator(given, settings),
        *_batches(given, settings),
        *_cards(given, settings),
        *_loggers(given, settings),
    ]
    _losses(given, settings)
    return settings, [*findings, *_disk(given, settings)]


def _plain(text: str) -> Any:
    """Returns a value as Hydra reads it: numbers, booleans, null, lists, else the text."""
    if re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", text):
        return float(text)  # YAML wants a point in 1e-6
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, bool | int | float | str | list) or value is None else text


def _files(given: Mapping[str, _Given], settings: dict[str, Any]) -> Iterator[Finding]:
    """Data that is not on this machine is made anew, in the prompt that the model is used to."""
    for theirs, ours in (("data.train_files", "data.train_files"), ("data.val_files", _TESTS)):
        if ours not in settings:
            continue
        files = settings[ours] if isinstance(settings[ours], list) else [settings[ours]]
        missing = [name for name in files if not Path(str(name)).exists()]
        if missing:
            del settings[ours]
            yield _at(
                given[theirs].line,
                f"{missing[0]} is not here",
                "the run makes puzzles of its own; data.train_files=FILE names yours",
                is_grave=False,
            )
    if "data.train_files" not in settings:
        settings.pop(_TESTS, None)
        if "instruct" in str(settings.get("model.path", "")).lower():
            settings["env.prompt_template"] = "qwen-instruct"


_TESTS: Final = "data.test_files"


def _estimator(given: Mapping[str, _Given], settings: dict[str, Any]) -> Iterator[Finding]:
    name = settings.get("algorithm.estimator")
    if name is not None and name not in ESTIMATORS:
        is_number = isinstance(name, int | float)
        del settings["algorithm.estimator"]
        yield _at(
            given["algorithm.adv_estimator"].line,
            f"algorithm.adv_estimator={name} "
            + ("is a number where an estimator's name belongs" if is_number else "is not known"),
            "was algorithm.lam or algorithm.gamma meant? The preset uses gae"
            if is_number
            else f"one of {', '.join(ESTIMATORS)}; the preset uses gae",
        )
    if name in GROUP_ESTIMATORS and settings.get("algorithm.group_size", 1) < 2:
        settings["algorithm.group_size"] = _LEARNS_NOTHING_ALONE
        yield _at(
            given["algorithm.adv_estimator"].line,
            f"{name} compares the responses to one prompt, and {_ROLLOUT}n is 1: every advantage "
            "is 0 and nothing is learned",
            f"the preset has algorithm.group_size={_LEARNS_NOTHING_ALONE}",
        )


def _batches(given: Mapping[str, _Given], settings: dict[str, Any]) -> Iterator[Finding]:
    batch, mini = (
        settings.get(key, default)
        for key, default in (("data.train_batch_size", 1024), ("actor.mini_batch_size", 256))
    )
    if isinstance(batch, int) and isinstance(mini, int) and 0 < batch < mini:
        line = given.get(_ACTOR + "ppo_mini_batch_size") or given["data.train_batch_size"]
        settings["actor.mini_batch_size"] = batch
        yield _at(
            line.line,
            f"ppo_mini_batch_size {mini} is above train_batch_size {batch}: verl divides by the "
            f"mini-batch that is never filled, so gradients are scaled by {batch / mini:g}",
            f"the preset has actor.mini_batch_size={batch} and gradients in full",
        )
    lengths = [settings.get(f"data.max_{part}_length") for part in ("prompt", "response")]
    for name in ("ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size"):
        micro = given.get(_ACTOR + name)
        if micro is not None and micro.value.isdigit() and all(lengths):
            tokens = int(micro.value) * sum(int(length or 0) for length in lengths)
            settings.setdefault("actor.micro_batch_tokens", tokens)


def _cards(given: Mapping[str, _Given], settings: dict[str, Any]) -> Iterator[Finding]:
    counts = [given.get(key) for key in ("trainer.n_gpus_per_node", "trainer.nnodes")]
    cards = 1
    for count in counts:
        cards *= int(count.value) if count is not None and count.value.isdigit() else 1
    parallel = given.get(_ROLLOUT + "tensor_model_parallel_size")
    if parallel is not None and parallel.value.isdigit() and int(parallel.value) > cards:
        yield _at(
            parallel.line,
            f"tensor_model_parallel_size {parallel.value} needs more than the {cards} GPUs that "
            "trainer.n_gpus_per_node and trainer.nnodes give",
            "at most as many; here each engine has one card",
        )
    if counts[0] is None:
        return
    settings["model.dtype"] = "bfloat16"
    settings["resources.learner_gpus"] = settings["resources.rollout_gpus"] = 0.5
    if cards > 1:
        settings["resources.learner_gpus"] = settings["resources.rollout_gpus"] = 1
        settings["rollout.num_engines"] = cards - 1
        yield _at(
            counts[0].line,
            f"{cards} GPUs: verl shards the learner over all of them",
            f"here one card learns and {cards - 1} generate",
            is_grave=False,
        )


def _disk(given: Mapping[str, _Given], settings: dict[str, Any]) -> Iterator[Finding]:
    """What all checkpoints take, which verl keeps, against the disk of this machine."""
    shape = known_shape(str(settings.get("model.path")))
    saves = given.get("trainer.save_freq")
    if shape is None or saves is None or not saves.value.isdigit() or int(saves.value) < 1:
        return
    try:
        config = RunConfig.model_validate(nested(settings))
    except ValidationError:
        return  # said of the preset as a whole
    size, every = checkpoint_bytes(shape, config), config.trainer.save_freq
    num_saves = total_steps(config, config.data.train_size) // every
    free = shutil.disk_usage(".").free
    if num_saves * size > free:
        yield _at(
            saves.line,
            f"saves every {every} steps: {num_saves} checkpoints of {size / 1e9:.1f} GB, all of "
            f"which verl keeps, and {free / 1e9:.0f} GB are free: full in step "
            f"{(free // size + 1) * every}",
            "here old ones are deleted by checkpoints.keep_last and quota_bytes before each save",
        )


def _loggers(given: Mapping[str, _Given], settings: dict[str, Any]) -> Iterator[Finding]:
    asked = settings.get("trainer.logger")
    if asked is None:
        return
    names = asked if isinstance(asked, list) else [asked]
    known = [name for name in names if name in ("console", "wandb", "tensorboard")]
    settings["trainer.logger"] = known
    if len(known) < len(names):
        others = ", ".join(str(name) for name in names if name not in known)
        yield _at(
            given["trainer.logger"].line,
            f"trainer.logger={others} is not known here",
            "console, wandb and tensorboard are",
            is_grave=False,
        )


def _losses(given: Mapping[str, _Given], settings: dict[str, Any]) -> None:
    """The settings that take several of verl's: both clips, and how KL holds the policy."""
    if (clip := given.get(_ACTOR + "clip_ratio")) is not None:
        for key in ("actor.clip_eps_low", "actor.clip_eps_high"):
            settings.setdefault(key, _plain(clip.value))
    kind = given.get("algorithm.kl_penalty")
    if _is_true(given.get(_ACTOR + "use_kl_loss")):
        settings["algorithm.kl_mode"] = "loss"
        kind = given.get(_ACTOR + "kl_loss_type", _Given("low_var_kl", 0))
        if (coef := given.get(_ACTOR + "kl_loss_coef")) is not None:
            settings["algorithm.kl_coef"] = _plain(coef.value)
    elif (in_reward := given.get("algorithm.use_kl_in_reward")) is not None:
        settings["algorithm.kl_mode"] = "reward" if _is_true(in_reward) else "none"
    if kind is not None and kind.value in KL_ESTIMATORS:
        estimator = KL_ESTIMATORS[kind.value]
        as_loss = settings.get("algorithm.kl_mode") == "loss"
        # k1 has no gradient as a loss (rl_core/config.py refuses it).
        settings["algorithm.kl_estimator"] = "k2" if as_loss and estimator == "k1" else estimator


def _is_true(one: _Given | None) -> bool:
    return one is not None and one.value.lower() == "true"
