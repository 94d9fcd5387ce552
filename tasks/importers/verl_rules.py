"""verl's settings -> ours: those of the table, then those that need a rule."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rl_core.algos.advantages import ESTIMATORS
from rl_core.algos.losses import LOSSES
from rl_core.config.run import RunConfig
from rl_core.data.sampling import steps_per_epoch
from tasks.importers.verl_files import add_files, num_problems
from tasks.importers.verl_table import (
    CHAT_ARGS,
    NAMES,
    NEAREST,
    SAME,
    TABLE,
    VALUES,
    Asked,
    Given,
    Settings,
    is_number,
)
from tasks.preflight_checks import Finding

_ACTOR: Final = "actor_rollout_ref.actor."
_ROLLOUT: Final = "actor_rollout_ref.rollout."
_RESPONSES: Final = "actor_rollout_ref.rollout.n"
_SMALLEST_GROUP: Final = 8  # responses per prompt if the script's number makes no group
_CLIP: Final = 0.2  # verl's default, of all its losses
_CLIPS: Final = ("actor.clip_eps_low", "actor.clip_eps_high")
_NOT_NULL: Final = Given(str(_CLIP), 0)
_RESAMPLED_AT_MOST: Final = 10  # rounds of dynamic sampling if verl has no limit
_SCHEDULES: Final = ("lr_scheduler_type", "warmup_style", "lr_decay_style")
_CHECKPOINTING: Final = "model.gradient_checkpointing"


def translate(
    given: Mapping[str, Given],
    line: int,
    *,
    no_defaults: Collection[str] = (),
    is_partial: bool = False,
) -> tuple[Settings, list[Finding]]:
    """Returns the settings of verl's command in `line` as ours, and what is said of them.

    Of the sections and keys `no_defaults`, and of all that is not given if the script `is_partial`,
    nothing is taken or said.
    """
    unread = {key: one for key, one in given.items() if "$" in one.value}
    read = {key: one for key, one in given.items() if key not in unread}
    asked = Asked(read, unread, line, frozenset(no_defaults), is_partial)
    for rule in (
        *(_same, _kl, _kl_estimate, _correction, _defaults, add_files, _unlisted),
        *(_estimator, _group, _clip_ratio, _losses, _batches, _cards, _checkpointing),
        *(_optimizer_of_ranks, _schedules, _loggers, _chat_args),
    ):
        rule(asked)
    assumed = asked.assumed.items()
    taken = {key: one for key, one in asked.settings.items() if (key, one) not in assumed}
    return taken, asked.findings


def _same(asked: Asked) -> None:
    """Takes over what has the same meaning; a run's start checks how settings go together."""
    config = RunConfig()
    for key in filter(SAME.__contains__, asked.given):
        ours, value, limit = SAME[key], asked.plain(key), TABLE["limits"].get(key)
        section, _, name = ours.partition(".")
        field = type(getattr(config, section)).model_fields[name]
        if limit and is_number(value) and not limit["at_least"] <= value <= limit["at_most"]:
            asked.say(limit["says"], key, default=field.default)
            value = limit["ours"]
        if value is None or (value == -1 and ours != "rollout.top_k"):
            continue
        settings = ConfigDict(allow_inf_nan=False)
        allowed = TypeAdapter[Any](field.rebuild_annotation(), config=settings)
        try:
            asked.settings[ours] = allowed.validate_python(value)
        except ValidationError as error:
            asked.say("out_of_range", key, ours=ours, why=error.errors()[0]["msg"].lower())


def _defaults(asked: Asked) -> None:
    """Takes the default of the script's verl for what a script leaves to it, if ours is another.

    Where it may set another value, the default only stands in for it until the end of the rules.
    """
    unread = {NAMES.get(key) for key in asked.unread}
    unread |= {ours for key, ours in NAMES.items() if asked.is_taken_away(key)}
    of_its_age = TABLE["defaults_since" if asked.is_recent else "defaults_before"]
    defaults = of_its_age | TABLE["defaults"]
    silent = {key: value for key, value in defaults.items() if key not in asked.settings}
    asked.settings |= silent
    asked.assumed |= {k: v for k, v in silent.items() if asked.is_partial or k in unread}
    taken = silent.keys() - asked.assumed.keys()
    values = [
        f"{key}={'null' if value is None else str(value).lower()}"
        for key, value in silent.items()
        if key in taken
    ]
    if values:
        asked.say("verl_defaults", values=" ".join(values))
    if not asked.is_recent and taken & of_its_age.keys():
        asked.say("verl_of_unknown_age")


