"""verl's settings -> ours: those of the table, then those that need a rule."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rl_core.algos.advantages import ESTIMATORS
from rl_core.algos.losses import LOSSES
from rl_core.config.run import RunConfig
from rl_core.data.sampling import steps_per_epoch
from tasks.importers.verl_correction import add_correction
from tasks.importers.verl_decoding import add_overlong, add_tests
from tasks.importers.verl_files import add_files, num_problems
from tasks.importers.verl_table import (
    CHAT_ARGS,
    NAMES,
    NEAREST,
    SAME,
    TABLE,
    VALUES,
    Given,
    ScriptSettings,
    Settings,
    is_number,
)
from tasks.preflight_checks import Finding

_ACTOR: Final = "actor_rollout_ref.actor."
_ESTIMATOR: Final = "algorithm.adv_estimator"
_ROLLOUT: Final = "actor_rollout_ref.rollout."
_RESPONSES: Final = "actor_rollout_ref.rollout.n"
_SMALLEST_GROUP: Final = 8  # responses per prompt if the script's number makes no group
_CLIP: Final = 0.2  # verl's default, of all its losses
_CLIPS: Final = ("actor.clip_eps_low", "actor.clip_eps_high")
_NOT_NULL: Final = Given(str(_CLIP), 0)
_RESAMPLED_AT_MOST: Final = 10  # rounds of dynamic sampling if verl has no limit
_SCHEDULES: Final = ("lr_scheduler_type", "warmup_style", "lr_decay_style")
_CHECKPOINTING: Final = "model.gradient_checkpointing"
_SHARES: Final = ("resources.learner_gpus", "resources.rollout_gpus")


def translate(
    given: Mapping[str, Given],
    line: int,
    *,
    no_defaults: Collection[str] = (),
    is_partial: bool = False,
) -> tuple[Settings, list[Finding]]:
    """Returns the settings of verl's command in `line` as ours, and the notes on them.

    Of the sections and keys `no_defaults`, and of all that is not given if the script `is_partial`,
    nothing is taken or said.
    """
    unread = {key: one for key, one in given.items() if one.is_unread}
    read = {key: one for key, one in given.items() if key not in unread}
    script = ScriptSettings(read, unread, line, frozenset(no_defaults), is_partial)
    for rule in (
        _same,
        _kl,
        _kl_estimate,
        add_correction,
        _defaults,
        add_files,
        _unlisted,
        _estimator,
        _group,
        _clip_ratio,
        _losses,
        _batches,
        _cards,
        _checkpointing,
        _optimizer_of_ranks,
        _schedules,
        _loggers,
        _chat_args,
        add_tests,
        add_overlong,
    ):
        rule(script)
    assumed = script.assumed.items()
    return {k: v for k, v in script.settings.items() if (k, v) not in assumed}, script.findings


def _same(script: ScriptSettings) -> None:
    """Takes over what has the same meaning; a run's start checks how settings go together."""
    config = RunConfig()
    for key in filter(SAME.__contains__, script.given):
        ours = SAME[key]
        value = script.plain(key)
        limit = TABLE["limits"].get(key)
        section, _, name = ours.partition(".")
        field = type(getattr(config, section)).model_fields[name]
        if limit and is_number(value) and not limit["at_least"] <= value <= limit["at_most"]:
            script.say(limit["says"], key, default=field.default)
            value = limit["ours"]
        if value is None or (value == -1 and ours != "rollout.top_k"):
            continue
        finite = ConfigDict(allow_inf_nan=False)
        try:
            allowed = TypeAdapter[Any](field.rebuild_annotation(), config=finite)
            script.settings[ours] = allowed.validate_python(value)
        except ValidationError as error:
            script.say("out_of_range", key, ours=ours, why=error.errors()[0]["msg"].lower())


def _defaults(script: ScriptSettings) -> None:
    """Takes the default of the script's verl for what a script leaves to it, if ours is another.

    Where it may set another value, the default only stands in for it until the end of the rules.
    """
    unread = {NAMES.get(key) for key in script.unread}
    unread |= {ours for key, ours in NAMES.items() if script.is_taken_away(key)}
    of_its_age = TABLE["defaults_since" if script.is_recent else "defaults_before"]
    defaults = of_its_age | TABLE["defaults"]
    silent = {key: value for key, value in defaults.items() if key not in script.settings}
    script.settings |= silent
    script.assumed |= {k: v for k, v in silent.items() if script.is_partial or k in unread}
    taken = {key: value for key, value in silent.items() if key not in script.assumed}
    values = {key: "null" if value is None else str(value).lower() for key, value in taken.items()}
    if values:
        script.say("verl_defaults", values=" ".join(f"{k}={v}" for k, v in values.items()))
    if not script.is_recent and taken.keys() & of_its_age.keys():
        script.say("verl_of_unknown_age")


