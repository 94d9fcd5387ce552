import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.settings.compose import compose
from rl_core.config.operations import StorageConfig
from rl_core.config.run import ModelConfig, ResourcesConfig, RunConfig
from rl_core.envs.countdown import Countdown
from rl_core.resources.memory_plan import ModelShape
from tasks import preflight as module
from tasks.preflight import preflight, refuse_fatal
from tasks.preflight_checks import Finding, PreflightError
from tasks.preflight_checks import device as preflight_device
from tasks.preflight_checks.plans import model_shape
from tests.support.adapters import save_adapter
from tests.support.fake_wandb import black_hole


def small(root: Path, **changes: Any) -> RunConfig:
    env = Countdown(min_operands=3, max_operands=3)
    data = {"max_response_length": 512} | changes.pop("data", {})
    sections = {"env": env, "storage": StorageConfig(root=root), "data": data}
    return RunConfig.model_validate(sections | changes)


def refuses(config: RunConfig, words: str) -> None:
    with pytest.raises(PreflightError, match=words):
        refuse_fatal(preflight(config))


def level(findings: list[Finding], check: str) -> str:
    (found,) = [finding.level for finding in findings if finding.check == check]
    return found


def test_epochs_that_end_before_the_steps_asked_for_are_a_warning(tmp_path):
    sizes = {"train_size": 256, "test_size": 8, "train_batch_size": 8}
    config = small(
        tmp_path, data=sizes, actor={"mini_batch_size": 8}, trainer={"total_steps": 2000}
    )
    (finding,) = [finding for finding in preflight(config) if finding.check == "steps"]
    assert finding.level == "warning"
    assert "480 steps: 15 epochs of 256 problems end before trainer.total_steps=2000" in str(
        finding
    )


def test_an_adapter_is_merged_and_then_planned_as_a_model(tmp_path, tiny_model_path):
    save_adapter(tiny_model_path, tmp_path / "mine")
    config = small(tmp_path / "new", model={"path": str(tmp_path / "mine")})
    findings = {finding.check: finding for finding in preflight(config)}
    assert findings["model"].level == "ok"
    assert f"unpacked in {tmp_path / 'new' / 'models' / 'mine-'}" in findings["model"].message
    assert model_shape(config) == ModelShape.from_folder(tiny_model_path)


def test_all_is_well_on_this_machine(tmp_path):
    findings = preflight(small(tmp_path / "new"))
    assert {f.check: f.level for f in findings} == dict.fromkeys(
        ("disk", "engine", "device", "model", "memory", "disk plan", "time"), "ok"
    )
    assert list((tmp_path / "new").iterdir()) == []
    refuse_fatal(findings)


def rewarded_by(function: str) -> dict[str, Any]:
    return {"env": {"name": "countdown", "max_operands": 3, "reward": function}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"storage": {"root": "file/root"}}, r"storage\.root=file/root cannot be written"),
    ({"storage": {"root": ".", "min_free_gib": 1e9}}, r"storage\.min_free_gib=1000000000\.0"),
    ({"data": {"train_files": "none.jsonl"}}, r"data\.train_files=none\.jsonl: there is no such"),
    ({"model": {"path": "package:not_there"}}, r"the package not_there is not installed"),
    ({"model": {"path": "none.gguf"}}, r"model\.path=none\.gguf: there is no such file"),
    ({"model": {"path": "empty"}}, r"empty is not a model folder, without a tokenizer .*, weights"),
    *(
        ({"model": {"path": path}}, "there is no such folder")
        for path in ("/no/such", "nope", "./a", "a/b/c", "../b", "~no-user/m", "a b/c", "x--y/z")
    ),
    *(
        ({"env": env}, "the home-made base model learns only|needs a model that reads and answers")
        for env in (
            {"name": "countdown", "min_operands": 3, "max_operands": 5},
            {"name": "countdown", "min_operands": 2, "max_operands": 3},
            {"name": "countdown", "max_operands": 3, "prompt_template": "chat"},
            {"name": "gsm8k"},
            {"name": "gsm8k", "prompt_template": "think"},
            {"name": "gsm8k", "source": "toy", "prompt_template": "chat"},
        )
    ),
    (rewarded_by("no_such_module:score"), "cannot be loaded"),
    (
        rewarded_by("tests.support.user_rewards:no_such"),
        r"^env\.reward=tests\.support\.user_rewards:no_such cannot be loaded \(.*\)",
    ),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=str)
def test_what_would_stop_a_run_is_fatal_and_named(tmp_path, monkeypatch, changes, words):
    here = tmp_path / "here"
    (here / "empty").mkdir(parents=True)
    (here / "empty" / "config.json").write_text("{}")
    (here / "file").touch()
    monkeypatch.chdir(here)
    refuses(small(here, **changes), words)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"train_files": "nobody/nothing-of-this-name"}},  # the network is not asked
        {"env": {"name": "gsm8k", "source": "toy", "prompt_template": "think"}},
        rewarded_by("tests.support.user_rewards:same_text"),
    ],
    ids=str,
)
def test_what_would_not_is_fine(tmp_path, changes):
    refuse_fatal(preflight(small(tmp_path, **changes)))


