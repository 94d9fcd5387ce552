from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import get_args

import pytest

from flows.compose import PresetName, SettingsError, compose
from rl_core.config import ModelConfig, ResourcesConfig, RunConfig
from rl_core.diagnosis import FULL_CARD
from rl_core.env_config import CountdownConfig
from rl_core.known_shapes import known_shape
from rl_core.memory_plan import ModelShape, memory_plan
from rl_core.upkeep_config import StorageConfig
from tasks import preflight as module
from tasks import preflight_device
from tasks.finding import Finding, PreflightError
from tasks.preflight import preflight, refuse_fatal
from tasks.preflight_plans import memory_findings
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
        ("disk", "engine", "device", "model", "memory", "disk plan", "time"), "ok"
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


def test_own_files_that_are_not_there_are_fatal(tmp_path: Path) -> None:
    findings = preflight(small(tmp_path, data={"train_files": "none.jsonl"}))
    with pytest.raises(
        PreflightError, match=r"data\.train_files=none\.jsonl: there is no such file"
    ):
        refuse_fatal(findings)
    hub = {"train_files": "nobody/nothing-of-this-name"}
    refuse_fatal(preflight(small(tmp_path, data=hub)))  # the network is not asked


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
    with socket.socket() as hub:  # somebody answers there, and nobody at all
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        assert level(preflight(config), "model") == "ok"
    assert level(preflight(config), "model") == "fatal"


def test_a_name_on_modelscope_needs_it_or_its_cache(
    tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path / "root", model=ModelConfig(path="modelscope:someone/tiny"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    assert level(preflight(config), "model") == "fatal"  # HF_HUB_OFFLINE is for all hubs
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.socket() as hub:  # somebody answers there, and nobody at all
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        assert level(preflight(config), "model") == "ok"
    with pytest.raises(PreflightError, match="ModelScope does not answer"):
        refuse_fatal(preflight(config))
    folder = tmp_path / "cache" / "models" / "someone--tiny" / "snapshots" / "master"
    shutil.copytree(tiny_model_path, folder)
    assert level(preflight(config), "model") == "ok"
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    with pytest.raises(PreflightError, match=r"not installed.* pip install modelscope-hub"):
        refuse_fatal(preflight(config))


def test_a_known_model_is_planned_from_its_name_on_either_hub() -> None:
    shape = known_shape("modelscope:Qwen/Qwen2.5-0.5B")
    assert shape is not None
    assert shape == known_shape("Qwen/Qwen2.5-0.5B")


@pytest.mark.parametrize(
    "env",
    [
        {"name": "countdown", "min_operands": 3, "max_operands": 4},
        {"name": "countdown", "min_operands": 2, "max_operands": 3},
        {"name": "countdown", "max_operands": 3, "prompt_template": "chat"},
        {"name": "gsm8k"},
        {"name": "gsm8k", "prompt_template": "think"},
        {"name": "gsm8k", "source": "toy", "prompt_template": "chat"},
    ],
)
def test_the_home_made_model_refuses_what_it_cannot_search(
    tmp_path: Path, env: dict[str, object]
) -> None:
    assert level(preflight(small(tmp_path, env=env)), "model") == "fatal"


def test_the_home_made_model_learns_toy_word_problems_too(tmp_path: Path) -> None:
    env = {"name": "gsm8k", "source": "toy", "prompt_template": "think"}
    assert level(preflight(small(tmp_path, env=env)), "model") == "ok"


def test_a_gpu_is_refused_by_a_cpu_build_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path, resources=ResourcesConfig(learner_gpus=0.5))
    assert level(preflight(config), "device") == "fatal"
    # A build with CUDA is asked about its cards, and here there are none.
    monkeypatch.setattr(preflight_device, "torch_version", lambda: "2.13.0+cu128")
    (found,) = [finding for finding in preflight(config) if finding.check == "device"]
    assert "sees none (no NVIDIA driver found)" in found.message


def test_an_engine_that_is_not_installed_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_version", lambda name: None)
    with pytest.raises(PreflightError, match=r"rollout\.engine=vllm or Ray is not installed"):
        refuse_fatal(preflight(small(tmp_path)))


def memory(config: RunConfig) -> Finding:
    (found,) = memory_findings(config)
    return found


def test_a_run_that_does_not_fit_is_a_warning_with_the_knobs_that_help(tmp_path: Path) -> None:
    # A layer keeps about 5 kB per token: 3,000,000 tokens in 4 layers are 60 GB at least.
    data = {"train_batch_size": 8_192, "max_prompt_length": 200, "max_response_length": 200}
    actor = {"mini_batch_size": 8_192, "micro_batch_tokens": 3_000_000}
    found = memory(small(tmp_path, data=data, actor=actor))
    assert found.level == "warning"
    assert "update_actor" in found.message
    assert found.remedy.startswith("actor.micro_batch_tokens=")
    assert "data.train_batch_size and trainer.test_problems change nothing" in found.remedy


def with_seqs(config: RunConfig, num_seqs: int) -> RunConfig:
    rollout = config.rollout.model_copy(update={"max_num_seqs": num_seqs})
    return config.model_copy(update={"rollout": rollout})


def test_an_engine_that_is_the_peak_is_told_to_generate_less_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_05B))
    data = {"max_prompt_length": 256, "max_response_length": 1_024, "train_batch_size": 4}
    config = small(
        tmp_path,
        model=ModelConfig(path=str(tmp_path)),
        data=data,
        actor={"mini_batch_size": 4, "micro_batch_tokens": 2_048},
        rollout={"engine": "hf", "max_num_seqs": 65_536},
        resources={"learner_gpus": 1, "rollout_gpus": 1, "gpu_memory_gib": 40},
    )
    # By hand, of 256 responses: 24 layers x 2 x 128 keys and values of 4 bytes are 24,576 per token
    gen = memory_plan(ModelShape.from_config(QWEN_05B), with_seqs(config, 256))[-1]
    assert gen.parts["kv_cache"] == 256 * 1_280 * 24_576
    assert gen.parts["logits"] == 4 * 256 * 151_936 * 4
    found = memory(config)
    assert found.level == "warning"
    words = found.remedy.partition(" would fit")[0].split()
    assert words[0].startswith("rollout.max_num_seqs=")
    num_seqs = int(words[0].partition("=")[2])
    assert len(words) == 1
    assert memory(with_seqs(config, num_seqs)).level == "ok"
    assert memory(with_seqs(config, 2 * num_seqs)).level == "warning"


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


