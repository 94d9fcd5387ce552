import sys

import pytest

from rl_core.system.named_code import code_digest, load_function, names_code, source_digest


def test_a_name_is_a_module_and_a_function():
    assert all(map(names_code, ["mine:f", "a.b_c.d:Some_F1"]))
    assert not any(map(names_code, ["grpo", "a/b:f", "a:", ":f", "a:b:c", None, 7]))


def test_a_module_of_the_working_folder_is_found_last_and_leaves_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_code_of_a_test.py").write_text("import json\ndef f():\n    return json\n")
    (tmp_path / "json.py").write_text("raise SystemExit\n")
    before = [*sys.path]
    function = load_function("own_code_of_a_test:f")
    assert sys.path == before
    assert function().dumps([1]) == "[1]"
    with pytest.raises(ValueError, match=r"own_code_of_a_test\.py has no function g"):
        load_function("own_code_of_a_test:g")
    first = source_digest("own_code_of_a_test:f")
    (tmp_path / "own_code_of_a_test.py").write_text("def f():\n    return 1\n")
    assert source_digest("own_code_of_a_test:f") not in (first, None)
    assert source_digest("no_such_module_at_all:f") is None


def test_the_digest_of_code_follows_the_imports_of_ones_own_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part").mkdir()
    files = {
        "own_reward_of_this": "import json\nfrom part import words\nimport own_helper_of_this\n",
        "own_helper_of_this": "import own_reward_of_this\n",  # a circle
        "part/words": "from .more import x\n",
        "part/more": "x = 1\n",
        "stranger": "",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    digests = [code_digest("own_reward_of_this:f")]
    for name in files:
        (tmp_path / f"{name}.py").write_text(f"{files[name]}# changed\n")
        digests.append(code_digest("own_reward_of_this:f"))
    assert len({*digests[:5]}) == 5
    assert digests[5] == digests[4]
    (tmp_path / "own_reward_of_this.py").write_text("import json\ndef f(:\n")
    assert code_digest("own_reward_of_this:f") == source_digest("own_reward_of_this:f") is not None
    assert code_digest("no_such_module_at_all:f") is None
