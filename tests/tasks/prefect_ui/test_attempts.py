import logging

import pytest

from tasks.prefect_ui.attempts import attempt_name, show_attempts
from tests.support.runs import new_run


@pytest.mark.parametrize(("seed", "changed"), [(0, "the same settings"), (9, "seed=9")])
def test_a_later_start_is_named_by_what_is_other(tmp_path, caplog, seed, changed):
    assert attempt_name({"run": new_run(tmp_path, seed=0)}) == "train"
    run = new_run(tmp_path, seed=seed)
    assert attempt_name({"run": run}) == f"train attempt 2, continued: {changed}, from step 0"
    show_attempts(run, logging.getLogger("attempts"))
    # A thread of an earlier test may warn of its server meanwhile.
    said = [record.message for record in caplog.records if record.name == "attempts"]
    assert said == [f"attempt 2, from step 0 with {changed}: continued"]
    run.add_attempt("out of memory in gen", {"rollout.kv_cache_mib": (128, 64)})
    name = "train attempt 3 after out of memory in gen: rollout.kv_cache_mib=64, from step 0"
    assert attempt_name({"run": run}) == name
    run.add_attempt(
        "out of memory in update_critic: tried to allocate 2.3 GiB",
        {"model.gradient_checkpointing": (False, True), "rollout.kv_cache_mib": (64, 32)},
    )
    assert attempt_name({"run": run}) == (
        "train attempt 4 after out of memory in update_critic: "
        "gradient checkpointing rollout.kv_cache_mib=32, from step 0"
    )
