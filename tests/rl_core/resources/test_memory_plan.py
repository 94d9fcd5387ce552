"""The memory plan against published sizes, against the diary, and against measured peaks."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.models import logprobs
from rl_core.resources import memory_plan as memory_plan_module
from rl_core.resources.memory_need import why_not_split
from rl_core.resources.memory_plan import (
    ModelShape,
    PhaseMemory,
    memory_plan,
    micro_batch_tokens,
    resting_learner,
)
from tests.support.model_shapes import QWEN_05B
from tests.support.runs import run_config
from tests.support.solving import let_countdown_answer

QWEN = ModelShape.from_config(QWEN_05B)
ALL, HEAD = 494_032_768, 897
ADAPTERS = 24 * 8 * (2 * 1_792 + 2 * 1_024 + 3 * 5_760)
"""Numbers of Qwen2.5-0.5B: all, the critic's value head, and adapters of rank 8 of all layers."""


def test_the_blocks_of_logits_that_are_planned_are_those_that_are_computed():
    planned = memory_plan_module._LOGIT_BLOCK, memory_plan_module._CARD_LOGIT_BLOCK
    assert planned == (4 * logprobs._BLOCK_LOGITS, 4 * logprobs._CARD_BLOCK_LOGITS)
    assert memory_plan_module._KEPT_LOGITS == 4 * logprobs._KEPT_LOGITS


def test_activations_of_one_layer_by_hand():
    # Counted with torch.autograd.graph.saved_tensors_hooks on such a model: 6,424 bytes per token.
    shape = ModelShape(64, 256, 1, 4, 2, 16, 100, tied=True, attention_bias=True)
    plain = shape.activation_bytes(10, dtype="float32", checkpointed=False)
    assert plain == 10 * 6_424
    # In bfloat16 4,120 bytes per token, and a copy of the layer's 61,440 weights.
    matrices = 3 * 64 * 256 + 64 * (64 + 2 * 32) + 64 * 64
    autocast = shape.activation_bytes(10, dtype="bfloat16", checkpointed=False)
    assert autocast == pytest.approx(10 * 4_120 + 2 * matrices, rel=0.01)
    kept = shape.activation_bytes(10, dtype="float32", checkpointed=True)
    assert kept == 10 * 64 * 4 + plain


def test_a_config_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="num_attention_heads"):
        ModelShape.from_config({"model_type": "mamba", "hidden_size": 64})


def test_a_micro_batch_holds_its_budget_or_the_longest_row_or_all_there_is():
    def tokens(budget: int, size: int) -> int:
        lengths = {"max_prompt_length": 100, "max_response_length": 400}
        actor = {"micro_batch_tokens": budget, "mini_batch_size": size}
        sections = {"data": lengths | {"train_batch_size": size}, "actor": actor}
        return micro_batch_tokens(RunConfig.model_validate(sections))

    assert tokens(2_000, 64) == 2_000
    assert tokens(10, 64) == 500
    assert tokens(100_000, 8) == 4_000


@pytest.mark.parametrize(
    ("sections", "learning", "frozen"),
    [
        ({}, 2 * ALL + HEAD, ALL),
        ({"model": {"lora_rank": 8}}, 2 * ADAPTERS + HEAD, ALL),
        ({"model": {"lora_rank": 8}, "algorithm": {"kl_mode": "none"}}, 2 * ADAPTERS + HEAD, ALL),
        ({"algorithm": {"kl_mode": "none"}}, 2 * ALL + HEAD, 0),
    ],
)
def test_the_optimizer_holds_what_learns_and_weights_are_held_once(sections, learning, frozen):
    config = RunConfig.model_validate(sections)
    first = memory_plan(QWEN, config)[0]
    assert first.parts["weights"] == 4 * (learning + frozen)
    assert first.parts["optimizer"] == 8 * learning


