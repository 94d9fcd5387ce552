"""GSM8K numbers as people write them, and the two ways to find one."""

import csv
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.gsm8k import Gsm8k
from rl_core.envs.numbers import extract_truth, score_response

TABLES = yaml.safe_load(Path(__file__).with_name("scoring.yaml").read_text())

MINUSES = "-\u2212\u2013\uff0d"
GRADED = Path(__file__).parents[3] / "golden" / "gsm8k_graded.csv"


def test_models_answers_are_graded_as_by_the_authors_of_gsm8k():
    with GRADED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = 0
    for row in rows:
        truth = extract_truth(f"#### {row['truth']}")
        for mode in ("strict", "lenient"):
            scored = score_response(f"So:\n#### {row['answer']}", truth, answer_from=mode)
            assert (scored.verdict == "correct") == (row["is_correct"] == "1"), (row, mode)
        right += row["is_correct"] == "1"
    assert (len(rows), right) == (2_748, 266)


@pytest.mark.parametrize("written", TABLES["eighteen"])
def test_eighteen_as_people_write_it(written):
    for mode in ("strict", "lenient"):
        scored = score_response(f"So she has\n#### {written}", "18", answer_from=mode)
        assert (scored.verdict, scored.score) == ("correct", 1.0), mode


@pytest.mark.parametrize(
    ("written", "truth", "right"),
    [
        *TABLES["numbers"],
        ("18 " + "m" * 100_000, "18", True),
        ("18 " + "m^" * 50_000, "18", True),
        ("9" * 5000, "18", False),
        ("9" * 5000, "9" * 64, False),
    ],
)
def test_numbers(written, truth, right):
    scored = score_response(f"#### {written}", truth, format_score=0.25)
    expected = {True: ("correct", 1.0), False: ("wrong_value", 0.25), None: ("no_answer", 0)}
    assert (scored.verdict, scored.score) == expected[right]
    if right:
        assert score_response(f"It is {written}", truth, answer_from="lenient").score == 1


@pytest.mark.parametrize(("written", "truth"), TABLES["another"])
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_what_makes_another_number_of_it_is_read_with_it(written, truth, mode):
    assert score_response(f"#### {written}", truth, answer_from=mode).verdict == "wrong_value"
    with pytest.raises(ValueError, match="must end with"):
        extract_truth(f"#### {written}")
    with pytest.raises(ValueError, match="is not a number"):
        score_response("#### 1", written)


@pytest.mark.parametrize(("response", "strict", "lenient"), TABLES["which-number"])
def test_which_number_is_taken(response, strict, lenient):
    for mode, expected in (("strict", strict), ("lenient", lenient)):
        scored = score_response(response, "18", answer_from=mode, format_score=0.1)
        assert scored.answer == expected
        if expected is None:
            assert (scored.verdict, scored.score) == ("no_answer", 0.0)
        else:
            assert scored.score == (1.0 if expected.strip("$") == "18" else 0.1)


def test_truth_is_the_text_after_the_hashes_without_commas():
    assert extract_truth("She sells 9 * 2 = <<9*2=18>>18.\n#### 18") == "18"
    assert extract_truth("#### 1,800") == "1800"
    assert extract_truth("#### -3") == "-3"
    for bad in ("18", "#### many", "####"):
        with pytest.raises(ValueError, match="must end with '#### <number>'"):
            extract_truth(bad)
    with pytest.raises(ValueError, match="'many' is not a number"):
        score_response("#### 1", "many")


def test_prompts_hold_the_question_and_ask_for_the_hashes():
    question = "A {strange} question: 2 + 2?"
    (chat,) = Gsm8k(prompt_template="chat").prompt(question)
    (think,) = Gsm8k(prompt_template="think").prompt(question)
    words = 'Let\'s think step by step and output the final answer after "####".'
    assert chat == {"role": "user", "content": f"{question} {words}"}
    assert f"\nUser: {question} Show your work in <think> </think> tags." in think["content"]
    assert think["content"].endswith("\nAssistant: Let me solve this step by step.\n<think>")


@pytest.mark.parametrize(
    "response",
    [
        "####" * 100000,
        "#### " * 100000,
        "####" + " " * 300000,
        "1,111," * 100000,
        "1" * 500000,
        "1." * 200000,
        "-$" * 200000,
        "111,111," * 50000 + "1111",
        "####1," * 100000,
        "#### $-" * 100000,
        "####+" * 100000,
        "1,111" + "," * 500000,
        "." * 500000,
        "#### 1." + "0" * 500000,
        "####" + "\n" * 300000 + "x",
        "\x00\ud800" * 200000,
    ],
    ids=lambda text: text[:8],
)
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_hostile_responses_cost_linear_time(response, mode):
    start = time.process_time()
    assert score_response(response, "18", answer_from=mode).verdict != "correct"
    assert time.process_time() - start < 1.0


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=())),
        st.text(alphabet="#0123456789.,$- \n", max_size=60),
    ),
    st.sampled_from(["strict", "lenient"]),
)
def test_any_text_has_a_score(response, mode):
    scored = score_response(response, "18", answer_from=mode)
    assert scored.score == (1.0 if scored.verdict == "correct" else 0.0)


@given(
    st.decimals(-99999, 99999, places=2),
    st.sampled_from(
        [
            *("{}", "{:,}", "${}", "${:,}", "{}.", "{}0", "{} eggs", "{}%", "+{}", "**{}**"),
            *("€{:,}", "\\boxed{{{:,}}}", "${}$", "\\$**{}**", "USD {}", "{:,} dollars"),
        ]
    ),
    st.sampled_from(MINUSES),
    st.sampled_from(["#### ", "####", "so 7 - 2 is\n#### ", "#### 3\n#### "]),
    st.sampled_from(["", "\n", " dollars.", "</think>", ", I think"]),
)
def test_every_number_reads_as_itself(number, style, minus, before, after):
    shown = style.format(number).replace(",", "\u202f" if minus == "\u2212" else ",")
    if "+-" in shown or "--" in shown:
        return
    written = f"{before}{shown.replace('-', minus)}{after}"
    scored = score_response(written, str(number))
    assert scored.verdict == "correct", written
    assert score_response(written, str(number + 1)).verdict == "wrong_value"
    if after != ", I think":
        assert score_response(written, str(number), answer_from="lenient").verdict == "correct"


@given(st.text(alphabet="0123456789.,$-#x ", max_size=40), st.text(alphabet="abc \n", max_size=10))
def test_words_after_the_answer_change_nothing(text, words):
    for mode in ("strict", "lenient"):
        assert score_response(text, "1", answer_from=mode) == score_response(
            f"{text} {words}", "1", answer_from=mode
        )
