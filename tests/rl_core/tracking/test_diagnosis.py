from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rl_core.config.run import RunConfig
from rl_core.rollout.collector import repeated_share
from rl_core.tracking.diagnosis import diagnose, hacked_reward

Rows = list[dict[str, Any]]


def steps(num_steps: int = 40, **series: Sequence[float]) -> Rows:
    """Rows of so many steps; a series of two values is a straight line between them."""
    lines = {NAMES[key]: np.linspace(x[0], x[-1], num_steps) for key, x in series.items()}
    return [
        {"step": i + 1} | {name: float(line[i]) for name, line in lines.items()}
        for i in range(num_steps)
    ]


TABLES = yaml.safe_load(Path(__file__).with_name("diagnosis.yaml").read_text())
NAMES = {key: name for key, (name, *_) in TABLES["series"].items()}
HEALTHY: Mapping[str, Sequence[float]] = {key: x for key, (_, *x) in TABLES["series"].items()}


def rules(rows: Rows) -> list[str]:
    return [found.rule for found in diagnose(rows)]


def test_a_healthy_run_has_nothing():
    assert rules(steps(**HEALTHY)) == []


@pytest.mark.parametrize(("rule", "sick", "sound"), TABLES["rules"])
def test_each_rule(rule, sick, sound):
    assert rules(steps(**sick)) == [rule]
    assert rule not in rules(steps(**sound))


@pytest.mark.parametrize(
    "odd", [{"entropy": (0.5, 0.01)}, {"clipped": (0, 0)}, {"cut": (0.9, 0.4)}], ids=str
)
def test_what_is_odd_is_no_warning_while_accuracy_rises(odd):
    assert rules(steps(**odd, accuracy=(0.07, 0.7))) == []
    assert len(rules(steps(**odd, accuracy=(0.3, 0.3)))) == 1
    tested = [row | {"val/accuracy": row["step"] / 100} for row in steps(**odd)]
    assert rules(tested) == []


@pytest.mark.parametrize("lost", [None, float("nan"), float("inf")])  # null: metrics.jsonl
def test_updates_that_are_thrown_away_are_told(lost):
    rows = [
        row | {"actor/grad_norm": lost if row["step"] > 37 else 0.1} for row in steps(**HEALTHY)
    ]
    (found,) = diagnose(rows)
    assert found.rule == "updates_lost"
    assert found.evidence == "actor/grad_norm is not finite in 3 of the last 10"
    rows[-1]["actor/grad_norm"] = 0.1
    assert rules(rows) == []


def test_an_advice_leaves_out_what_is_set():
    rows = steps(entropy=(0.5, 0.01))
    (unknown,) = diagnose(rows)
    assert unknown.advice.startswith("actor.clip_eps_high=0.28, ")
    config = RunConfig.model_validate({"actor": {"clip_eps_high": 0.28}})
    for found in (diagnose(rows, config), diagnose(rows, settings=config.model_dump(mode="json"))):
        assert found[0].advice == "a larger actor.entropy_coef, a smaller actor.lr"


def test_a_reward_function_that_fails_is_told_at_once():
    failing: Rows = [{"step": 1, "critic/score/mean": 0.0, "reward/verdict/reward_error": 1.0}]
    (found,) = diagnose(failing)
    assert found.rule == "reward_fails"
    assert "no score at all" in found.says
    some = [dict(failing[0], step=2), {"step": 3, "critic/score/mean": 0.0}]
    assert [str(found) for found in diagnose(some)] == [
        "env.reward gives no score for some responses, which count as 0 "
        "(reward/verdict/reward_error is 0.500 of the last steps). Try: the log says why for the "
        "first of them, and countdown-train sql samples_of_a_verdict -p verdict=reward_error shows "
        "some; reward.timeout_s and reward.memory_mib are the limits"
    ]
    healed = failing + [{"step": i, "critic/score/mean": 0.3} for i in range(2, 13)]
    assert rules(healed) == []
    assert rules([row | failing[0] | {"step": row["step"]} for row in steps(score=(0, 0))]) == [
        "reward_fails"  # and no word of prompts
    ]


