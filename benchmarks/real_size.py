"""Models of Qwen2.5-0.5B's own shape with random weights, and presets for them, on a CPU.

    .venv/bin/python benchmarks/real_size.py FOLDER [--layers 6] [--dtype float32]

FOLDER gets `base` and `instruct` (0.99 GB each in bfloat16) and `gsm8k`, and the commands are
printed. Weights are random; the tokenizer has Qwen2.5's pre-tokenizer, special tokens and form of
chat template, merges fitted to the project's prompts, and is filled up to Qwen2.5's 151,665 tokens;
the model has 151,936. Needs no hub.
"""

from __future__ import annotations

import argparse
import json
import random
from functools import partial
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from flows.settings.compose import compose
from rl_core.data.dataset import read_solved
from rl_core.envs.word_problems import generate_word_problems
from rl_core.resources.known_shapes import known_config
from tasks.generate import generate_dataset

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NUM_BPE = 151_643
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|other_{i}|>" for i in range(19))]
_CHAT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are Qwen, created by Alibaba "
    "Cloud. You are a helpful assistant.<|im_end|>\n{% endif %}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Returns Qwen2.5's tokenizer but for its merges, which are fitted to the texts."""
    small = Tokenizer(models.BPE())
    small.normalizer = normalizers.NFC()
    small.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    small.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    small.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=alphabet))
    state = json.loads(small.to_str())
    vocab = state["model"]["vocab"]
    vocab |= {f"Ġfiller{index}": index for index in range(len(vocab), _NUM_BPE)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=_SPECIAL,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT
    return tokenizer


def save_model(
    root: Path, tokenizer: PreTrainedTokenizerFast, *, dtype: str, layers: int, tuned: bool
) -> None:
    """Writes random weights, the tokenizer, and the end tokens that Qwen2.5 has."""
    folder = root / ("instruct" if tuned else "base")
    torch.manual_seed(0)
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>" if tuned else "<|endoftext|>")
    config = Qwen2Config(
        **((known_config("Qwen/Qwen2.5-0.5B") or {}) | {"num_hidden_layers": layers}),
        max_position_embeddings=32_768,
        rope_theta=1_000_000.0,
        eos_token_id=eos,
        dtype=dtype,
    )
    model = Qwen2ForCausalLM._from_config(config, dtype=getattr(torch, dtype))
    pad = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    model.generation_config.eos_token_id = [eos, pad] if tuned else pad
    model.save_pretrained(folder)
    if tuned:
        tokenizer.eos_token = "<|im_end|>"
    tokenizer.save_pretrained(folder)
    print(f"{folder}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")
    settings = folder / "tokenizer_config.json"
    written = json.loads(settings.read_text(encoding="utf-8"))
    written["tokenizer_class"] = "Qwen2Tokenizer"  # as Qwen2.5's file says
    settings.write_text(json.dumps(written), encoding="utf-8")


def write_questions(folder: Path) -> list[str]:
    """Writes word problems as a local copy of GSM8K; returns their texts."""
    problems = generate_word_problems(size=600, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", problems[:500]), ("test", problems[500:])):
        lines = "\n".join(map(json.dumps, rows))
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return [f"{row['question']}\n{row['answer']}" for row in problems]


def countdown_texts(root: Path) -> list[str]:
    """Returns puzzles as the templates ask them, with their searches."""
    config = compose([f"storage.root={root}", *DATA])
    write = partial(config.env.sft.write_trace, config.env)
    rng = random.Random(0)
    pairs = read_solved(generate_dataset(config) / "train.parquet")
    return [p.messages[0]["content"] + write(p, s, rng, 0.0) for p, s in pairs]


DATA = ("data.train_size=2000", "data.test_size=64")
SMALL = (
    "data.train_batch_size=4 algorithm.group_size=4 actor.mini_batch_size=4 trainer.test_freq=2 "
    "data.max_response_length=64 actor.micro_batch_tokens=1024 trainer.test_problems=8 "
    "trainer.save_freq=2 trainer.total_steps=3 evaluation.max_problems=8 "
    "evaluation.samples_per_problem=2 resources.learner_gpus=0 resources.rollout_gpus=0 "
    "resources.gpu_memory_gib=null"
)


def main() -> None:
    """Writes both models, and prints the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    wanted = parser.parse_args()
    root: Path = wanted.folder.resolve()
    tokenizer = make_tokenizer(write_questions(root / "gsm8k") + countdown_texts(root))
    for tuned in (False, True):
        save_model(root, tokenizer, dtype=wanted.dtype, layers=wanted.layers, tuned=tuned)
    small = f"{' '.join(DATA)} storage.root={root} {SMALL}"
    for preset in (
        f"tinyzero-0.5b-24gb model.path={root}/base",
        f"countdown-0.5b-sft-24gb sft.steps=4 model.path={root}/base",
        f"countdown-1.5b-24gb model.path={root}/instruct",
        f"gsm8k-ppo-0.5b data.train_files={root}/gsm8k/train.jsonl "
        f"data.test_files={root}/gsm8k/test.jsonl model.path={root}/instruct",
    ):
        print(f"countdown-train preflight preset={preset} {small}")


if __name__ == "__main__":
    main()
