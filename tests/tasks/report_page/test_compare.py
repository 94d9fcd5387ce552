import pytest

from tasks.report_page.data import compare_runs


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
