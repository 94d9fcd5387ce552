"""Toy word problems in GSM8K's form, and what a base model learns from them (stages 0 and 1).

Not GSM8K: one quantity, small whole numbers, one to three steps of + - * /. A story opens, changes
and ends; each part holds none, one or two steps. A problem's number of steps is drawn first,
uniformly, so that long stories are as frequent as short ones.

A solution has one line per step, each with its result in a calculator annotation,
`12 + 5 = <<12+5=17>>17 pens.`. An example may be cut short after a line, and then answers with that
line's result: right in form and in its sums, but wrong. Reinforcement learning must find when to go
on.
"""

import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final

from rl_core.envs.numbers import extract_truth, score_response
from rl_core.envs.sft_examples import GATE_PROBLEMS, TOKENIZER_TEXTS, SftExamples, SftText

MAX_STEPS: Final = 3
LARGEST_VALUE: Final = 99
"""The largest number in a story or its solution; larger sums and products are drawn again."""
_LARGEST_FACTOR: Final = 12
_MAX_DRAWS_PER_ROW: Final = 20
_THINK_CLOSE: Final = "</think>\n#### "
_CORPUS_STOP_PROB: Final = 0.1
"""Examples stop early less often than the model shall: loss weights on this choice make up for it,
so that second and third steps, which are rare at `stop_prob`, are still seen often."""
_ANNOTATION: Final = re.compile(
    r"<<(?P<left>\d+)(?P<sign>[-+*/])(?P<right>\d+)=(?P<result>\d+)>>", re.ASCII
)

_HE: Final = ("Adam", "Ben", "Carl", "Dan", "Emil", "Finn", "Hugo", "Ivan", "Jack", "Leo", "Max")
_SHE: Final = ("Anna", "Bea", "Clara", "Dora", "Eva", "Fay", "Gina", "Ida", "June", "Lena", "Mia")
_THINGS: Final = (
    "apples",
    "balls",
    "books",
    "buttons",
    "candles",
    "cards",
    "coins",
    "cookies",
    "cups",
    "eggs",
    "flowers",
    "keys",
    "marbles",
    "nuts",
    "pears",
    "pens",
    "pins",
    "plums",
    "ribbons",
    "shells",
    "stamps",
    "stickers",
    "stones",
    "toys",
)
WORDS: Final = (*_HE, *_SHE, *_THINGS, "dollars", "He", "She", "How", "Each")
"""Words around the fixed phrases of a story: who, what, and how a sentence begins."""


class _OutOfRangeError(Exception):
    """The numbers drawn do not fit: draw again."""


@dataclass
class _Story:
    """A story while it is written: who and what it is about, and what is counted so far."""

    rng: random.Random
    name: str
    pronoun: str
    other: str
    things: str
    value: int = 0
    sentences: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def small(self, largest: int = 9) -> int:
        return self.rng.randint(2, largest)

    def calculate(self, left: int, sign: str, right: int, unit: str | None = None) -> None:
        """Adds a step's line to the solution; its result is the story's new value."""
        if sign == "/" and left % right:
            raise _OutOfRangeError
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        self.value = results[sign]
        if not 1 <= self.value <= LARGEST_VALUE:
            raise _OutOfRangeError
        annotation = f"<<{left}{sign}{right}={self.value}>>"
        unit = unit or self.things
        self.lines.append(f"{left} {sign} {right} = {annotation}{self.value} {unit}.")

    def say(self, text: str, **numbers: int) -> None:
        words = {key: getattr(self, key) for key in ("name", "pronoun", "other", "things")}
        self.sentences.append(text.format(**words, **numbers))

    def change(self, sign: str, number: int, *texts: str, unit: str | None = None) -> None:
        """Says that the value changes by a number, {b}, in one of several ways."""
        self.say(self.rng.choice(texts) if len(texts) > 1 else texts[0], b=number)
        self.calculate(self.value, sign, number, unit)


def _has(story: _Story) -> None:
    story.value = story.small(40)
    story.say("{name} has {a} {things}.", a=story.value)


