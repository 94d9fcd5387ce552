"""The envs: scores by their settings, checks that are there, and what an import loads."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rl_core.config.run import RunConfig
from rl_core.envs import ENVS, find_env
from rl_core.envs.countdown import Countdown
from rl_core.envs.gsm8k import Gsm8k
from rl_core.envs.text_env import TextEnv, strict_and_lenient
from rl_core.types import ScoredText

SQL = Path(__file__).parents[3] / "sql"
TRUTH = {"target": 14, "numbers": [2, 3, 4]}


def test_options_come_from_the_settings():
    env = Countdown(answer_from="last_line", format_score=0.2, full_score=2.0)
    right = "<answer> 2 + 3 * 4 </answer>"
    assert env.score(right, TRUTH) == ScoredText(2.0, "correct", "2 + 3 * 4", "14")
    assert env.score("<answer>2</answer>", TRUTH) == ScoredText(0.2, "wrong_numbers", "2")
    assert env.score("nothing", TRUTH) == ScoredText(0.0, "no_answer", None)
    lenient = Gsm8k(answer_from="lenient", format_score=0.1, full_score=3.0)
    assert lenient.score("so 18", "18") == ScoredText(3.0, "correct", "18", "18")
    assert lenient.score("so 17", "18") == ScoredText(0.1, "wrong_value", "17", "17")


def test_an_answer_has_a_value_in_lowest_terms():
    def value(numbers: list[int], response: str) -> str | None:
        return Countdown().score(response, {"target": 1, "numbers": numbers}).value

    assert value([7, 4, 2], "<answer>7 / (4 / 2)</answer>") == "7/2"
    assert value([7, 4, 2], "<answer>(4 - 2) + 7</answer>") == value([9, 1], "<answer>9*1</answer>")
    assert value([7, 4], "<answer>4 + 4</answer>") is None
    assert value([7, 4], "no answer") is None
    gsm8k = Gsm8k(answer_from="lenient")
    values = {gsm8k.score(text, "18").value for text in ("18", "18.", "18.00", "$18", "so 18!")}
    assert values == {"18"}
    assert gsm8k.score("1,800 or 3.50", "18").value == "7/2"
    assert gsm8k.score("1" * 65, "18").value is None


def test_each_env_is_scored_strictly_and_leniently():
    right = "<answer> 2 + 3 * 4 </answer>"
    for env in (Countdown(), Countdown(answer_from="last_line", format_score=0.5)):
        strict, lenient = strict_and_lenient(env)
        verdicts = [e.score(right + "\nor so", TRUTH).verdict for e in (strict, lenient)]
        assert verdicts == ["no_answer", "correct"]
        assert strict.score(right, TRUTH).verdict == "correct"
        assert strict.model_copy(update={"answer_from": env.answer_from}) == env
    strict, lenient = strict_and_lenient(Gsm8k())
    assert [e.score("so 18", "18").verdict for e in (strict, lenient)] == ["no_answer", "correct"]
    assert strict.score("#### 18", "18").verdict == "correct"


def test_the_base_class_stays_thin():
    members = {*TextEnv.model_fields, *(one for one in vars(TextEnv) if one.isidentifier())}
    assert len([one for one in members if not one.startswith(("_", "model_"))]) <= 26


@pytest.mark.parametrize("name", ENVS)
def test_an_env_is_whole(name):
    env = ENVS[name]
    assert (env.model_fields["name"].default, env().name) == (name, name)
    assert find_env(env().name) is env
    checks = SQL / "checks"
    stems = {Path(file).stem for file in env.checks.files}
    assert len(stems) == len(env.checks.files)
    assert stems >= {file.stem for file in checks.glob(f"{name}_*.sql")}
    assert all((checks / file).is_file() for file in env.checks.files)
    assert stems >= {*env.checks.of_generator, *env.checks.of_template}
    strict, lenient = strict_and_lenient(env())
    for places in (strict, lenient):
        assert env.model_validate(places.model_dump()) == places


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"name": "chess"}, "env.name='chess' is no env (there are: countdown, gsm8k, "),
        ({"name": ["gsm8k"]}, "is no env"),
        ({}, "env.name=None is no env"),
        ("gsm8k", "valid dictionary"),
        ({"name": "gsm8k", "min_operands": 3}, "env.min_operands"),
    ],
)
def test_a_section_env_is_checked_by_the_env_that_it_names(section, said):
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({"env": section})
    assert said in str(caught.value)


def test_settings_come_back_from_json_as_their_own_model():
    config = RunConfig(env=Gsm8k(source="toy"))
    again = RunConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert type(again.env) is Gsm8k