def test_a_function_without_right_answers_is_not_format_credit():
    rows = steps(score=(0.2, 0.6), accuracy=(0, 0))
    assert rules(rows) == ["format_credit_only"]
    (found,) = diagnose([row | {"reward/verdict/incorrect": 1.0} for row in rows])
    assert found.rule == "nothing_is_correct"
    assert "algorithm.outcome_gate=false" in found.advice


def test_kl_blows_up_and_does_not_merely_drift():
    def late(first: int, *values: float) -> Rows:
        calm = steps(first - 1, kl=(0.1, 0.1))
        return calm + [{"step": first + i, "critic/kl": value} for i, value in enumerate(values)]

    assert rules(late(39, 4.0, 12.0)) == []
    (found,) = diagnose(late(31, *np.linspace(0.5, 12, 10)))
    assert (found.rule, "nats per token" in found.evidence) == ("kl_blow_up", True)
    assert rules(steps(kl=(0.0, 9.0))) == []


@pytest.mark.parametrize(("accuracy", "tested", "found"), TABLES["fooled scorers"])
def test_an_accuracy_that_tests_do_not_see_is_suspect(accuracy, tested, found):
    """Tested before the first of 40 steps, in the middle and at the end."""
    rows: Rows = [{"step": 0}, *steps(accuracy=accuracy)]
    for step, value in zip((0, 20, 40), tested, strict=True):
        rows[step]["val/accuracy"] = value
    assert rules(rows) == found


@pytest.mark.parametrize(
    ("score", "accuracy", "tested", "settings", "found"), TABLES["fooled rewards"]
)
def test_a_reward_that_rises_without_the_tests_is_suspect(score, accuracy, tested, settings, found):
    rows: Rows = [{"step": 0}, *steps(score=score, accuracy=accuracy)]
    for step, value in zip((0, 20, 40), tested, strict=True):
        rows[step]["val/accuracy"] = value
    sections = {"env": {key.removeprefix("env."): value for key, value in settings.items()}}
    assert [one.rule for one in diagnose(rows, settings=sections)] == found


def test_a_reward_counts_as_hacked_once_three_tests_in_a_row_find_it():
    """The score doubles over 40 steps; a test every 5 steps sees 0.2, but for one of them."""
    config = RunConfig.model_validate({"env": {"name": "countdown", "reward": ["a:f"]}})

    def first_stop(better_test: int | None) -> int | None:
        rows: Rows = [{"step": 0}, *steps(score=(0.4, 0.8), accuracy=(0.2, 0.2))]
        for step in range(0, 41, 5):
            rows[step]["val/accuracy"] = 0.6 if step == better_test else 0.2
        return next((s for s in range(41) if hacked_reward(rows[: s + 1], config)), None)

    # Means of the first and the last quarter differ by more than 0.1 from step 15 on.
    assert first_stop(None) == 25
    assert first_stop(20) == 35
    rows: Rows = [{"step": 0}, *steps(score=(0.4, 0.8), accuracy=(0.2, 0.2))]
    assert hacked_reward(rows, config) is None


def test_the_diarys_170_steps_are_called_what_they_were():
    """Score 0.036 -> 0.119, read as progress; accuracy 0, length 181 -> 58, one update a batch."""
    diary = steps(170, score=(0.036, 0.119), accuracy=(0, 0), length=(181, 58), clipped=(0, 0))
    found = diagnose(diary)
    assert [one.rule for one in found] == ["format_credit_only", "length_collapse", "never_clipped"]
    first = str(found[0])
    assert "not the task" in first
    assert "accuracy is 0.000" in first
    assert "0.041 -> 0.114" in first  # means of the first and the last 20 steps
    for row in diary:
        del row["reward/accuracy"]  # as TinyZero's log was: score alone
    without = diagnose(diary)
    assert without[0].rule == "format_credit_only"
    assert "at most 1.6% right answers" in without[0].evidence  # (0.1144 - 0.1) / 0.9


def near_the_limit(**left: float) -> Rows:
    phases = {f"memory/card_left_gib/{phase}": gib for phase, gib in left.items()}
    return [{"step": 1, "memory/card_gib": 24.0} | phases]


