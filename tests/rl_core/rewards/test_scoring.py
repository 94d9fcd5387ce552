"""A user's reward in real processes: whatever it does, the run gets a score and continues."""

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from pydantic import ValidationError

from rl_core.config.rollout import RewardConfig
from rl_core.envs.countdown import Countdown
from rl_core.envs.gsm8k import Gsm8k
from rl_core.rewards.reward_worker import checked, describe
from rl_core.rewards.scoring import Rewards, _labels, refusal, start_rewards
from rl_core.types import Problem, ScoredText
from tests.support.programs import begun, lives
from tests.support.traps import set_traps, sprung
from tests.support.waiting import wait_for

PROBLEM = Problem(7, "my/data", (), "42", 3)
TRUTH = {"target": 3, "numbers": [1, 2]}
HERE = "tests.support.user_rewards"


def env(function: str, **options: Any) -> Gsm8k:
    return Gsm8k.model_validate({"reward": f"{HERE}:{function}"} | options)


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if lives(p)]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(children())
    yield
    assert set(children()) <= before


def scores(rewards: Rewards, *responses: str) -> list[ScoredText]:
    return [s.result(60) for s in [rewards.submit(r, PROBLEM) for r in responses]]


def test_without_a_function_the_envs_own_rule_scores_at_once():
    before = children()
    with start_rewards(Countdown()) as rewards:
        problem = Problem(0, "countdown", (), TRUTH, 1)
        scored = rewards.submit("<answer>1 + 2</answer>", problem)
        assert scored.done()
        assert scored.result() == Countdown().score("<answer>1 + 2</answer>", TRUTH)
        assert children() == before


def test_a_number_is_a_score_and_the_full_score_is_correct():
    with start_rewards(env("same_text")) as rewards:
        right, wrong = scores(rewards, "42", "lone \ud800 \x00 surrogate")
    assert (right.score, right.verdict, right.answer) == (1.0, "correct", None)
    assert (wrong.score, wrong.verdict) == (0.0, "incorrect")
    with start_rewards(env("same_text", full_score=2.0)) as rewards:
        assert [s.verdict for s in scores(rewards, "42")] == ["incorrect"]


def test_a_mapping_says_what_is_correct_and_what_was_read():
    with start_rewards(env("as_mapping"), RewardConfig(workers=2)) as rewards:
        right, *wrong = scores(rewards, "right", *["wrong"] * 9)
    asked = {
        "data_source": "my/data",
        "solution_str": "right",
        "ground_truth": "42",
        "extra_info": {"index": 7, "num_solutions": 3},
    }
    assert (right.score, right.verdict, right.answer) == (-1.0, "correct", repr(asked))
    assert {s.verdict for s in wrong} == {"incorrect"}


def test_a_function_may_say_that_there_was_no_answer():
    with start_rewards(env("says_whether_it_read")) as rewards:
        scored = scores(rewards, "42", "7", "I do not know")
    assert [s.verdict for s in scored] == ["correct", "incorrect", "no_answer"]


def test_several_functions_are_added_up_by_weight_and_the_first_says_what_is_correct():
    names = [f"{HERE}:{name}" for name in ("says_whether_it_read", "share_of_letters", "misbehave")]
    weighted = Gsm8k(reward=names, reward_weights=[2.0, 0.5, -1.0])
    with start_rewards(weighted) as rewards:
        right, wrong, failed = scores(rewards, "42", "abcd", "crash")
    kept = ("says_whether_it_read", 1.0), ("share_of_letters", 0.0), ("misbehave", 1.0)
    assert right == ScoredText(2 - 1, "correct", "42", "42", kept)
    assert (wrong.score, wrong.verdict) == (0.5 - 1, "no_answer")
    assert failed == ScoredText(0.0, "reward_error", None, why="KeyError: 'no such thing'")
    with start_rewards(Gsm8k(reward=names)) as rewards:
        assert [one.score for one in scores(rewards, "42", "ab12")] == [2.0, 1.5]
    assert f"env.reward={HERE}:none cannot be" in refusal(Gsm8k(reward=[*names, f"{HERE}:none"]))
    assert "gives no score" in refusal(
        Gsm8k(reward=[*names, f"{HERE}:of_another_truth"]), [PROBLEM]
    )


def test_functions_of_one_name_are_told_apart_by_their_modules():
    assert _labels(["a.b:f", "b:g"]) == ["f", "g"]
    assert _labels(["a.b:f", "b:f"]) == ["a.b.f", "b.f"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"reward": ["a:f", "b:g"], "reward_weights": [1]},
            "must be one for each of 2 in env.reward",
        ),
        ({"reward_weights": [1]}, "one for each of 0"),
        ({"reward": ["a:f", "a:f"]}, "names a function twice"),
        ({"reward": ["a:f", "no function"]}, "String should match pattern"),
    ],
)
def test_rewards_that_cannot_be_added_up_are_refused(settings, why):
    with pytest.raises(ValidationError, match=why):
        Gsm8k.model_validate(settings)


