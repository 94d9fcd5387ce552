import re
import shutil

import pytest

from tasks.report_page.data import compare_runs


def test_two_runs_beside_one_another(shared_runs):
    comparison = compare_runs(shared_runs, ["beta", "alpha"])
    assert comparison.run_ids == ["beta", "alpha"]
    assert comparison.overview["run_id"].to_list() == ["alpha", "beta"]  # the better one first
    assert comparison.settings.rows() == [("seed", "1", "0")]
    assert comparison.curves["alpha"]["step"].to_list() == [0, 1, 2, 3]
    assert comparison.paired.is_empty()


@pytest.fixture
def compare(cli, two_runs):
    return lambda *words, code=0: cli("compare", *words, root=two_runs, code=code)


def test_the_command_prints_tables_and_writes_one_page_without_network(compare, two_runs):
    assert "seed  0      1" in compare("alpha", "beta").out
    page = (two_runs / "compare.html").read_text()
    assert "<h3>Test accuracy</h3><svg" in page
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", page) == []

    compare("alpha", "latest", f"output={two_runs}/x.html")
    assert (two_runs / "x.html").exists()


@pytest.mark.parametrize("names", [[], ["alpha"], ["alpha", "alpha"], ["alpha", "gamma"]])
def test_what_cannot_be_compared_ends_with_2(compare, two_runs, names):
    assert len(compare(*names, code=2).err.splitlines()) == 1
    assert not (two_runs / "compare.html").exists()


def test_a_page_of_other_runs_and_any_other_file_stay(compare, two_runs):
    page = two_runs / "compare.html"
    shutil.copytree(two_runs / "runs" / "alpha", two_runs / "runs" / "gamma")
    compare("alpha", "beta")
    first = page.read_bytes()
    compare("beta", "alpha")
    assert list(two_runs.glob("compare-*")) == []  # of the same runs: made from them anew
    compare("alpha", "beta")
    said = compare("alpha", "gamma").out
    kept = two_runs / "compare-alpha-beta.html"
    assert f"the page of other runs that was there is now {kept}" in said
    assert kept.read_bytes() == first
    assert "alpha, gamma" in page.read_text()

    settings = two_runs / "runs" / "alpha" / "config.yaml"
    before = settings.read_bytes()
    said = compare("alpha", "beta", f"output={settings}", code=2).err
    assert "is there and compares no runs" in said
    assert settings.read_bytes() == before
