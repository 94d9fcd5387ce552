"""Two and four learner ranks, real gloo between processes, against one."""

import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import rl_core
from rl_core.learner.ranks import ALONE, Ranks
from tests.support.learners import assert_bitwise_equal, without_timings
from tests.support.memory_faults import SAID
from tests.support.rank_processes import on_ranks
from tests.support.rank_work import divide, go_on, learn, run_out_of_memory
from tests.support.runs import merged

VARIANTS = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text())["ranks"]

WITHIN = {
    # Products beside 4 bits are torch's own, which adds in another order by their size.
    "adapters beside 4 bits": (5e-6, 1e-6),
    "8 bits": (5e-5, 1e-4),  # two ranks cut the embedding within a block: float32 there
}
"""To what tensors and numbers are equal: else to 1e-6."""
OF_FOUR = ("gae", "adapters", "grpo")
"""What four ranks may do differently: how tensors and rows fall to them."""


def comparable(metrics: dict[str, float]) -> dict[str, float]:
    """What does not depend on the number of ranks."""
    return {
        name: x
        for name, x in without_timings(metrics).items()
        if not name.startswith("global_seqlen/")
    }


def assert_equal_to_rounding(
    actual: dict[str, Any], expected: dict[str, Any], within: float, numbers_within: float
) -> None:
    """To 1e-6: of tensors, of the largest number; of columns, of what they are differences of.

    Which is the log-probs, near -5, of up to 12 tokens.
    """
    for one, other in zip(actual["metrics"], expected["metrics"], strict=True):
        assert one.keys() == other.keys()
        assert comparable(one) == pytest.approx(comparable(other), rel=numbers_within, abs=1e-6)
    for one, other in zip(actual["columns"], expected["columns"], strict=True):
        for name, column in other.items():
            near = 5 * numbers_within
            assert one[name] == pytest.approx(column, rel=near / 5, abs=near, nan_ok=True), name
    for kind in ("gradients", "weights"):
        assert actual[kind].keys() == expected[kind].keys()
        largest = max(float(x.abs().max()) for x in expected[kind].values())
        for name, tensor in expected[kind].items():
            difference = float((actual[kind][name] - tensor).abs().max())
            assert difference <= within * largest, (kind, name, difference, largest)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "names"), [(2, tuple(VARIANTS)), (4, OF_FOUR)])
def test_ranks_learn_what_one_process_learns(tiny_model_path, settings, make_batch, size, names):
    # AdamW makes steps of the learning rate even of a gradient that is nothing but rounding.
    slow = {"actor": {"lr": 1e-5}, "critic": {"lr": 1e-5}}
    configs = [settings(**merged(slow, VARIANTS[name])) for name in names]
    batches = [make_batch(group_size=config.algorithm.group_size) for config in configs]
    expected = learn(ALONE, configs, tiny_model_path, batches)
    asked = configs + configs[:1], tiny_model_path, batches + batches[:1]
    for results in on_ranks(size, learn, *asked):
        for name, of_variant, one_process in zip(names, results, expected, strict=False):
            assert_equal_to_rounding(of_variant, one_process, *WITHIN.get(name, (1e-6, 1e-6)))
        again = results[len(expected)]
        assert_bitwise_equal(again["weights"], results[0]["weights"])
        assert again["metrics"] == results[0]["metrics"]