@pytest.mark.parametrize(
    "preset",
    [name for name in get_args(PresetName) if "0.5b" in name or "3b" in name or "7b" in name],
)
def test_a_preset_fits_the_card_it_was_written_for(tmp_path: Path, preset: str) -> None:
    settings = [f"preset={preset}", f"storage.root={tmp_path}"]
    config = compose(settings)
    found = memory(config)
    assert found.level == "ok"
    needed, _, on_card = found.message.partition(" GiB on a card of ")
    assert on_card
    # None sets off the warning of a run that comes too near.
    assert config.resources.gpu_memory_gib is not None
    assert float(needed) < (1 - FULL_CARD) * config.resources.gpu_memory_gib
    lavish = {"model.gradient_checkpointing": "false", "model.lora_rank": "0"}
    without = memory(compose([*settings, *pasted(lavish)]))
    assert without.level == "warning"
    # What it proposes to paste does fit.
    assert without.remedy.startswith(f"{without.overrides} would fit, in ")
    proposed = dict(word.split("=") for word in without.overrides.split())
    assert proposed
    assert memory(compose([*settings, *pasted(lavish | proposed)])).level == "ok"


def pasted(overrides: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in overrides.items()]


TINYZERO = [
    "preset=tinyzero-0.5b-24gb",
    "actor.micro_batch_tokens=10240",
    "model.gradient_checkpointing=false",
    "rollout.gpu_memory_utilization=0.4",
]
"""As its launch script has it: micro-batches of 8, 0.4 of the card, no checkpointing."""


def test_tinyzeros_own_settings_need_no_adapters_on_24_gib(tmp_path: Path) -> None:
    asked = compose([*TINYZERO, f"storage.root={tmp_path}"])
    found = memory(asked)
    assert found.level == "warning"
    assert found.message.startswith("43.0 GiB on a card of 24 GiB (learner (update_actor) 31.49 + ")
    assert found.overrides == "rollout.gpu_memory_utilization=0.2 model.gradient_checkpointing=true"
    assert "would fit, in 23.8 GiB (costs: a KV cache just large enough; updates" in found.remedy


def test_where_nothing_fits_the_closest_is_told_and_nothing_is_there_to_paste(
    tmp_path: Path,
) -> None:
    here = f"storage.root={tmp_path}"
    tight = memory(compose([here, "preset=tinyzero-3b", "resources.gpu_memory_gib=24"]))
    assert tight.overrides == ""
    assert (
        "rollout.gpu_memory_utilization=0.15 is less than the 6.8 GiB with which" in tight.message
    )
    assert tight.remedy.startswith("no setting makes it fit; actor.micro_batch_tokens=")
    assert "comes closest, with 25.7 GiB: take a smaller model" in tight.remedy
    hopeless = memory(compose([here, "preset=gsm8k-grpo-7b", "resources.gpu_memory_gib=8"]))
    assert hopeless.remedy.startswith("no setting makes it fit: take a smaller model")