def _unlisted(script: ScriptSettings) -> None:
    """Takes over names that the table lists, and the nearest of any other."""
    for key, row in TABLE["unlisted"].items():
        if (value := script.plain(key)) is None:
            continue
        ours = NEAREST[key]
        known = VALUES[ours]
        nearest = max((n for n in known if str(value).startswith(n)), key=len, default=None)
        script.settings[ours] = taken = known[nearest] if nearest else row["ours"]
        if value != nearest:
            script.say(row["says"], key, known=", ".join(known), ours=ours, taken=taken)


def _estimator(script: ScriptSettings) -> None:
    name = script.plain(_ESTIMATOR)
    known = VALUES["algorithm.estimator"]
    if name is None:
        return
    if is_number(name):
        script.say("estimator_is_a_number", _ESTIMATOR)
    elif name in [*known]:
        script.settings["algorithm.estimator"] = known[name]
    else:
        taken = "grpo" if (script.count(_RESPONSES) or 1) > 1 else "gae"
        script.settings["algorithm.estimator"] = taken
        names = ", ".join(dict.fromkeys(known.values()))
        script.say("unknown_estimator", _ESTIMATOR, known=names, taken=taken)
    is_undivided = script.plain("algorithm.norm_adv_by_std_in_grpo") is False
    if is_undivided and script.settings.get("algorithm.estimator") == "grpo":
        script.settings["algorithm.estimator"] = "dr_grpo"


def _group(script: ScriptSettings) -> None:
    """Takes the number of responses to a prompt from any key that the script uses for it."""
    ours = "algorithm.group_size"  # a name that scripts use although verl does not have it
    name = script.settings.get("algorithm.estimator")
    theirs = script.given.get(_RESPONSES)
    size = script.count(_RESPONSES) or script.count(ours)
    if size is not None:
        script.settings[ours] = size
    if script.plain(ours) is not None:
        wins = f", which is {theirs.value} and wins" if theirs else ""
        script.say("group_size_of_ours", ours, wins=wins, size=size)
    if name is None or not ESTIMATORS[name].needs_groups:
        return
    if (size or 1) < 2:
        script.settings[ours] = _SMALLEST_GROUP
        may_be_set = script.may_be_set(_RESPONSES)
        sentence = "group_of_unknown_size" if may_be_set else "group_of_one"
        where = _RESPONSES if theirs or may_be_set else _ESTIMATOR
        num = theirs.value if theirs else 1
        script.say(sentence, where, name=name, size=_SMALLEST_GROUP, num=num)
    if script.is_true("algorithm.filter_groups.enable"):
        batches = script.count("algorithm.filter_groups.max_num_gen_batches")
        script.settings["algorithm.resample_rounds"] = (batches or _RESAMPLED_AT_MOST + 1) - 1


def _kl(script: ScriptSettings) -> None:
    """Chooses where KL counts: in the loss, in the reward or nowhere."""
    settings = script.settings
    in_reward = "algorithm.use_kl_in_reward"
    # If it is not in the loss, it may still be in the reward.
    kl_keys = [key for key in (*script.given, *script.unread) if "kl_" in key and _ACTOR not in key]
    if script.plain(target := "algorithm.kl_ctrl.target_kl") is not None:
        script.say("kl_target", target)
    if script.is_true(_ACTOR + "use_kl_loss"):
        settings["algorithm.kl_mode"] = "loss"
        settings.pop("algorithm.kl_coef", None)
        settings.pop("algorithm.kl_controller", None)
        if is_number(coef := script.plain(_ACTOR + "kl_loss_coef")):
            settings["algorithm.kl_coef"] = coef
        if script.is_true(in_reward):
            script.say("kl_in_both", in_reward)
    elif in_reward in script.given:
        settings["algorithm.kl_mode"] = "reward" if script.is_true(in_reward) else "none"
    elif not (kl_keys or script.is_partial or script.is_recent):
        script.say("no_kl")


