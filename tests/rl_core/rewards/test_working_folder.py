from rl_core.envs.countdown import CountdownConfig
from rl_core.rewards.scoring import refusal
from tests.support.traps import set_traps, sprung


def test_a_function_in_the_working_folder_is_found_after_all_other_modules(tmp_path, monkeypatch):
    folder = set_traps(tmp_path / "cwd")
    (folder / "own_rules.py").write_text("import json, numpy\ndef score(**asked): return 1.0\n")
    monkeypatch.chdir(folder)
    assert refusal(CountdownConfig(reward="own_rules:score")) is None
    assert "No module named 'other_rules'" in str(refusal(CountdownConfig(reward="other_rules:f")))
    assert sprung(folder) == ""
