import os
from typing import Any

import pytest

from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from tasks.preflight_checks import device
from tasks.preflight_checks.device import Card, DeviceFacts
from tasks.preflight_checks.hours import planned_machine, time_findings

ON_GPU = {"learner_gpus": 0.5, "rollout_gpus": 0.5}


def config(**resources: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"resources": resources, "model": {"dtype": "bfloat16"}, "rollout": {"num_engines": 2}}
    )


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an A100 of each size, as torch and the driver would tell."""
    cards = (
        Card("NVIDIA A100-SXM4-80GB", (8, 0), 85_094_301_696, 85_000_000_000),
        Card("NVIDIA A100-PCIE-40GB", (8, 0), 42_297_458_688, 42_000_000_000),
    )
    facts = DeviceFacts("2.13.0+cu128", ("sm_80",), cards, "570.00", ())
    monkeypatch.setattr(device, "version_of", lambda package: "2.13.0+cu128")
    monkeypatch.setattr(device, "read_device", lambda: facts)


def test_the_card_that_is_there_counts_unless_another_is_named(two_cards):
    here = planned_machine(config(**ON_GPU, gpu_memory_gib=24))
    assert here.name == "A100 40GB"  # the smaller one, by the name and memory that it shows
    assert (here.learner_flops, here.bandwidth) == (312e12, 1_555e9)
    named = planned_machine(config(**ON_GPU, card="RTX 4090"))
    assert (named.name, named.on_gpu) == ("RTX 4090", True)


def test_learner_and_engines_on_different_devices_have_no_estimate():
    assert planned_machine(config(learner_gpus=1, card="H100")) is None


def test_a_cpu_is_measured_and_its_cores_are_shared():
    num_cores = len(os.sched_getaffinity(0))
    one = planned_machine(config(learner_threads=1, rollout_threads=1))
    many = planned_machine(config(learner_threads=99, rollout_threads=num_cores))
    assert not one.on_gpu
    assert 1e8 < one.learner_flops < 1e13
    assert 1e8 < one.bandwidth * max(1.0, 2 / num_cores) < 1e12
    # More threads than cores compute no faster; two engines of all cores have half of them each.
    assert many.learner_flops == pytest.approx(num_cores * one.learner_flops)
    assert many.engine_flops == pytest.approx(num_cores * one.learner_flops / 2)


def test_ranks_add_up_their_cards():
    one = planned_machine(config(learner_gpus=1, rollout_gpus=1, card="H100"))
    four = planned_machine(config(learner_gpus=1, rollout_gpus=1, learner_ranks=4, card="H100"))
    assert four.learner_flops == 4 * one.learner_flops


def test_sft_is_told_beside_training_with_its_price(tmp_path):
    shown = ["preset=countdown-0.5b-sft-24gb", "resources.card=RTX 4090"]
    shown += [f"storage.root={tmp_path}"]
    (found,) = time_findings(compose([*shown, "sft.steps=40", "budget.price_per_hour=2"]))
    before, _, after = found.message.partition("; SFT of 40 steps before it: ")
    assert "steps of training" in before
    assert after.endswith("(a roofline)")
    assert "EUR" in after
    (without,) = time_findings(compose([*shown, "sft.data=null"]))
    assert "SFT" not in without.message
