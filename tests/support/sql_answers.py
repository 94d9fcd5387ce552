"""What each saved question answers about the two runs of conftest.py, worked out by hand."""

from __future__ import annotations

from typing import Any

A, B = "alpha", "beta"

# question: arguments, columns, rows; worked out by hand from conftest.py
ANSWERS: dict[str, tuple[dict[str, Any], list[str], list[tuple[Any, ...]]]] = {
    "verdict_shares_by_step": (
        {},
        ["run_id", "step", "verdict", "rollouts", "share"],
        [
            (A, 1, "no_answer", 2, 0.5),
            (A, 1, "bad_syntax", 1, 0.25),
            (A, 1, "wrong_value", 1, 0.25),
            (A, 2, "correct", 3, 0.75),
            (A, 2, "wrong_value", 1, 0.25),
            (A, 3, "wrong_value", 2, 0.5),
            (A, 3, "correct", 1, 0.25),
            (A, 3, "no_answer", 1, 0.25),
            (B, 1, "wrong_value", 1, 1.0),
        ],
    ),
    "never_solved": (
        {"min_attempts": "1"},
        ["run_id", "prompt_index", "attempts", "near_misses", "first_step", "last_step", "prompt"],
        [(A, 9, 4, 2, 1, 3, "prompt 9"), (B, 7, 1, 1, 1, 1, "prompt 7")],
    ),
    "format_only_steps": (
        {},
        ["run_id", "step", "rollouts", "mean_score", "accuracy", "format_only_share"],
        [(A, 1, 4, 0.05, 0.0, 0.5), (B, 1, 1, 0.1, 0.0, 1.0)],
    ),
    "all_fail_groups": (
        {},
        ["run_id", "step", "total_groups", "all_fail", "all_fail_with_spread", "all_solved"],
        [(A, 1, 2, 2, 2, 0), (A, 2, 2, 0, 0, 1), (A, 3, 2, 1, 0, 0)],
    ),
    "length_correct_vs_wrong": (
        {"steps_per_row": 2},
        ["run_id", "from_step", "correct_tokens", "wrong_tokens", "cut_share", "wrong_cut_share"],
        [
            (A, 1, 8.0, 23.2, 0.25, 0.4),  # (12+8+4)/3, (10+20+30+40+16)/5
            (A, 3, 6.0, 104 / 3, 0.25, 1 / 3),
            (B, 1, None, 50.0, 0.0, 0.0),
        ],
    ),
    "longest_responses": (
        {"limit": 3},
        ["run_id", "step", "response_tokens", "finish_reason", "response"],
        [
            (A, 3, 64, "length", "response 3.1.1"),
            (B, 1, 50, "stop", "response 1.0.0"),
            (A, 1, 40, "length", "response 1.1.1"),
        ],
    ),
    "logprob_gap_by_step": (
        {},
        ["run_id", "step", "mean_gap", "max_gap", "off_share"],
        [(A, 1, 0.002, 0.003, 0.0), (A, 2, 0.005, 0.02, 0.25)],
    ),
    "same_problem_over_time": (
        {},
        ["run_id", "step", "prompt_index", "sample_index", "verdict", "answer"],
        [  # 5, 7 and 9 were tried four times each by alpha: the lowest is taken
            (A, 2, 5, 0, "correct", "3 * 4"),
            (A, 2, 5, 1, "correct", "4 * 3"),
            (A, 3, 5, 0, "correct", "3 * 4"),
            (A, 3, 5, 1, "no_answer", None),
            (B, 1, 7, 0, "wrong_value", None),
        ],
    ),
    "samples_of_a_verdict": (
        {"verdict": "bad_syntax"},
        ["run_id", "step", "prompt_index", "verdict", "score", "response", "prompt"],
        [(A, 1, 9, "bad_syntax", 0.1, "response 1.1.0", "prompt 9")],
    ),
    "learning_curve": (
        {},
        ["run_id", "step", "score", "accuracy", "test_accuracy", "response_tokens", "kl"],
        [
            (A, 0, None, None, 0.25, None, None),
            (A, 1, 0.05, 0.0, None, 25.0, None),
            (A, 2, 0.775, 0.75, None, 10.0, None),
            (A, 3, 0.3, 0.25, 0.5, None, None),
            (B, 0, None, None, 0.125, None, None),
            (B, 1, 0.1, 0.0, None, None, None),
        ],
    ),
    "throughput_by_step": (
        {},
        [
            *("run_id", "step", "tokens_per_s", "step_s", "gen_s", "old_log_prob_s", "ref_s"),
            *("values_s", "update_actor_s", "testing_s", "other_s"),
        ],
        [
            (A, 1, 100.0, 3.0, 1.0, None, None, None, None, None, 2.0),
            (A, 2, 200.0, None, 2.0, None, None, None, 1.0, None, None),
            (A, 3, None, 6.0, 3.0, None, None, None, 2.0, None, 1.0),
        ],
    ),
    "time_by_phase": (
        {},
        ["run_id", "phase", "steps", "total_s", "mean_s", "share"],
        [(A, "gen", 3, 6.0, 2.0, 2 / 3), (A, "update_actor", 2, 3.0, 1.5, 1 / 3)],
    ),
    "evaluation_summary": (
        {},
        [
            "model",
            "step",
            "problems",
            "accuracy",
            "accuracy_low",
            "accuracy_high",
            "strict_accuracy",
            "lenient_accuracy",
            "mean_score",
        ],
        [  # Wilson: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.96
            ("base", 0, 4, 0.25, 0.04559, 0.69936, 0.25, 0.25, 0.275),
            ("step_000003", 3, 4, 0.5, 0.15004, 0.84996, 0.25, 0.5, 0.55),
        ],
    ),
    "kept_evaluations": (
        {},
        ["run_id", "evaluation", "is_default", "model", "problems", "accuracy", "accuracy_low"],
        [
            (A, "whole", True, "base", 4, 0.25, 0.04559),
            (A, "whole", True, "step_000003", 4, 0.5, 0.15004),
        ],
    ),
    "accuracy_by_num_solutions": (
        {},
        ["model", "solutions", "problems", "base_accuracy", "accuracy", "gain"],
        [
            ("step_000003", "1", 2, 0.0, 0.5, 0.5),
            ("step_000003", "2-3", 1, 0.0, 1.0, 1.0),
            ("step_000003", "8-15", 1, 1.0, 0.0, -1.0),
        ],
    ),
    "pass_at_k": (
        {},
        ["model", "k", "problems", "pass_at_k", "low", "high"],
        [  # base: 0 and 2 of 4 solved; trained: 4 and 1 of 4; 1.96 * sd / sqrt(2) either side
            ("base", 1, 2, 0.25, 0.0, 0.25 + 1.96 * 0.25),
            ("base", 2, 2, 5 / 12, 0.0, 1.0),  # 1 - C(2,2)/C(4,2) = 5/6
            ("base", 3, 2, 0.5, 0.0, 1.0),  # 1 - C(2,3)/C(4,3) = 1
            ("base", 4, 2, 0.5, 0.0, 1.0),
            ("step_000003", 1, 2, 0.625, 0.0, 1.0),
            ("step_000003", 2, 2, 0.75, 0.75 - 1.96 * 0.25, 1.0),
            ("step_000003", 3, 2, 0.875, 0.875 - 1.96 * 0.125, 1.0),
            ("step_000003", 4, 2, 1.0, 1.0, 1.0),
        ],
    ),
    "won_and_lost": (
        {},
        ["model", "prompt_index", "change", "num_solutions", "base_verdict", "verdict"],
        [
            ("step_000003", 0, "won", 1, "no_answer", "correct"),
            ("step_000003", 2, "won", 3, "no_answer", "correct"),
            ("step_000003", 3, "lost", 12, "correct", "wrong_value"),
        ],
    ),
    "gain_over_base": (
        {},
        ["model", "problems", "won", "lost", "gain", "gain_low", "gain_high", "p_value"],
        [  # 2 of 3 wins: 0.0943 to 0.9916 (Clopper, Pearson); 3 * (2 x - 1) / 4; 2 * (1 + 3) / 2^3
            ("step_000003", 4, 2, 1, 0.25, -0.60855, 0.73739, 1.0)
        ],
    ),
    "compare_models": ({}, ["run_id", "model", "other_run_id", "other_model"], []),
    "majority_vote": (
        {},
        ["model", "problems", "samples_per_problem", "sample_accuracy", "majority_accuracy"],
        [  # of problem 3 the base's samples are right, wrong, right, silent; the trained's 3 wrong
            ("base", 2, 4, 0.25, 0.5),
            ("step_000003", 2, 4, 0.625, 0.5),
        ],
    ),
    "accuracy_by_operands": (
        {},
        ["model", "num_operands", "problems", "base_accuracy", "accuracy", "gain"],
        [("step_000003", 3, 2, 0.0, 0.5, 0.5), ("step_000003", 4, 2, 0.5, 0.5, 0.0)],
    ),
    "accuracy_by_data_source": (
        {},
        ["model", "data_source", "problems", "base_accuracy", "accuracy", "gain"],
        [("step_000003", "countdown", 4, 0.25, 0.5, 0.25)],
    ),
    "champions": (
        {},
        ["run_id", "accuracy_after", "promoted", "outcome"],
        [(A, 0.5, True, "promoted: better than its base model (p = 0.01)")],
    ),
    "evaluation_verdicts": (
        {},
        ["model", "verdict", "responses", "share"],
        [
            ("base", "no_answer", 2, 0.5),
            ("base", "correct", 1, 0.25),
            ("base", "wrong_value", 1, 0.25),
            ("step_000003", "correct", 2, 0.5),
            ("step_000003", "wrong_value", 2, 0.5),
        ],
    ),
    "runs_overview": (
        {},
        [
            *("run_id", "status", "steps", "accuracy_before", "accuracy_after"),
            *("val_before", "val_after", "minutes"),
        ],
        [  # of beta nothing was evaluated: its test in training is no evaluation
            (B, "running", 1, None, None, 0.125, 0.125, 0.5),
            (A, "finished", 3, 0.25, 0.5, 0.25, 0.5, 10.5),
        ],
    ),
    "best_checkpoint": (
        {},
        ["run_id", "step", "accuracy", "accuracy_at_start", "tested_best", "is_latest"],
        [(A, 2, 0.5, 0.25, 0.5, False)],
    ),
    "time_by_stage": (
        {},
        ["run_id", "stage", "seconds", "share"],
        [(A, "train", 180.0, 0.6), (A, "evaluate", 60.0, 0.2), (A, "generate", 60.0, 0.2)],
    ),
    "metric_over_time": (
        {"metric": "critic/score/mean", "before": 1},
        ["run_id", "step", "value", "smoothed"],
        [(A, 1, 0.05, 0.05), (A, 2, 0.775, 0.4125), (A, 3, 0.3, 0.5375), (B, 1, 0.1, 0.1)],
    ),
    "metric_summary": (
        {"names": "reward/%"},
        ["run_id", "metric", "steps", "first_value", "last_value", "max_value", "mean_value"],
        [
            (A, "reward/accuracy", 3, 0.0, 0.25, 0.75, 1 / 3),
            (B, "reward/accuracy", 1, 0.0, 0.0, 0.0, 0.0),
        ],
    ),
    "memory_by_phase": (
        {},
        ["run_id", "phase", "peak_gib", "at_step", "first_gib", "last_gib"],
        [(A, "update_actor", 2.5, 2, 1.5, 2.0)],
    ),
    "slowest_steps": (
        {"limit": 1},
        ["run_id", "step", "step_s", "times_median", "longest_phase", "longest_s"],
        [(A, 3, 6.0, 6 / 4.5, "gen", 3.0)],
    ),
    "spikes": (
        {},
        ["run_id", "step", "metric", "value", "usual", "times_usual"],
        [(A, 3, "actor/grad_norm", 9.0, 1.0, 9.0)],
    ),
    "responses_matching": (
        {"pattern": "response [23].1.1"},
        ["run_id", "step", "prompt_index", "verdict", "found"],
        [(A, 3, 5, "no_answer", "response 3.1.1"), (A, 2, 5, "correct", "response 2.1.1")],
    ),
    "phrase_by_step": (
        {"pattern": r"\.0\.1$"},
        ["run_id", "step", "rollouts", "share", "accuracy_with", "accuracy_without"],
        [
            (A, 1, 4, 0.25, 0.0, 0.0),
            (A, 2, 4, 0.0, None, 0.75),
            (A, 3, 4, 0.25, 0.0, 1 / 3),
            (B, 1, 1, 0.0, None, 0.0),
        ],
    ),
    "search_by_step": (
        {"attempt": "response", "hit": r"\.1\.", "steps_per_row": 2},
        [
            *("run_id", "step", "rollouts", "tokens", "attempts"),
            *("hit_share", "accuracy_of_hits", "accuracy"),
        ],
        [
            (A, 1, 8, 17.5, 0.875, 0.5, 0.5, 0.375),
            (A, 3, 4, 27.5, 1.0, 0.5, 0.5, 0.25),
            (B, 1, 1, 50.0, 1.0, 0.0, None, 0.0),
        ],
    ),
    "diversity_by_step": (
        {},
        ["run_id", "step", "prompts", "distinct_response_share", "distinct_answer_share"],
        [(A, 1, 2, 1.0, 0.5), (A, 2, 2, 1.0, 1.0), (A, 3, 2, 1.0, 0.75)],
    ),
    "what_is_reinforced": (
        {"from_step": 2},
        ["run_id", "verdict", "rollouts", "share", "mean_score", "mean_tokens"],
        [
            (A, "correct", 4, 0.5, 1.0, 7.5),
            (A, "wrong_value", 3, 0.375, 0.1, 56 / 3),
            (A, "no_answer", 1, 0.125, 0.0, 64.0),
        ],
    ),
    "common_answers": (
        {},
        ["run_id", "answer", "times", "problems", "accuracy"],
        [(A, "3 * 4", 2, 1, 1.0), (A, "1 + 2", 1, 1, 1.0), (A, "4 * 3", 1, 1, 1.0)],
    ),
    "first_solved": (
        {},
        ["run_id", "step", "newly_tried", "newly_solved"],
        [(A, 1, 2, 0), (A, 2, 1, 2), (B, 1, 1, 0)],
    ),
    "shortest_correct": (
        {"limit": 2},
        ["run_id", "step", "prompt_index", "response_tokens", "answer"],
        [(A, 2, 5, 4, "4 * 3"), (A, 3, 5, 6, "3 * 4")],
    ),
    "off_policy_steps": (
        {},
        ["run_id", "step", "rollouts", "steps_behind"],
        [(A, 3, 4, 1)],
    ),
    "turns_by_step": (
        {},
        [
            *("run_id", "step", "rollouts", "answers_per_rollout", "most_answers", "env_tokens"),
            *("accuracy_answered", "accuracy_unanswered"),
        ],
        [(A, 3, 4, 0.75, 2, 8, 0.5, 0.0)],
    ),
    "accuracy_by_turns": (
        {"from_step": 2},
        ["run_id", "turns", "rollouts", "share", "accuracy", "tokens"],
        [
            (A, 1, 6, 0.75, 0.5, (12 + 16 + 8 + 4 + 18 + 64) / 6),
            (A, 2, 1, 0.125, 1.0, 6.0),
            (A, 3, 1, 0.125, 0.0, 22.0),
        ],
    ),
    "tokens_spent": (
        {},
        ["run_id", "epoch", "rollouts", "prompt_tokens", "response_tokens", "tokens_per_correct"],
        [(A, 0, 12, 216, 250, 62.5), (B, 0, 1, 18, 50, None)],
    ),
    "rescored": (
        {},
        ["run_id", "changed", "verdict_before", "verdict_after", "rollouts", "score_after"],
        [
            (A, "env.x=1", "correct", "bad_syntax", 1, 0.1),
            (A, "env.x=1", "wrong_value", "correct", 1, 1.0),
        ],
    ),
    "compare_runs": (
        {},
        ["run_id", "steps", "accuracy_after", "best_test", "best_at_step", "train_hours"],
        [(A, 3, 0.5, 0.5, 3, 0.0025), (B, 0, None, 0.125, 0, None)],
    ),
    "settings_that_differ": (
        {},
        ["key", "value", "runs", "run_ids"],
        [("seed", "0", 1, A), ("seed", "1", 1, B)],
    ),
    "solved_and_lost": (
        {},
        [
            *("run_id", "prompt_index", "tests", "times_solved", "first_solved_at"),
            *("times_lost", "last_lost_at", "last_verdict", "prompt"),
        ],
        [
            (A, 2, 4, 3, 0, 1, 3, "wrong_value", "test prompt 2"),
            (A, 0, 4, 2, 1, 1, 2, "correct", "test prompt 0"),
            (A, 1, 4, 0, None, 0, None, "no_answer", "test prompt 1"),
        ],
    ),
    "attempts": ({}, ["run_id", "number", "reason"], [(A, 1, "started")]),
    "nights": (
        {},
        [
            *("run_id", "status", "started_from", "accuracy_before", "before_low", "before_high"),
            *(
                "accuracy_after",
                "after_low",
                "after_high",
                "promoted",
                "why",
                "minutes",
                "attempts",
            ),
        ],
        [  # Wilson's interval of 1 of 4, and of 2 of 4; 60 + 180 + 60 s
            (
                *(A, "finished", "afresh: no champion of countdown yet", 0.25, 0.0456, 0.6994),
                *(0.5, 0.15, 0.85, True, "promoted: better than its base model (p = 0.01)", 5.0, 1),
            )
        ],
    ),
    "still_failing": (
        {},
        ["run_id", "model", "prompt_index", "wrong", "asked", "verdict", "answer", "prompt"],
        [
            (A, "step_000003", 1, 1, 1, "wrong_value", "1 + 1", "test prompt 1"),
            (A, "step_000003", 3, 1, 1, "wrong_value", "1 + 1", "test prompt 3"),
        ],
    ),
    "checkpoints_on_disk": (
        {},
        ["run_id", "step", "accuracy", "total_bytes", "resumable", "is_latest", "is_best"],
        [
            (A, 1, None, 200, True, False, False),
            (A, 2, 0.5, 100, True, False, True),
            (A, 3, 0.5, 300, True, True, False),
        ],
    ),
    "data_sets": (
        {},
        ["name", "split", "num_rows", "seed", "content_hash"],
        [("tiny", "test", 2, 7, "abc")],
    ),
}
