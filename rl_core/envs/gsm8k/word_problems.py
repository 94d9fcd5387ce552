"""Toy word problems in GSM8K's form, written here (data path stage 1): no hub, no copy needed.

Not GSM8K: one quantity, small whole numbers, one to three steps of + - * /. A story opens, changes
and ends; each part holds none, one or two steps. A problem's number of steps is drawn first,
uniformly, so that long stories are as frequent as short ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """A question and its answer, as a row of GSM8K holds them.

    Attributes:
        question: one paragraph.
        answer: one line per step, `12 + 5 = <<12+5=17>>17 pens.`, and `#### 17` at the end.
    """

    question: str
    answer: str


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
    value: int
    sentences: list[str]
    lines: list[str]

    def small(self, largest: int = 9) -> int:
        return self.rng.randint(2, largest)

    def calculate(self, left: int, sign: str, right: int, unit: str) -> int:
        """Adds a step's line to the solution; returns its result, the story's new value."""
        if sign == "/" and left % right:
            raise _OutOfRangeError
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        result = results[sign]
        if not 1 <= result <= LARGEST_VALUE:
            raise _OutOfRangeError
        sum_ = f"{left} {sign} {right}"
        self.lines.append(f"{sum_} = <<{sum_.replace(' ', '')}={result}>>{result} {unit}.")
        self.value = result
        return result

    def say(self, text: str, **numbers: int) -> None:
        """Adds a sentence or two."""
        words = {key: getattr(self, key) for key in ("name", "pronoun", "other", "things")}
        self.sentences.append(text.format(**words, **numbers))


def _has(story: _Story) -> None:
    story.value = story.small(40)
    story.say("{name} has {a} {things}.", a=story.value)


def _boxes(story: _Story) -> None:
    boxes, each = story.small(), story.small()
    story.say("{name} buys {a} boxes with {b} {things} in each box.", a=boxes, b=each)
    story.calculate(boxes, "*", each, story.things)


def _two_colours(story: _Story) -> None:
    red, blue = story.small(30), story.small(30)
    story.say("{name} has {a} red {things} and {b} blue {things}.", a=red, b=blue)
    story.calculate(red, "+", blue, story.things)


def _gets(story: _Story) -> None:
    more = story.small()
    text = (
        "{pronoun} finds {b} more.",
        "{other} gives {name} {b} more.",
        "{pronoun} buys {b} more.",
    )
    story.say(story.rng.choice(text), b=more)
    story.calculate(story.value, "+", more, story.things)


def _loses(story: _Story) -> None:
    fewer = story.small()
    text = (
        "{pronoun} loses {b} of them.",
        "{pronoun} gives {b} to {other}.",
        "{pronoun} sells {b} of them.",
    )
    story.say(story.rng.choice(text), b=fewer)
    story.calculate(story.value, "-", fewer, story.things)


def _now(story: _Story) -> None:
    story.say("How many {things} does {name} have now?")


def _price(story: _Story) -> None:
    price = _factor(story)
    story.say("Each of them costs {b} dollars. How many dollars do they cost in all?", b=price)
    story.calculate(story.value, "*", price, "dollars")


def _times(story: _Story) -> None:
    times = _factor(story)
    story.say("{other} has {b} times as many. How many {things} does {other} have?", b=times)
    story.calculate(story.value, "*", times, story.things)


def _shares(story: _Story) -> None:
    bags = story.small()
    story.say(
        "{pronoun} puts them into {b} bags, equally many in each. How many {things} are in a bag?",
        b=bags,
    )
    if not 2 <= story.value // bags <= _LARGEST_FACTOR:
        raise _OutOfRangeError
    story.calculate(story.value, "/", bags, story.things)


def _together(story: _Story) -> None:
    own, more = story.value, story.small()
    sign, word = story.rng.choice((("+", "more"), ("-", "fewer")))
    story.say(
        f"{{other}} has {{b}} {{things}} {word}. How many {{things}} do they have together?", b=more
    )
    others = story.calculate(own, sign, more, story.things)
    story.calculate(own, "+", others, story.things)


def _factor(story: _Story) -> int:
    """Draws a factor of a product which the multiplication table holds."""
    if story.value > _LARGEST_FACTOR:
        raise _OutOfRangeError
    return story.small()


_Part = Callable[[_Story], None]
_OPENINGS: Final[dict[_Part, int]] = {_has: 0, _boxes: 1, _two_colours: 1}
_CHANGES: Final[Sequence[_Part]] = (_gets, _loses)
_ENDINGS: Final[dict[_Part, int]] = {_now: 0, _price: 1, _times: 1, _shares: 1, _together: 2}
"""Parts, and how many steps each takes; a change takes one."""


def generate_word_problems(*, size: int, seed: int) -> list[WordProblem]:
    """Returns problems with different questions; the same seed gives the same ones, in order.

    Args:
        size: how many.
        seed: of the generator; a larger size with the same seed begins with the same problems.

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
    return _Story(
        rng=rng,
        name=name,
        pronoun="He" if name in _HE else "She",
        other=other,
        things=rng.choice(_THINGS),
        value=0,
        sentences=[],
        lines=[],
    )