SECRETS = {
    name: f"value-of-{name}"
    for name in (
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_PROFILE", "AWS_SECRET_ACCESS_KEY", "AZURE_CLIENT_ID"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "PREFECT_API_KEY", "PREFECT_SERVER_API_AUTH_STRING"),
        *("RAY_AUTH_TOKEN", "PGPASSWORD", "MYSQL_PWD", "SLACK_WEBHOOK_URL", "SENTRY_DSN"),
        *("PGPASSFILE", "KUBECONFIG", "SSH_AUTH_SOCK", "GITHUB_PAT", "SMTP_PASS", "OPENAI_KEY"),
        *("MONGO_CONNECTION_STRING", "DB_PASSWORD", "REDIS_PASSWORD", "NETRC"),
    )
} | {"DATABASE_URL": "postgresql://me:secret@host/db", "PREFECT_API_URL": "http://a:b@host/api"}


def test_it_inherits_no_credential_but_those_it_is_lent(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MY_CHOICE", "kept")
    for lent in ((), ("OPENAI_KEY",)):
        with start_rewards(env("environment_of"), RewardConfig(env=lent)) as rewards:
            (said,) = scores(rewards, "")
        assert "MY_CHOICE=kept" in said.answer
        assert {name for name in SECRETS if f"{name}=" in said.answer} == {*lent}


def _is_landlocked() -> bool:
    code = "from rl_core.system.sealed import stay_among_own as s; raise SystemExit(not s())"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_it_cannot_read_the_environment_of_those_who_started_it(caplog):
    others = psutil.Process().parents() if _is_landlocked() else []
    pids = [str(process.pid) for process in (psutil.Process(), *others)]
    with start_rewards(env("environment_of")) as rewards:
        said = scores(rewards, *pids)
    readable = [pid for pid, one in zip(pids, said, strict=True) if one.verdict != "reward_error"]
    assert readable == []
    assert "PermissionError" in caplog.text


def test_a_module_of_the_working_folder_shadows_none_that_is_installed(tmp_path, monkeypatch):
    folder = set_traps(tmp_path / "cwd")
    (folder / "own_rules.py").write_text(
        "import json, numpy, psutil\ndef score(**asked): return len(psutil.pids()) > 0\n"
    )
    monkeypatch.chdir(folder)
    with start_rewards(Gsm8k(reward="own_rules:score")) as rewards:
        assert [one.verdict for one in scores(rewards, "")] == ["correct"]
    assert "No module named 'other_rules'" in str(refusal(Countdown(reward="other_rules:f")))
    assert sprung(folder) == ""


@pytest.mark.slow
def test_whatever_a_function_does_costs_its_own_response_alone(caplog):
    bad = ["crash", "exit", "leave", "segfault", "hog", "recurse", "loop", "children"]
    bad += ["nan", "text", "nothing", "empty", "list"]
    # A good one behind each: an answer that came late would be taken for that one's.
    responses = [r for one in bad for r in (one, "fine")] + ["noise", "fork", "fine", "fine"]
    caplog.set_level(logging.WARNING)
    with start_rewards(env("misbehave"), RewardConfig(timeout_s=2.0, memory_mib=512)) as rewards:
        scored = scores(rewards, *responses)

    def left() -> list[list[str]]:  # killed, and for a moment still there
        lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
        return [line for line in lines if "import time; time.sleep(100.7)" in line]

    wait_for(lambda: not left(), seen=left)
    errors = [r for r, s in zip(responses, scored, strict=True) if s.verdict == "reward_error"]
    assert errors == bad
    assert {s.score for s in scored if s.verdict == "reward_error"} == {0.0}
    assert {s.score for s in scored if s.verdict == "correct"} == {1.0}
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(f"{HERE}:misbehave gave no reward for a response to problem 7")
    assert [m.rpartition("teaches nothing: ")[2] for m in said] == [
        "KeyError: 'no such thing'",
        "SystemExit: 3",
        "its process died: exit code 3; later failures are not logged",
    ]


@pytest.mark.parametrize(
    ("returned", "score"),
    [(np.bool_(True), 1.0), (np.float32(0.5), 0.5), (torch.tensor(0.25), 0.25), (False, 0.0)],
)
def test_a_number_of_any_kind_is_a_score(returned, score):
    assert checked(returned) == {"score": score}
    said = {"score": score, "acc": score >= 1, "pred": "?x"}  # a file takes no half of a pair
    assert checked({"score": returned, "acc": returned, "pred": "\ud800x"}) == said


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (float("nan"), "returned nan, which is no score"),
        (np.array([1.0]), "returned ndarray, not a number"),
        ("1.0", "returned str, not a number or a mapping with a number 'score'"),
        (1e300, "returned 1e+300, which is no score: -1e9 to 1e9 are"),
        ({"reward": 1}, "returned a mapping of ['reward'], not a number or a mapping with a num"),
    ],
)
def test_what_is_no_score(returned, why):
    with pytest.raises((TypeError, ValueError), match=re.escape(why)):
        checked(returned)