def _unlisted(asked: Asked) -> None:
    """Takes over names that the table lists, and the nearest of any other."""
    for key, row in TABLE["unlisted"].items():
        if (value := asked.plain(key)) is None:
            continue
        ours, known = NEAREST[key], VALUES[NEAREST[key]]
        alike = (name for name in known if str(value).startswith(name))
        nearest = max(alike, key=len, default=None)
        asked.settings[ours] = taken = known[nearest] if nearest else row["ours"]
        if value != nearest:
            asked.say(row["says"], key, known=", ".join(known), ours=ours, taken=taken)


def _estimator(asked: Asked) -> None:
    key, ours = "algorithm.adv_estimator", "algorithm.estimator"
    name, known = asked.plain(key), VALUES["algorithm.estimator"]
    if name is None:
        return
    if is_number(name):
        asked.say("estimator_is_a_number", key)
    elif name in [*known]:
        asked.settings[ours] = known[name]
    else:
        asked.settings[ours] = taken = "grpo" if (asked.count(_RESPONSES) or 1) > 1 else "gae"
        names = ", ".join(dict.fromkeys(known.values()))
        asked.say("unknown_estimator", key, known=names, taken=taken)
    undivided = asked.plain("algorithm.norm_adv_by_std_in_grpo") is False
    if undivided and asked.settings.get(ours) == "grpo":
        asked.settings[ours] = "dr_grpo"


def _group(asked: Asked) -> None:
    """Takes the number of responses to a prompt from any key that the script uses for it."""
    ours = "algorithm.group_size"  # a name that scripts use although verl does not have it
    name, theirs = asked.settings.get("algorithm.estimator"), asked.given.get(_RESPONSES)
    size = asked.count(_RESPONSES) or asked.count(ours)
    if size is not None:
        asked.settings[ours] = size
    if asked.plain(ours) is not None:
        wins = f", which is {theirs.value} and wins" if theirs else ""
        asked.say("group_size_of_ours", ours, wins=wins, size=size)
    if name is None or not ESTIMATORS[name].needs_groups:
        return
    if (size or 1) < 2:
        asked.settings[ours] = _SMALLEST_GROUP
        if asked.may_be_set(_RESPONSES):
            asked.say("group_of_unknown_size", _RESPONSES, name=name, size=_SMALLEST_GROUP)
        else:
            where = _RESPONSES if theirs else "algorithm.adv_estimator"
            asked.say("group_of_one", where, name=name, size=_SMALLEST_GROUP)
    if asked.is_true("algorithm.filter_groups.enable"):
        batches = asked.count("algorithm.filter_groups.max_num_gen_batches")
        asked.settings["algorithm.resample_rounds"] = (batches or _RESAMPLED_AT_MOST + 1) - 1


def _kl(asked: Asked) -> None:
    """Chooses where KL counts: in the loss, in the reward or nowhere."""
    settings, in_reward = asked.settings, "algorithm.use_kl_in_reward"
    # If it is not in the loss, it may still be in the reward.
    kl_keys = [key for key in (*asked.given, *asked.unread) if "kl_" in key and _ACTOR not in key]
    if asked.plain(target := "algorithm.kl_ctrl.target_kl") is not None:
        asked.say("kl_target", target)
    if asked.is_true(_ACTOR + "use_kl_loss"):
        settings["algorithm.kl_mode"] = "loss"
        for of_reward in ("algorithm.kl_coef", "algorithm.kl_controller"):
            settings.pop(of_reward, None)
        if is_number(coef := asked.plain(_ACTOR + "kl_loss_coef")):
            settings["algorithm.kl_coef"] = coef
        if asked.is_true(in_reward):
            asked.say("kl_in_both", in_reward)
    elif in_reward in asked.given:
        settings["algorithm.kl_mode"] = "reward" if asked.is_true(in_reward) else "none"
    elif not (kl_keys or asked.is_partial or asked.is_recent):
        asked.say("no_kl")


