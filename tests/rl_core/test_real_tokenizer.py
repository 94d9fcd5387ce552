"""Where SmolLM2's tokenizer may differ from the home-made one."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from rl_core.data.prompt_lengths import measure_all, measure_by_parts
from rl_core.data.prompts import count_tokens, encode_prompt, load_tokenizer, text_codec
from rl_core.envs.countdown.templates import render_messages
from rl_core.rollout.hf_engine import StopTexts
from rl_core.rollout.turns import TurnTaking
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.wandb_process import sample_table
from rl_core.types import Completion, GenerationRequest, Problem, SamplingSettings
from tasks.prefect_ui.progress import latest_samples
from tasks.report import write_report
from tests.rl_core.data.test_prompt_lengths import rows_of
from tests.rl_core.rollout.test_turns import EchoConfig, echo_that_answers  # noqa: F401
from tests.support.runs import run_config

pytestmark = pytest.mark.slow  # whoever is first unpacks the model


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(smollm2))


def test_a_system_prompt_of_ones_own_takes_the_place_of_the_models(tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 7?"}]
    text, ids = encode_prompt(messages, tokenizer, chat_template=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n 7?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.decode(ids) == text
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3


def test_ends_of_turn_and_of_text_are_no_part_of_a_response(tokenizer):
    decode, encode = text_codec(tokenizer)
    ids = encode(" 49.<|im_end|>")
    assert tokenizer.convert_ids_to_tokens(ids) == ["\u0120", "4", "9", ".", "<|im_end|>"]
    assert ids[-1] == tokenizer.eos_token_id
    assert decode(ids) == " 49."
    assert decode(encode("<|endoftext|>")) == ""


@pytest.mark.parametrize("template", ["base", "chat"])
def test_lengths_of_prompts_are_sums_of_their_parts_digit_by_digit(tokenizer, template):
    rows = rows_of(template)

    def count(prompts):
        return count_tokens(prompts, tokenizer, chat_template=template == "chat")

    exact = measure_all(rows["prompt"], count)
    by_parts = measure_by_parts(
        rows, lambda numbers, target: render_messages(template, numbers, target), count
    )
    assert by_parts is not None
    assert by_parts.tolist() == exact.tolist()


PIECES = ["<calc>", "3*7", "</calc", ">", " >\n", "?", "!", "\u4f60", "<|im_end|>", "</", "calc>"]


@pytest.fixture(scope="module")
def stops(smollm2: Path) -> StopTexts:
    return StopTexts(smollm2, ("</calc>", "?!"))


@pytest.mark.parametrize("seed", range(20))
def test_stop_texts_end_where_the_text_does_however_tokens_cut_it(stops, tokenizer, seed):
    decode, encode = text_codec(tokenizer)
    drawn = np.random.default_rng(seed).choice(PIECES, size=12)
    # Piece by piece, as a model writes, and as one text, as the tokenizer would.
    for ids in ([i for piece in drawn for i in encode(piece)], encode("".join(drawn))):
        for end in range(1, len(ids) + 1):
            is_end = any(stop in decode(ids[:end]) for stop in stops.texts)
            is_candidate = bool(stops.candidates(torch.tensor([ids[end - 1]])))
            assert (is_candidate and stops.ends(ids[:end])) == is_end, (drawn, end)
            if is_end:
                break


def test_in_several_turns_the_env_reads_text_and_its_words_are_no_samples(tokenizer):
    decode, encode = text_codec(tokenizer)
    said = iter([" 12 is x?", "it was 3.<|im_end|>"])

    def stream(requests, sampling):
        for i, _ in enumerate(requests):
            ids = np.array(encode(next(said)))
            yield i, Completion(ids, np.zeros(len(ids), dtype=np.float32), "stop")

    taking = TurnTaking(EchoConfig(max_turns=2), decode, encode)
    problem = Problem(0, "echo", (), {"letter": "x"}, 0)
    request = GenerationRequest(tuple(encode("A")), seed=0)
    ((_, whole),) = taking.play(stream, [request], SamplingSettings(64), [problem])
    assert [(turn.is_model, turn.text) for turn in whole.turns] == [
        (True, " 12 is x?"),
        (False, "[x]"),
        (True, "it was 3."),
    ]
    ids = whole.response_ids
    assert decode(ids[~whole.sampled].tolist()) == "[x]"
    assert decode(ids.tolist()) == " 12 is x?[x]it was 3."
    assert whole.num_sampled == len(encode(" 12 is x?")) + len(encode("it was 3.<|im_end|>"))


def test_prompts_with_the_models_own_tags_are_shown_whole_and_mean_nothing(
    tokenizer, tmp_path, cli, make_rollout
):
    """In SQL, in the UI's Markdown, in wandb's table and on the page."""
    prompt, ids = encode_prompt(
        [{"role": "user", "content": "17 or <b>80</b>?"}], tokenizer, chat_template=True
    )
    decode, encode = text_codec(tokenizer)
    response = decode(encode("<|im_start|>assistant\n80 is [the] *largest*<|im_end|>"))
    assert response == "assistant\n80 is [the] *largest*"
    run = RunFolder.create(run_config(run_id="a", storage={"root": tmp_path}))
    rollout = make_rollout([1], [2], verdict="several_numbers")
    rollout = replace(rollout, prompt_ids=ids, prompt_text=prompt, response_text=response)
    run.rollouts.write(1, 0, [rollout], {})
    run.metrics.append(1, {"critic/score/mean": 0.0, "reward/accuracy": 0.0})
    asked = cli("sql", "samples_of_a_verdict", "--run", "a", "--format", "json").out
    assert [(row["prompt"], row["response"]) for row in json.loads(asked)] == [(prompt, response)]
    shown = cli("sql", "samples_of_a_verdict", "--run", "a").out
    assert "<|im_start|>user 17 or <b>80</b>?<|im_end|>" in " ".join(shown.split())
    assert sample_table(run.rollouts.folder, 1)[0][1:3] == [prompt, response]
    quoted = latest_samples(run.rollouts)
    assert quoted is not None
    assert re.sub(r"\\(.)", r"\1", quoted).count("<|im_start|>") == prompt.count("<|im_start|>")
    assert re.search(r"(?<!\\)[<*\[]", quoted) is None
    page = write_report(run.path).html.read_text()
    assert "&lt;|im_start|&gt;user\n17 or &lt;b&gt;80&lt;/b&gt;?&lt;|im_end|&gt;" in page
