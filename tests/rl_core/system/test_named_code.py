import sys

import pytest

from rl_core.system.named_code import load_function, names_code, source_digest


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
