from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.settings.compose import compose
from rl_core.config.operations import EvaluationConfig
from rl_core.config.run import RunConfig
from rl_core.data.prompts import encode_prompt, load_tokenizer, resolve_model
from rl_core.rollout.hf_engine import HfEngine
from rl_core.types import GenerationRequest, SamplingSettings
from tasks.ask import ask_model, question_of, read_question
from tests.support.adapters import save_learner


@pytest.mark.parametrize("text", ["3 14 7 = 35", "[3, 14, 7] -> 35", "3,14,7,35", "(3 14 7) → 35"])
def test_a_puzzle_is_numbers_and_the_target(text):
    question = read_question(compose(), text)
    assert question.problem.ground_truth == {"numbers": [3, 14, 7], "target": 35}
    (message,) = question.problem.messages
    assert "Using the numbers [3, 14, 7], create an equation that equals 35." in message["content"]
    assert question.shown == "3, 14, 7 = 35"
    assert question_of(compose(), question.problem) == question


@pytest.mark.parametrize("text", ["How many?", "3 = 35", "", "3 14 seven 35"])
def test_what_is_no_puzzle_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write numbers and, last, the target, as '3 14 7 = 35'"):
        read_question(compose(), text)


def test_a_number_and_a_question_that_are_too_long_are_refused(tiny_model_path):
    with pytest.raises(ValueError, match=r"9\.\.\. has 5000 digits: at most 18"):
        read_question(compose(), "3 14 7 = " + "9" * 5_000)
    long = read_question(compose(), "3 " * 500 + "= 5")
    with pytest.raises(ValueError, match=r"tokens, and .* reads at most 1,024: ask a shorter one"):
        list(ask_model(compose(), tiny_model_path, [long], samples=None))


@given(
    st.one_of(st.text(st.characters(exclude_categories=())), st.text("0123 4,=[]٣")),
    st.one_of(st.none(), st.text("0123456789.,$#x\ud800")),
    st.sampled_from(["countdown", "gsm8k", "custom", "reasoning_gym"]),
)
def test_any_question_is_read_or_refused_in_words(tiny_model_path, text, answer, env):
    config = _config(env)
    try:
        question = read_question(config, text, answer)
    except ValueError:
        return
    encode_prompt(question.problem.messages, _tokenizer(tiny_model_path), chat_template=False)
    if question.is_scored:
        truth = question.problem.ground_truth
        config.env.score(f"<answer>{text}</answer>", truth)


@cache
def _config(env: str) -> RunConfig:
    return compose(
        [f"env={env}", *(["env.task=decimal_arithmetic"] if env.endswith("gym") else [])]
    )


_tokenizer = cache(lambda folder: load_tokenizer(str(folder)))


def test_a_word_problem_is_scored_where_its_answer_is_known():
    config = compose(["env=gsm8k", "env.prompt_template=think"])
    assert not read_question(config, "How many?").is_scored
    known = read_question(config, "How many?", "1,800")
    assert (known.is_scored, known.problem.ground_truth) == (True, "1800")
    assert "How many?" in known.problem.messages[0]["content"]
    with pytest.raises(ValueError, match="many"):
        read_question(config, "How many?", "many")


def test_replies_are_the_engines_own(tiny_model_path, tmp_path):
    config = compose(["data.max_response_length=8", "resources.learner_threads=1"])
    questions = [read_question(config, text) for text in ("3 14 7 = 35", "2 3 4 = 14")]
    greedy = list(ask_model(config, tiny_model_path, questions, samples=None))
    assert [reply.question for reply in greedy] == questions
    assert [reply.scored and reply.scored.verdict for reply in greedy] == ["no_answer"] * 2
    engine = HfEngine(tiny_model_path, dtype="float32", max_num_seqs=1, on_gpu=False)
    tokenizer = load_tokenizer(str(tiny_model_path))
    prompt = encode_prompt(questions[1].problem.messages, tokenizer, chat_template=False)[1]
    ((_, alone),) = engine.generate([GenerationRequest(prompt, 0)], SamplingSettings(8, 0.0))
    text = tokenizer.decode(alone.response_ids.tolist(), skip_special_tokens=True)
    assert (greedy[1].response, greedy[1].num_tokens) == (text, len(alone.response_ids))
    assert greedy[1].is_cut == (alone.finish_reason == "length")

    save_learner(tiny_model_path, tmp_path / "saved")  # an adapter answers as merged
    merged = resolve_model(str(tmp_path / "saved"), tmp_path)
    adapted = [
        list(ask_model(config, folder, questions, samples=None))
        for folder in (tmp_path / "saved", merged)
    ]
    assert adapted[0] == adapted[1] != greedy

    sampled = list(ask_model(config, tiny_model_path, questions[:1], samples=3))
    again = list(ask_model(config, tiny_model_path, questions[:1], samples=3))
    assert sampled == again
    assert len({reply.response for reply in sampled}) == 3
    config = config.model_copy(update={"evaluation": EvaluationConfig(decoding="sampled")})
    (one,) = ask_model(config, tiny_model_path, questions[:1], samples=None)
    assert one == sampled[0]
