"""The home-made base model: a small Qwen2 fitted to the examples of its env, data path stage 0.

Not the trainer: this makes, once, the model that `model.path` would name otherwise. Examples are of
mixed quality: they calculate well but mostly give up early, so that RL has something to improve.
"""

import json
import math
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rl_core.config.model import NUM_POSITIONS, BaseModelConfig
from rl_core.data.prompts import OF_ITS_FILE_ALONE, text_codec
from rl_core.envs.sft_examples import SftExamples
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.sft.fit import Example, Fitting, split_evenly
from rl_core.sft.named_data import REPORT_NAME
from rl_core.system.atomic import new_folder
from rl_core.system.threads import MicroBatchThreads
from rl_core.types import GenerationRequest, SamplingSettings

PAD_TOKEN: Final = "<|pad|>"
EOS_TOKEN: Final = "<|endoftext|>"
_VERDICTS: Final = r"| no\b| yes\b"
_ADAMW_LR_SHARE: Final = 0.15
_MOMENTUM: Final = 0.95
_NEWTON_SCHULZ_STEPS: Final = 5
_NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)


def make_base_model(
    settings: BaseModelConfig,
    source: SftExamples,
    *,
    folder: Path,
    on_step: Callable[[int, int, float], None],
) -> dict[str, float]:
    """Trains tokenizer and model, and writes a Hugging Face folder, whole or not at all.

    Returns measures of greedy responses to held-out problems. `warm_start.json` holds them, too,
    with the model's size and the gates that it missed. `on_step` is called with (steps done,
    steps in all, loss). The same arguments give the same weights on one machine. Torch's global
    random state and thread count are left as they were.
    """
    started = time.monotonic()
    with _own_torch_state(settings):
        rng = random.Random(settings.seed)
        tokenizer = train_tokenizer(
            source.tokenizer_texts(rng),
            vocab_size=settings.vocab_size,
            digits_per_token=source.digits_per_token,
            words=source.words,
        )
        model = _new_model(settings, tokenizer)
        losses = []
        for step, loss in _fit(model, tokenizer, settings, source, rng):
            losses.append(loss)
            on_step(step, settings.steps, loss)
        with new_folder(folder) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            measured = _measure(source, temporary, tokenizer, settings.max_response_tokens)
            tail = losses[-math.ceil(len(losses) / 20) :]
            report = {
                "num_parameters": model.num_parameters(),
                "vocab_size": len(tokenizer),
                "seconds": round(time.monotonic() - started, 1),
                "final_loss": sum(tail) / len(tail),
                **measured,
                "failed_gates": source.failed_gates(measured),
            }
            (temporary / REPORT_NAME).write_text(f"{json.dumps(report, indent=2)}\n")
    return measured


@contextmanager
def _own_torch_state(settings: BaseModelConfig) -> Iterator[None]:
    """Seeds torch and keeps it to one thread for a while; restores both."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, digits_per_token: int = 1, words: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer fitted to `texts`, prompts and responses; the same for the same texts.

    Byte-level BPE: any text survives a round trip. Of at most `vocab_size` tokens, 258 are the
    bytes, pad and eos. Verdicts, numbers and each of `words`, with the space before it, never merge
    with their neighbours, so that a phrase is the same tokens everywhere. A token has at most
    `digits_per_token` digits: with 1, numbers are spelt; with more, each number of the texts is one
    token, as far as the vocabulary has room.
    """
    alone = rf"\p{{N}}{{1,{digits_per_token}}}{_VERDICTS}"
    if words:
        alone += rf"| ?\b(?:{'|'.join(map(re.escape, words))})\b"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(alone), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD_TOKEN, EOS_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        auto_map=OF_ITS_FILE_ALONE,
    )


def draw_examples(
    source: SftExamples, tokenizer: PreTrainedTokenizerFast, count: int, rng: random.Random
) -> list[Example]:
    """Returns a fresh batch; prompt and response are tokenized separately, as in a rollout."""
    drawn = source.draw(count, rng)
    # One call: the texts that `weigh` looks for, the prompts, the responses.
    texts = [*source.marks, *(t.prompt for t in drawn), *(t.response for t in drawn)]
    encoded = iter(tokenizer(texts)["input_ids"])
    marks = [ids[0] for ids in islice(encoded, len(source.marks))]
    prompts = list(islice(encoded, count))
    examples = []
    for text, prompt, ids in zip(drawn, prompts, encoded, strict=True):
        response = [*ids, tokenizer.eos_token_id]
        weights = source.weigh(text, response, marks)
        examples.append(Example(prompt + response, [0.0] * len(prompt) + weights))
    return examples