def _kl_estimate(asked: Asked) -> None:
    settings, key = asked.settings, "algorithm.kl_penalty"
    in_loss = settings.get("algorithm.kl_mode") == "loss"
    kind = asked.plain(key)
    if is_number(kind):
        coef = settings.setdefault("algorithm.kl_coef", kind)
        asked.say("kl_penalty_is_a_number", key, coef=coef)
        kind = None
    if in_loss:
        key = _ACTOR + "kl_loss_type"
        kind = asked.plain(key) if key in asked.given else "low_var_kl"
    known = VALUES["algorithm.kl_estimator"]
    estimator = known.get(str(kind).removesuffix("+"))
    if kind is not None and estimator is None:
        asked.say("unknown_kl", key, kind=kind, known=", ".join(known))
    elif estimator is not None:
        settings["algorithm.kl_estimator"] = "k2" if in_loss else estimator
        # verl's "+" is the value of one estimate with the gradient of k2.
        if in_loss and estimator != "k2" and not str(kind).endswith("+"):
            asked.say("kl_in_loss", key, kind=kind)


def _clip_ratio(asked: Asked) -> None:
    if (clip := asked.number(_ACTOR + "clip_ratio")) is None:
        return
    # verl of 2025-04 and later has 0.2 for the two others, which win over this one.
    bounds = [_ACTOR + name for name in ("clip_ratio_low", "clip_ratio_high")]
    is_idle = [asked.is_recent and asked.given.get(key, _NOT_NULL).plain for key in bounds]
    for ours, idle in zip(_CLIPS, is_idle, strict=True):
        asked.settings.setdefault(ours, _CLIP if idle else clip)
    if all(is_idle) and clip != _CLIP and not asked.given.keys() & {*bounds}:
        asked.say("clip_without_effect", _ACTOR + "clip_ratio")


def _losses(asked: Asked) -> None:
    """Clips and aggregation, of which verl has one default for all algorithms."""
    settings = asked.settings
    loss = LOSSES[settings.get("actor.policy_loss", "ppo")]
    if loss.largest_clip is not None:
        settings.pop("actor.loss_aggregation", None)  # verl's gspo knows only its own
        widest = max(settings.get(key, _CLIP) for key in _CLIPS)
        if widest > loss.largest_clip:
            asked.say("clip_of_responses", _ACTOR + "clip_ratio", value=widest)
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


def _batches(asked: Asked) -> None:
    """Mini-batches that divide the batch, and micro-batches in tokens."""
    settings = asked.settings
    batch, mini = settings["data.train_batch_size"], settings["actor.mini_batch_size"]
    asked_for = [_ACTOR + "ppo_mini_batch_size", "data.train_batch_size"]
    if key := next(filter(asked.given.__contains__, asked_for), None):
        ours = next(size for size in range(min(batch, mini), 0, -1) if batch % size == 0)
        settings["actor.mini_batch_size"] = ours
        facts = {"mini": mini, "batch": batch, "factor": batch / mini, "ours": ours}
        if mini != ours and not asked.assumed.keys() & {
            "data.train_batch_size",
            "actor.mini_batch_size",
        }:
            name = "mini_above_batch" if mini > batch else "mini_does_not_divide"
            asked.say(name, key, **facts)
    rows = asked.count(_ACTOR + "ppo_micro_batch_size_per_gpu")
    rows = rows or asked.count(_ACTOR + "ppo_micro_batch_size")
    if rows is not None:
        lengths = ("data.max_prompt_length", "data.max_response_length")
        if asked.assumed.keys() & {*lengths}:
            return
        tokens = rows * sum(settings[length] for length in lengths)
        if not asked.is_true(_ACTOR + "use_dynamic_bsz"):
            settings["actor.micro_batch_tokens"] = tokens
        settings.setdefault("actor.micro_batch_tokens", tokens)


def _correction(asked: Asked) -> None:
    """Caps importance weights only if verl is told to weigh tokens; by default it is not."""
    weighs = [asked.number(_ACTOR + "tis_imp_ratio_cap"), *map(asked.plain, TABLE["weighs_tokens"])]
    if any(weighs):
        asked.settings.setdefault("actor.importance_cap", 2.0)  # verl's own threshold
    else:
        asked.settings.pop("actor.importance_cap", None)


