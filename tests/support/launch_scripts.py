"""Launch scripts in verl's and TinyZero's form, written for the tests."""

from pathlib import Path

from hypothesis import strategies as st

_PIECES = [
    *["if ", "then ", "else ", "fi\n", "case ", "esac ", " in ", "for ", "do ", "done ", "f()"],
    *["$((", "))", "$(", ")", "${", "}", "{", "[[ ", " ]]", "[ ", " ]", "|", "||", "&&", "&", ";;"],
    *["\n", "\\\n", "\\ \n", " ", "\t", "A", "B", "=", "+=", ":-", ":=", ":+", "##", "%", "/", "@"],
    *["*", "#", '"', "'", "`", "<<E\n", "E\n", "<<<", "<(", "0", "99999999999999999999", "+", "-"],
    *["!", "-n ", "-eq ", "==", "=~", "$", "$A", "${A}", "A=$A$A$A\n", "L=(", '"${L[@]}"', "~b/"],
    *["é", "\U0002ed24", "\U0001f600", "\x00", "\ud800", "[", "]", "{a: b}", "!!bool x", "&a *a"],
    *["0x_", "2024-13-45", "python3 -m verl.trainer.main_ppo ", " data.train_batch_size="],
    *[" actor_rollout_ref.model.path=", " algorithm.adv_estimator=grpo ", " data.train_files="],
]
shell_texts = st.lists(st.one_of(st.sampled_from(_PIECES), st.characters()), max_size=40).map(
    "".join
)
"""Texts of what a shell has a meaning for, and of any other characters."""


def _script(name: str) -> str:
    return (Path(__file__).parents[1] / "tasks/importers/scripts" / name).read_text()


SOUND = _script("sound.sh")
PLANTED = _script("planted.sh")
"""Line 10 ends in a backslash and a blank; what else is wrong, the tests say."""
GSM8K = _script("gsm8k.sh")
"""A quickstart's GRPO on GSM8K: group size and coefficient under names that verl does not have."""
FROM_OUTSIDE = _script("from_outside.sh")
"""TinyZero's way: the person who starts it exports what it is about."""
