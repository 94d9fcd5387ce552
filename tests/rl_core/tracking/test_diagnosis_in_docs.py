"""Each rule of the diagnosis is on the page that lists them, in the words that a person sees."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "rl_core" / "tracking" / "diagnosis.yaml").read_text())


@pytest.mark.parametrize("page", ["troubleshooting.md"])
@pytest.mark.parametrize("rule", RULES)
def test_a_page_names_the_rule(page, rule):
    text = (ROOT / "docs" / page).read_text().replace("`", "")
    opening = re.split("[:{,]", RULES[rule]["says"])[0].strip()
    assert len(opening) > 12
    assert opening in text