def _cards(asked: Asked) -> None:
    """GPUs of learner and engines, and what waits in the machine's memory."""
    settings, per_node = asked.settings, "trainer.n_gpus_per_node"
    cards = (asked.count(per_node) or 1) * (asked.count("trainer.nnodes") or 1)
    parallel = _ROLLOUT + "tensor_model_parallel_size"
    parts = asked.count(parallel) or 1
    if per_node not in asked.given:
        why = "known" if asked.may_be_set(per_node) else "given, and verl's default is 8"
        asked.say("unknown_cards", why=why)
    elif parts > cards:
        asked.say("too_few_cards", parallel, parts=parts, cards=cards)
    settings["model.dtype"] = "bfloat16"
    share = 1 if cards > 1 else 0.5
    settings["resources.learner_gpus"] = settings["resources.rollout_gpus"] = share
    if any(re.search(r"fsdp.*_offload$", key) and asked.is_true(key) for key in asked.given):
        settings["resources.offload"] = True
    if cards == 1:
        if asked.is_true(_ROLLOUT + "free_cache_engine"):
            settings["rollout.sleep"] = True
    elif per_node in asked.given:
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
        learn = "one card learns" if ranks == 1 else f"{ranks} cards learn"
        asked.say("cards", per_node, cards=cards, learn=learn, generate=generate)


def _optimizer_of_ranks(asked: Asked) -> None:
    settings = asked.settings
    if "resources.learner_ranks" in settings and settings.get("actor.optimizer") == "adamw_8bit":
        del settings["actor.optimizer"]
        asked.say("optimizer_of_one_process", _ACTOR + "optim.optimizer")


def _checkpointing(asked: Asked) -> None:
    """Gradient checkpointing, which is one setting for actor and critic."""
    keys = [key for key, ours in NEAREST.items() if ours == _CHECKPOINTING and key in asked.given]
    is_on = {asked.is_true(key) for key in keys}
    if keys:
        asked.settings[_CHECKPOINTING] = any(is_on)
    if len(is_on) > 1 or [key.partition(".")[0] for key in keys] == ["critic"]:
        asked.say("checkpointing_of_both", keys[-1], ours=str(any(is_on)).lower())


def _schedules(asked: Asked) -> None:
    """Warm-up and decay of the learning rates, which need the number of steps."""
    settings, total = asked.settings, asked.settings.get("trainer.total_steps")
    problems, batch = num_problems(asked), settings["data.train_batch_size"]
    is_known = not asked.assumed.keys() & {"data.train_batch_size", "trainer.total_epochs"}
    if total is None and is_known and problems is not None and batch <= problems:
        total = settings["trainer.total_epochs"] * steps_per_epoch(problems, batch)
    for part, optimizer in (("actor", _ACTOR + "optim."), ("critic", "critic.optim.")):
        _warm_up(asked, part, optimizer, total)
        styles = {optimizer + name: asked.plain(optimizer + name) for name in _SCHEDULES}
        key = next((key for key, style in styles.items() if style is not None), "")
        if styles.get(key, "constant") == "constant":
            continue
        if total is None:
            asked.say("schedule_without_steps", key, part=part)
        elif styles[key] not in [*VALUES["actor.lr_schedule"]]:
            asked.say("unknown_schedule", key, part=part)
        else:
            settings[f"{part}.lr_schedule"] = styles[key]
            settings["trainer.total_steps"] = total


def _warm_up(asked: Asked, part: str, optimizer: str, total: int | None) -> None:
    """Steps until the rate is reached: verl's number, else its share of all steps."""
    steps = asked.count(optimizer + "lr_warmup_steps")
    share = asked.number(optimizer + "lr_warmup_steps_ratio")
    if steps is None and share is None:
        return
    key = optimizer + ("lr_warmup_steps" if steps else "lr_warmup_steps_ratio")
    if part == "critic":
        asked.say("warm_up_of_the_critic", key)
    elif steps is not None:
        asked.settings["actor.warmup_steps"] = steps
    elif share is not None and total is not None:
        asked.settings["actor.warmup_steps"] = ours = int(share * total)
        asked.say("warm_up_of_a_share", key, total=total, ours=ours)
    else:
        asked.say("warm_up_of_unknown_steps", key)


def _loggers(asked: Asked) -> None:
    key = "trainer.logger"
    value, known = asked.plain(key), [*VALUES[key]]
    if value is None:
        return
    names = value if isinstance(value, list) else [value]
    asked.settings[key] = [name for name in names if name in known]
    if others := ", ".join(str(name) for name in names if name not in known):
        asked.say("unknown_loggers", key, names=others)
    if "wandb" in names:
        asked.say("wandb_is_offline", key)


def _chat_args(asked: Asked) -> None:
    args = {key: asked.plain(key) for key in asked.given if key.startswith(CHAT_ARGS)}
    if args:
        asked.settings["env.chat_args"] = {
            key.removeprefix(CHAT_ARGS): value for key, value in args.items()
        }