def test_sleep_changes_the_plan(tmp_path: Path) -> None:
    settings = ["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"]
    awake, asleep = memory(compose(settings)), memory(compose([*settings, "rollout.sleep=true"]))
    assert awake.message.startswith("22.2 GiB on a card of 24 GiB (learner (update_actor) 16.65 + ")
    assert asleep.message.startswith(
        "18.6 GiB on a card of 24 GiB (learner (update_actor) 16.65 + "
    )
    assert ", then learner at rest 12.88 + engine (0.15 of the card) 3.60 + " in asleep.message


def test_a_card_of_its_own_holds_learner_or_engine(tmp_path: Path) -> None:
    # By hand: 494,032,768 parameters in bfloat16 are 0.92 GiB, and come a second time beside
    # 0.5 of 24 GiB and 0.5 GiB of CUDA's own.
    preset = ["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"]
    shared = memory(compose(preset))
    apart = memory(
        compose(
            [
                *preset,
                "resources.learner_gpus=1",
                "resources.rollout_gpus=1",
                "rollout.gpu_memory_utilization=0.9",
            ]
        )
    )
    assert apart.level == "ok"
    assert f"{0.9 * 24 + 2 * 494_032_768 / 2**30 + 0.5:.1f} GiB on a card of 24" in apart.message
    assert shared.level == "ok"


def test_a_card_that_is_named_brings_its_memory(tmp_path: Path) -> None:
    preset = ["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"]
    assert "GiB on a card of 80" in memory(compose([*preset, "resources.card=H100"])).message
    with pytest.raises(SettingsError, match=r"resources\.card=H1000 .* did you mean 'H100'"):
        compose([*preset, "resources.card=H1000"])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
    ],
)
def test_published_models_have_their_published_size(name: str, parameters: int) -> None:
    shape = known_shape(name)
    assert shape is not None
    assert shape.num_parameters == parameters


def test_a_model_of_another_kind_has_no_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    found = preflight(small(tmp_path, model=ModelConfig(path=str(tmp_path))))
    assert [finding for finding in found if finding.check == "memory"] == []


def test_what_others_saw_is_said_before_the_start(tmp_path: Path) -> None:
    found = preflight(compose(["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"]))
    assert level(found, "outcome") == "warning"
    instruct = preflight(compose(["preset=gsm8k-ppo-0.5b", f"storage.root={tmp_path}"]))
    assert [finding for finding in instruct if finding.check == "outcome"] == []


def test_a_disk_that_cannot_hold_the_checkpoints_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = compose(["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"])
    for free_gb, wanted in ((30, "fatal"), (40, "warning"), (60, "ok")):
        usage = shutil.disk_usage(tmp_path)._replace(free=free_gb * 10**9)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        (plan,) = [f for f in preflight(settings) if f.check == "disk plan"]
        assert plan.level == wanted, plan
        monkeypatch.undo()


def test_wandb_and_a_cluster_are_asked_only_where_the_settings_want_them(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        reachable = small(tmp_path, resources=ResourcesConfig(ray_address=address))
        assert "ray" not in [finding.check for finding in preflight(reachable)]
    gone = preflight(reachable)
    assert level(gone, "ray") == "fatal"


def test_an_unreachable_wandb_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    trainer = {"logger": ("wandb",), "wandb_mode": "online"}
    found = preflight(small(tmp_path, trainer=trainer))
    assert level(found, "wandb") == "warning"
    offline = preflight(small(tmp_path, trainer={"logger": ("wandb",)}))
    assert "wandb" not in [finding.check for finding in offline]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_such_module:score", "fatal"),
        ("tests.rl_core.user_rewards:no_such", "fatal"),
        ("tests.rl_core.user_rewards:same_text", "ok"),
    ],
)
def test_a_reward_of_ones_own_is_loaded_before_anything_else(
    name: str, expected: str, tmp_path: Path
) -> None:
    findings = preflight(small(tmp_path, env=CountdownConfig(max_operands=3, reward=name)))
    assert level(findings, "reward") == expected
    if expected == "fatal":
        with pytest.raises(PreflightError, match=rf"^env\.reward={name} cannot be loaded \(.*\)"):
            refuse_fatal(findings)