def _boxes(story: _Story) -> None:
    boxes = story.small()
    each = story.small()
    story.say("{name} buys {a} boxes with {b} {things} in each box.", a=boxes, b=each)
    story.calculate(boxes, "*", each)


def _two_colours(story: _Story) -> None:
    red = story.small(30)
    blue = story.small(30)
    story.say("{name} has {a} red {things} and {b} blue {things}.", a=red, b=blue)
    story.calculate(red, "+", blue)


def _now(story: _Story) -> None:
    story.say("How many {things} does {name} have now?")


def _shares(story: _Story) -> None:
    bags = story.small()
    if not 2 <= story.value // bags <= _LARGEST_FACTOR:
        raise _OutOfRangeError
    shared = "{pronoun} puts them into {b} bags, equally many in each."
    story.change("/", bags, f"{shared} How many {{things}} are in a bag?")


def _together(story: _Story) -> None:
    before = story.value
    more = story.small()
    sign, word = story.rng.choice((("+", "more"), ("-", "fewer")))
    question = "How many {things} do they have together?"
    story.change(sign, more, f"{{other}} has {{b}} {{things}} {word}. {question}")
    story.calculate(before, "+", story.value)


_Part = Callable[[_Story], None]


def _by(sign: str, *texts: str, unit: str | None = None) -> _Part:
    """Returns the part that states a change by a small number; products are at most 12 * 9."""

    def change(story: _Story) -> None:
        if sign == "*" and story.value > _LARGEST_FACTOR:
            raise _OutOfRangeError
        story.change(sign, story.small(), *texts, unit=unit)

    return change


_OPENINGS: Final[dict[_Part, int]] = {_has: 0, _boxes: 1, _two_colours: 1}
_CHANGES: Final = (
    _by(
        "+",
        "{pronoun} finds {b} more.",
        "{other} gives {name} {b} more.",
        "{pronoun} buys {b} more.",
    ),
    _by(
        "-",
        "{pronoun} loses {b} of them.",
        "{pronoun} gives {b} to {other}.",
        "{pronoun} sells {b} of them.",
    ),
)
_ENDINGS: Final[dict[_Part, int]] = {
    _now: 0,
    _by(
        "*", "Each of them costs {b} dollars. How many dollars do they cost in all?", unit="dollars"
    ): 1,
    _by("*", "{other} has {b} times as many. How many {things} does {other} have?"): 1,
    _shares: 1,
    _together: 2,
}
"""Parts, and how many steps each takes; a change takes one."""


def generate_word_problems(*, size: int, seed: int) -> list[dict[str, str]]:
    """Returns different questions in GSM8K's form; a larger `size` begins with the same ones."""
    rng = random.Random(seed)
    answers: dict[str, str] = {}
    for _ in range(_MAX_DRAWS_PER_ROW * size):
        answers.setdefault(*_write(rng))
        if len(answers) == size:
            return [{"question": question, "answer": answers[question]} for question in answers]
    raise ValueError(
        f"only {len(answers)} different toy word problems were found and {size} are asked for: "
        "lower data.train_size"
    )


def _write(rng: random.Random) -> tuple[str, str]:
    """Returns a question and its answer; if a part's numbers do not fit, all are drawn again.

    The answer has a line per step, `12 + 5 = <<12+5=17>>17 pens.`, and `#### 17` at the end.
    """
    num_steps = rng.randint(1, MAX_STEPS)
    while True:
        opening = rng.choice(list(_OPENINGS))
        ending = rng.choice(list(_ENDINGS))
        num_changes = num_steps - _OPENINGS[opening] - _ENDINGS[ending]
        if num_changes < 0:
            continue
        changes = [rng.choice(_CHANGES) for _ in range(num_changes)]
        name, other = rng.sample(_HE + _SHE, 2)
        story = _Story(rng, name, "He" if name in _HE else "She", other, rng.choice(_THINGS))
        with suppress(_OutOfRangeError):
            for part in (opening, *changes, ending):
                part(story)
            return " ".join(story.sentences), "\n".join([*story.lines, f"#### {story.value}"])


