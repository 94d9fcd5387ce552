"""Scores by the rubric of an environment of verifiers, in the process of `reward_worker`."""

from collections.abc import Mapping
from typing import Any

from rl_core.rewards.by_name import Call


def call_of_rubric(environment: Any) -> Call:
    """Returns what awaits an environment's rubric for one response."""
    import verifiers

    async def score(question: Mapping[str, Any]) -> dict[str, float]:
        truth = question["ground_truth"]
        prompt = [{"role": "user", "content": question["prompt"]}]
        state = verifiers.State(input={**truth, "prompt": prompt, "example_id": 0})
        state["completion"] = [{"role": "assistant", "content": question["solution_str"]}]
        state["trajectory"] = []
        state["timing"] = {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0}
        await environment.rubric.score_rollout(state)
        return {"score": float(state["reward"])}

    return score