def test_ranks_divide_what_rests_and_gather_the_layers_that_compute():
    """Of 2 ranks; the reference is cut as well, and beside adapters nothing that stands still."""
    learning = 2 * ALL + HEAD
    config = run_config(resources={"learner_ranks": 2})
    first, critic, actor, _ = memory_plan(QWEN, config)
    half = math.ceil(learning / 2)
    assert first.parts["weights"] == 4 * (half + ALL // 2)
    assert first.parts["optimizer"] == 8 * half
    # Of 24 layers 5 with a gradient, else 3, and all that is outside of them.
    assert actor.parts["gathered"] == 4 * (ALL - 19 * QWEN.num_layer_parameters)
    assert critic.parts["gathered"] == actor.parts["gathered"] + 4 * HEAD
    assert first.parts["gathered"] == 4 * (ALL + HEAD - 21 * QWEN.num_layer_parameters)
    assert actor.parts["gradients"] == 2 * ALL
    sections = {"resources": {"learner_ranks": 2}, "model": {"lora_rank": 8}}
    first = memory_plan(QWEN, RunConfig.model_validate(sections))[0]
    assert first.parts["weights"] == 4 * (math.ceil((2 * ADAPTERS + HEAD) / 2) + ALL)
    assert first.parts["gathered"] == 4 * (3 * ADAPTERS // 24 + HEAD)


@pytest.mark.parametrize(
    ("model", "gpus", "layers"),
    [
        ({}, 0, 0),
        ({"gradient_checkpointing": True}, 0, 1),
        ({"gradient_checkpointing": True}, 1, 1),
        ({}, 1, 24),
    ],
)
def test_rows_of_a_group_read_their_shared_prompt_again(model, gpus, layers):
    """Of 4 responses of 50 tokens to a prompt of 200: 1,000 tokens in rows of 400 computed."""

    def plan(size: int) -> PhaseMemory:
        sections = {
            "data": {"max_prompt_length": 200, "max_response_length": 50},
            "actor": {"micro_batch_tokens": 4_000},
            "algorithm": {"group_size": size, "estimator": "gae" if size == 1 else "grpo"},
            "model": model,
            "resources": {"learner_gpus": gpus},
        }
        phases = memory_plan(QWEN, RunConfig.model_validate(sections))
        return next(phase for phase in phases if phase.phase == "update_actor")

    # Queries and what was read are 896 wide, keys and values 128.
    more = layers * 6_000 * 2 * (896 + 128) * 4
    threads = 1 if gpus else 2
    assert plan(4).parts["activations"] - plan(1).parts["activations"] == threads * more


def test_soft_capped_scores_are_kept_for_all_pairs_of_tokens():
    """Counted with saved_tensors_hooks: 8 bytes a pair, head and layer more (Gemma 2)."""

    def activations(shape: ModelShape) -> int:
        sections = {
            "data": {"max_prompt_length": 200, "max_response_length": 50},
            "actor": {"micro_batch_tokens": 1_000},
            "resources": {"learner_threads": 1},
        }
        phases = memory_plan(shape, RunConfig.model_validate(sections))
        return next(x.parts["activations"] for x in phases if x.phase == "update_actor")

    more = activations(replace(QWEN, caps_scores=True)) - activations(QWEN)
    assert more == (QWEN.num_layers + 1) * 4 * 250**2 * 8 * QWEN.num_heads  # 4 rows; 1 layer anew


MEASURE = """
import gc, json, re, sys
from pathlib import Path
from rl_core.system.process_env import apply_defaults
apply_defaults()
import torch
from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.learner.ranks import ALONE
from tests.support.rank_processes import meet_at

torch.set_num_threads(1)
config, model = RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])
rank, size = int(sys.argv[3]), config.resources.learner_ranks
ranks = ALONE if size == 1 else meet_at(model / "port", rank, size)

# Anonymous memory alone: pages of code, 60 MB more once all is loaded, are the kernel's to drop.
def memory(field):
    status = Path("/proc/self/status").read_text()
    return int(re.search(field + r":\\s+(\\d+) kB", status)[1]) * 1024

size = config.algorithm.group_size
rows = config.data.train_batch_size * size
prompt, response = config.data.max_prompt_length, config.data.max_response_length
def full(value, dtype=torch.int64):
    return torch.full((rows,), value, dtype=dtype)
batch = TrainBatch(
    torch.randint(8_000, (rows, prompt + response)), full(prompt), full(response),
    torch.full((rows, response), -9.9), torch.rand(rows), torch.arange(rows) // size,
    full(True, torch.bool), full(False, torch.bool),
)
torch.nn.Linear(8, 8)(torch.ones(1, 8)).sum().backward()
if config.model.lora_rank:
    import peft  # which loads bitsandbytes where it is installed: a process's own, not planned
base = memory("RssAnon")
learner = Learner(config, model, ranks=ranks)
learner.learn(batch)
learner.snapshot()
experience, metrics = learner.make_experience(batch)  # measures each of its phases itself
gib = {"log_probs": max(x for name, x in metrics.items() if name.startswith("memory/peak_gib/"))}
gc.collect()
_, metrics = learner.updater.update(experience, kl_coef=config.algorithm.kl_coef, actor_learns=True)
for model in learner.updater.learners(actor_learns=True):
    gib[f"update_{model}"] = metrics[f"memory/peak_gib/update_{model}"]
peaks = {phase: int(x * 2**30) - base for phase, x in gib.items()}
print(json.dumps(peaks))
"""


def measured_peaks(folder: Path, shape: dict[str, Any], config: RunConfig) -> list[dict[str, int]]:
    """Each rank's peak in bytes, by phase, of a random model that is written into a folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**shape))
    model.save_pretrained(folder)
    # Freed memory goes back at once, so that a peak is what lives and not what malloc keeps.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", MEASURE, config.model_dump_json(), str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in range(config.resources.learner_ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


SMALL = {
    "hidden_size": 256,
    "intermediate_size": 1_024,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8_000,
    "tie_word_embeddings": True,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "threads", "lora_rank"), [("float32", 2, 0), ("bfloat16", 1, 0), ("float32", 1, 8)]
)
def test_measured_peaks_fit_into_the_plan_and_fill_half_of_it(tmp_path, dtype, threads, lora_rank):
    # Many CPUs emulate bfloat16: of short rows, or one step takes minutes.
    rows, prompt, response = (16, 32, 96) if dtype == "float32" else (8, 32, 96)
    config = run_config(
        data={
            "train_batch_size": rows,
            "max_prompt_length": prompt,
            "max_response_length": response,
        },
        actor={"mini_batch_size": rows // 2, "micro_batch_tokens": 4 * (prompt + response)},
        algorithm={"kl_mode": "loss", "kl_estimator": "k2"},
        model={"dtype": dtype, "gradient_checkpointing": lora_rank > 0, "lora_rank": lora_rank},
        resources={"learner_threads": threads},
    )
    (measured,) = measured_peaks(tmp_path, SMALL, config)
    plan = memory_plan(ModelShape.from_folder(tmp_path), config)
    planned = {phase.phase: phase.total_bytes for phase in plan if phase.process == "learner"}
    assert measured.keys() == planned.keys()
    # A run is refused by its plan, and must not die above it. Of a model this small the plan has
    # more: it counts the largest of what is freed and taken again within a layer.
    shares = {phase: measured[phase] / planned[phase] for phase in planned}
    assert all(0.5 < share < 1.15 for share in shares.values()), shares


@pytest.mark.slow
def test_each_ranks_peaks_are_within_a_tenth_of_the_plan(tmp_path):
    """Of a model whose weights outweigh what a layer takes and gives back, as larger ones' do.

    Two micro-batches each: before the first, a rank has no gradient yet.
    """
    shape = SMALL | {
        "hidden_size": 384,
        "intermediate_size": 1_536,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
    }
    config = run_config(
        data={"train_batch_size": 16, "max_prompt_length": 64, "max_response_length": 192},
        actor={"mini_batch_size": 8, "micro_batch_tokens": 512},
        resources={"learner_threads": 1, "learner_ranks": 2},
    )
    phases = memory_plan(ModelShape.from_config(shape | {"model_type": "qwen2"}), config)
    for rank, measured in enumerate(measured_peaks(tmp_path, shape, config)):
        planned = {phase.phase: phase.total_bytes for phase in phases if phase.process == "learner"}
        shares = {phase: measured[phase] / planned[phase] for phase in planned}
        assert all(0.9 < share < 1.1 for share in shares.values()), (rank, shares)


BYTES_05B = 4 * ALL
BYTES_LAYER = 4 * QWEN.num_layer_parameters
FEW_TOKENS: dict[str, Any] = {
    "data": {"max_prompt_length": 8, "max_response_length": 8},
    "actor": {"micro_batch_tokens": 16},
}


def offload_plan(offload: bool, num_ranks: int = 1, **sections: Any) -> dict[str, PhaseMemory]:
    """What Qwen2.5-0.5B takes on cards by GRPO, by phase, and at `rest`."""
    resources = {"learner_gpus": 1, "learner_ranks": num_ranks, "offload": offload}
    sections |= {"algorithm": {"estimator": "grpo", "group_size": 2}, "resources": resources}
    config = RunConfig.model_validate(sections)
    phases = {phase.phase: phase for phase in memory_plan(QWEN, config)}
    return phases | {"rest": resting_learner(QWEN, config)}


def test_what_is_offloaded_is_planned_only_where_it_is_used():
    there, away = offload_plan(False), offload_plan(True)
    # Actor and reference for log-probs; the update is without the reference and both moments.
    assert away["log_probs"].parts["weights"] == 2 * BYTES_05B
    assert there["log_probs"].total_bytes - away["log_probs"].total_bytes == 2 * BYTES_05B
    assert there["update_actor"].total_bytes - away["update_actor"].total_bytes == 3 * BYTES_05B
    # The moments are there when the weights move: that is more than the activations of 16 tokens.
    short = offload_plan(True, **FEW_TOKENS)
    assert short["update_actor"].total_bytes == 4 * BYTES_05B


def test_each_rank_offloads_its_share():
    """A reference that is gathered comes from the machine's memory, layer by layer."""
    there, away = (offload_plan(offload, num_ranks=4) for offload in (False, True))
    assert there["rest"].total_bytes == BYTES_05B  # a fourth each: actor, reference, two moments
    assert away["rest"].total_bytes == BYTES_05B / 4
    layer = BYTES_LAYER
    for phase, gathered in (("log_probs", 21 * layer), ("update_actor", 19 * layer)):
        assert away[phase].parts["gathered"] == BYTES_05B - gathered
        assert there[phase].total_bytes - away[phase].total_bytes == 3 * BYTES_05B / 4
    # A fourth of the moments needs less than the embeddings and their gradient before.
    short = offload_plan(True, num_ranks=4, **FEW_TOKENS)["update_actor"]
    assert short.parts["gradients"] == BYTES_05B / 4
    assert "optimizer" not in short.parts


def test_a_model_is_split_between_whole_heads():
    assert [n for n in range(1, 15) if why_not_split(QWEN, n) is None] == [1, 2, 14]
    assert why_not_split(QWEN, 4) == (
        "rollout.tensor_parallel_size=4 does not divide the model's 14 attention heads (2 of keys "
        "and values): use 1 or 2 or 14"
    )


def test_transformers_read_all_that_was_said_in_further_turns(monkeypatch):
    let_countdown_answer(monkeypatch)

    def activations(max_turns: int) -> int:
        config = run_config(
            rollout={"engine": "hf"}, env={"name": "countdown", "max_turns": max_turns}
        )
        return memory_plan(QWEN, config)[-1].parts["activations"]

    # By hand: a prompt of 256 tokens, or that and a response of 1,024 with the env's words in it.
    assert activations(2) == activations(1) * (256 + 1_024) // 256
