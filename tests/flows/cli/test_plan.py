"""`countdown-train plan`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli.main import run_command
from tests.flows.cli.test_main import fails

PLAN = ["plan", "preset=tinyzero-3b", "rollout.staleness=1"]


def test_a_plan_names_what_it_assumes_and_what_to_type(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = f"storage.root={tmp_path}"
    assert run_command([*PLAN, root, "cards=8xH100", "nodes=2", "response=300"]) == 0
    said = capsys.readouterr().out
    first, batch, lengths, *_ = said.splitlines()
    assert first == (
        "tinyzero-3b on 2 x 8 H100, 450 GB/s from card to card, 400 Gbit/s per card between "
        "machines (network=GBIT); simulated"
    )
    assert batch.startswith("strong scaling: 256 prompts x 1 per step, the same on any number")
    assert lengths.startswith("lengths as you say: prompts of 128 tokens, responses of 300, ")
    assert "learn + generate" in said
    assert "\non 16 cards: resources.learner_ranks=" in said


def test_a_plan_is_data_for_programs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [*PLAN, f"storage.root={tmp_path}", "cards=4xA100 80GB", "--format", "json"]
    assert run_command([*words, "scaling=weak"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["cards"] for row in rows] == [1, 2, 4]


def test_what_cannot_be_planned_is_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = [*PLAN, f"storage.root={tmp_path}"]
    assert "plan takes cards=8xH100" in fails(capsys, *plan)
    assert "not cards=H100" in fails(capsys, *plan, "cards=H100")
    unknown = fails(capsys, *plan, "cards=8xH1000")
    assert "known are RTX 3090, " in unknown
    assert unknown.endswith("GB200\n")
    assert "nodes=200 must be a number from 1 to 128" in fails(
        capsys, *plan, "cards=8xH100", "nodes=200"
    )
    assert "network=0 must be" in fails(capsys, *plan, "cards=8xH100", "network=0")
    assert "scaling=both is not strong or weak" in fails(
        capsys, *plan, "cards=8xH100", "scaling=both"
    )
    assert "response=5000 must be a number from 1 to 1024" in fails(
        capsys, *plan, "cards=8xH100", "response=5000"
    )
    other = fails(capsys, *plan, "cards=8xH100", "model.path=some/model")
    assert "the shape of model.path=some/model is not known here" in other
