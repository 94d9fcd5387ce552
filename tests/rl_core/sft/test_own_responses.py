"""`sft.data=RUN`: what a run has answered rightly, as examples."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from rl_core.sft.named_data import check_sft, data_digest, planned_sft_steps
from rl_core.sft.sources import sft_source
from tests.support.runs import run_config

RIGHT = {"prompt": "2+2=", "response": "4!", "verdict": "correct", "finish_reason": "stop"}
ROWS = [
    RIGHT,
    RIGHT,  # again
    RIGHT | {"response": "5!", "verdict": "wrong_value"},
    RIGHT | {"response": "4!4!", "finish_reason": "length"},
    RIGHT | {"response": "four", "turns": [{"text": "4?"}]},
    RIGHT | {"response": " 4"},
    RIGHT | {"prompt": "1+3="},
]


def config_of(root: Path, run: str = "strong", **sft: object):
    return run_config(
        model={"path": "any"},
        storage={"root": root},
        env={"name": "countdown", "prompt_template": "chat"},
        sft={"data": run, "batch_size": 2, "epochs": 1} | sft,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Storage with a run whose rollouts are in two files."""
    folder = tmp_path / "runs" / "strong"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    for step, rows in ((1, ROWS[:4]), (2, ROWS[4:])):
        table = pa.Table.from_pylist([{"turns": None} | row for row in rows])
        pq.write_table(table, folder / "rollouts" / f"step_{step:06d}.parquet")
    return tmp_path


def test_right_responses_are_learned_once_with_the_prompts_that_were_read(root, tiny_model_path):
    config = config_of(root)
    check_sft(config)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    source = sft_source(config, tokenizer, root)
    examples = [*source.held_out, *source.draw(0)]
    texts = {tokenizer.decode(example.ids) for example in examples}
    # No chat template is put around a prompt that has been rendered.
    end = tokenizer.eos_token
    assert texts == {f"2+2=4!{end}", f"2+2= 4{end}", f"1+3=4!{end}"}
    assert planned_sft_steps(config) == 2  # three rows, by two
    assert data_digest(config)


def test_a_run_without_rollouts_is_refused(root):
    for file in (root / "runs" / "strong" / "rollouts").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"sft.data=strong: that run has kept no rollouts"):
        check_sft(config_of(root))


def test_a_file_is_still_a_file(root):
    with pytest.raises(ValueError, match=r"sft.data=weak"):
        check_sft(config_of(root, "weak"))
