"""CONTRIBUTING's diffs apply to the tree as it is, and what they add passes its test."""

import re
import shutil
import subprocess

import pytest

from tests.support.programs import python
from tests.support.seeded_faults import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
OUTSIDE, INSIDE = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
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


@pytest.fixture
def tree(tmp_path):
    """A copy of what the diffs change, with them."""
    for name in ("rl_core", "tasks/importers", "tests/rl_core/algos"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for diff in (OUTSIDE, INSIDE):
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    return tmp_path


def test_an_estimator_from_outside_and_from_inside_is_what_the_diffs_show(tree):
    more = {"PYTHONPATH": str(tree)}
    done = python(BOTH, cwd=tree, more=more)
    assert done.returncode == 0, done.stderr
    code = "import pytest, sys; sys.exit(pytest.main(['-q', '-k', 'opo', 'tests']))"
    tested = python(code, cwd=tree, more=more)
    assert "1 passed" in tested.stdout, tested.stdout