def test_a_package_and_a_folder_hold_a_model(tmp_path, tiny_model_path, monkeypatch):
    shutil.copytree(tiny_model_path, tmp_path / "site" / "holds_a_model")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fine = small(tmp_path, model=ModelConfig(path="package:holds_a_model"))
    assert level(preflight(fine), "model") == "ok"
    assert model_shape(fine) == ModelShape.from_folder(tiny_model_path)
    folder = small(tmp_path, model=ModelConfig(path=str(tiny_model_path)))
    assert level(preflight(folder), "model") == "ok"


def test_a_hub_name_needs_the_hub_or_its_cache(tmp_path, monkeypatch):
    config = small(tmp_path, model=ModelConfig(path="nobody/nothing-of-this-name"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert level(preflight(config), "model") == "fatal"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with black_hole() as hub:  # somebody answers there, and nobody at all
        monkeypatch.setenv("HF_ENDPOINT", hub)
        assert level(preflight(config), "model") == "ok"
    assert level(preflight(config), "model") == "fatal"


def test_a_name_on_modelscope_needs_it_or_its_cache(tmp_path, tiny_model_path, monkeypatch):
    config = small(tmp_path / "root", model=ModelConfig(path="modelscope:someone/tiny"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    assert level(preflight(config), "model") == "fatal"  # HF_HUB_OFFLINE is for all hubs
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with black_hole() as hub:  # somebody answers there, and nobody at all
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub)
        assert level(preflight(config), "model") == "ok"
    refuses(config, "ModelScope does not answer")
    folder = tmp_path / "cache" / "models" / "someone--tiny" / "snapshots" / "master"
    shutil.copytree(tiny_model_path, folder)
    assert level(preflight(config), "model") == "ok"
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    refuses(config, r"not installed.* pip install modelscope-hub")


def test_a_gpu_is_refused_by_a_cpu_build_only(tmp_path, monkeypatch):
    config = small(tmp_path, resources=ResourcesConfig(learner_gpus=0.5))
    assert level(preflight(config), "device") == "fatal"
    # A build with CUDA is asked about its cards, and here there are none.
    monkeypatch.setattr(preflight_device, "version_of", lambda package: "2.13.0+cu128")
    (found,) = [finding for finding in preflight(config) if finding.check == "device"]
    assert "sees none (no NVIDIA driver found)" in found.message


def test_an_engine_that_is_not_installed_is_fatal(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "version_of", lambda package: None)
    refuses(small(tmp_path), r"rollout\.engine=vllm or Ray is not installed")


def test_a_weak_model_is_warned_of_and_fine_tuning_first_is_the_remedy(tmp_path):
    weak = ["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"]
    (outcome,) = [one for one in preflight(compose(weak)) if one.check == "outcome"]
    assert outcome.level == "warning"
    assert "TinyZero's authors" in outcome.message
    assert outcome.remedy.startswith("preset=countdown-0.5b-sft-24gb")
    for better in (["preset=gsm8k-ppo-0.5b", weak[1]], [*weak, "sft.data=traces"]):
        assert "outcome" not in [finding.check for finding in preflight(compose(better))]
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "2+2=", "response": "4"}\n{"prompt": "2+3="}\n')
    for file, why in (("lost.jsonl", "sft.data=lost.jsonl"), (broken, "row 2: response=None must")):
        findings = preflight(compose([*weak, f"sft.data={file}"]))
        (fatal, *_) = [f for f in findings if f.check == "model" and f.level == "fatal"]
        assert why in fatal.message


def test_a_disk_that_cannot_hold_the_checkpoints_is_fatal(tmp_path, monkeypatch):
    settings = compose(["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"])
    for free_gb, wanted in ((30, "fatal"), (40, "warning"), (60, "ok")):
        usage = shutil.disk_usage(tmp_path)._replace(free=free_gb * 10**9)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        (plan,) = [f for f in preflight(settings) if f.check == "disk plan"]
        assert plan.level == wanted, plan
        monkeypatch.undo()


def test_a_stop_that_leaves_no_time_for_a_save_is_told(tmp_path, monkeypatch):
    """A checkpoint of 11.9 GB takes half a minute to write."""
    usage = shutil.disk_usage(tmp_path)._replace(free=10**12)  # wherever the test runs
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    for grace_s, is_told in ((15, True), (60, False)):
        overrides = [f"storage.root={tmp_path}", f"trainer.stop_grace_s={grace_s}"]
        found = preflight(compose(["preset=tinyzero-0.5b-24gb", *overrides]))
        (plan,) = [f for f in found if f.check == "disk plan" and f.level == "ok"]
        assert ("takes about 28 s to write and SIGTERM leaves 15" in plan.remedy) == is_told


def test_wandb_and_a_cluster_are_asked_only_where_the_settings_want_them(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    alone = preflight(small(tmp_path, trainer={"logger": ("wandb",)}))  # offline
    assert not {"ray", "wandb"} & {finding.check for finding in alone}
    online = {"logger": ("wandb",), "wandb_mode": "online"}
    gone = small(tmp_path, trainer=online, resources=ResourcesConfig(ray_address="127.0.0.1:9"))
    found = preflight(gone)
    assert (level(found, "ray"), level(found, "wandb")) == ("fatal", "warning")
