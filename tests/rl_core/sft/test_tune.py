import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.models.packing import takes_packed_rows
from rl_core.sft.fit import Example, Fitting
from rl_core.sft.tune import _prepared, tune_model
from tests.support.learners import assert_bitwise_equal, assert_close
from tests.support.runs import merged, run_config

LOGGER = logging.getLogger("test")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    pairs = [(f"{a}+{b}=", f"{a + b}") for a in range(6) for b in range(6)]
    lines = (json.dumps({"prompt": prompt, "response": answer}) for prompt, answer in pairs)
    file.write_text("\n".join(lines))
    return file


def tuned(
    folder: Path, rows: Path, base: Path, steps: list[float] | None = None, **changes: Any
) -> tuple[SimpleNamespace, dict[str, torch.Tensor]]:
    """Fine-tunes for some steps; returns report and weights, `steps` gets the losses."""
    folder.mkdir(exist_ok=True)
    sections = {
        "sft": {"data": str(rows), "steps": 8, "batch_size": 8, "lr": 1e-2, "save_freq": 2},
        "model": {"path": str(base)},
        "resources": {"learner_threads": 1},
    }
    tune_model(
        run_config(**merged(sections, changes)),
        model_path=base,
        data=folder,
        folder=folder / "model",
        on_step=lambda step, last, row: None if steps is None else steps.append(row["loss"]),
        logger=LOGGER,
    )
    report = json.loads((folder / "model" / "warm_start.json").read_text())
    return SimpleNamespace(**report), load_file(folder / "model" / "model.safetensors")


def test_it_learns_and_writes_a_folder_that_loads(tmp_path, rows, tiny_model_path):
    losses: list[float] = []
    report, weights = tuned(tmp_path, rows, tiny_model_path, losses, sft={"steps": 30})
    assert report.held_out_loss_after < 0.7 * report.held_out_loss_before
    assert report.held_out_examples == 3
    assert len(losses) == 30
    assert losses[-1] < losses[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(model.model.norm.weight, weights["model.norm.weight"])
    curve = [json.loads(line) for line in (tmp_path / "model" / "sft_loss.jsonl").open()]
    assert [row["step"] for row in curve] == list(range(31))
    assert [row["loss"] for row in curve[1:]] == losses
    assert round(curve[-1]["held_out_loss"], 4) == report.held_out_loss_after
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_kill_costs_nothing(tmp_path, rows, tiny_model_path, lora_rank):
    _, whole = tuned(tmp_path / "a", rows, tiny_model_path, sft={"lora_rank": lora_rank})

    class Killed(list[float]):
        def append(self, loss: float) -> None:
            super().append(loss)
            if len(self) == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "b", rows, tiny_model_path, Killed(), sft={"lora_rank": lora_rank})
    assert not (tmp_path / "b" / "model").exists()
    losses: list[float] = []
    _, resumed = tuned(tmp_path / "b", rows, tiny_model_path, losses, sft={"lora_rank": lora_rank})
    assert len(losses) == 4, "it continues after step 4"
    assert_bitwise_equal(whole, resumed)
    curves = [(tmp_path / name / "model" / "sft_loss.jsonl").read_text() for name in "ab"]
    assert curves[0] == curves[1]


def test_memory_levers_change_nothing(tmp_path, rows, tiny_model_path):
    _, plain = tuned(tmp_path / "a", rows, tiny_model_path)
    _, split = tuned(tmp_path / "b", rows, tiny_model_path, actor={"micro_batch_tokens": 12})
    _, checkpointed = tuned(
        tmp_path / "c",
        rows,
        tiny_model_path,
        model={"gradient_checkpointing": True},
        resources={"learner_threads": 2},
    )
    assert_close(split, plain, atol=1e-4)
    assert_close(checkpointed, plain, atol=1e-4)


def test_bfloat16_and_adapters_learn_alike(tmp_path, rows, tiny_model_path):
    exact, _ = tuned(tmp_path / "a", rows, tiny_model_path)
    rough, weights = tuned(
        tmp_path / "b", rows, tiny_model_path, model={"dtype": "bfloat16", "lora_rank": 8}
    )
    assert rough.lora_rank == 8
    assert rough.held_out_loss_after < rough.held_out_loss_before
    assert exact.held_out_loss_before == pytest.approx(rough.held_out_loss_before, abs=0.05)
    assert weights["model.embed_tokens.weight"].dtype == torch.float32
    assert not any("lora" in name for name in weights)


@pytest.mark.slow
def test_what_does_not_fit_is_split_and_a_single_example_refused(
    tmp_path, rows, tiny_model_path, monkeypatch
):
    _, plain = tuned(tmp_path / "a", rows, tiny_model_path)
    room = 3

    def scarce(self: Fitting, part: list[Example]) -> torch.Tensor:
        if len(part) > room:
            raise RuntimeError("out of memory")
        return summed(self, part)

    summed = Fitting.summed_loss
    monkeypatch.setattr(Fitting, "summed_loss", scarce)
    _, split = tuned(tmp_path / "b", rows, tiny_model_path)
    assert_close(split, plain, atol=1e-4)
    room = 0
    with pytest.raises(OutOfMemory, match=r"model.gradient_checkpointing=true"):
        tuned(tmp_path, rows, tiny_model_path)


def test_a_held_out_loss_that_rises_is_said(tmp_path, rows, tiny_model_path):
    report, _ = tuned(tmp_path, rows, tiny_model_path, sft={"lr": 10.0, "warmup_steps": 0})
    assert "it learned nothing" in report.failed_gates[0]
    with pytest.raises(ValueError, match=r"loss nan at step [23]: lower sft.lr"):
        tuned(tmp_path / "nan", rows, tiny_model_path, sft={"lr": 1e30})


def test_it_computes_attention_as_the_learner_does(tiny_model_path):
    """In float32 torch's own would be a plain product on a card, [heads, L, L] in memory."""
    model = _prepared(RunConfig(), tiny_model_path, 4, torch.device("cpu"))
    assert takes_packed_rows(model.get_decoder())
