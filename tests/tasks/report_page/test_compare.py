import re
import shutil

import pytest

from flows.cli.main import run_command
from tasks.report_page.compare import compare_runs


def test_two_runs_beside_one_another(shared_runs):
    comparison = compare_runs(shared_runs, ["beta", "alpha"])
    assert comparison.run_ids == ["beta", "alpha"]
    assert comparison.overview["run_id"].to_list() == ["alpha", "beta"]  # the better one first
    assert comparison.settings.rows() == [("seed", "1", "0")]
    assert comparison.curves["alpha"]["step"].to_list() == [0, 1, 2, 3]
    assert comparison.paired.is_empty()


def test_the_command_prints_tables_and_writes_one_page_without_network(capsys, two_runs):
    root = f"storage.root={two_runs}"
    assert run_command(["compare", "alpha", "beta", root]) == 0
    said = capsys.readouterr().out
    assert "seed  0      1" in said
    page = (two_runs / "compare.html").read_text()
    assert "<h3>Test accuracy</h3><svg" in page
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", page) == []

    assert run_command(["compare", "alpha", "latest", root, f"output={two_runs}/x.html"]) == 0
    assert (two_runs / "x.html").exists()


@pytest.mark.parametrize("names", [[], ["alpha"], ["alpha", "alpha"], ["alpha", "gamma"]])
def test_what_cannot_be_compared_ends_with_2(capsys, two_runs, names):
    assert run_command(["compare", *names, f"storage.root={two_runs}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (two_runs / "compare.html").exists()


def test_a_page_of_other_runs_and_any_other_file_stay(capsys, two_runs):
    root, page = f"storage.root={two_runs}", two_runs / "compare.html"
    shutil.copytree(two_runs / "runs" / "alpha", two_runs / "runs" / "gamma")
    assert run_command(["compare", "alpha", "beta", root]) == 0
    first = page.read_bytes()
    assert run_command(["compare", "beta", "alpha", root]) == 0
    assert list(two_runs.glob("compare-*")) == []  # of the same runs: made from them anew
    assert run_command(["compare", "alpha", "beta", root]) == 0
    assert run_command(["compare", "alpha", "gamma", root]) == 0
    kept = two_runs / "compare-alpha-beta.html"
    assert f"the page of other runs that was there is now {kept}" in capsys.readouterr().out
    assert kept.read_bytes() == first
    assert "alpha, gamma" in page.read_text()

    settings = two_runs / "runs" / "alpha" / "config.yaml"
    before = settings.read_bytes()
    assert run_command(["compare", "alpha", "beta", root, f"output={settings}"]) == 2
    assert "is there and compares no runs" in capsys.readouterr().err
    assert settings.read_bytes() == before