def test_reasons_in_words(caplog):
    with start_rewards(env("misbehave"), RewardConfig(timeout_s=0.5)) as rewards:
        scores(rewards, "segfault", "loop", "hog")
    reasons = ("its process died: killed by SIGSEGV", "no answer within 0.5 s", "MemoryError")
    for record, reason in zip(caplog.records, reasons, strict=True):
        assert reason in record.getMessage()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:score", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{HERE}:no_such_function", "has no function no_such_function"),
        (f"{HERE}:NOT_A_FUNCTION", "has no function NOT_A_FUNCTION"),
        ("tests.support.broken_rewards:f", "RuntimeError: this module needs a licence"),
        (f"{HERE}:yields", "ValueError: it yields, and a reward is returned: write def NAME(respo"),
        (f"{HERE}:of_no_response", "it takes data_source, ground_truth, and no response: write"),
    ],
)
def test_a_function_that_can_never_score_is_refused_in_one_line(name, why):
    config = Countdown(reward=name)
    with pytest.raises(ValueError, match="cannot be loaded") as caught, start_rewards(config):
        pass
    message = refusal(config)
    assert message == str(caught.value)
    assert message.startswith(f"env.reward={name} cannot be loaded (")
    assert why in message
    assert "\n" not in message
    assert name.partition(":")[0] not in {*sys.modules} - {HERE}


def test_an_async_function_scores_many_responses_at_a_time_in_one_process():
    with start_rewards(env("awaited"), RewardConfig(concurrency=200, workers=3)) as rewards:
        before = len(children())
        waiting = [rewards.submit("1.5", PROBLEM) for _ in range(400)]
        assert not any(scored.done() for scored in waiting)
        assert {scored.result(60).verdict for scored in waiting} == {"correct"}
        assert len(children()) == before == 1
    with start_rewards(env("awaited_instance")) as rewards:
        assert scores(rewards, "", "")[1].score == 0.5


@pytest.mark.slow
def test_whatever_an_async_function_does_costs_its_own_response_alone(caplog):
    bad = ["crash", "exit", "never", "leave", "segfault", "loop", "nan", "text"]
    responses = [r for one in bad for r in (one, "fine", "0.5")] + ["noise", "fork", "fine"]
    limits = RewardConfig(timeout_s=1.5, memory_mib=2_048)
    with start_rewards(env("awaited"), limits) as rewards:
        scored = scores(rewards, *responses)
    assert [r for r, s in zip(responses, scored, strict=True) if s.verdict != "correct"] == bad
    assert {s.verdict for s in scored} == {"correct", "reward_error"}


def test_a_function_is_tried_before_the_start():
    for name, why in (
        ("of_another_truth", "it says TypeError: string indices must be integers"),
        ("awaits_inside", "it says TypeError: returned coroutine, not a number"),
    ):
        assert refusal(env(name)) is None
        assert why in refusal(env(name), [PROBLEM, PROBLEM])
    assert refusal(env("same_text"), [PROBLEM, PROBLEM]) is None
    assert refusal(env("awaited"), [PROBLEM, PROBLEM]) is None
    assert refusal(Countdown()) is None


def test_leaving_in_the_middle_waits_for_nobody():
    with start_rewards(env("misbehave"), RewardConfig(timeout_s=600.0, workers=2)) as rewards:
        hanging = [rewards.submit("loop", PROBLEM) for _ in range(10)]
        wait_for(lambda: sum(scored.running() for scored in hanging) == 2)
    assert all(scored.done() for scored in hanging)


def test_a_killed_trainer_leaves_no_reward_process(tmp_path):
    code = f"""
        import sys
        from rl_core.envs.gsm8k import Gsm8k
        from rl_core.config.rollout import RewardConfig
        from rl_core.rewards.scoring import start_rewards
        from rl_core.types import Problem

        env = Gsm8k(reward="{HERE}:slow")
        with start_rewards(env, RewardConfig(timeout_s=600)) as rewards:
            rewards.submit({str(tmp_path / "pid")!r}, Problem(0, "", (), "", 0)).result()
    """
    told = tmp_path / "pid"
    with begun(code):
        wait_for(lambda: told.exists() and told.read_text())
    pid = int(told.read_text())
    wait_for(lambda: not [p for p in psutil.process_iter() if p.pid == pid and lives(p)])


def test_a_reward_process_starts_without_heavy_libraries():
    code = "import sys, rl_core.rewards.reward_worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "pydantic", "ray"} & set(done.stdout.split())


def test_an_error_that_quotes_a_model_can_be_tokenized():
    assert describe(ValueError("half of a pair: \ud800\nand more")) == (
        "ValueError: half of a pair: ? and more"
    )
