import json
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers
import yaml

from flows.settings.compose import PresetName, compose
from rl_core.config.run import ModelConfig, RunConfig
from rl_core.resources.memory_plan import ModelShape, memory_plan
from rl_core.resources.model_shape import known_config, known_shape
from rl_core.tracking.diagnosis import FULL_CARD
from tasks.preflight import preflight
from tasks.preflight_checks import Finding
from tasks.preflight_checks.plans import machine_findings, memory_findings
from tests.support.model_shapes import QWEN_05B
from tests.tasks.test_preflight import small


def memory(config: RunConfig) -> Finding:
    (found,) = memory_findings(config)
    return found


def test_a_run_that_does_not_fit_is_a_warning_with_the_knobs_that_help(tmp_path):
    # A layer keeps about 5 kB per token: 3,000,000 tokens in 4 layers are 60 GB at least.
    data = {"train_batch_size": 8_192, "max_prompt_length": 200, "max_response_length": 200}
    actor = {"mini_batch_size": 8_192, "micro_batch_tokens": 3_000_000}
    found = memory(small(tmp_path, data=data, actor=actor))
    assert found.level == "warning"
    assert "update_actor" in found.message
    assert found.remedy.startswith("actor.micro_batch_tokens=")
    assert "data.train_batch_size and trainer.test_problems do not change" in found.remedy


def with_seqs(config: RunConfig, num_seqs: int) -> RunConfig:
    rollout = config.rollout.model_copy(update={"max_num_seqs": num_seqs})
    return config.model_copy(update={"rollout": rollout})


def test_an_engine_that_is_the_peak_is_told_to_generate_less_at_a_time(tmp_path):
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


@pytest.mark.parametrize(
    "preset",
    [name for name in get_args(PresetName) if re.search(r"\db", name)],
)
def test_a_preset_fits_the_card_it_was_written_for(tmp_path, preset):
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


RANKS = ["resources.learner_gpus=1", "resources.rollout_gpus=1"]
PLANS = yaml.safe_load(Path(__file__).with_name("plans.yaml").read_text())


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_says_what_would_fit(tmp_path, name):
    expected = PLANS[name]
    asked = [f"storage.root={tmp_path}", *expected["asked"]]
    found = memory(compose(asked))
    assert found.level == expected["level"]
    assert found.message.startswith(expected.get("begins", ""))
    assert found.overrides == expected.get("overrides", found.overrides)
    assert found.overrides.endswith(expected.get("overrides_end", ""))
    assert [words for words in expected.get("holds", ()) if words not in found.message] == []
    assert [words for words in expected.get("remedy", ()) if words not in found.remedy] == []
    if found.overrides:
        pasted = {word.partition("=")[0]: word for word in [*asked, *found.overrides.split()]}
        assert memory(compose([*pasted.values()])).level == "ok"


def test_beside_a_card_the_machines_memory_is_planned(tmp_path):
    preset = ["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"]
    (plain,) = machine_findings(compose(preset))
    # Three copies of actor and critic, 11.0 GiB; offloaded, the reference's and two more of both.
    assert plain.message.startswith("15.9 GiB of the machine's memory (snapshot 11.04 + ")
    (offloading,) = machine_findings(compose([*preset, "resources.offload=true"]))
    assert "25.1 GiB of the machine's memory (offloaded 9.20 + snapshot 11.04 + " in str(offloading)
    assert list(machine_findings(compose([f"storage.root={tmp_path}"]))) == []  # of a CPU, all is


def test_a_card_of_its_own_holds_learner_or_engine(tmp_path):
    # By hand: 494,032,768 parameters in bfloat16 are 0.92 GiB, and come a second time beside
    # 0.5 of 24 GiB and 0.5 GiB of CUDA's own.
    preset = ["preset=tinyzero-0.5b-24gb", f"storage.root={tmp_path}"]
    shared = memory(compose(preset))
    apart = memory(compose([*preset, *RANKS, "rollout.gpu_memory_utilization=0.9"]))
    assert apart.level == "ok"
    assert f"{0.9 * 24 + 2 * 494_032_768 / 2**30 + 0.5:.1f} GiB on a card of 24" in apart.message
    assert shared.level == "ok"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-1.7B-Base", 1_720_574_976),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("modelscope:Qwen/Qwen3-8B", 8_190_735_360),
    ],
)
def test_published_models_have_their_published_size(name, parameters):
    shape = known_shape(name)
    assert shape.num_parameters == parameters
    config = known_config(name)
    assert config is not None
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config)
        )
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def test_a_model_of_another_kind_has_no_plan(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    found = preflight(small(tmp_path, model=ModelConfig(path=str(tmp_path))))
    assert [finding for finding in found if finding.check == "memory"] == []