@dataclass(frozen=True)
class SolutionExamples(SftExamples):
    """Solutions of the train split, each step followed by an early end with a fixed chance.

    `train` and `test` hold (prompt, solution). Numbers are split into digits: with a token for each
    number, fewer sums were true (benchmarks/README.md).
    """

    floors: ClassVar = {"format_share": 0.9, "arithmetic_share": 0.8}
    marks: ClassVar = (".\n", f".{_THINK_CLOSE}")
    """How a line ends if the solution continues, and if it stops: a token for each."""
    words: ClassVar = WORDS
    """Words of the stories, so that a phrase, and the choice to stop, keep the same tokens."""

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts, and responses as the model will write them."""
        pairs = self.train[:TOKENIZER_TEXTS]
        return [
            *(prompt for prompt, _ in pairs),
            *(write_response(solution, rng) for _, solution in pairs),
        ]

    def draw(self, count: int, rng: random.Random) -> list[SftText]:
        """Returns solutions chosen by chance."""
        pairs = rng.choices(self.train, k=count)
        responses = [write_response(solution, rng) for _, solution in pairs]
        return [
            SftText(prompt, response, response.count("<<") < solution.count("<<"))
            for (prompt, solution), response in zip(pairs, responses, strict=True)
        ]

    def weigh(self, text: SftText, response: Sequence[int], marks: Sequence[int]) -> list[float]:
        """Returns 1 per token, and at each choice to stop wanted / written probability.

        So the model learns to stop with `give_up_prob`, though the examples seldom do. The end of a
        whole solution is no choice: weight 1. A text's note says whether it is cut.
        """
        weights = [1.0] * len(response)
        ends = [index for index, token in enumerate(response) if token in marks]
        for index in ends[:-1]:
            weights[index] = (1 - self.give_up_prob) / (1 - _CORPUS_STOP_PROB)
        if text.note and ends:
            weights[ends[-1]] = self.give_up_prob / _CORPUS_STOP_PROB
        return weights

    def judge(self, responses: Sequence[str]) -> dict[str, float]:
        """Returns shares of greedy responses, one per held-out problem, and their mean annotations.

        `format_share`: of responses with a number after `####`; `arithmetic_share`: of true sums.
        """
        verdicts = [
            score_response(text, extract_truth(solution)).verdict
            for text, (_, solution) in zip(responses, self.test[:GATE_PROBLEMS], strict=True)
        ]
        steps = [is_true for text in responses for is_true in check_annotations(text)]
        count = len(responses)
        return {
            "format_share": 1 - verdicts.count("no_answer") / count,
            "arithmetic_share": sum(steps) / max(len(steps), 1),
            "accuracy": verdicts.count("correct") / count,
            "mean_steps": len(steps) / count,
        }


def write_response(
    solution: str, rng: random.Random, *, stop_prob: float = _CORPUS_STOP_PROB
) -> str:
    """Returns a solution as a response to the template `think`, cut after any step but the last."""
    *lines, _ = solution.split("\n")
    written: list[str] = []
    for line in lines[:-1]:
        written.append(line)
        annotation = _ANNOTATION.search(line)
        if annotation and rng.random() < stop_prob:
            return _finish(written, annotation["result"])
    return _finish(lines, extract_truth(solution))


def check_annotations(text: str) -> list[bool]:
    """Returns for each calculator annotation, `<<12+5=17>>`, whether it is true."""
    checked = []
    for match in _ANNOTATION.finditer(text):
        left, right, result = (int(match[part]) for part in ("left", "right", "result"))
        divides = right != 0 and left == right * result
        values = {"+": left + right, "-": left - right, "*": left * right}
        checked.append(values.get(match["sign"]) == result or (match["sign"] == "/" and divides))
    return checked


def _finish(lines: Sequence[str], number: str) -> str:
    return "\n" + "\n".join(lines) + _THINK_CLOSE + number
