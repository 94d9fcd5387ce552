import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rl_core.config.run import RunConfig
from rl_core.resources.levers import (
    CHECKPOINTING,
    LEVERS,
    OFFLOAD,
    SLEEP,
    Lever,
    Proposal,
    cheapest_fit,
)
from rl_core.resources.memory_need import card_need, machine_need, starves_engine
from rl_core.resources.memory_plan import ModelShape
from tests.rl_core.resources.test_memory_need import tinyzero
from tests.support import model_shapes
from tests.support.runs import run_config

QWEN = ModelShape.from_config(model_shapes.QWEN_05B)
FEW: Sequence[Lever] = (
    SLEEP,
    CHECKPOINTING,
    OFFLOAD,
    next(lever for lever in LEVERS if lever.name == "actor.optimizer"),
    Lever("model.lora_rank", lambda config, shape: [64], "adapters"),
)
"""One step each, so that a set of them is a number in binary: the dearest lever is its first digit.
"""


def need(config: RunConfig, card_gib: float | None) -> float:
    if card_gib is None:
        return machine_need(QWEN, config).total_gib
    if starves_engine(QWEN, config, card_gib):
        return math.inf
    return card_need(QWEN, config, card_gib).total_gib


def propose(
    config: RunConfig, limit: float, levers: Sequence[Lever] = LEVERS, *, on_card: bool = True
) -> Proposal:
    card = limit if on_card else None
    return cheapest_fit(config, QWEN, lambda changed: need(changed, card), limit, levers)


def changed(config: RunConfig, changes: dict[str, Any]) -> RunConfig | None:
    plain = config.model_dump()
    for name, value in changes.items():
        section, field = name.split(".")
        plain[section][field] = value
    try:
        return RunConfig.model_validate(plain)
    except ValidationError:
        return None


@st.composite
def on_cards(draw: st.DrawFn) -> RunConfig:
    group = draw(st.booleans())
    sleep, staleness = draw(st.sampled_from([(False, 0), (True, 0), (False, 1)]))
    card = draw(st.sampled_from([6.0, 9.0, 12.0, 16.0, 24.0, 48.0]))
    algorithm = {"estimator": "grpo", "group_size": 4} if group else {}
    return run_config(
        algorithm=algorithm | {"kl_mode": draw(st.sampled_from(["reward", "none"]))},
        actor={"micro_batch_tokens": draw(st.sampled_from([1_000, 8_192, 40_000]))},
        model={
            "dtype": draw(st.sampled_from(["bfloat16", "float32"])),
            "gradient_checkpointing": draw(st.booleans()),
            "lora_rank": draw(st.sampled_from([0, 32])),
        },
        rollout={
            "engine": draw(st.sampled_from(["vllm", "vllm", "hf"])),
            "gpu_memory_utilization": draw(st.sampled_from([0.02, 0.2, 0.4, 0.9])),
            "sleep": sleep,
            "staleness": staleness,
            "num_engines": draw(st.sampled_from([1, 2])),
        },
        resources={
            "learner_gpus": draw(st.sampled_from([0.5, 0.3, 1.0])),
            "rollout_gpus": draw(st.sampled_from([0.5, 0.3, 1.0])),
            "offload": draw(st.booleans()),
            "gpu_memory_gib": card,
        },
    )


@settings(max_examples=25, deadline=None)
@given(on_cards())
def test_what_is_proposed_fits_is_valid_and_no_part_of_it_can_be_spared(config):
    card = config.resources.gpu_memory_gib
    found = propose(config, card)
    # Planned again from the settings that the proposal's text stands for.
    again = changed(config, dict(found.changes))
    assert again == found.config
    assert need(again, card) == found.need_gib
    assert found.fits == (found.need_gib <= card)
    assert bool(found.changes) == (need(config, card) > card) or not found.fits
    for spared in found.changes if found.fits else ():
        rest = {name: value for name, value in found.changes.items() if name != spared}
        without = changed(config, rest)
        assert without is None or need(without, card) > card, spared


@settings(max_examples=25, deadline=None)
@given(on_cards())
def test_no_cheaper_set_of_a_few_levers_would_fit(config):
    card = config.resources.gpu_memory_gib
    usable = [lever for lever in FEW if lever.steps(config, QWEN)]
    planned: dict[int, tuple[dict[str, Any], float]] = {}
    for pulled in itertools.product([0, 1], repeat=len(usable)):
        chosen = [lever for lever, is_pulled in zip(usable, pulled, strict=True) if is_pulled]
        changes = {lever.name: lever.steps(config, QWEN)[0] for lever in chosen}
        settled = changed(config, changes)
        if settled is not None:
            cost = sum(2**i * is_pulled for i, is_pulled in enumerate(pulled))
            planned[cost] = changes, need(settled, card)
    found = propose(config, card, FEW)
    fitting = [cost for cost, (_, gib) in planned.items() if gib <= card]
    if fitting:
        assert found.fits
        assert dict(found.changes) == planned[min(fitting)][0]
    else:
        assert not found.fits
        assert found.need_gib == min(gib for _, gib in planned.values())


def test_tinyzero_on_24_gib_needs_no_adapters():
    asked = tinyzero(
        model={"gradient_checkpointing": False},
        actor={"micro_batch_tokens": 10_240},  # 8 rows of 1,280
        rollout={"gpu_memory_utilization": 0.4},
    )
    found = propose(asked, 24)
    assert found.fits
    assert found.overrides == (
        "rollout.gpu_memory_utilization=0.15 model.gradient_checkpointing=true"
    )
    assert found.need_gib == pytest.approx(23.6, abs=0.05)


def test_what_changes_the_result_comes_last_and_sleep_is_worth_a_share():
    def on_card(gib: float) -> Proposal:
        actor = {"micro_batch_tokens": 8_192}
        return propose(tinyzero(actor=actor, resources={"gpu_memory_gib": gib}), gib)

    assert on_card(24).overrides == "rollout.gpu_memory_utilization=0.15"
    assert on_card(12).overrides == "rollout.sleep=true resources.offload=true"
    on_nine, on_six = on_card(9), on_card(6)
    assert on_nine.overrides.split()[-1] == "actor.optimizer=adamw_8bit"
    assert on_six.overrides.split()[-2:] == ["model.lora_rank=64", "model.load_in_4bit=true"]
    assert all("another result" in found.costs[-1] for found in (on_nine, on_six))


def test_an_engine_gets_the_share_without_which_it_would_not_start():
    # 0.05 of 24 GiB is 1.2; the weights alone are 0.92, and vLLM takes 1 GiB beside them.
    settings = tinyzero(
        actor={"micro_batch_tokens": 1_280}, rollout={"gpu_memory_utilization": 0.05}
    )
    found = propose(settings, 24)
    assert found.fits
    name, _, share = found.overrides.partition("=")
    assert name == "rollout.gpu_memory_utilization"
    # Room for a quarter of 256 of the longest responses: 0.94 GiB, and half a GiB to spare.
    assert float(share) * 24 == pytest.approx(0.92 + 0.94 + 1.5, abs=0.05 * 24)


def test_a_machine_without_a_card_has_levers_of_its_own():
    config = run_config(rollout={"num_engines": 2}, resources={"learner_threads": 4})
    asked = need(config, None)
    mild = propose(config, 0.7 * asked, on_card=False)
    assert mild.fits
    assert mild.overrides.startswith("actor.micro_batch_tokens=")
    none = propose(config, 1.0, on_card=False)
    assert not none.fits
    assert none.changes
    assert none.need_gib < asked