def _kl_estimate(script: ScriptSettings) -> None:
    settings = script.settings
    key = "algorithm.kl_penalty"
    in_loss = settings.get("algorithm.kl_mode") == "loss"
    kind = script.plain(key)
    if is_number(kind):
        coef = settings.setdefault("algorithm.kl_coef", kind)
        script.say("kl_penalty_is_a_number", key, coef=coef)
        kind = None
    if in_loss:
        key = _ACTOR + "kl_loss_type"
        kind = script.plain(key) if key in script.given else "low_var_kl"
    known = VALUES["algorithm.kl_estimator"]
    estimator = known.get(str(kind).removesuffix("+"))
    if kind is not None and estimator is None:
        script.say("unknown_kl", key, kind=kind, known=", ".join(known))
    elif estimator is not None:
        settings["algorithm.kl_estimator"] = "k2" if in_loss else estimator
        # verl's "+" is the value of one estimate with the gradient of k2.
        if in_loss and estimator != "k2" and not str(kind).endswith("+"):
            script.say("kl_in_loss", key, kind=kind)


def _clip_ratio(script: ScriptSettings) -> None:
    if (clip := script.number(_ACTOR + "clip_ratio")) is None:
        return
    # verl of 2025-04 and later has 0.2 for the two others, which win over this one.
    bounds = [_ACTOR + name for name in ("clip_ratio_low", "clip_ratio_high")]
    is_idle = [script.is_recent and script.given.get(key, _NOT_NULL).plain for key in bounds]
    for ours, idle in zip(_CLIPS, is_idle, strict=True):
        script.settings.setdefault(ours, _CLIP if idle else clip)
    if all(is_idle) and clip != _CLIP and not script.given.keys() & {*bounds}:
        script.say("clip_without_effect", _ACTOR + "clip_ratio")


def _losses(script: ScriptSettings) -> None:
    """Clips and aggregation, of which verl has one default for all algorithms."""
    settings = script.settings
    loss = LOSSES[settings.get("actor.policy_loss", "ppo")]
    if loss.largest_clip is not None:
        settings.pop("actor.loss_aggregation", None)  # verl's gspo knows only its own
        widest = max(settings.get(key, _CLIP) for key in _CLIPS)
        if widest > loss.largest_clip:
            script.say("clip_of_responses", _ACTOR + "clip_ratio", value=widest)
        for key in _CLIPS:
            if settings.get(key, 0) > loss.largest_clip:
                del settings[key]
        return
    estimator = ESTIMATORS[settings.get("algorithm.estimator", "gae")]
    if loss.clip_eps_low != _CLIP:
        for key in _CLIPS:
            settings.setdefault(key, _CLIP)
    if estimator.aggregation != "token-mean":
        settings.setdefault("actor.loss_aggregation", "token-mean")


def _batches(script: ScriptSettings) -> None:
    """Mini-batches that divide the batch, and micro-batches in tokens."""
    settings = script.settings
    batch = settings["data.train_batch_size"]
    mini = settings["actor.mini_batch_size"]
    batch_keys = [_ACTOR + "ppo_mini_batch_size", "data.train_batch_size"]
    if key := next(filter(script.given.__contains__, batch_keys), None):
        ours = next(size for size in range(min(batch, mini), 0, -1) if batch % size == 0)
        settings["actor.mini_batch_size"] = ours
        if mini != ours and script.assumed.keys().isdisjoint(
            {"data.train_batch_size", "actor.mini_batch_size"}
        ):
            name = "mini_above_batch" if mini > batch else "mini_does_not_divide"
            script.say(name, key, mini=mini, batch=batch, factor=batch / mini, ours=ours)
    rows = script.count(_ACTOR + "ppo_micro_batch_size_per_gpu")
    rows = rows or script.count(_ACTOR + "ppo_micro_batch_size")
    lengths = ("data.max_prompt_length", "data.max_response_length")
    if rows is not None and script.assumed.keys().isdisjoint(lengths):
        tokens = rows * sum(settings[length] for length in lengths)
        if not script.is_true(_ACTOR + "use_dynamic_bsz"):
            settings["actor.micro_batch_tokens"] = tokens
        settings.setdefault("actor.micro_batch_tokens", tokens)