@pytest.mark.parametrize(("sections", "left", "advice"), TABLES["nearly full cards"])
def test_a_card_with_less_than_a_twentieth_left_has_its_next_lever_named(sections, left, advice):
    card = {"learner_gpus": 0.5, "rollout_gpus": 0.5, "gpu_memory_gib": 24}
    resources = {"resources": card | sections.get("resources", {})}
    config = RunConfig.model_validate(sections | resources)
    (found,) = diagnose(near_the_limit(**left), config)
    assert found.rule == "nearly_full_card"
    assert found.advice == f"{advice}, the next lever"
    (unknown,) = diagnose(near_the_limit(**left))
    assert "rollout.sleep=true" in unknown.advice


def test_a_card_with_room_is_not_mentioned_nor_one_that_was_full_long_ago():
    assert rules(near_the_limit(update_actor=1.21, ref=5)) == []
    full, roomy = near_the_limit(ref=0.1), near_the_limit(ref=3)
    later = [row | {"step": step} for step in range(2, 12) for row in roomy]
    assert rules([*full, *later]) == []
    assert rules([*full, *later[:-1]]) == ["nearly_full_card"]


def test_too_few_steps_say_nothing():
    assert rules(steps(7, score=(0, 0), clipped=(0, 0), length=(181, 58))) == []


names = st.sampled_from(sorted(NAMES.values()))


@given(st.lists(st.dictionaries(names, st.floats(-1e6, 1e6) | st.none()), max_size=60))
def test_any_log_is_read(rows):
    for found in diagnose([row | {"step": i} for i, row in enumerate(rows)]):
        assert found.says
        assert found.evidence
        assert found.advice


def test_repeated_share_by_hand():
    loop = np.array([1, 2] * 10)
    # 20 tokens have 13 runs of 8, of which two differ: (1, 2, ...) and (2, 1, ...).
    assert repeated_share(loop) == pytest.approx(11 / 13)
    assert repeated_share(np.arange(50)) == 0
    assert repeated_share(np.array([7] * 8)) == 0
    assert repeated_share(np.array([7] * 9)) == pytest.approx(1 / 2)


@given(st.lists(st.integers(0, 3), max_size=40))
def test_repeated_share_counts_as_a_set_of_runs_does(ids):
    runs = [tuple(ids[i : i + 3]) for i in range(len(ids) - 2)]
    expected = 1 - len(set(runs)) / len(runs) if len(runs) > 1 else 0.0
    assert repeated_share(np.array(ids, np.int64), 3) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tokens", "rate", "is_slow"),
    [
        pytest.param(4, 75, False, id="shorter, and 53 ms each for 67"),
        pytest.param(4, 50, True, id="shorter, and yet 80 ms each"),
        pytest.param(13, 75, True, id="as long"),
    ],
)
def test_short_responses_alone_make_no_generation_slower(tokens, rate, is_slow):
    rows = steps(40, **HEALTHY)
    for row in rows:
        is_late = row["step"] > 20
        row["response_length/mean"] = tokens if is_late else 13
        row["rollout/tokens_per_s"] = rate if is_late else 195
    assert ("falling_throughput" in {found.rule for found in diagnose(rows)}) == is_slow


@pytest.mark.parametrize(
    ("tests", "rule"),
    [
        ({0: 0.1, 100: 0.406, 200: 0.39, 400: 0.25}, ["got_worse"]),
        ({0: 0.4, 100: 0.2, 200: 0.1}, ["got_worse"]),  # the best was before training
        ({0: 0.1, 100: 0.406, 200: 0.375}, []),  # a few problems' chance
        ({0: 0.02, 100: 0.04, 200: 0.0}, []),
        ({100: 0.4, 400: 0.2}, []),
    ],
)
def test_an_end_below_the_best_test_is_told(tests, rule):
    rows = [
        {"step": step, "val/accuracy": share, "critic/kl": 1.1} for step, share in tests.items()
    ]
    found = diagnose(rows)
    assert [one.rule for one in found] == rule
    if 400 in tests and rule:
        assert found[0].says == "the best test was step 100, and the end is lower"
        assert found[0].evidence == (
            "val/accuracy 0.406 at step 100, 0.250 at step 400, critic/kl 1.1"
        )


def test_what_is_only_explained_is_a_note():
    (note,) = diagnose(steps(clipped=(0, 0)))
    (problem,) = diagnose(steps(cut=(0.0, 0.4)))
    assert (note.is_note, problem.is_note) == (True, False)
