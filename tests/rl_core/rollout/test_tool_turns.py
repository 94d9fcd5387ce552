"""Tools by hand: a scripted model calls a calculator in a real process, in tokens of a template."""

import json
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rl_core.config.rollout import RewardConfig
from rl_core.data.prompts import encode_prompt, load_tokenizer, rendered, text_codec
from rl_core.data.tool_form import ToolForm, tool_form
from rl_core.envs import find_env
from rl_core.envs.tool_env import ToolEnv, calls_in
from rl_core.rewards.scoring import start_rewards
from rl_core.rollout.turns import TurnTaking, turn_metrics
from rl_core.types import Completion, GenerationRequest, Message, Problem, SamplingSettings
from tests.support.runs import run_config

HERE = "tests.support.calculator"
END = "<|endoftext|>"
CHATML = (
    "{% if tools %}[{% for tool in tools %}{{ tool.function.name }} {% endfor %}]{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    f"{END}\n{{% endfor %}}{{% if add_generation_prompt %}}<assistant>{{% endif %}}"
)


def env_of(name: str, **settings: Any) -> ToolEnv:
    find_env(f"{HERE}:{name}")
    env = run_config(env={"name": f"{HERE}:{name}"} | settings).env
    assert isinstance(env, ToolEnv)
    return env


@pytest.fixture
def tokenizer(tiny_model_path):
    tokenizer = load_tokenizer(str(tiny_model_path))
    tokenizer.chat_template = CHATML
    return tokenizer


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>{END}"


def play(
    env: ToolEnv, tokenizer: Any, turns: Sequence[str], limits: RewardConfig | None = None
) -> tuple[Completion, Any]:
    """Lets a model write these turns, and returns the whole response and its score."""
    decode, encode = text_codec(tokenizer)
    texts = iter(turns)

    def stream(
        requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[tuple[int, Completion]]:
        ids = np.array(encode(next(texts)))
        return [(0, Completion(ids, np.full(len(ids), -1.0, dtype=np.float32), "stop"))]

    problem = Problem(3, "products", (Message(role="user", content="What is 6 * 7?"),), "42", 0)
    _, prompt_ids = encode_prompt(problem.messages, tokenizer, chat_template=env.chat_template)
    with start_rewards(env, limits or RewardConfig(timeout_s=10)) as rewards:
        form = tool_form(tokenizer, env.chat_template)
        taking = TurnTaking(env, decode, encode, rewards.toolbox, form)
        request = GenerationRequest(prompt_ids, 1)
        played = taking.play(stream, [request], SamplingSettings(40_000), [problem])
        ((_, completion),) = played
        text = decode(completion.response_ids.tolist())
        return completion, rewards.submit(text, problem, completion.turns).result(60)


def test_a_reply_in_tokens_follows_the_sampled_ones_and_is_masked(tokenizer):
    asks, ends = call("multiply", a=6, b=7), f"It is 42.{END}"
    completion, scored = play(env_of("Calculator"), tokenizer, [asks, ends])
    reply = "\n<tool>42<|endoftext|>\n<assistant>"
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in (asks, reply, ends)]
    assert completion.response_ids.tolist() == [*ids[0], *ids[1], *ids[2]]
    mask = [*[True] * len(ids[0]), *[False] * len(ids[1]), *[True] * len(ids[2])]
    assert completion.sampled.tolist() == mask
    assert (completion.logprobs != 0).tolist() == mask
    (made,) = completion.turns[0].calls
    assert (made.name, made.arguments, made.reply) == ("multiply", {"a": 6, "b": 7}, "42")
    assert (scored.score, scored.verdict) == (1.0, "correct")
    assert turn_metrics([completion, completion], has_tools=True) == {
        "rollout/turns_mean": 2.0,
        "rollout/turns_max": 2.0,
        "rollout/tool_calls": 1.0,
        "rollout/tool_errors": 0.0,
    }


def test_the_prompt_shows_the_tools(tokenizer):
    shown = env_of("Calculator").chat_template
    prompt, _ = encode_prompt([{"role": "user", "content": "?"}], tokenizer, chat_template=shown)
    assert prompt == f"[multiply ]<user>?{END}\n<assistant>"
    tokenizer.chat_template = "{{ tools | tojson }}"
    (schema,) = json.loads(rendered([{"role": "user", "content": "?"}], tokenizer, **shown))
    assert schema["function"]["parameters"]["required"] == ["a", "b"]


