import pytest

from tasks.report_page.data import compare_runs
from tests.support.runs import write_rollouts


def test_two_runs_beside_one_another(shared_runs, cli):
    reached, settings, paired = compare_runs(shared_runs, ["beta", "alpha"]).values()
    assert reached["run_id"].to_list() == ["alpha", "beta"]  # the better one first
    assert settings.rows() == [("seed", "1", "0")]
    assert paired.is_empty()
    for named in (["alpha", "latest"], ["run_id=alpha", "latest"]):
        assert "seed  0      1" in cli("compare", *named, root=shared_runs).out


@pytest.mark.parametrize("names", [[], ["alpha"], ["alpha", "alpha"], ["alpha", "gamma"]])
def test_what_cannot_be_compared_ends_with_2(cli, shared_runs, names):
    assert len(cli("compare", *names, root=shared_runs, code=2).err.splitlines()) == 1


def test_a_third_run_s_damage_stops_no_comparison_and_lost_settings_are_told(cli, two_runs):
    beta, third = two_runs / "runs" / "beta", two_runs / "runs" / "third"
    write_rollouts(third, []).write_bytes(b"PAR1 half a file")
    (beta / "config.yaml").unlink()
    (beta / "metrics.jsonl").write_bytes((beta / "metrics.jsonl").read_bytes() + b"\xff\n")
    assert "differ (of beta they are unknown)" in cli("compare", "alpha", "beta", root=two_runs).out
    assert " 0 " not in cli("runs", "third", root=two_runs).out, "its minutes are unknown"
    assert cli("report", "beta", root=two_runs).out
    cli("sql", "verdict_shares_by_step", "-p", "steps_per_row=-3", "alpha", root=two_runs, code=2)


def test_runs_are_a_line_each_at_80_columns_and_say_what_to_do_next(cli, shared_runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    first, *lines = cli("runs", root=shared_runs).out.splitlines()
    assert first.split() == ["run_id", "status", "steps", "before", "after", "min"]
    assert [line.split()[:4] for line in lines[:2]] == [
        ["beta", "running", "1", "-"],
        ["alpha", "finished", "3", "0.25"],
    ]
    assert "champion" not in cli("runs", root=shared_runs).out
    assert "val_after" in cli("runs", "alpha", root=shared_runs).out
