"""docs/algorithms.md, made of the docstrings and tables of rl_core/algos/."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args

from rl_core.algos.advantages import ESTIMATORS, outcome_gate, overlong_penalties
from rl_core.algos.distillation import teacher_advantages
from rl_core.algos.importance import importance_weights, off_policy_kept
from rl_core.algos.kl import KlEstimator, adaptive_kl_coef, kl_estimate
from rl_core.algos.losses import LOSSES, clipped_value_loss
from rl_core.algos.masking import Aggregation, aggregate, whiten
from rl_core.config.run import RunConfig
from tasks.importers.verl_table import VALUES

_HEAD: Final = """\
# Algorithms

<!-- written by `python -m tests.support.reference_pages` from rl_core/algos/ -->

Each formula as its docstring in `rl_core/algos/` gives it: what it returns, its conventions, when
to use it, its paper, its names in verl and TRL. "Default" marks what a run uses unless you choose
another. [Training](training.md) explains how the parts work together, and how to add [one of
yours](training.md#an-algorithm-of-your-own).

Shapes: B responses, T response tokens, G responses of a group (one prompt).
"""
TRL: Final[Mapping[str, str]] = {
    "gae": "`PPOTrainer`",
    "grpo": '`GRPOTrainer`, `scale_rewards="group"`',
    "dr_grpo": '`GRPOTrainer`, `scale_rewards="none"`',
    "rloo": "`RLOOTrainer`",
    "reinforce_plus_plus_baseline": 'near `GRPOTrainer`, `scale_rewards="batch"`',
    "distill": "near `GKDTrainer`",
    "ppo": "`epsilon`, `epsilon_high`, `delta` of `GRPOConfig`",
    "gspo": '`importance_sampling_level="sequence"` (the sequence\'s own gradient)',
    "cispo": '`loss_type="cispo"`',
    "token-mean": '`loss_type="dapo"`',
    "seq-mean-token-mean": '`loss_type="grpo"`',
    "seq-mean-token-sum-norm": '`loss_type="dr_grpo"`',
    "k3": "`beta` of `GRPOConfig`",
    "k1": '`kl_estimator="k1"` of `PPOConfig`',
}
"""Others have none."""


def algorithms_page() -> str:
    """Returns estimators, losses, aggregations, KL, and what is common to them."""
    defaults = RunConfig()
    lines = [_HEAD, "## Estimators (`algorithm.estimator`)\n"]
    for name, estimator in ESTIMATORS.items():
        facts = [
            "needs a critic" if estimator.needs_critic else "no critic",
            "groups of 2 or more" if estimator.needs_groups else "any group size",
            f"aggregation `{estimator.aggregation}`",
            *(f"reads `algorithm.{setting}`" for setting in estimator.settings),
        ]
        lines += _entry(name, estimator.function, facts, default=defaults.algorithm.estimator)
    lines.append("## Policy losses (`actor.policy_loss`)\n")
    for name, loss in LOSSES.items():
        facts = [
            f"clips {loss.clip_eps_low:g} and {loss.clip_eps_high:g}",
            f"aggregation `{loss.aggregation}`"
            if loss.aggregation
            else "the estimator's aggregation",
        ]
        facts += [f"clips above {loss.largest_clip:g} are refused"] if loss.largest_clip else []
        lines += _entry(name, loss.function, facts, default=defaults.actor.policy_loss)
    lines += ["## Aggregation (`actor.loss_aggregation`)\n", *_text(aggregate)]
    lines += _names(get_args(Aggregation), "actor.loss_aggregation")
    lines += ["## KL to the reference (`algorithm.kl_estimator`)\n", *_text(kl_estimate)]
    lines += _names(get_args(KlEstimator), "algorithm.kl_estimator")
    parts: dict[str, Callable[..., Any]] = {
        "The adaptive KL controller": adaptive_kl_coef,
        "Value loss": clipped_value_loss,
        "Whitening": whiten,
        "The outcome gate": outcome_gate,
        "The penalty of overlong responses": overlong_penalties,
        "Importance weights": importance_weights,
        "The off-policy mask": off_policy_kept,
        "A teacher's advantages": teacher_advantages,
    }
    lines.append("## Parts that algorithms share\n")
    for title, function in parts.items():
        lines += [f"### {title}\n", *_text(function)]
    return "\n".join(lines).rstrip() + "\n"


def _entry(
    name: str, function: Callable[..., Any], facts: list[str], *, default: str
) -> Iterator[str]:
    yield f"### {name}\n"
    yield from _text(function)
    others = {"dr_grpo": "`grpo` with `algorithm.norm_adv_by_std_in_grpo=false`"}
    verl = [theirs for values in VALUES.values() for theirs, ours in values.items() if ours == name]
    facts = [*(["default"] if name == default else []), *facts]
    yield f"- {'; '.join(facts)}."
    names = ", ".join(f"`{one}`" for one in dict.fromkeys(verl)) or others.get(name, "none")
    yield f"- verl: {names}; TRL: {TRL.get(name, 'none')}.\n"


def _text(function: Callable[..., Any]) -> Iterator[str]:
    """Yields a docstring as Markdown, and where the code is."""
    text = inspect.getdoc(function) or ""
    text = re.sub(r"^(Raises):\n((?: {4}.*\n?)+)", lambda m: _flat(m[1], m[2]), text, flags=re.M)
    text = re.sub(r"^(\w+): (.*(?:\n {4}.*)*)", lambda m: _flat(m[1], m[2]), text, flags=re.M)
    file = f"rl_core/algos/{function.__module__.rpartition('.')[2]}.py"
    yield re.sub(r"(`[^`]*`)|([<*|])", lambda m: m[1] or f"\\{m[2]}", text) + "\n"
    yield f"Code: [`{function.__name__}`](../{file}).\n"


def _flat(head: str, body: str) -> str:
    return f"{head}: {' '.join(line.strip() for line in body.splitlines())}"


def _names(names: tuple[str, ...], key: str) -> Iterator[str]:
    theirs = VALUES.get(key, {})
    yield "| here | verl | TRL |"
    yield "|---|---|---|"
    for name in names:
        verl = ", ".join(f"`{one}`" for one, ours in theirs.items() if ours == name)
        yield f"| `{name}` | {verl or 'none'} | {TRL.get(name, 'none')} |"
    yield ""
