"""`countdown-train reward probe`: what sound and faulty rewards score, in real processes."""

import json

import pytest

REWARDS = """
import re, threading, time

kept = []

def right(response, answer):
    answers = re.findall(r"<answer>(.*?)</answer>", response, re.DOTALL)
    return float(bool(answers) and answers[-1].strip() == answer)

def contained(response, answer):
    return float(response.strip() in answer or answer in response)

def boxed(data_source, solution_str, ground_truth, extra_info=None):
    return float("\\\\boxed{" + ground_truth + "}" in solution_str)

async def judged(completions, answer, **row):
    return [right(completions[0], answer[0])]

def evaluated(response, answer):
    print("noise")
    text = response.partition("<answer>")[2].partition("</answer>")[0]
    return float(bool(text.strip()) and eval(text) == float(answer))

def hashed(response, answer):
    return right(response, answer) + hash(response) % 1000 / 10_000

def leaks(response, answer):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return right(response, answer)

def hangs(response, answer):
    while True:
        pass

def raises(response, answer):
    raise KeyError("no such thing")
"""
WARNED = {
    # reward: (the finding with a warning, words in the output)
    "contained": ("texts", "not as expected: no form, empty, blanks"),
    "evaluated": ("texts", "tower of powers, control characters, code that returns the answer"),
    "hashed": ("repeat", "in a second process: "),
    "leaks": ("memory", "start no thread that stays"),
}
STOPPED = {
    "boxed": "the prompt asks for '<answer>'",
    "hangs": "(no answer within 0.5 s)",
    "raises": "(KeyError: 'no such thing')",
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    rows = [{"question": f"What is {i} + 30?", "answer": str(i + 30)} for i in range(1, 7)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "probed.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    return ["data.train_files=mine.jsonl", "data.test_size=2", "reward.timeout_s=0.5"]


def levels(printed):
    lines = [line.split() for line in printed.splitlines()]
    return {line[1]: line[0] for line in lines if line[:1] in (["ok"], ["warning"], ["fatal"])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["right", "judged", *WARNED, *STOPPED])
def test_what_is_known_of_a_reward_is_measured(cli, mine, name):
    words = ["reward", "probe", f"probed:{name}", *mine, "response=<answer> 31 </answer>"]
    printed = cli(*words, code=2 if name in STOPPED else 0)
    found = levels(printed.out)
    if name in STOPPED:
        assert found["gold"] == "fatal"
        assert STOPPED[name] in printed.out
        assert "right answers do not score full" in printed.err
        return
    assert "correct, score" in printed.out
    check, words = WARNED.get(name, (None, "200 calls, one at a time"))
    assert {one for one, level in found.items() if level != "ok"} == {check} - {None}
    assert words in printed.out


@pytest.mark.slow
@pytest.mark.parametrize("env", ["countdown", "number_questions", "gsm8k env.source=toy"])
def test_our_own_rules_are_sound(cli, tmp_path, env):
    printed = cli("reward", "probe", *f"env={env}".split(), root=tmp_path)
    assert set(levels(printed.out).values()) == {"ok"}
    assert "\n(1" in printed.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "reward takes `probe` first"),
        ("test", "reward takes `probe` first"),
        ("probe my_rewards", "'my_rewards' is neither MODULE:FUNCTION nor KEY=VALUE"),
        ("probe no_module:score", "env.reward=no_module:score cannot be loaded"),
        ("probe env=custom", "data.train_files=FILE.jsonl names rows"),
    ],
)
def test_bad_words_are_refused(fails, words, why):
    assert why in fails("reward", *words.split())
