"""The lossless BPE tokenizer of the home-made base model: text <-> token ids, data path stage 2.

Byte-level, so any text survives a round trip. A number, cut into pieces of so many digits, a
verdict word and the words that an env names never merge with anything; all else may, so the
constant phrases of a prompt become a few tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rl_core.data.prompts import OF_ITS_FILE_ALONE

PAD_TOKEN: Final = "<|pad|>"
EOS_TOKEN: Final = "<|endoftext|>"
_VERDICTS: Final = r"| no\b| yes\b"


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    digits_per_token: int = 1,
    words: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer fitted to `texts`, prompts and responses; the same for the same texts.

    It has at most `vocab_size` tokens, and at least 258: every byte, pad and eos. A token holds at
    most `digits_per_token` digits: with 1 numbers are spelt, with more those of the texts are a
    token each, as far as the vocabulary has room. Each of `words` stands alone, with the space
    before it, so that a phrase is the same tokens whatever word it stands beside.
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
