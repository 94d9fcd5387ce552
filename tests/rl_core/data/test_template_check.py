"""Chat templates that leave out, change or mix up what a model should read."""

import re
import shutil
from pathlib import Path

import pytest

from rl_core.data.prompts import load_tokenizer, rendered
from rl_core.data.template_check import look_at_template
from rl_core.types import Message

HEAD = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
EACH = "{% for m in messages %}<|{{ m.role }}|>CONTENT\n{% endfor %}" + HEAD


def each(content: str = "{{ m.content }}") -> str:
    return EACH.replace("CONTENT", content)


def chat(*words: str, roles: tuple[str, ...] = ("system", "user")) -> list[Message]:
    return [{"role": role, "content": text} for role, text in zip(roles, words, strict=True)]


PROMPTS = [
    chat("Be brief.", f"What is {n} + 3, Anna?\nWrite <answer> </answer>.") for n in range(9)
]
LONG = [chat("Be brief.", "Tell. " * 40 + f"What is {n}?") for n in range(4)]


def broken(template: str, prompts: list[list[Message]], tiny_model_path: Path) -> dict[str, int]:
    """How many prompts break which rule."""
    tokenizer = load_tokenizer(str(tiny_model_path))
    tokenizer.chat_template = template
    placed = [({"row": row}, prompt) for row, prompt in enumerate(prompts)]
    findings = look_at_template(placed, lambda m, **names: rendered(m, tokenizer, **names))
    return {one.check: len(one.broken) for one in findings if one.broken}


KEEPS, APART, DAY = "template_keeps_messages", "template_tells_apart", "template_same_tomorrow"


@pytest.mark.parametrize(
    "template",
    [
        each(),
        each("{{ m.content | trim }}"),
        # The system's text stands in the user's turn, as of Llama 2 and Mistral.
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}"
        "{% set messages = messages[1:] %}{% endif %}[INST] <<SYS>>{{ s }}<</SYS>>"
        "{% for m in messages %}{{ m.content }}{% endfor %}[/INST]",
        "{% set date = date_string or '26 Jul 2024' %}Today: {{ date }}" + each(),
        "{% if strftime_now is defined and not messages %}{{ strftime_now('%Y') }}{% endif %}"
        + each(),
    ],
)
def test_templates_that_write_all_pass(template, tiny_model_path):
    assert broken(template, PROMPTS, tiny_model_path) == {}


@pytest.mark.parametrize(
    ("template", "prompts", "rules"),
    [
        (each("{{ m.content | lower }}"), PROMPTS, {KEEPS: 9}),
        (each("{{ m.content | e }}"), PROMPTS, {KEEPS: 9}),
        (each("{{ m.content | truncate(60) }}"), LONG, {KEEPS: 4, APART: 3}),
        (each("{{ m.content[:7] }}"), PROMPTS, {KEEPS: 9, APART: 8}),
        (each("{{ m.content.split('\n')[0] }}"), PROMPTS, {KEEPS: 9}),
        (each("{{ m.content.replace(' ', '') }}"), PROMPTS, {KEEPS: 9}),
        (each("{% if m.role != 'system' %}{{ m.content }}{% endif %}"), PROMPTS, {KEEPS: 9}),
        (f"<|user|>{{{{ messages[-1].content }}}}{HEAD}", PROMPTS, {KEEPS: 9}),
        (f"<|user|>{{{{ messages[0].content }}}}{HEAD}", PROMPTS, {KEEPS: 9, APART: 8}),
        # Its own words hold the system's, which is left out.
        (f"Be brief.{{{{ messages[-1].content }}}}{HEAD}", PROMPTS, {KEEPS: 1}),
        (each() + "{{ strftime_now('%d %b %Y') }}", PROMPTS, {DAY: 1}),
        (each() + "{{ strftime_now('%H') }}", PROMPTS, {DAY: 1}),
        (each() + "{{ strftime_now('%A') if strftime_now is defined }}", PROMPTS, {DAY: 1}),
        (each() + "{{ ['a', 'b', 'c'] | random }}", PROMPTS, {DAY: 1}),
        (each() + "{{ lipsum() }}", PROMPTS, {DAY: 1}),
    ],
)
def test_what_a_template_changes_is_found(template, prompts, rules, tiny_model_path):
    found = broken(template, prompts, tiny_model_path)
    assert found == rules


def test_roles_are_part_of_what_is_told_apart(tiny_model_path):
    roles = [("system", "user"), ("user", "system"), ("user", "user")]
    prompts = [chat("Be brief.", "Why?", roles=two) for two in roles]
    assert broken(each(), prompts, tiny_model_path) == {}
    same = EACH.replace("<|{{ m.role }}|>", "").replace("CONTENT", "{{ m.content }}")
    assert broken(same, prompts, tiny_model_path) == {APART: 2}
    assert broken(same, [chat("a", "b"), chat(" a", "b\n")], tiny_model_path) == {}


def test_a_thought_that_is_taken_out_of_an_earlier_answer_is_a_warning(tiny_model_path):
    """As Qwen3's template does."""
    answer = "<think>7</think>It is 7."
    prompt = chat("How many?", answer, "Sure?", roles=("user", "assistant", "user"))
    template = each("{{ m.content.split('</think>')[-1] }}")
    assert broken(template, [prompt], tiny_model_path) == {"template_keeps_answers": 1}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages[0].role + 1 }}", r"fails with TypeError \(can only concatenate str"),
        ("{{ 1 // 0 }}", "fails with ZeroDivisionError"),
        ("{% for m in messages %}", "refuses a prompt"),
        ("{{ strftime_now() }}", "fails with TypeError"),
        ("{{ datetime.now() }}", r"refuses a prompt \('datetime' is undefined\)"),
        ("{{ raise_exception('no system') }}", r"refuses a prompt \(no system\)"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails with RecursionError"),
        ({"tool_use": "a"}, r"fails with ValueError \(This model has multiple chat templates"),
    ],
)
def test_a_template_that_fails_is_named_in_one_line(template, words, tiny_model_path):
    tokenizer = load_tokenizer(str(tiny_model_path))
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=words) as caught:
        rendered(PROMPTS[0], tokenizer)
    assert re.fullmatch(r"the model's chat template [^\n]*: [^\n]*", str(caught.value))


def test_a_date_is_found_in_a_template_that_was_saved(tiny_model_path, tmp_path):
    """The real names of transformers, without ours, have today's date."""
    folder = Path(shutil.copytree(tiny_model_path, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%Y') }} " + each())
    text = rendered(PROMPTS[0], load_tokenizer(str(folder)))
    assert re.match(r"20\d\d <\|system\|>Be brief", text)