def test_what_is_no_call_of_a_declared_tool_gets_an_error_and_nothing_is_executed(tokenizer):
    wrong = {
        call("reward", response="x"): "error: there is no tool 'reward': use fail or leave",
        call("__class__"): "error: there is no tool '__class__'",
        call("multiply", a="6", b=7): "error: multiply: a: Input should be a valid integer",
        call("multiply", a=6): "error: multiply: b: Field required",
        call("multiply", a=6, b=7, c=8): "error: multiply: c: Extra inputs are not permitted",
        f"<tool_call>import os</tool_call>{END}": "error: the call is no JSON",
        f"<tool_call>[1]</tool_call>{END}": "error: the call is no object with `name`",
        f"<tool_call>{'[' * 9_999}{END}": "error: the call is no JSON",
        f'<tool_call>{{"name": "wait", "arguments": {{"seconds": NaN}}}}{END}': "no JSON",
        call("fail"): "error: KeyError: 'no such thing'",
    }
    env = env_of("Trouble", max_turns=20)
    completion, scored = play(env, tokenizer, [*wrong, f"{call('multiply', a=1, b=2)}", END])
    calls = [made for turn in completion.turns for made in turn.calls]
    for made, text in zip(calls, wrong.values(), strict=False):
        assert text in made.reply
    assert [made.is_error for made in calls] == [True] * len(wrong) + [False]
    assert scored.score == 1.0
    assert turn_metrics([completion], has_tools=True)["rollout/tool_errors"] == len(wrong)


def test_a_tool_that_hangs_or_dies_costs_its_call_and_the_calls_before_it_are_repeated(tokenizer):
    first, total = call("multiply", a=6, b=7), call("total")
    turns = [first, call("leave"), call("wait"), call("multiply", a=2, b=3), total, END]
    limits = RewardConfig(timeout_s=2.0)
    completion, scored = play(env_of("Trouble"), tokenizer, turns, limits)
    replies = [made.reply for turn in completion.turns for made in turn.calls]
    assert replies == [
        "42",
        "error: its process died: exit code 3",
        "error: no answer within 2 s",
        "6",
        '{"results": [42, 6]}',
    ]
    assert scored.score == 2.0


def test_several_calls_of_a_turn_are_answered_in_order_and_after_the_last_turn_too(tokenizer):
    two = call("multiply", a=1, b=2).removesuffix(END) + call("multiply", a=3, b=4)
    completion, scored = play(env_of("Trouble", max_turns=2), tokenizer, [two, two])
    assert [[made.reply for made in t.calls] for t in completion.turns] == [
        ["2", "12"],
        [],
        ["2", "12"],
    ]
    assert (completion.finish_reason, scored.score) == ("turns", 4.0)
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        env_of("Trouble", max_turns=1)
    many = call("multiply", a=1, b=2).removesuffix(END) * 17 + END
    completion, _ = play(env_of("Trouble"), tokenizer, [many, END])
    replies = [made.reply for made in completion.turns[0].calls]
    assert replies == ["2"] * 16 + ["error: only 16 calls are answered at a time"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "<{{ m.role }}>",
            "<{{ m.role }}{{ messages | length }}>",
            "writes an assistant's turn ot",
        ),
        (END, "end", "need a chat template that ends a turn by a special token"),
        (
            "{{ m.content }}",
            "{{ m.content if m.role != 'tool' }}",
            "leaves out what a tool answers",
        ),
        ("{{ call.function | tojson }}", "{{ call.function.name }}", "in another form than JSON"),
    ],
)
def test_a_template_that_cannot_answer_a_tool_is_refused(tokenizer, old, new, why):
    tokenizer.chat_template = CHATML.replace(old, new)
    with pytest.raises(ValueError, match=why):
        tool_form(tokenizer, env_of("Calculator").chat_template)


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        (CHATML, ("<tool_call>", "</tool_call>")),
        (CHATML.replace("<tool_call>\n", "").replace("\n</tool_call>", ""), ("", "")),
        (CHATML.replace("m.tool_calls or []", "[]"), ("<tool_call>", "</tool_call>")),
    ],
)
def test_the_form_of_a_call_is_the_template_s(tokenizer, template, marks):
    tokenizer.chat_template = template
    form = tool_form(tokenizer, env_of("Calculator").chat_template)
    assert isinstance(form, ToolForm)
    assert form.marks == marks
    assert form.shows_tools
    tokenizer.chat_template = template.replace("{% if tools %}", "{% if false %}")
    assert not tool_form(tokenizer, env_of("Calculator").chat_template).shows_tools
    assert tool_form(tokenizer, chat_template={}) is None


@pytest.mark.parametrize(
    ("text", "marks", "calls"),
    [
        ("so <tool_call>{}</tool_call> and <tool_call> {1}", ("<tool_call>", "</tool_call>"), 2),
        ("<think><tool_call>{}</tool_call></think>{}", ("<tool_call>", "</tool_call>"), 0),
        (' {"name": 1}', ("", ""), 1),
        ("none", ("", ""), 0),
    ],
)
def test_calls_are_found_after_the_thoughts(text, marks, calls):
    assert len(calls_in(text, marks)) == calls


def test_an_env_of_tools_has_problems_goes_to_other_processes_and_is_refused_without_hints():
    env = env_of("Calculator")
    rows = env.rows.make(env, train_size=3, test_size=2, seed=1)
    assert [rows[split].num_rows for split in ("train", "test")] == [3, 2]
    assert env.name == f"{HERE}:Calculator"
    assert pickle.loads(pickle.dumps(env)) == env
    with pytest.raises(ValueError, match="its method say has no type hint for text"):
        find_env(f"{HERE}:NoHints")
