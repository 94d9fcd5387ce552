import random
from dataclasses import dataclass
from typing import Any

from transformers import AutoModelForCausalLM

from rl_core.data.prompts import load_tokenizer, text_codec
from rl_core.envs.countdown import CountdownConfig, render_prompt
from rl_core.envs.countdown.sft_examples import SearchExamples
from rl_core.envs.text_env import EnvTurn
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.turns import TurnTaking
from rl_core.sft.examples import draw_examples, greedy_responses
from rl_core.sft.tokenizer import train_tokenizer
from rl_core.types import GenerationRequest, Problem, SamplingSettings

ASCII = {chr(i) for i in range(33, 127)}


def examples(*, calls: bool) -> SearchExamples:
    problems = [((44, 9, 3), 53), ((23, 41, 7), 950), ((8, 5, 2), 20)]
    return SearchExamples(
        0.5,
        prompts=[render_prompt("base", *problem) for problem in problems],
        problems=problems,
        holdout=problems,
        render_prompt=lambda numbers, target: render_prompt("base", numbers, target),
        calls=calls,
    )


def test_the_calculators_answers_teach_nothing_and_all_else_teaches_what_it_did():
    source = examples(calls=True)
    tokenizer = train_tokenizer(source.tokenizer_texts(random.Random(0)), vocab_size=400)
    drawn = source.draw(16, random.Random(1))
    for text, example in zip(
        drawn, draw_examples(source, tokenizer, 16, random.Random(1)), strict=True
    ):
        whole = text.prompt + text.response + tokenizer.eos_token
        assert tokenizer.decode(example.ids) == whole
        num_prompt = len(tokenizer.encode(text.prompt))
        learned, said = "", ""
        for token, weight in zip(
            example.ids[num_prompt:], example.weights[num_prompt:], strict=True
        ):
            learned += tokenizer.decode([token]) if weight else ""
            said += "" if weight else tokenizer.decode([token])
        assert learned == "".join(text.turns[::2]) + tokenizer.eos_token
        assert said == "".join(text.turns[1::2]) != ""


@dataclass
class Answered:
    """Some characters are answered."""

    stop: tuple[str, ...]

    def answer(self, response: str) -> str | None:
        return "[x]" if response.endswith(self.stop) else None


def test_greedy_responses_are_those_of_a_rollout(tiny_model_path, monkeypatch):
    tokenizer: Any = load_tokenizer(str(tiny_model_path))
    prompts = [f"make {i}, {'as you like ' * i}<think>{i}" for i in range(12)]
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    uncut = greedy_responses(model, tokenizer, prompts, max_tokens=40)
    answered = Answered(tuple({c for ids in uncut for c in tokenizer.decode(ids[2:5])} & ASCII))

    def reply(env: object, response: str, truth: object) -> EnvTurn | None:
        said = answered.answer(response)
        return None if said is None else EnvTurn(said)

    monkeypatch.setattr(CountdownConfig, "stop", answered.stop)
    monkeypatch.setattr(CountdownConfig, "reply", reply)
    engine = HfEngine(tiny_model_path, dtype="float32", max_num_seqs=16, on_gpu=False)
    taking = TurnTaking(CountdownConfig(max_turns=99), *text_codec(tokenizer))
    requests = [GenerationRequest(tuple(tokenizer.encode(prompt)), 0) for prompt in prompts]
    problems = [Problem(0, "countdown", (), {}, 0)] * len(prompts)
    played = dict(taking.play(engine.generate, requests, SamplingSettings(40, 0.0), problems))
    assert sum(len(completion.turns) > 1 for completion in played.values()) > 3
    found = greedy_responses(model, tokenizer, prompts, max_tokens=40, answered=answered)
    assert found == [played[i].response_ids.tolist() for i in range(len(prompts))]