def _cards(script: ScriptSettings) -> None:
    """GPUs of learner and engines, and what waits in the machine's memory."""
    settings = script.settings
    per_node = "trainer.n_gpus_per_node"
    cards = (script.count(per_node) or 1) * (script.count("trainer.nnodes") or 1)
    parallel = _ROLLOUT + "tensor_model_parallel_size"
    parts = script.count(parallel) or 1
    if per_node not in script.given:
        script.say(
            "unknown_cards",
            why="known" if script.may_be_set(per_node) else "given, and verl's default is 8",
        )
    elif parts > cards:
        script.say("too_few_cards", parallel, parts=parts, cards=cards)
    settings["model.dtype"] = "bfloat16"
    settings |= dict.fromkeys(_SHARES, 1 if cards > 1 else 0.5)
    if any(re.search(r"fsdp.*_offload$", key) and script.is_true(key) for key in script.given):
        settings["resources.offload"] = True
    if cards == 1 and script.is_true(_ROLLOUT + "free_cache_engine"):
        settings["rollout.sleep"] = True
    if cards > 1 and per_node in script.given:
        ranks = min(cards // 2, settings["actor.mini_batch_size"])
        while parts > cards - ranks:
            parts //= 2  # still divides the heads
        engines = (cards - ranks) // parts
        settings["rollout.num_engines"] = engines
        generate = "one generates" if cards - ranks == 1 else f"{cards - ranks} generate"
        if ranks > 1:
            settings["resources.learner_ranks"] = ranks
        if parts > 1:
            settings["rollout.tensor_parallel_size"] = parts
            generate = f"{engines} engine{'s' * (engines > 1)} of {parts} cards generate"
        learn = "one card learns" if ranks == 1 else f"{ranks} cards learn"
        script.say("cards", per_node, cards=cards, learn=learn, generate=generate)


def _optimizer_of_ranks(script: ScriptSettings) -> None:
    settings = script.settings
    if "resources.learner_ranks" in settings and settings.get("actor.optimizer") == "adamw_8bit":
        del settings["actor.optimizer"]
        script.say("optimizer_of_one_process", _ACTOR + "optim.optimizer")


def _checkpointing(script: ScriptSettings) -> None:
    """Gradient checkpointing, which is one setting for actor and critic."""
    keys = [key for key, ours in NEAREST.items() if ours == _CHECKPOINTING and key in script.given]
    is_on = {script.is_true(key) for key in keys}
    if keys:
        script.settings[_CHECKPOINTING] = any(is_on)
    if len(is_on) > 1 or [key.partition(".")[0] for key in keys] == ["critic"]:
        script.say("checkpointing_of_both", keys[-1], ours=str(any(is_on)).lower())


def _schedules(script: ScriptSettings) -> None:
    """Warm-up and decay of the learning rates, which need the number of steps."""
    settings = script.settings
    total = settings.get("trainer.total_steps")
    problems = num_problems(script)
    batch = settings["data.train_batch_size"]
    is_known = not script.assumed.keys() & {"data.train_batch_size", "trainer.total_epochs"}
    if total is None and is_known and problems is not None and batch <= problems:
        total = settings["trainer.total_epochs"] * steps_per_epoch(problems, batch)
    for part, optimizer in (("actor", _ACTOR + "optim."), ("critic", "critic.optim.")):
        _warm_up(script, part, optimizer, total)
        styles = {optimizer + name: script.plain(optimizer + name) for name in _SCHEDULES}
        key = next((key for key, style in styles.items() if style is not None), "")
        if styles.get(key, "constant") == "constant":
            continue
        if total is None:
            script.say("schedule_without_steps", key, part=part)
        elif styles[key] not in [*VALUES["actor.lr_schedule"]]:
            script.say("unknown_schedule", key, part=part)
        else:
            settings[f"{part}.lr_schedule"] = styles[key]
            settings["trainer.total_steps"] = total


def _warm_up(script: ScriptSettings, part: str, optimizer: str, total: int | None) -> None:
    """Steps until the rate is reached: verl's number, else its share of all steps."""
    steps = script.count(optimizer + "lr_warmup_steps")
    share = script.number(optimizer + "lr_warmup_steps_ratio")
    if steps is None and share is None:
        return
    key = optimizer + ("lr_warmup_steps" if steps else "lr_warmup_steps_ratio")
    if part == "critic":
        script.say("warm_up_of_the_critic", key)
    elif steps is not None:
        script.settings["actor.warmup_steps"] = steps
    elif share is not None and total is not None:
        script.settings["actor.warmup_steps"] = ours = int(share * total)
        script.say("warm_up_of_a_share", key, total=total, ours=ours)
    else:
        script.say("warm_up_of_unknown_steps", key)


def _loggers(script: ScriptSettings) -> None:
    key = "trainer.logger"
    known = [*VALUES[key]]
    if (value := script.plain(key)) is None:
        return
    names = value if isinstance(value, list) else [value]
    script.settings[key] = [name for name in names if name in known]
    if others := ", ".join(str(name) for name in names if name not in known):
        script.say("unknown_loggers", key, names=others)
    if "wandb" in names:
        script.say("wandb_is_offline", key)


def _chat_args(script: ScriptSettings) -> None:
    keys = [key for key in script.given if key.startswith(CHAT_ARGS)]
    if args := {key.removeprefix(CHAT_ARGS): script.plain(key) for key in keys}:
        script.settings["env.chat_args"] = args
