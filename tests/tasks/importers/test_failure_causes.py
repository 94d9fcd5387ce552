import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tasks.report_page.failures import find_failure, is_of_a_program

STEPS = "".join(f"(t pid=1) step:{i} - critic/score/mean:0.{i}\n" for i in range(1, 4))
TRACEBACK = """(t pid=1) Traceback (most recent call last):
(t pid=1)   File "/verl/workers/fsdp_workers.py", line 500, in update_actor
(t pid=1)     metrics = self.actor.update_policy(data=data)
(t pid=1) {error}
Traceback (most recent call last):
  File "main_ppo.py", line 25, in main
ray.exceptions.RayTaskError(Error): further up
"""
CASES = yaml.safe_load(Path(__file__).with_name("failure_causes.yaml").read_text())


@pytest.mark.parametrize("error", CASES)
def test_the_failure_in_a_log_becomes_the_runs_with_our_remedy(cli, tmp_path, error):
    says, remedy = CASES[error]
    file = tmp_path / "crashed.log"
    file.write_text(STEPS + TRACEBACK.format(error=error))
    printed = cli("import", str(file), "run_id=crashed").out
    assert says in printed
    assert remedy in printed
    record = json.loads((tmp_path / "runs" / "crashed" / "run.json").read_text())
    assert record["status"] == "failed"
    assert says in record["reason"]
    assert remedy in record["next_step"]

    # Without a step, as somebody pastes a traceback, it is no launch script either.
    pasted, output = tmp_path / "pasted.txt", tmp_path / "preset.yaml"
    pasted.write_text(TRACEBACK.format(error=error).replace("(t pid=1) ", ""))
    assert says in cli("import", str(pasted), f"output={output}").out
    assert not output.exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["crashed"]


def test_an_error_that_the_run_survived_is_no_failure():
    survived = "(t pid=1) wandb: ERROR timed out\nCommError: once\n" + STEPS
    assert find_failure(survived) is None
    assert find_failure(STEPS) is None


@given(st.text(max_size=300))
def test_any_text_is_looked_at(text):
    is_of_a_program(text)
    find_failure(text)
