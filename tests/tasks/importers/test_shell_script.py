import contextlib
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.importers.shell_script import Script
from tests.support.launch_scripts import shell_texts


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in Script(text).commands]


QUOTED = r"""A=1; export B="two words"
printf '%s\n' plain $A "$B" '$A' ${C:-fallback} x=$A/y.z \
  ['a','b'] esc\ aped "quo\"ted" # a comment
"""
ARRAYS_DEFAULTS_AND_SUMS = r"""
KIND=${KIND:-right}
n=$((2 + 3 * (4 - 1))); m=${M:-$((n / 2))}; n+=0
: ${late:=set at last} ${KIND:?is needed}
LIST=(one "two words" $n); LIST+=('three' "${KIND}er")
printf '%s\n' "${LIST[@]}" a.b=$m "${late} $n" "${nothing[@]}"
"""


@pytest.mark.parametrize("script", [QUOTED, ARRAYS_DEFAULTS_AND_SUMS])
def test_words_are_those_that_bash_itself_makes(script):
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert len(said.stdout.splitlines()) > 5
    assert words(script)[-1][2:] == said.stdout.splitlines()


def test_variables_from_outside_decide_and_are_remembered():
    script = Script('A=${A:-1}\nB=2\ntrain a.b=$A c.d=$B "${E}"\n', {"A": "7", "B": "8"})
    assert [word.text for word in script.commands[-1].words] == ["train", "a.b=7", "c.d=2", "${E}"]
    assert script.from_outside == {"A": 1}
    assert script.assigned == {"B": 2}
    assert script.unset == {"E": 3}
    assert [*script.askable] == ["A", "E"]


@pytest.mark.parametrize(
    ("script", "given", "expected"),
    [
        ("case $(uname) in Linux) A=1 ;; *) A=2 ;; esac", {}, "x=1"),
        ("if test-it; then A=3; elif other; then A=4; else A=5; fi", {}, "x=3"),
        ("A=1\nif test-it; then A=3; fi", {"A": "7"}, "x=7"),
        ("A=$(nproc)", {}, "x=$(nproc)"),
        ("B=a.b\nA=${B%.b}", {}, "x=${B%.b}"),
    ],
)
def test_what_only_running_would_tell_is_the_first_way_or_stays(script, given, expected):
    found = Script(f"{script}\ntrain x=$A\n", given)
    assert found.commands[-1].words[-1].text == expected
    branches = {word.text.split()[0]: names for word, names in found.branches.items()}
    assert branches in ({}, {"case": {"A"}}, {"if": {"A"}})
    assert bool(branches) == script.replace("A=1\n", "").startswith(("case", "if"))


def test_a_backslash_and_a_blank_end_the_command_there():
    script = Script("train a=1 \\\n  b=2 \\ \n  c.d=3\n")
    assert [[w.text for w in c.words] for c in script.commands] == [
        ["train", "a=1", "b=2"],
        ["c.d=3"],
    ]
    assert [word.line for word in script.commands[0].words] == [1, 1, 2]


def test_a_variable_that_nobody_sets_stays_and_is_named():
    script = Script('train\ntrain name="$NAME" all="$@"\n')
    assert [word.text for word in script.commands[1].words] == ["train", "name=$NAME", "all="]
    assert script.unset == {"NAME": 2}


def test_characters_that_crash_the_grammars_scanner_are_read():
    """tree-sitter-bash 0.25.1 reads beyond a table's end for `{` before a character of 4 bytes."""
    script = Script("echo {\U0002ed24 \U0001f600{é\nprintf 'ü b'\"é$A\" c\n", {"A": "ß"})
    assert [[word.text for word in command.words] for command in script.commands] == [
        ["echo", "{\U0002ed24", "\U0001f600{é"],
        ["printf", "ü béß", "c"],
    ]


def test_a_sum_that_is_none_stays_as_it_is_written():
    assert words("a)!casethen$((0))doneesac\ntrain b.c=$((9223372036854775807 + 1))")[-1] == [
        "train",
        "b.c=$((9223372036854775807 + 1))",
    ]
    assert words("A=999999999999999999\necho $((A * A))")[-1] == ["echo", "$((A * A))"]
    assert words("echo $((1 / 0))")[-1] == ["echo", "$((1 / 0))"]


def test_what_would_fill_the_memory_or_the_stack_is_refused_in_words():
    with pytest.raises(ValueError, match="more than 10,000,000 characters of text"):
        Script("A=xx\n" + "A=$A$A\n" * 60)
    with pytest.raises(ValueError, match="more than 10,000,000 characters of text"):
        Script("L=(a b)\n" + 'L+=("${L[@]}" "${L[@]}")\n' * 60)
    with pytest.raises(ValueError, match="nested too deeply"):
        Script("echo " + "${A:-" * 5_000 + "x" + "}" * 5_000)


@given(st.one_of(st.text(max_size=200), shell_texts))
def test_any_text_is_read(text):
    with contextlib.suppress(ValueError):
        Script(text)
