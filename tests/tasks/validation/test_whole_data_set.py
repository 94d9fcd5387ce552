"""The default data set at its full size."""

import pyarrow.parquet as pq
import pytest

from rl_core.config.run import DataConfig, RunConfig
from rl_core.data.dataset import write_dataset
from tasks.validate import ValidationFailed, validate_dataset


@pytest.mark.slow
def test_the_full_data_set_passes_every_check(tmp_path, tiny_model_path):
    folder = tmp_path / "data"
    write_dataset(RunConfig().env, RunConfig().data, folder)
    config = RunConfig(data=DataConfig(max_prompt_length=1024))
    validation = validate_dataset(config, folder, tiny_model_path)
    assert {check["status"] for check in validation.checks} == {"ok"}
    report = validation.lengths
    assert report is not None
    longest = max(
        len(prompt[0]["content"])
        for split in ("train", "test")
        for prompt in pq.read_table(folder / f"{split}.parquet")["prompt"].to_pylist()
    )
    assert f" to {longest} tokens" in report.verdict
    with pytest.raises(ValidationFailed, match="all 328,704 prompts are rejected"):
        validate_dataset(RunConfig(), folder, tiny_model_path)
