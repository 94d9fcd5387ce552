"""The process of its own in which preflight tries a user's estimator and policy loss."""

import pytest

from rl_core.config.run import RunConfig
from tasks.preflight import own_algorithm_findings
from tasks.preflight_checks import Finding

HERE = "tests.support.own_algorithms"


def findings(estimator: str = "gae", loss: str = "ppo", **options: object) -> list[Finding]:
    algorithm = {"estimator": estimator, "options": options}
    config = {"algorithm": algorithm, "actor": {"policy_loss": loss}}
    return list(own_algorithm_findings(RunConfig.model_validate(config)))


def test_algorithms_of_ours_start_no_process():
    assert findings() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "level", "why"),
    [
        ((f"{HERE}:by_info", f"{HERE}:reinforce"), "fatal", "reinforce TypeError: "),
        ((f"{HERE}:ends_the_process",), "fatal", "ends_the_process SystemExit: 3"),
        ((f"{HERE}:kills_the_process",), "fatal", "ended its process or took too long (EOFError)"),
        ((f"{HERE}:nothing",), "fatal", "has no function nothing"),
        ((f"{HERE}:by_info",), "ok", "tried on two rows"),
    ],
)
def test_one_line_says_what_a_function_does_wrong(names, level, why):
    options = {"key": "index"} if "by_info" in names[0] else {}
    (finding,) = findings(*names, **options)
    assert finding.level == level
    assert why in finding.message
    assert "\n" not in finding.message
    assert f"algorithm.estimator={names[0]}" in finding.message or "policy_loss" in finding.message