@pytest.mark.slow
def test_each_tensor_arrives_whole_at_one_rank_and_all_have_about_as_much():
    shapes = [(8, 5), (1, 7), (5,), (3, 2, 2), (7, 4), (), (2,), (9, 3)]
    kept = on_ranks(3, divide, shapes)
    arrived: dict[str, Any] = {}
    for share in kept:
        assert not arrived.keys() & share.keys()
        arrived |= share
    assert len(arrived) == 2 * len(shapes) - 1
    for name, tensor in arrived.items():
        number = int(name.split()[1])
        assert list(tensor.shape) == list(shapes[number])
        assert tensor.flatten().tolist() == [1000 * number + i for i in range(tensor.numel())]
    sizes = [sum(tensor.numel() for tensor in share.values()) for share in kept]
    assert max(sizes) - min(sizes) <= max(tensor.numel() for tensor in arrived.values())


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "merged"), [(0, "last"), (4, "last"), (4, "all")])
def test_a_checkpoint_resumes_at_another_number_of_ranks(
    tiny_model_path, tmp_path, settings, make_batch, rank, merged
):
    low = {"lr": 1e-5}
    config = settings(
        actor=low, critic=low, model={"lora_rank": rank}, checkpoints={"merged": merged}
    )
    batches = [make_batch(seed) for seed in range(4)]
    expected = go_on(ALONE, config, tiny_model_path, batches, save_to=tmp_path / "calm")
    two, four = tmp_path / "two", tmp_path / "four"
    actual = on_ranks(2, go_on, config, tiny_model_path, batches[:2], save_to=two)[0]
    actual += on_ranks(
        4, go_on, config, tiny_model_path, batches[2:3], resume_from=two, save_to=four
    )[0]
    actual += go_on(
        ALONE, config, tiny_model_path, batches[3:], resume_from=four, save_to=tmp_path / "one"
    )
    for one, other in zip(actual, expected, strict=True):
        assert comparable(one) == pytest.approx(comparable(other), rel=1e-6, abs=1e-6)
    files = ["trainer/learner.safetensors"] + ["model.safetensors"] * config.saves_whole_models
    for file in files + ["adapter/adapter_model.safetensors"] * bool(rank):
        one, other = (load_file(tmp_path / name / file) for name in ("one", "calm"))
        assert one.keys() == other.keys()
        for name, tensor in other.items():
            difference = (one[name].double() - tensor.double()).abs().max()
            assert difference <= 1e-6 * max(1.0, float(tensor.double().abs().max())), name
    # Each wrote a fourth of it, and what lies beside the weights is what one process writes.
    patterns = ["trainer/learner-*.safetensors"]
    if config.saves_whole_models:
        AutoModelForCausalLM.from_pretrained(four)
        patterns.append("model-*.safetensors")
    for pattern in patterns:
        sizes = [file.stat().st_size for file in four.glob(pattern)]
        assert len(sizes) == 4
        assert max(sizes) < 1.5 * min(sizes), sizes
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (four / name).read_bytes() == (tmp_path / "calm" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.chaos
def test_memory_that_runs_out_on_one_rank_ends_the_step_of_all(
    tiny_model_path, settings, make_batch, survived
):
    config = settings(actor={"micro_batch_tokens": 1_000})
    other, one = on_ranks(2, run_out_of_memory, config, tiny_model_path, make_batch())
    assert one.startswith(f"out of memory in update_actor: {SAID}: a micro-batch of ")
    assert one.endswith(" tokens on rank 1 of 2")
    assert "rank 0 lost another" in other
    survived("OOM", "update_actor of one of two ranks", steps_lost=1)


def listeners(ranks: Ranks) -> set[str]:
    """Returns where a rank listens once all have met, and that their numbers were added up."""
    passes = ranks.same_passes([torch.zeros(1)] * (ranks.rank + 1), [True] + [False] * ranks.rank)
    assert [learns for _, learns in passes] == [True, False]
    connections = psutil.Process().net_connections("inet")
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.mark.slow
def test_ranks_meet_in_a_file_and_listen_on_loopback_only(monkeypatch):
    """A port at which they met would be open to all users, and what came from it is unpickled."""
    assert on_ranks(2, listeners) == [{"127.0.0.1"}] * 2


def test_no_rank_sends_or_takes_a_pickle():
    files = [*Path(rl_core.__file__).parent.rglob("*.py")]
    sent = re.compile(
        r"(?:broadcast|gather|scatter|send|recv)_object|object_list\(|TCPStore|tcp://|MASTER_ADDR"
    )
    assert {file.name: found for file in files if (found := sent.findall(file.read_text()))} == {}
