"""CONTRIBUTING's diffs apply to the tree as it is, and what they add passes its test."""

import re
import shutil
import subprocess

import pytest

from tests.support.programs import python
from tests.support.seeded_faults import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
DIFFS = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BOTH = """
import torch
from my_algorithms import opo
from rl_core.algos.advantages import ESTIMATORS, GivenRewards
mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
rewards, groups = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([4, 4, 9])
given = GivenRewards(rewards, rewards, mask[:, 0], groups, mask.float(), mask, None, mask.float())
inside = ESTIMATORS["opo"].function(given)
assert torch.equal(opo(given), inside[:, 0]), (opo(given), inside)
"""


ADDED = {
    "opo": "rl_core/algos/test_advantages.py",
    "last_word": "rl_core/envs/test_reversed_words.py",
    "one_correct_response": "rl_core/rollout/test_collector.py",
    "accuracy_by_epoch": "tasks/queries/test_sql.py",
    "cut_short_costs": "rl_core/runs/test_metrics_log.py",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree with all diffs."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("rl_core", "tasks", "flows", "sql", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for diff in DIFFS:
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=folder, check=True)
    return folder


def test_an_estimator_from_outside_is_the_one_from_inside(tree):
    done = python(BOTH, cwd=tree, more={"PYTHONPATH": str(tree)})
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_the_diffs_add_passes_its_tests(tree):
    names, files = " or ".join(ADDED), [f"tests/{file}" for file in ADDED.values()]
    code = f"import pytest, sys; sys.exit(pytest.main(['-q', '-k', {names!r}, *{files}]))"
    done = python(code, cwd=tree, more={"PYTHONPATH": str(tree)}, timeout_s=120)
    assert "8 passed" in done.stdout, done.stdout
