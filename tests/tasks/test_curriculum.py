"""A run with a curriculum, stopped and resumed, asks what an undisturbed one asks."""

import polars as pl
import pytest

from flows.cli.main import run_command
from rl_core.data.sampling import Place, ProblemOrder
from rl_core.runs.run_folder import RunFolder


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_curriculum(tmp_path, tiny_overrides, capsys):
    """GRPO, a step ahead, groups replaced; twelve problems, so that most are asked twice."""
    settings = [
        *tiny_overrides,
        f"storage.root={tmp_path}",
        "data.curriculum=pass_rate",
        "data.train_size=12",
        "data.train_batch_size=4",
        "algorithm.estimator=grpo",
        "algorithm.group_size=2",
        "algorithm.kl_coef=0",
        "algorithm.resample_rounds=1",
        "rollout.engine=hf",
        "rollout.staleness=1",
        "trainer.save_freq=2",
        "trainer.test_freq=100",
    ]

    def train(run_id: str, steps: int) -> tuple[pl.DataFrame, list[float]]:
        given = [*settings, f"run_id={run_id}", f"trainer.total_steps={steps}"]
        by_key = {text.partition("=")[0]: text for text in given}
        assert run_command(["train", *by_key.values()]) == 0, capsys.readouterr().err
        run = RunFolder.under(tmp_path, run_id)
        rows = pl.read_parquet(run.path / "rollouts" / "*.parquet")
        columns = ["step", "group_id", "sample_index", "prompt_index", "response", "advantage_mean"]
        return (
            rows.select(columns).sort(columns[:3]),
            run.metrics.values("curriculum/passed_over_frac"),
        )

    whole, passed_over = train("whole", 4)
    train("halves", 2)
    halves, passed_over_too = train("halves", 4)
    assert halves.equals(whole)
    assert passed_over_too == passed_over
    assert len(passed_over) == 4
    assert max(passed_over) > 0
    order = ProblemOrder(Place(seed=0, num_problems=12), batch_size=4)
    shuffled = [i for step in range(1, 5) for i in order.choose(step)]
    assert whole["prompt_index"].to_list()[::2] != shuffled
