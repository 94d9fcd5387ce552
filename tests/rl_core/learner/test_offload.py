from contextlib import suppress

import pytest
import torch
import transformers
from torch import nn

from rl_core.config.run import RunConfig
from rl_core.learner import learner as learner_module
from rl_core.learner.experience import Reader
from rl_core.learner.learner import Learner
from rl_core.learner.microbatching import Microbatching
from rl_core.learner.optimizer import offload_device, on_device
from rl_core.learner.ranks import Ranks
from rl_core.models.forward import forward_pass
from rl_core.models.loading import Models
from tests.support.learners import all_weights, assert_bitwise_equal, without_timings
from tests.support.memory_faults import out_of_memory

ELSEWHERE = torch.device("cpu", 0)
"""PyTorch copies onto it, as it would onto another device."""


def test_only_a_card_is_relieved():
    config = RunConfig.model_validate({"resources": {"offload": True}})
    assert offload_device(config, torch.device("cuda")) == torch.device("cpu")
    assert offload_device(config, torch.device("cpu")) is None
    assert offload_device(RunConfig(), torch.device("cuda")) is None


def test_a_model_is_brought_and_put_back_whatever_happens():
    model, resting = nn.Linear(2, 2), torch.device("meta")
    with suppress(MemoryError), on_device(model, torch.device("cpu"), resting):
        assert model.weight.device.type == "cpu"
        raise MemoryError
    assert model.weight.device.type == "meta"


def test_a_reference_that_is_cut_is_not_moved_whole(tiny_model_path):
    """FSDP remembers where its shards are; whoever moved this one would find nothing to copy."""
    config = RunConfig()
    with torch.device("meta"):
        shape = transformers.AutoConfig.from_pretrained(tiny_model_path)
        reference = transformers.AutoModelForCausalLM.from_config(shape)
    ranks = Ranks(rank=0, size=2)
    microbatching = Microbatching(config, reference, torch.device("cpu"), ranks)
    models = Models(actor=reference, reference=reference, critic=None)
    Reader(config, models, forward_pass, microbatching, ELSEWHERE)
    assert reference.device.type == "meta"


@pytest.mark.parametrize(
    "sections",
    [{}, {"model": {"lora_rank": 4}, "algorithm": {"kl_mode": "loss", "kl_estimator": "k2"}}],
    ids=["critic", "adapters"],
)
def test_a_learner_that_offloads_learns_the_same_bits(
    tiny_model_path, tmp_path, make_batch, settings, monkeypatch, sections
):
    """With an attempt that runs out of memory in between, and a resume."""
    config = settings(**sections)
    results = []
    for place in (None, ELSEWHERE):
        monkeypatch.setattr(learner_module, "offload_device", lambda *_, place=place: place)
        learner = Learner(config, tiny_model_path)
        metrics = [without_timings(learner.learn(make_batch(0))[0])]
        with out_of_memory(learner, "update_actor", {1}, backward=True) as failed:
            metrics.append(without_timings(learner.learn(make_batch(1))[0]))
        assert failed == [1]
        folder = tmp_path / str(place)
        learner.save(folder)
        resumed = Learner(config, tiny_model_path, folder)
        metrics.append(without_timings(resumed.learn(make_batch(2))[0]))
        results.append((metrics, all_weights(resumed)))
    (plain, expected), (offloaded, weights) = results
    assert offloaded == plain
    assert_bitwise_equal(weights, expected)
