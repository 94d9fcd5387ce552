import itertools
import json
import logging

import pytest

from rl_core.resources.token_budgets import TokenBudgets, log_out_of_memory, merge_metrics


def clean_step(budgets: TokenBudgets, phase: str = "ref") -> None:
    budgets[phase]
    budgets.end_step()


def fail(budgets: TokenBudgets, tokens: int, phase: str = "ref") -> None:
    budgets[phase]
    budgets.shrink(phase, tokens)
    budgets.end_step()


def series(budgets: TokenBudgets, num_steps: int) -> dict[int, int]:
    """The budget by clean steps, where it has changed."""
    changes = {}
    for step in range(1, num_steps + 1):
        before = budgets["ref"]
        clean_step(budgets)
        if budgets["ref"] != before:
            changes[step] = budgets["ref"]
    return changes


def test_a_budget_grows_by_quarters_up_to_four_fifths_of_what_failed_and_after_200_steps_on():
    budgets = TokenBudgets(16_384)
    fail(budgets, 8_192)
    assert budgets["ref"] == 4_096
    low = {20: 5_120, 40: 6_400, 60: 6_553}  # 8192 * 4 / 5, not 8000
    high = {200: 8_191, 220: 10_238, 240: 12_797, 260: 15_996, 280: 16_384}
    assert series(budgets, 300) == low | high
    assert budgets.learned() == {}


def test_a_largest_budget_that_fails_each_time_costs_one_pass_in_200_steps():
    budgets, fits, failures = TokenBudgets(10_000), 3_000, []
    for step in range(2_000):
        while budgets["ref"] > fits:
            failures.append(step)
            budgets.shrink("ref", budgets["ref"])
        budgets.end_step()
    # 10000 and 5000 at once, 2500 * 5 / 4 after 20 clean steps; from then on what fails is known.
    assert failures[:3] == [0, 0, 21]
    gaps = [later - earlier for earlier, later in itertools.pairwise(failures[2:])]
    assert min(gaps) >= 200
    assert budgets["ref"] >= fits / 2


def test_phases_learn_apart_and_a_step_without_one_does_not_count_for_it():
    budgets = TokenBudgets(1_000)
    fail(budgets, 800, "update_actor")
    for _ in range(19):
        clean_step(budgets, "update_actor")
    clean_step(budgets, "ref")
    assert (budgets["ref"], budgets["update_actor"]) == (1_000, 400)
    clean_step(budgets, "update_actor")
    assert budgets["update_actor"] == 500


def test_metrics_of_a_step_by_hand_and_what_is_logged(caplog):
    budgets = TokenBudgets(1_000)
    assert budgets["ref"] == 1_000
    assert budgets["update_actor"] == 1_000
    budgets.shrink("update_actor", 900)
    budgets.shrink("update_actor", 448)
    metrics = budgets.end_step()
    assert metrics == {
        "memory/budget_tokens/ref": 1_000,
        "memory/oom/ref": 0,
        "memory/budget_tokens/update_actor": 224,
        "memory/oom/update_actor": 2,
        "memory/oom_tokens/update_actor": 900,
    }
    with caplog.at_level(logging.INFO):
        log_out_of_memory(12, metrics | {"actor/lr": 1e-6})
        assert budgets.end_step() == {}
        log_out_of_memory(13, {"memory/budget_tokens/ref": 1_000, "memory/oom/ref": 0})
    assert caplog.messages == [
        "step 12: update_actor ran out of memory at 900 tokens; 224 from now on, the step's "
        "result is unchanged"
    ]


def test_what_was_learned_is_restored_below_a_lower_limit():
    budgets = TokenBudgets(1_000)
    fail(budgets, 800)
    clean_step(budgets)
    learned = json.loads(json.dumps(budgets.learned()))
    assert learned == {"ref": {"tokens": 400, "failed_tokens": 800, "clean_steps": 1}}
    again = TokenBudgets(1_000)
    again.restore(learned)
    assert again.learned() == learned
    lower = TokenBudgets(300)
    lower.restore(learned)
    assert lower["ref"] == 300
    with pytest.raises(ValueError, match="tokens"):
        again.restore({"ref": {"tokens": 0}})


def test_engines_together_are_what_the_worst_of_them_is(caplog):
    calm = {"memory/budget_seqs/gen": 64, "memory/oom/gen": 0}
    hurt = {"memory/budget_seqs/gen": 16, "memory/oom/gen": 2}
    hurt |= {"memory/oom_seqs/gen": 64, "memory/oom/evaluate": 0}
    merged = merge_metrics([calm, hurt, hurt | {"memory/budget_seqs/gen": 32}, {}])
    assert merged == hurt | {"memory/oom/gen": 4}
    assert merge_metrics([{}, {}]) == {}
    with caplog.at_level(logging.WARNING, logger="rl_core.resources.token_budgets"):
        log_out_of_memory(7, calm)
        log_out_of_memory(None, merged)
    assert caplog.messages == [
        "evaluation: out of memory in gen: 64 -> 16 responses at a time, nothing was lost"
    ]
