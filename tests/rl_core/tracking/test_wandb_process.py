from rl_core.runs.metrics_log import MetricsLog
from rl_core.tracking.wandb_process import NewRows


def test_rows_come_once_and_whole_as_the_file_grows(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    rows = NewRows(log.path)
    assert list(rows.new()) == []
    assert rows.last_step is None
    log.append(1, {"a": 0.5})
    log.append(2, {"a": 1.5})
    assert [(row["step"], row["a"]) for row in rows.new()] == [(1, 0.5), (2, 1.5)]
    assert list(rows.new()) == []
    with log.path.open("a") as file:
        file.write('{"step": 3, "a"')
        file.flush()
        assert list(rows.new()) == []
        file.write(': 2.5}\n{"step": 4, "a"\n{"step": 5, "a": 4.5}\n')
    assert [row["step"] for row in rows.new()] == [3, 5]  # a crash cut short what was to be 4
    assert rows.last_step == 5
