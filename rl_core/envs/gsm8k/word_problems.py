"""Toy word problems in GSM8K's form, written here (data path stage 1): no hub, no copy needed.

Not GSM8K: one quantity, small whole numbers, one to three steps of + - * /. A story opens, changes
and ends; each part holds none, one or two steps. A problem's number of steps is drawn first,
uniformly, so that long stories are as frequent as short ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_STEPS: Final = 3
LARGEST_VALUE: Final = 99
"""Of every number in a story and in its solution; sums and products above it are drawn again."""
_LARGEST_FACTOR: Final = 12
_MAX_DRAWS_PER_ROW: Final = 20

_HE: Final = ("Adam", "Ben", "Carl", "Dan", "Emil", "Finn", "Hugo", "Ivan", "Jack", "Leo", "Max")
_SHE: Final = ("Anna", "Bea", "Clara", "Dora", "Eva", "Fay", "Gina", "Ida", "June", "Lena", "Mia")
_THINGS: Final = (
    *("apples", "balls", "books", "buttons", "candles", "cards", "coins", "cookies"),
    *("cups", "eggs", "flowers", "keys", "marbles", "nuts", "pears", "pens"),
    *("pins", "plums", "ribbons", "shells", "stamps", "stickers", "stones", "toys"),
)
WORDS: Final = (*_HE, *_SHE, *_THINGS, "dollars", "He", "She", "How", "Each")
"""What the phrases of a story stand between: who, what, and how a sentence begins."""


@dataclass(frozen=True)
class WordProblem:
    """A question and its answer, as a row of GSM8K holds them."""

    question: str
    """One paragraph."""
    answer: str
    """One line per step, `12 + 5 = <<12+5=17>>17 pens.`, and `#### 17` at the end."""


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

    def factor(self) -> int:
        """Draws a factor of a product which the multiplication table holds."""
        if self.value > _LARGEST_FACTOR:
            raise _OutOfRangeError
        return self.small()

    def calculate(self, left: int, sign: str, right: int, unit: str | None = None) -> int:
        """Adds a step's line to the solution; returns its result, the story's new value."""
        if sign == "/" and left % right:
            raise _OutOfRangeError
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        result = results[sign]
        if not 1 <= result <= LARGEST_VALUE:
            raise _OutOfRangeError
        sum_ = f"{left} {sign} {right}"
        line = f"{sum_} = <<{sum_.replace(' ', '')}={result}>>{result} {unit or self.things}."
        self.lines.append(line)
        self.value = result
        return result

    def say(self, text: str, **numbers: int) -> None:
        """Adds a sentence or two."""
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
    boxes, each = story.small(), story.small()
    story.say("{name} buys {a} boxes with {b} {things} in each box.", a=boxes, b=each)
    story.calculate(boxes, "*", each)


def _two_colours(story: _Story) -> None:
    red, blue = story.small(30), story.small(30)
    story.say("{name} has {a} red {things} and {b} blue {things}.", a=red, b=blue)
    story.calculate(red, "+", blue)


def _gets(story: _Story) -> None:
    story.change(
        "+",
        story.small(),
        "{pronoun} finds {b} more.",
        "{other} gives {name} {b} more.",
        "{pronoun} buys {b} more.",
    )


def _loses(story: _Story) -> None:
    story.change(
        "-",
        story.small(),
        "{pronoun} loses {b} of them.",
        "{pronoun} gives {b} to {other}.",
        "{pronoun} sells {b} of them.",
    )


def _now(story: _Story) -> None:
    story.say("How many {things} does {name} have now?")


def _price(story: _Story) -> None:
    asked = "Each of them costs {b} dollars. How many dollars do they cost in all?"
    story.change("*", story.factor(), asked, unit="dollars")


def _times(story: _Story) -> None:
    asked = "{other} has {b} times as many. How many {things} does {other} have?"
    story.change("*", story.factor(), asked)


def _shares(story: _Story) -> None:
    bags = story.small()
    if not 2 <= story.value // bags <= _LARGEST_FACTOR:
        raise _OutOfRangeError
    shared = "{pronoun} puts them into {b} bags, equally many in each."
    story.change("/", bags, f"{shared} How many {{things}} are in a bag?")


def _together(story: _Story) -> None:
    own, more = story.value, story.small()
    sign, word = story.rng.choice((("+", "more"), ("-", "fewer")))
    asked = "How many {things} do they have together?"
    story.change(sign, more, f"{{other}} has {{b}} {{things}} {word}. {asked}")
    story.calculate(own, "+", story.value)


_Part = Callable[[_Story], None]
_OPENINGS: Final[dict[_Part, int]] = {_has: 0, _boxes: 1, _two_colours: 1}
_CHANGES: Final[Sequence[_Part]] = (_gets, _loses)
_ENDINGS: Final[dict[_Part, int]] = {_now: 0, _price: 1, _times: 1, _shares: 1, _together: 2}
"""Parts, and how many steps each takes; a change takes one."""


def generate_word_problems(*, size: int, seed: int) -> list[WordProblem]:
    """Returns problems with different questions; a larger size begins with the same ones.

    Raises:
        ValueError: so many different questions were not found.
    """
    rng = random.Random(seed)
    found: dict[str, WordProblem] = {}
    for _ in range(_MAX_DRAWS_PER_ROW * size):
        problem = _write(rng)
        found.setdefault(problem.question, problem)
        if len(found) == size:
            return list(found.values())
    raise ValueError(
        f"only {len(found)} different toy word problems were found and {size} are asked for: "
        "lower data.train_size"
    )


def _write(rng: random.Random) -> WordProblem:
    """Returns one problem; a part whose numbers do not fit has the whole story drawn again."""
    num_steps = rng.randint(1, MAX_STEPS)
    while True:
        opening, ending = rng.choice(list(_OPENINGS)), rng.choice(list(_ENDINGS))
        num_changes = num_steps - _OPENINGS[opening] - _ENDINGS[ending]
        if num_changes < 0:
            continue
        changes = [rng.choice(_CHANGES) for _ in range(num_changes)]
        story = _new_story(rng)
        try:
            for part in (opening, *changes, ending):
                part(story)
        except _OutOfRangeError:
            continue
        answer = "\n".join([*story.lines, f"#### {story.value}"])
        return WordProblem(" ".join(story.sentences), answer)


def _new_story(rng: random.Random) -> _Story:
    name, other = rng.sample(_HE + _SHE, 2)
    pronoun = "He" if name in _HE else "She"
    return _Story(rng, name, pronoun, other, rng.choice(_THINGS))
