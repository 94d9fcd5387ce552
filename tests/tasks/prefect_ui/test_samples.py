import re

from rl_core.runs.rollout_log import RolloutLog
from tasks.prefect_ui.artifacts import plain, quoted
from tasks.prefect_ui.progress import latest_samples
from tests.tasks.conftest import HOSTILE


def headings(markdown: str) -> list[str]:
    return [line for line in markdown.splitlines() if line.startswith("### ")]


def test_the_latest_responses_correct_ones_first_one_of_each_verdict_in_turn(shared_runs):
    """Step 3 of alpha: two wrong values, a correct one, one without an answer."""
    markdown = latest_samples(RolloutLog(shared_runs / "runs" / "alpha" / "rollouts", "alpha"))
    assert markdown.startswith("Of step 3:\n")
    assert headings(markdown) == [
        "### correct: score 1, 6 tokens, stop",
        "### wrong_value: score 0.1, 22 tokens, stop",
        "### no_answer: score 0, 64 tokens, length",
        "### wrong_value: score 0.1, 18 tokens, stop",
    ]
    assert "Asked:\n\n> prompt 5  \n\nAnswered:\n\n> response 3\\.1\\.0  \n" in markdown


def test_an_empty_run_shows_nothing(two_runs):
    assert latest_samples(RolloutLog(two_runs / "nothing", "nothing")) is None


def test_no_text_of_a_model_means_anything_in_markdown():
    text = f"```\n# out of it\n    code\n\n{HOSTILE}\x1b[2J\r\u202e"
    lines = quoted(text).split("\n")
    assert all(line.startswith("> ") for line in lines)
    assert lines[:4] == [
        "> \\`\\`\\`  ",
        "> \\# out of it  ",
        "> \u00a0\u00a0\u00a0\u00a0code  ",
        ">   ",
    ]
    assert re.search(r"(?<!\\)[<>!\[\]()`*_#:]", lines[4][2:]) is None
    # As a reader of markdown takes it back: an escaped character is that character.
    assert re.sub(r"\\(.)", r"\1", lines[4][2:]) == HOSTILE + r"\x1b[2J\r\u202e" + "  "


def test_a_cell_holds_neither_tags_nor_images():
    assert plain('<img src="x"> ![x](http://a/b) 1 < 2') == (
        '\u2039img src="x"\u203a ![x] (http://a/b) 1 \u2039 2'
    )
