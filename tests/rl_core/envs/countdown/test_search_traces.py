"""Traces: written out by hand, and true by an independent check with fractions."""

import itertools
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.traces import Need, check_response, pair_values, write_trace

numbers_lists = st.lists(st.integers(1, 99), min_size=3, max_size=4)
targets = st.integers(10, 99)
seeds = st.integers(0, 2**32)


class GivesUp(random.Random):
    """Gives up at the chosen "no" (counted from 1), if any."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(0)
        self._left = at

    def random(self) -> float:
        self._left -= 1
        return 0.0 if self._left == 0 else 1.0


def written(numbers, target, give_up_at=0):
    return write_trace(numbers, target, give_up_prob=0.5, rng=GivesUp(give_up_at))


@pytest.mark.parametrize(
    ("numbers", "target", "give_up_at", "solved", "exhausted", "text"),
    [
        # z=4: 7+6=13, 7-6=1, 7*6=42 against 49 and 41. z=6: 7+4=11, 7-4=3, 7*4=28 against 51 and
        # 39. z=7: 6+4=10, 6-4=2, 6*4=24 against 52 and 38.
        ((4, 6, 7), 45, 0, False, True,
            "\n45 4 +49 -41 : 7 6 +13 no -1 no *42 no"
            "\n45 6 +51 -39 : 7 4 +11 no -3 no *28 no"
            "\n45 7 +52 -38 : 6 4 +10 no -2 no *24 no"
            "</think>\n<answer>(6+4)+7</answer>"),
        # z=3: 32+3=35, 32-3=29; 9+5=14, 9-5=4, 9*5=45 is above 35 (not written).
        # z=5: 32+5=37, 32-5=27; 9+3=12, 9-3=6, 9*3=27: a hit, completed by +5.
        ((3, 5, 9), 32, 0, True, False,
            "\n32 3 +35 -29 : 9 5 +14 no -4 no"
            "\n32 5 +37 -27 : 9 3 +12 no -6 no *27 yes"
            "</think>\n<answer>(9*3)+5</answer>"),
        # z=8: 20+8=28 and 20-8=12 are what 8, 7 and 2 must make. Before the other 8: 28+8=36,
        # 28-8=20; 12+8=20, 12-8=4; 7+2=9, 7-2=5, 7*2=14 are none of them. Before the 7: 28+7=35,
        # 28-7=21, 28/7=4; 12+7=19, 12-7=5; 8+2=10, 8-2=6, 8*2=16 are none, 8/2=4 is: times 7 it
        # makes 28.
        ((8, 8, 7, 2), 20, 0, True, False,
            "\n20 8 +28 -12 ;"
            "\n28 8 +36 -20\n12 8 +20 -4 : 7 2 +9 no -5 no *14 no"
            "\n28 7 +35 -21 /4\n12 7 +19 -5 : 8 2 +10 no -6 no *16 no /4 yes"
            "</think>\n<answer>((8/2)*7)-8</answer>"),
        ((8, 8, 7, 2), 20, 2, False, False,
            "\n20 8 +28 -12 ;\n28 8 +36 -20\n12 8 +20 -4 : 7 2 +9 no -5 no"
            "</think>\n<answer>((7+2)+8)+8</answer>"),
    ],
    ids=["nothing is found", "a product and a sum", "four numbers", "four numbers, given up"],
)  # fmt: skip
def test_traces_by_hand(numbers, target, give_up_at, solved, exhausted, text):
    trace = written(numbers, target, give_up_at)
    assert (trace.text, trace.solved, trace.exhausted) == (text, solved, exhausted)
    verdict = score_response(text, numbers, target).verdict
    assert verdict == ("correct" if solved else "wrong_value")


def test_the_prompts_order_is_the_order_of_trying():
    assert written((9, 4, 9), 1000).text.count("\n1000 ") == 2
    assert re.findall(r"\n45 (\d)", written((7, 4, 6), 45).text) == ["7", "4", "6"]


def test_nothing_is_needed_before_a_need_of_zero():
    # 20-20=0 is listed, and what would make it with a 3 is not.
    text = written((20, 3, 50, 90), 20).text
    assert text.startswith("\n20 20 +40 -0 /1 ;\n40 3 +43 -37\n1 3 +4 -2 : 90 50 ")


def test_giving_up_at_the_very_last_no_is_having_searched_it_all():
    assert written((4, 6, 7), 45, give_up_at=9).exhausted
    assert not written((4, 6, 7), 45, give_up_at=8).exhausted


def test_needs_and_pair_values_by_hand():
    needs = [
        [(n.sign, n.value) for n in Need(value).narrowed(z)] for value, z in ((24, 6), (12, 20))
    ]
    assert needs == [[("+", 30), ("-", 18), ("/", 4)], [("+", 32), ("-", 8)]]
    assert pair_values(12, 4, largest=100) == [("+", 16), ("-", 8), ("*", 48), ("/", 3)]
    assert pair_values(12, 1, largest=100) == [("+", 13), ("-", 11), ("*", 12)]
    assert pair_values(12, 9, largest=100) == [("+", 21), ("-", 3)]


def value_of(expression: str) -> Fraction:
    """Evaluates our own well-formed text exactly, by another way than rl_core's parser."""
    return eval(re.sub(r"(\d+)", r"Fraction(\1)", expression), {"Fraction": Fraction})


@settings(deadline=None)
@given(numbers_lists, targets, st.sampled_from([0.0, 0.3, 1.0]), seeds)
def test_everything_written_is_true(numbers, target, give_up_prob, seed):
    trace = write_trace(numbers, target, give_up_prob=give_up_prob, rng=random.Random(seed))

    results, verdicts = check_response(trace.text)
    assert results == [True] * len(re.findall(r" [-+*/]\d", trace.text))
    assert verdicts == [True] * len(re.findall(" yes| no", trace.text))
    attempts = trace.text.count(" : ")
    assert attempts <= {3: 3, 4: 12}[len(numbers)]

    answer = trace.text.split("<answer>")[1].removesuffix("</answer>")
    assert sorted(int(n) for n in re.findall(r"\d+", answer)) == sorted(numbers)
    assert (value_of(answer) == target) == trace.solved == (" yes" in trace.text)
    verdict = score_response(trace.text, numbers, target).verdict
    assert verdict == ("correct" if trace.solved else "wrong_value")


@settings(deadline=None)
@given(numbers_lists, targets)
def test_order_does_not_decide_what_a_full_search_finds(numbers, target):
    traces = [written(order, target) for order in itertools.permutations(numbers)]
    assert len({trace.solved for trace in traces}) == 1
    assert all(trace.solved != trace.exhausted for trace in traces)


def test_what_is_false_is_found():
    # 45-9=35, 5*3=16 and 40-5=36 are false; 8 is not needed, and 36 is.
    assert check_response("\n45 9 -35 +54 : 5 3 +8 yes *16 no\n45 9 -36 : 40 5 -35 no -36 no") == (
        [False, True, True, False, True, True, False],
        [False, True, True, False],
    )
    assert check_response("\n7 0 -7 /7 : 5 3 +8 no") == ([True, False, True], [True])


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_checked(text):
    check_response(text)


@pytest.mark.parametrize("numbers", [(1, 2), (1, 2, 3, 4, 5), (0, 2, 3)])
def test_other_problems_are_refused_with_the_remedy(numbers):
    with pytest.raises(ValueError, match=r"3 or 4 positive numbers.*set model\.path"):
        write_trace(numbers, 20, give_up_prob=0.0, rng=random.Random(0))
