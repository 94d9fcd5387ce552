from dataclasses import replace

from rl_core.runs.rollout_log import RolloutLog
from rl_core.tracking.rollout_samples import COLUMNS, Row, sample_table, samples_of_step


def column(rows: list[Row], name: str) -> list[object]:
    return [row[name] for row in rows]


def test_the_first_eight_rows_of_the_step(tmp_path, make_rollout):
    log = RolloutLog(tmp_path / "rollouts", "r")
    for step in (1, 2):
        rollouts = [make_rollout([1], [2], score=float(step * 100 + i)) for i in range(15)]
        log.write(step, 0, rollouts, {})
    samples = samples_of_step(log.folder, 2)
    assert column(samples, "score") == [200, 201, 202, 203, 204, 205, 206, 207]
    assert column(samples, "step") == [2] * 8


def test_fewer_rows_come_once_each_and_no_rows_are_no_samples(tmp_path, make_rollout):
    log = RolloutLog(tmp_path / "rollouts", "r")
    assert samples_of_step(log.folder, 1) == []
    log.write(1, 0, [make_rollout([1], [2], score=float(i)) for i in range(3)], {})
    assert column(samples_of_step(log.folder, 1), "score") == [0, 1, 2]
    assert samples_of_step(log.folder, 2) == []
    (file,) = log.folder.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert samples_of_step(log.folder, 1) == []


def test_the_middle_of_a_long_text_is_left_out(tmp_path, make_rollout):
    log = RolloutLog(tmp_path / "rollouts", "r")
    long, short = "a" * 1_000 + "b" * 10 + "c" * 1_000, "d" * 2_000
    rollouts = [replace(make_rollout([1], [2]), response_text=text) for text in (long, short)]
    log.write(1, 0, rollouts, {})
    shown = [row[COLUMNS.index("response")] for row in sample_table(log.folder, 1)]
    assert shown == ["a" * 1_000 + " [...] " + "c" * 1_000, short]