def _new_model(settings: BaseModelConfig, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_heads,
        max_position_embeddings=NUM_POSITIONS,
        # 1 / sqrt(hidden_size) and not 0.02, which is for models ten times wider.
        initializer_range=0.06,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation="sdpa",
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def _fit(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: BaseModelConfig,
    source: SftExamples,
    rng: random.Random,
) -> Iterator[tuple[int, float]]:
    """Trains in place: Muon on the matrices, AdamW on embedding, biases and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    held = {id(matrix) for matrix in matrices}
    muon = Muon(matrices)
    adamw = torch.optim.AdamW(
        [p for p in model.parameters() if id(p) not in held], betas=(0.9, 0.95), weight_decay=0.0
    )
    threads = MicroBatchThreads(settings.num_threads)
    fitting = Fitting(model, tokenizer.pad_token_id, threads, whole_logits=True)

    def backward(_step: int) -> float:
        examples = draw_examples(source, tokenizer, settings.batch_size, rng)
        return fitting.backward(examples, split_evenly(examples, count=4))

    def update(share: float) -> None:
        lr = settings.lr * share
        muon.step(lr=lr, threads=threads)
        adamw.param_groups[0]["lr"] = lr * _ADAMW_LR_SHARE
        adamw.step()

    model.train()
    yield from fitting.fit(
        backward, update, steps=range(settings.steps), warmup_steps=settings.warmup_steps
    )


def _measure(
    source: SftExamples, folder: Path, tokenizer: PreTrainedTokenizerFast, max_tokens: int
) -> dict[str, float]:
    """Returns the env's measures of greedy responses, and mean prompt and response tokens."""
    decode, _ = text_codec(tokenizer)
    prompts = [tuple(ids) for ids in tokenizer(list(source.held_out))["input_ids"]]
    engine = HfEngine(folder, dtype="float32", max_num_seqs=128, on_gpu=False)
    generated = engine.generate(
        [GenerationRequest(ids, seed=0) for ids in prompts],
        SamplingSettings(max_tokens, temperature=0.0),
    )
    responses = [completion.response_ids.tolist() for completion in in_order(generated)]
    return source.judge([decode(ids) for ids in responses]) | {
        "mean_prompt_tokens": sum(map(len, prompts)) / len(prompts),
        "mean_response_tokens": sum(map(len, responses)) / len(prompts),
    }


def orthogonalise(matrices: Tensor) -> Tensor:
    """Returns the matrices with singular values near 1 (about 0.7 to 1.2), same vectors.

    They are float32 [N, rows, columns], rows <= columns.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = _NEWTON_SCHULZ
    result: Tensor = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = torch.bmm(result, result.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        result = torch.baddbmm(result, polynomial, result, beta=a)
    return result


class Muon:
    """Nesterov momentum on matrices, each update orthogonalised; no weight decay.

    Not torch.optim.Muon, which works in bfloat16 and one matrix at a time: on a CPU without
    bfloat16 units that costs more than a small model's forward and backward pass together.
    """

    def __init__(self, matrices: Sequence[torch.nn.Parameter]) -> None:
        self._by_shape: dict[tuple[int, int], list[torch.nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            self._by_shape[(min(matrix.shape), max(matrix.shape))].append(matrix)
        self._means = {id(matrix): torch.zeros_like(matrix) for matrix in matrices}

    @torch.no_grad()
    def step(self, *, lr: float, threads: MicroBatchThreads) -> None:
        """Moves each matrix by `lr * sqrt(max(1, rows / columns))` along its orthogonal update."""
        groups = list(self._by_shape.values())
        for matrices, updates in zip(groups, threads.map(self._updates, groups), strict=True):
            for matrix, update in zip(matrices, updates, strict=True):
                rows, columns = matrix.shape
                scale = max(1.0, rows / columns) ** 0.5
                matrix.sub_(update if rows <= columns else update.mT, alpha=lr * scale)

    def _updates(self, matrices: Sequence[torch.nn.Parameter]) -> Tensor:
        return orthogonalise(torch.stack([self._wide_momentum(m) for m in matrices]))

    def _wide_momentum(self, matrix: torch.nn.Parameter) -> Tensor:
        """Updates the running mean; returns its look-ahead, turned so that rows <= columns."""
        gradient = matrix.grad
        assert gradient is not None, "step() comes after backward()"
        mean = self._means[id(matrix)].lerp_(gradient, 1 - _MOMENTUM)
        ahead = torch.lerp(gradient, mean, _MOMENTUM)
        return ahead if matrix.shape[0] <= matrix.shape[1] else ahead.mT
